"""Files made to exhaust memory or patience, and schemas of wrong types: one sentence, before anything is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from hush._internal.validate import positive, positive_int
from hush.bench.spec import Lines, read_spec
from hush.datasets import images
from hush.datasets.images import read_arrays
from hush.errors import InvalidInputError
from hush.tabular.cells import LONGEST_NUMBER, TextColumn
from hush.tabular.columns import Number
from hush.tabular.columns.number import numbers
from hush.tabular.problem import from_files
from hush.tabular.reader import pieces
from hush.tabular.schema import read_schema


def npy(shape: str, kind: str = "<f8", content: bytes = b"") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("shape", ["(2000000000000, 1)", "(10000000000000000000000, 3)", "(-1, 3)", "'x'", "(1.5,)"])
def test_a_header_that_promises_what_is_not_there(tmp_path, shape) -> None:
    path = archive(tmp_path / "a.npz", x=npy(shape), y=npy("(2,)", "<i8", bytes(16)))
    with pytest.raises(InvalidInputError, match=r"is not a whole \.npz|cannot be read"):
        read_arrays(path, None)


def test_an_archive_that_unpacks_to_a_thousandfold(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(images, "SUSPECT", 1 << 20)
    path = archive(tmp_path / "a.npz", x=npy("(400000, 1)", content=bytes(3_200_000)), y=npy("(1,)", "<i8", bytes(8)))
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidInputError, match="3 MiB"):
        read_arrays(path, None)


@pytest.mark.parametrize("label", [2_000_000_000, 2**62, 1000])
def test_labels_that_count_no_classes(tmp_path, label) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.array([0, label]))
    with pytest.raises(InvalidInputError, match="1000"):
        read_arrays(tmp_path / "a.npz", None)


def test_numbers_too_large_for_32_bits(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((2, 3), 1e300), y=np.array([0, 1]))
    with pytest.raises(InvalidInputError, match="32"):
        read_arrays(tmp_path / "a.npz", None)


def test_a_table_of_sixty_thousand_columns(tmp_path) -> None:
    names = ",".join(f"c{i}" for i in range(60_000))
    (tmp_path / "wide.csv").write_text(f"{names}\n{','.join(['1'] * 60_000)}\n")
    with pytest.raises(InvalidInputError, match="60000.*10000"):
        list(pieces(tmp_path / "wide.csv"))


def test_one_long_cell_does_not_widen_the_others() -> None:
    assert numbers(TextColumn.of(["1", "2"])) is not None
    assert numbers(TextColumn.of(["1"] * 20_000 + ["9" * (LONGEST_NUMBER + 1) + "x"])) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"range": 5}, "range must be"),
        ({"range": [0, "x"]}, "range must be"),
        ({"range": [0, 10**400]}, "range must be"),
        ({"classes": 5}, "classes must be a list of words"),
        ({"classes": [["a"], "b"]}, "classes must be a list of words"),
        ({"classes": ["a", "a"]}, "different from each other"),
        ({"classes": ["a"]}, "at least two"),
        ({"columns": 5}, "columns must be a table"),
        ({"columns": {"a": 5}}, "column 'a' must be a table"),
        ({"columns": {"a": {"low": "x", "high": 1}}}, "low of column 'a' must be a finite number, got 'x'"),
        ({"columns": {"a": {"low": 0, "high": 1e308}}}, "as 32-bit numbers"),
        ({"columns": {"a": {"buckets": 10**12}}}, "more than 100000 buckets"),
        ({"columns": {"a": {"values": 5}}}, "values of column 'a' must be a list"),
        ({"columns": {"a": {"fill": [1]}}}, "fill of column 'a' must be a finite number"),
        ({"target": 5}, "target must be the name"),
    ],
)
def test_a_schema_of_wrong_types(tmp_path, given, sentence) -> None:
    (tmp_path / "a.csv").write_text("a,y\n" + "1,0\n2,1\n" * 10)
    with pytest.raises(InvalidInputError, match=sentence):
        from_files(tmp_path / "a.csv", target=None if "target" in given else "y", schema=given)


@pytest.mark.parametrize("content", [b"[]", b"5", b"[" * 50_000, b"\xff", b'{"range": 1e999}'])
def test_a_schema_file_that_is_none(tmp_path, content) -> None:
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match="schema"):
        read_schema(tmp_path / "s.json")


def test_a_number_of_four_hundred_digits() -> None:
    with pytest.raises(InvalidInputError, match="number"):
        positive(lr=10**400)
    with pytest.raises(InvalidInputError, match="must be a finite number"):
        Number("a", low=0, high=10**5000)
    with pytest.raises(InvalidInputError, match="whole number of at least 1"):
        positive_int(steps=-(10**5000))


def test_lines_of_a_spec_that_are_mostly_spaces(tmp_path) -> None:
    spaces = " " * 200_000
    text = f"[{spaces}defaults{spaces}x\n[[{spaces}grid{spaces}]]{spaces}# end\na{spaces}.{spaces}b{spaces}= 1\n"
    assert Lines.of(text).known == {("grid", 0): 2, ("grid", 0, "a", "b"): 3}
    (tmp_path / "spec.toml").write_text(f"[{spaces}x{spaces}\n")
    with pytest.raises(InvalidInputError, match="1"):
        read_spec(tmp_path / "spec.toml")


@pytest.mark.parametrize("content", ["x = " + "9" * 5000, "x = " + "[" * 50_000, "[[grid]]\nseeds = " + "9" * 30])
def test_a_spec_of_absurd_values(tmp_path, content) -> None:
    (tmp_path / "spec.toml").write_text(f'{content}\nproblem = "p"\nmethod = "m"\n')
    with pytest.raises(InvalidInputError, match="digits|deeply|more than"):
        read_spec(tmp_path / "spec.toml")
