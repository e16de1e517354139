"""Ids of every Arrow type are read as exact text; ids that differ only in spelling are refused unless merged."""

from __future__ import annotations

import csv
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hush.datasets.splits import hold_out_units
from hush.errors import DataError, InvalidInputError
from hush.tabular import unit_ids
from hush.tabular.inspect import inspect_table
from hush.tabular.problem import from_files
from hush.tabular.reader import spell_exactly
from hush.tabular.unit_ids import identify, normalise_id, read_owner_array, read_owners

BIG = 10**17
MANY = 300
MOMENTS = [datetime(2020, 1, 1) + timedelta(microseconds=i) for i in range(MANY)]
TYPED: dict[str, pa.Array] = {
    "int16": pa.array(range(MANY), pa.int16()),
    "int64": pa.array([BIG + i for i in range(MANY)], pa.int64()),
    "uint64": pa.array([2**64 - 1 - i for i in range(MANY)], pa.uint64()),
    "float16": pa.array(np.arange(MANY, dtype=np.float16)),
    "float32": pa.array(np.arange(MANY, dtype=np.float32)),
    "float64": pa.array([i / 8 for i in range(MANY)], pa.float64()),
    "decimal128": pa.array([Decimal(BIG + i) for i in range(MANY)], pa.decimal128(38, 0)),
    "decimal128 with a scale": pa.array([Decimal(BIG + i) / 100 for i in range(MANY)], pa.decimal128(38, 2)),
    "decimal256": pa.array([Decimal(10**60 + i) for i in range(MANY)], pa.decimal256(70, 0)),
    "string": pa.array([f"p{i}" for i in range(MANY)]),
    "large_string": pa.array([f"p{i}" for i in range(MANY)], pa.large_string()),
    "dictionary": pa.array([f"p{i}" for i in range(MANY)]).dictionary_encode(),
    "dictionary of decimals": pa.array(
        [Decimal(BIG + i) for i in range(MANY)], pa.decimal128(38, 0)
    ).dictionary_encode(),
    "binary": pa.array([bytes([255, i // 256, i % 256]) for i in range(MANY)], pa.binary()),
    "large_binary": pa.array([bytes([255, i // 256, i % 256]) for i in range(MANY)], pa.large_binary()),
    "fixed_size_binary": pa.array([i.to_bytes(16, "little") for i in range(MANY)], pa.binary(16)),
    "date32": pa.array([date(2020, 1, 1) + timedelta(days=i) for i in range(MANY)], pa.date32()),
    "timestamp us": pa.array(MOMENTS, pa.timestamp("us")),
    "timestamp ns": pa.array(range(MANY), pa.int64()).cast(pa.timestamp("ns")),
    "timestamp with a zone": pa.array(range(MANY), pa.int64()).cast(pa.timestamp("ns", "UTC")),
    "time64": pa.array(range(MANY), pa.int64()).cast(pa.time64("ns")),
    "duration": pa.array(range(MANY), pa.int64()).cast(pa.duration("ns")),
}


def write_parquet(path: Path, who: pa.Array) -> Path:
    """Two rows for each id."""
    columns = {"who": pa.concat_arrays([who, who]), "x": list(range(2 * len(who))), "y": ["u", "v"] * len(who)}
    pq.write_table(pa.table(columns), path)
    return path


def write_csv(path: Path, ids: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["who", "x", "y"], *([name, i, "uv"[i % 2]] for i, name in enumerate(ids))])
    return path


@pytest.mark.parametrize("kind", TYPED)
def test_different_values_of_any_type_are_different_units(tmp_path: Path, kind: str) -> None:
    found = read_owners(write_parquet(tmp_path / "t.parquet", TYPED[kind]), "who")
    assert len(set(found.tolist())) == MANY
    assert found[:MANY].tolist() == found[MANY:].tolist()


@pytest.mark.parametrize("kind", TYPED)
def test_a_table_with_units_of_any_type_is_read(tmp_path: Path, kind: str) -> None:
    path = write_parquet(tmp_path / "t.parquet", TYPED[kind])
    problem = from_files(path, target="y", unit="who", schema={"classes": ["u", "v"]})
    assert problem.owners is not None
    assert len({*problem.owners.train.tolist(), *problem.owners.test.tolist()}) == MANY


@pytest.mark.parametrize("kind", TYPED)
def test_ids_in_text_are_those_of_their_type(tmp_path: Path, kind: str) -> None:
    words = spell_exactly(TYPED[kind], "who", "t").to_pylist()
    assert len(set(words)) == MANY
    typed = read_owners(write_parquet(tmp_path / "t.parquet", TYPED[kind]), "who")
    assert read_owners(write_csv(tmp_path / "t.csv", [*words, *words]), "who").tolist() == typed.tolist()


def test_three_thousand_persons_with_long_decimals_are_three_thousand_units(tmp_path: Path) -> None:
    ids = pa.array([Decimal(BIG + i) for i in range(3000)], pa.decimal128(20, 0))
    assert len(set(read_owners(write_parquet(tmp_path / "t.parquet", ids), "who").tolist())) == 3000


@pytest.mark.parametrize(("kind", "most"), [(np.float16, 2**11), (np.float32, 2**24), (np.float64, 2**53)])
def test_numbers_that_no_longer_tell_ids_apart_are_refused(tmp_path: Path, kind: Any, most: int) -> None:
    below, above = (np.array([1, value], kind) for value in (most - 1, most))
    assert len(set(read_owners(write_parquet(tmp_path / "a.parquet", pa.array(below)), "who").tolist())) == 2
    with pytest.raises(DataError, match=str(most)):
        read_owners(write_parquet(tmp_path / "b.parquet", pa.array(above)), "who")
    np.savez(tmp_path / "t.npz", who=above)
    with pytest.raises(DataError, match=str(most)):
        read_owner_array(tmp_path / "t.npz", "who", 2)


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())])])
def test_a_type_without_a_text_is_refused(tmp_path: Path, kind: Any) -> None:
    value = [1] if pa.types.is_list(kind) else {"a": 1}
    with pytest.raises(DataError):
        read_owners(write_parquet(tmp_path / "t.parquet", pa.array([value, value], kind)), "who")


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_missing_id_of_a_typed_column_is_refused(tmp_path: Path, value: float | None) -> None:
    with pytest.raises(DataError, match="2"):
        read_owners(write_parquet(tmp_path / "t.parquet", pa.array([1.0, value], pa.float64())), "who")


DIFFERENCES = {
    "composed": ("caf\u00e9", "cafe\u0301", "Unicode form"),
    "wide digits": ("12", "\uff11\uff12", "Unicode form"),
    "case": ("Anna", "anna", "case"),
    "sharp s": ("stra\u00dfe", "STRASSE", "case"),
    "spaces": ("anna", " anna", "spaces"),
    "NUL": ("anna", "anna\x00", "spaces"),
    "zero width": ("anna", "an\u200bna", "invisible"),
    "byte-order mark": ("\ufeffanna", "anna", "invisible"),
    "soft hyphen": ("an\u00adna", "anna", "invisible"),
    "joiner": ("anna", "an\u034fna", "invisible"),
    "Hangul filler": ("anna\u3164", "anna", "invisible"),
    "variation selector": ("anna", "anna\U000e0100", "invisible"),
    "empty braille": ("anna", "an\u2800na", "invisible"),
    "whole number": ("12", "12.0", "'.0'"),
    "several": ("Anna", "anna ", "case"),
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_ids_that_differ_in_spelling_alone_are_refused_or_merged(tmp_path: Path, difference: str, suffix: str) -> None:
    one, other, kind = DIFFERENCES[difference]
    if suffix == ".npz" and other.endswith("\x00"):
        pytest.skip("numpy keeps no NUL at the end of a text")
    ids, path = [one, other, "third", one], tmp_path / f"t{suffix}"
    if suffix == ".csv":
        write_csv(path, ids)
    elif suffix == ".parquet":
        pq.write_table(pa.table({"who": ids}), path)
    else:
        np.savez(path, who=np.array(ids))

    def read(**how: bool) -> list[int]:
        return (
            read_owner_array(path, "who", 4, **how) if suffix == ".npz" else read_owners(path, "who", **how)
        ).tolist()

    with pytest.raises(DataError, match=kind) as error:
        read()
    assert all(name.strip("\x00 ") not in str(error.value) for name in (one, other) if len(name) > 2)
    merged = read(normalise=True)
    assert merged[0] == merged[1] == merged[3] != merged[2]
    assert normalise_id(one) == normalise_id(other)


def test_numbers_of_more_than_eight_bytes_are_refused(tmp_path: Path) -> None:
    ids = np.longdouble(1) + np.arange(4, dtype=np.longdouble) * 2.0**-60
    np.savez(tmp_path / "t.npz", who=ids)
    with pytest.raises(InvalidInputError):
        read_owner_array(tmp_path / "t.npz", "who", 4)


def test_ids_that_share_sixty_four_bits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "t.csv", ["a", "b", "c"])
    whole = unit_ids._digest
    monkeypatch.setattr(unit_ids, "_digest", lambda text: bytes(8) + whole(text)[8:])
    with pytest.raises(DataError, match="64-bit"):
        read_owners(path, "who")


def test_ordinary_ids_keep_their_numbers(tmp_path: Path) -> None:
    """The split by unit depends on them: BLAKE2b of 8 bytes with the person "hush unit"."""
    assert identify("a") == 7_715_301_099_306_851_399
    assert read_owners(write_csv(tmp_path / "t.csv", ["a", "Anna 7"]), "who").tolist()[0] == identify("a")


def test_merging_needs_a_unit(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [f"{i}" for i in range(30)])
    with pytest.raises(ValueError, match="--unit"):
        from_files(path, target="y", unit_normalise=True, schema={"classes": ["u", "v"]})


# The unit of each row: reading it, splitting by it, and detecting an undeclared unit column.


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
