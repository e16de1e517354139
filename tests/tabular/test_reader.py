"""A table in several files equals the same table in one file; inconsistent parts are refused."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from hush._internal.validate import positive, positive_int
from hush.bench.spec import read_spec
from hush.datasets import images
from hush.datasets.images import read_arrays
from hush.errors import DataError, InvalidInputError
from hush.tabular import reader
from hush.tabular.cells import LONGEST_NUMBER, TextColumn, is_missing, map_texts
from hush.tabular.columns import Number
from hush.tabular.columns.number import numbers
from hush.tabular.problem import from_files
from hush.tabular.reader import ReadProgress, estimate_rows, find_parts, holds_table, read_chunks
from hush.tabular.rows import read_table
from hush.tabular.schema import read_schema
from schemas import infer_schema

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

HEADER = "x,word,note,y\n"


def make_lines(rows: int = 700) -> list[str]:
    """Numbers in many spellings, words with spaces, quotes and line ends in them, and a label."""
    spellings = ("{}", "{}.5", "-{}e-3", " {} ", "+{}.", "1{}E+2")
    words = ("red", " blue", '"a, b"', '"two\nlines"', '"say ""so"""', "", "grün")
    return [
        f"{spellings[i % 6].format(i)},{words[i % 7]},n{i % 150},{('no', 'yes')[i % 3 == 0]}\n" for i in range(rows)
    ]


def write_parts(folder: Path, cuts: tuple[int, ...], suffix: str = ".csv") -> Path:
    """The lines in one file, and cut into parts in a folder of their own; the folder is given back."""
    lines = make_lines()
    (folder / "whole.csv").write_text(HEADER + "".join(lines), encoding="utf-8")
    parts = folder / "parts"
    parts.mkdir()
    ends = [0, *cuts, len(lines)]
    for place, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        text = (HEADER + "".join(lines[start:end])).encode()
        (parts / f"part-{place:03}{suffix}").write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    return parts


def read(place: Path) -> tuple[torch.Tensor, torch.Tensor]:
    return read_table(place, infer_schema(place, "y", {}))


def check_same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
@pytest.mark.parametrize("cuts", [(), (1,), (350, 351), (100, 100, 699)])
def test_parts_are_one_table(tmp_path: Path, cuts: tuple[int, ...], suffix: str) -> None:
    parts = write_parts(tmp_path, cuts, suffix)
    whole = read(tmp_path / "whole.csv")
    assert whole[0].shape == (700, 3)
    check_same(read(parts), whole)
    check_same(read(parts / f"part-*{suffix}"), whole)


@pytest.mark.parametrize("rows", [1, 7, 699, 700, 10_000])
def test_a_piece_may_end_after_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    parts = write_parts(tmp_path, (333,))
    whole = read(tmp_path / "whole.csv")
    monkeypatch.setattr(reader, "ROWS", rows)
    check_same(read(parts), whole)


@pytest.mark.parametrize("block", [101, 250, 1000, 1 << 20])
def test_a_block_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    path = write_parts(tmp_path, ()) / "part-000.csv"
    whole = read(path)
    cells = [cell for chunk in read_chunks(path) for row in zip(*chunk.values(), strict=True) for cell in row]
    monkeypatch.setattr(reader, "BLOCK", block)
    assert [cell for chunk in read_chunks(path) for row in zip(*chunk.values(), strict=True) for cell in row] == cells
    check_same(read(path), whole)


def test_a_row_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parts(tmp_path, ()) / "part-000.csv"
    monkeypatch.setattr(reader, "BLOCK", 12)
    with pytest.raises(DataError):
        read(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,y\n1,0\n\n1,2,3\n", "row 2 of '.*' has 3 cells where the header has 2"),
        ("a,y\n1,0\n\udcff,1\n", "is not a text table in UTF-8"),
        ("a,y\n", "holds no rows"),
        ("a,a\n1,2\n", "have the same name"),
    ],
)
def test_errors_of_text(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidInputError, match=sentence):
        infer_schema(tmp_path / "rows.csv", "y", {})


SPELLINGS = [
    "1",
    "-2.5",
    "1e-7",
    "+3.",
    ".5",
    " 4 ",
    "",
    "NA",
    "nan",
    "inf",
    "1e400",
    "0.1",
    "9007199254740993",
    "5e-324",
]


@pytest.mark.parametrize("cells", [SPELLINGS, SPELLINGS[:5], [*SPELLINGS[:5], ""], ["x", "1"], ["1_0"]])
def test_numbers_are_pythons_bits(cells: list[str]) -> None:
    found = numbers(TextColumn.of(cells))
    assert (found is None) == (cells[0] in ("x", "1_0"))
    if found is not None:
        assert found.tobytes() == np.array([float("nan" if is_missing(cell) else cell) for cell in cells]).tobytes()


def test_a_function_sees_every_different_word_once() -> None:
    seen: list[str] = []

    def measure(word: str) -> float:
        seen.append(word)
        return len(word)

    assert map_texts(TextColumn(pa.array(["ab", "c ", "ab", None, "c "])), measure).tolist() == [2, 1, 2, 0, 1]
    assert seen == ["ab", "c", ""]


def test_parquet_parts_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"x": np.arange(90.0), "g": [f"g{i % 4}" for i in range(90)], "y": [i % 2 for i in range(90)]}
    table = pa.table(rows)
    pq.write_table(table, tmp_path / "whole.parquet")
    (tmp_path / "parts").mkdir()
    for place, start in enumerate((0, 31, 62)):
        pq.write_table(table.slice(start, 31), tmp_path / "parts" / f"{place}.parquet")
    (tmp_path / "parts" / "_SUCCESS").touch()
    whole = read(tmp_path / "whole.parquet")
    check_same(read(tmp_path / "parts"), whole)
    monkeypatch.setattr(reader, "ROWS", 8)
    check_same(read(tmp_path / "parts" / "*.parquet"), whole)
    assert estimate_rows(find_parts(tmp_path / "parts")) == 90


def test_parts_need_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,z,y\n1,2,0\n3,4,1\n")
    (tmp_path / "b.csv").write_text("y,x\n0,1\n")
    with pytest.raises(InvalidInputError, match=r"'.*b\.csv'.*'z'.*'.*a\.csv'"):
        read(tmp_path)
    (tmp_path / "b.csv").write_text("y,x,w,z\n0,1,5,6\n")
    with pytest.raises(InvalidInputError, match=r"'.*b\.csv'.*'w'.*'.*a\.csv'"):
        read(tmp_path)
    (tmp_path / "b.csv").write_text("y,x,z\n1,5,6\n")  # in another order
    assert read(tmp_path)[0].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_typed_parts_need_the_same_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["one", "two"], "y": [0, 1]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidInputError, match=r"'x'.*'.*b\.parquet'.*'.*a\.parquet'"):
        read(tmp_path)
    pq.write_table(pa.table({"x": pa.array([3, 4]), "y": [0, 1]}), tmp_path / "b.parquet")
    assert read(tmp_path)[0].flatten().tolist() == [1, 2, 3, 4]


def test_an_error_names_the_part_and_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n3,0\n")
    (tmp_path / "b.csv").write_text("x,y\n1,0\n2,maybe\n")
    schema = infer_schema(tmp_path / "a.csv", "y", {})
    with pytest.raises(InvalidInputError, match=r"2.*'.*b\.csv'.*2"):
        read_table(tmp_path, schema)


def test_a_folder_is_told_by_what_it_holds(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    tables, images = write_parts(tmp_path, (300,)), tmp_path / "images"
    for name, value in (("dark", 20), ("light", 230)):
        (images / name).mkdir(parents=True)
        for i in range(5):
            image.new("L", (8, 8), value + i).save(images / name / f"{i}.png")
    (images / "labels.csv").write_text("file,class\n")  # beside class folders, as some come
    assert holds_table(tables)
    assert not holds_table(images)
    assert from_files(tables, target="y", public=("classes",)).schema is not None
    found = from_files(images)
    assert (found.schema, found.class_names) == (None, ("dark", "light"))
    (tables / "notes.md").touch()
    with pytest.raises(InvalidInputError, match=r"'notes\.md'"):
        from_files(tables, target="y", public=("classes",))
    assert from_files(tables / "*.csv", target="y", public=("classes",)).name == "parts"


def test_a_pattern_that_fits_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"'.*none-\*\.csv'"):
        from_files(tmp_path / "none-*.csv", target="y", public=("classes",))


def test_a_broken_gz_is_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(b"x,y\n" + b"1,0\n2,1\n" * 1000)
    (tmp_path / "rows.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match=r"\.gz"):
        infer_schema(tmp_path / "rows.csv.gz", "y", {})


def test_what_is_said_of_a_long_reading() -> None:
    said: list[str] = []
    clock = iter([0.0, 1.9, 2.0, 2.0, 11.9, 12.0, 12.0, 61.2])
    watch = ReadProgress("big.csv", 3000, said.append, now=lambda: next(clock))
    watch.begin("looking at")
    for _ in range(4):
        watch.count(1000)
    watch.finish(10_000_000, 20)
    assert said == [
        "looking at 'big.csv': 2 000 of about 3 000 rows …",
        "looking at 'big.csv': 4 000 of about 4 000 rows …",
        "read 10 000 000 rows of 20 columns in 61 s",
    ]


# Files that would exhaust memory or time, and schemas of wrong types: one sentence, before anything is unpacked.


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
        list(read_chunks(tmp_path / "wide.csv"))


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
    with pytest.raises(InvalidInputError, match="number"):
        Number("a", low=0, high=10**5000)
    with pytest.raises(InvalidInputError, match="1"):
        positive_int(steps=-(10**5000))


def test_lines_of_a_spec_that_are_mostly_spaces(tmp_path) -> None:
    spaces = " " * 200_000
    (tmp_path / "spec.toml").write_text(f"[{spaces}x{spaces}\n")
    with pytest.raises(InvalidInputError, match="1"):
        read_spec(tmp_path / "spec.toml")


@pytest.mark.parametrize("content", ["x = " + "9" * 5000, "x = " + "[" * 50_000, "[[grid]]\nseeds = " + "9" * 30])
def test_a_spec_of_absurd_values(tmp_path, content) -> None:
    (tmp_path / "spec.toml").write_text(f'{content}\nproblem = "p"\nmethod = "m"\n')
    with pytest.raises(InvalidInputError, match="digits|deeply|more than"):
        read_spec(tmp_path / "spec.toml")
