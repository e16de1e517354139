"""Whose each row is: reading it, splitting by it, and noticing that nobody said so."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from hush.datasets.splits import hold_out_units
from hush.errors import InvalidInputError
from hush.tabular.inspect import inspect_table
from hush.tabular.unit_ids import identify, read_owner_array, read_owners


def write(path: Path, names: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def people(count: int) -> np.ndarray:
    return np.array([identify(f"person {i}") for i in range(count)])


def test_a_name_has_one_number_wherever_it_is_read(tmp_path) -> None:
    table = write(tmp_path / "t.csv", ["who", "x"], [["b", 1], [" a ", 2], ["b", 3]])
    found = read_owners(table, "who")
    assert found.tolist() == [identify("b"), identify("a"), identify("b")]
    np.savez(tmp_path / "t.npz", who=np.array(["b", "a", "b"]), who_test=np.array(["c"]), n=np.array([[1]]))
    assert read_owner_array(tmp_path / "t.npz", "who", 3).tolist() == found.tolist()
    assert read_owner_array(tmp_path / "t.npz", "who", 1, test=True).tolist() == [identify("c")]
    with pytest.raises(InvalidInputError, match="row"):
        read_owner_array(tmp_path / "t.npz", "n", 1)
    with pytest.raises(InvalidInputError, match="'nobody'"):
        read_owner_array(tmp_path / "t.npz", "nobody", 1)


def test_an_id_is_one_unit_however_its_number_is_kept(tmp_path) -> None:
    """A column of ids that was once read as fractions has 7.0 in one part and 7 in another."""
    table = write(tmp_path / "t.csv", ["who"], [["7"], ["7.0"], ["-7.00"], ["7.5"], ["70"]])
    seven, minus = identify("7"), identify("-7")
    assert read_owners(table, "who", normalise=True).tolist() == [seven, seven, minus, identify("7.5"), identify("70")]
    assert len({seven, minus, identify("7.5"), identify("70")}) == 4
    kept = {
        "whole": np.array([7, -7]),
        "fraction": np.array([7.0, -7.0]),
        "single": np.array([7, -7], np.float32),
        "text": np.array(["7", " -7 "]),
        "octets": np.array([b"7", b"-7"]),
    }
    np.savez(tmp_path / "t.npz", **kept)
    for name in kept:
        assert read_owner_array(tmp_path / "t.npz", name, 2).tolist() == [seven, minus], name


@pytest.mark.parametrize("values", [np.array(["a", ""]), np.array(["a", " NA"]), np.array([1.0, np.nan, np.inf])[:2]])
def test_an_array_that_names_nobody_is_refused_without_quoting_it(tmp_path, values: np.ndarray) -> None:
    np.savez(tmp_path / "t.npz", who=values)
    with pytest.raises(InvalidInputError, match="2"):
        read_owner_array(tmp_path / "t.npz", "who", 2)


def test_names_that_no_text_file_can_hold_are_names_too(tmp_path) -> None:
    np.savez(tmp_path / "t.npz", who=np.array(["\ud800", "a"]))
    assert len(set(read_owner_array(tmp_path / "t.npz", "who", 2).tolist())) == 2


def test_a_row_that_is_nobodys_is_refused_without_quoting_a_cell(tmp_path) -> None:
    for blank in ("", " ", "NA", "nan"):
        table = write(tmp_path / "t.csv", ["who", "secret"], [["b", "x93"], [blank, "y17"]])
        with pytest.raises(InvalidInputError, match="2") as error:
            read_owners(table, "who")
        assert "x93" not in str(error.value)
        assert "y17" not in str(error.value)
    with pytest.raises(InvalidInputError, match="'whom'.*'who'"):
        read_owners(table, "whom")


def test_a_unit_is_on_one_side_and_its_share_is_held_out() -> None:
    whose = np.repeat(people(3000), 3)
    rows = (torch.arange(len(whose)),)
    (rest, of_rest), (held, of_held) = hold_out_units(rows, whose, 0.2, seed=0, stream="test")
    assert not set(of_rest.tolist()) & set(of_held.tolist())
    assert sorted([*rest[0].tolist(), *held[0].tolist()]) == list(range(len(whose)))
    assert (whose[rest[0].numpy()] == of_rest).all()
    assert (whose[held[0].numpy()] == of_held).all()
    assert abs(len(set(of_held.tolist())) - 600) < 5 * (3000 * 0.2 * 0.8) ** 0.5


def test_one_unit_more_moves_nobody_else() -> None:
    """Neither to the other side nor past one another; a split by position fails at this."""
    whose = people(500)

    def split(of: np.ndarray) -> tuple[list[int], list[int]]:
        (_, rest), (_, held) = hold_out_units((torch.zeros(len(of)),), of, 0.2, seed=0)
        return rest.tolist(), held.tolist()

    rest, held = split(whose)
    for place in (0, 250, 499):
        fewer_rest, fewer_held = split(np.delete(whose, place))
        gone = whose[place]
        assert fewer_rest == [one for one in rest if one != gone]
        assert fewer_held == [one for one in held if one != gone]
    assert split(whose[::-1].copy())[0] == rest  # nor does the order of the file matter
    other, _ = hold_out_units((torch.zeros(500),), whose, 0.2, seed=1)
    assert set(other[1].tolist()) != set(rest)


@pytest.mark.parametrize(
    ("name", "cell", "found"),
    [
        ("mrn", lambda i: i // 3, True),
        ("userId", lambda i: i // 3, True),
        ("code", lambda i: f"P{i // 3:03d}", True),
        ("grade", lambda i: f"A{i % 4}", False),
        ("income", lambda i: 9_900 + 7 * (i // 3), False),
        ("weight", lambda i: 0.5 * (i // 3), False),
        ("row_id", lambda i: i, False),
        ("day", lambda i: f"2020-01-{1 + i % 28:02d}", False),
        ("note", lambda i: f"was here {i // 3} times", False),
        ("level_id", lambda i: i % 3, False),
    ],
)
def test_what_is_taken_for_an_id(tmp_path, name: str, cell, found: bool) -> None:
    table = write(tmp_path / "t.csv", [name, "y"], [[cell(i), i % 2] for i in range(120)])
    warned = inspect_table(table, {}, target="y").list_repeating()
    assert any(f"--unit {name}" in text for text in warned) is found
