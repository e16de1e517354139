"""Long tables in a memory-mapped file: the same rows as in memory, in a private file without a name."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush.data_source import Tensors, as_source
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import Problem
from hush.datasets.splits import as_arrays, hold_out
from hush.distributed.consistency import digest_data
from hush.errors import InvalidInputError
from hush.randomness import Secret, seeded
from hush.release.description import Description, describe_table
from hush.release.rows import encode_rows
from hush.tabular import reader
from hush.tabular import rows as rows_module
from hush.tabular.cells import TextColumn
from hush.tabular.columns import GAP, Category, Date, Encoder, Flag, Number, describe_columns
from hush.tabular.columns.date import DOTTED, parse_date
from hush.tabular.columns.number import WAVES
from hush.tabular.inspect import inspect_table, write_toml
from hush.tabular.problem import from_files
from hush.tabular.rows import Encoded, RowSubset, encode_chunk, map_rows, pick_all, read_table
from hush.tabular.schema import Schema, public_columns, read_schema
from schemas import infer_schema


def give(rows: int = 10, step: int = 3) -> Iterator[Encoded]:
    whole = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    for start in range(0, rows, step):
        part = whole[start : start + step]
        yield part, part[:, 0].astype(np.int64) % 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{i}.25,g{i % 5},{i % 2}\n" for i in range(400)]
    for place in range(4):
        (tmp_path / f"part{place}.csv").write_text("x,g,y\n" + "".join(lines[100 * place : 100 * (place + 1)]))
    return tmp_path / "part*.csv"


def load_both(table: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[Problem, Problem]:
    """The same problem in memory and in mapped files."""
    options = {"public": ("classes",), **options}
    short = from_files(table, target="y", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(rows_module, "MAPPED", 0)
    long = from_files(table, target="y", **options)  # type: ignore[arg-type]
    assert isinstance(short.train, tuple)
    assert isinstance(long.train, RowSubset)
    return short, long


def check_equal(short: object, long: object) -> None:
    one, other = as_source(short), as_source(long)
    assert len(one) == len(other)
    for indices in (torch.arange(len(one)), torch.tensor([2, 0, 2]), torch.zeros(0, dtype=torch.long)):
        for a, b in zip(one.take(indices), other.take(indices), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@pytest.mark.parametrize("step", [1, 3, 10, 99])
def test_pieces_of_any_length_become_the_same_files(step: int) -> None:
    rows, labels = map_rows(give(step=step))
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[2.0 * i, 2.0 * i + 1] for i in range(10)]
    assert labels.tolist() == [2 * i % 3 for i in range(10)]


def test_mapped_rows_are_the_rows_in_memory(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch, validation=0.1)
    assert (short.summary, short.assumptions) == (long.summary, long.assumptions)
    for part in ("train", "test", "validation"):
        check_equal(getattr(short, part), getattr(long, part))


def test_mapped_targets_of_a_regression(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch, task="regression", target_range=(0.0, 0.5), validation=0.1)
    for part in ("train", "test", "validation"):
        check_equal(getattr(short, part), getattr(long, part))


def test_figures_of_mapped_rows(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch)
    with seeded(0):
        model = short.model()
    one, other = evaluate_problem(model, short), evaluate_problem(model, long)
    assert (one.loss, one.confusion, one.metrics) == (other.loss, other.confusion, other.metrics)


def test_a_test_file_may_be_long_too(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, long = load_both(table, monkeypatch, test=table)
    assert isinstance(long.test, RowSubset)
    assert len(long.train) == len(long.test) == 400


def test_a_source_over_mapped_rows_is_one_over_tensors() -> None:
    tensors = map_rows(give())
    rows = torch.tensor([7, 1, 1, 4])
    check_equal(Tensors(tuple(t[rows] for t in tensors)).tensors, pick_all(tensors).pick(rows))
    held = hold_out(pick_all(tensors), 0.3, seed=5)
    for part, same in zip(held, hold_out(tensors, 0.3, seed=5), strict=True):
        check_equal(same, part)
        assert all(torch.equal(a, b) for a, b in zip(as_arrays(part), as_arrays(same), strict=True))


def test_a_digest_of_mapped_rows_sees_one_cell() -> None:
    tensors, secret = map_rows(give()), Secret.from_seed(1, "here")
    before = digest_data(pick_all(tensors), secret, lambda _: None)
    assert before == digest_data(pick_all(map_rows(give())), secret, lambda _: None)
    tensors[0][4, 1] += 1
    assert digest_data(pick_all(tensors), secret, lambda _: None) != before


def test_the_file_has_no_name_and_only_its_owner_may_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[str], os.stat_result]] = []
    map_file = rows_module._map_file

    def watch(file, shape):  # type: ignore[no-untyped-def]
        seen.append((file.fileno(), os.listdir(tmp_path), os.fstat(file.fileno())))
        return map_file(file, shape)

    monkeypatch.setattr(rows_module, "_map_file", watch)
    before = os.umask(0)
    try:
        rows, _ = map_rows(give(), tmp_path)
    finally:
        os.umask(before)
    ((_, names, state),) = seen
    assert names == []
    assert state.st_nlink == 0
    assert state.st_dev == tmp_path.stat().st_dev
    assert stat.S_IMODE(state.st_mode) == 0o600
    assert state.st_size == rows.numel() * 4
    assert list(tmp_path.iterdir()) == []
    assert rows.sum() == sum(range(20))


def test_a_killed_process_leaves_no_rows(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from hush.tabular.rows import map_rows\n"
        "def give():\n    yield np.ones((5, 2), np.float32), np.zeros(5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n    yield np.ones((5, 2), np.float32), np.zeros(5)\n"
        "map_rows(give(), Path(sys.argv[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_reading_leaves_no_rows(tmp_path: Path) -> None:
    def fail() -> Iterator[Encoded]:
        yield from give(6)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_rows(fail(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_home_folder_has_no_copy(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("HUSH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(home))
    folder = tmp_path / "run"
    folder.mkdir()
    load_both(table, monkeypatch, private_folder=folder)
    assert not home.exists()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="file"):
        map_rows(give(), tmp_path / "file")

    def fill(*given: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(rows_module, "_map_file", fill)
    with pytest.raises(InvalidInputError):
        map_rows(give(), tmp_path)


# The user's tables: kinds detected, rows encoded without statistics, one sentence for bad input.


TEXT = "age,job,note,label\n39,clerk,1,yes\n50,farmer,x,no\n28,clerk,2,no\n"


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_kinds_are_found_and_shown(tmp_path: Path) -> None:
    schema = infer_schema(write(tmp_path, TEXT), "label", {})
    assert [(c.name, c.kind) for c in schema.features] == [("age", "number"), ("job", "category"), ("note", "category")]
    assert schema.classes == ("no", "yes")
    assert schema.lines() == [
        "age    number    no public range given: 8 fixed functions on a logarithmic scale, and whether it is missing",
        "job    category  no public list given: hashed into 32 slots, and whether it is missing",
        "note   category  no public list given: hashed into 32 slots, and whether it is missing",
        "label  target    2 classes",
    ]


def test_by_default_no_value_of_the_rows_decides_the_encoding(tmp_path: Path) -> None:
    schema = infer_schema(write(tmp_path, TEXT), "label", {})
    assert not any({"low", "values"} & column.to_schema().keys() for column in schema.features)
    assert "the classes are public (they were read off the rows)" in schema.assumed


def test_facts_said_to_be_public_are_read_off_and_stated(tmp_path: Path) -> None:
    schema = infer_schema(write(tmp_path, TEXT), "label", {}, public=("ranges", "categories"))
    age, job, _ = schema.features
    assert (age.low, age.high) == (28, 50)
    assert job.values == ("clerk", "farmer")
    assert "the ranges of the columns, read off the rows, are public anyway" in schema.assumed
    with pytest.raises(InvalidInputError, match="'ranges'"):
        infer_schema(tmp_path / "rows.csv", "label", {}, public=("range",))


def test_a_given_schema_decides(tmp_path: Path) -> None:
    given = {"classes": ["yes", "no"], "columns": {"age": {"low": 0, "high": 120}, "job": {"values": ["clerk"]}}}
    path = write(tmp_path, TEXT)
    schema = infer_schema(path, "label", given)
    rows, labels = read_table(path, schema)
    assert labels.tolist() == [0, 1, 1]
    assert rows[:, :2].tolist() == [[39, 0], [50, 1], [28, 0]]
    assert schema.features[0].describe() == (
        "range 0 … 120 mapped to [−1, 1], and 8 fixed functions on a logarithmic scale"
    )


def test_a_range_never_takes_inputs_away(tmp_path: Path) -> None:
    """Whoever says more about a number must not get less; the schema may still ask for the range alone."""
    path = write(tmp_path, TEXT)
    free = infer_schema(path, "label", {}).columns[0]
    for given, public in (
        ({"columns": {"age": {"low": 0, "high": 120}}}, ()),
        ({"range": [0, 120]}, ()),
        ({}, ("ranges",)),
    ):
        ranged = infer_schema(path, "label", given, public).columns[0]
        assert ranged.low is not None
        assert ranged.has_waves
        assert ranged.width - ranged.missing == free.width - free.missing + 1
    plain = {"columns": {"age": {"low": 0, "high": 120, "waves": False}}}
    assert infer_schema(path, "label", plain).columns[0].width == 1
    assert infer_schema(path, "label", {"range": [0, 120], "columns": {"age": {"waves": False}}}).columns[0].width == 1


def test_a_released_schema_is_taken_as_it_stands() -> None:
    """Models from before there was a choice have the range alone, and say nothing about it."""
    assert public_columns({"age": {"kind": "number", "low": 0, "high": 120}})["age"].width == 1
    rich = Schema((Number("age", 0, 120, waves=True), Category("y")), "y", ("u", "v"))
    assert rich.to_json()["columns"] == {"age": {"kind": "number", "low": 0, "high": 120, "waves": True}}
    assert public_columns(rich.to_json()["columns"])["age"] == rich.columns[0]
    with pytest.raises(InvalidInputError, match="'waves'.*'age'"):
        public_columns({"age": {"low": 0, "high": 1, "waves": 1}})
    with pytest.raises(InvalidInputError, match="'age'.*'waves'.*category"):
        public_columns({"age": {"kind": "category", "waves": True}})


@pytest.mark.parametrize("waves", [False, True])
@pytest.mark.parametrize("ending", [".json", ".toml"])
def test_a_released_schema_given_again_encodes_the_same(tmp_path: Path, waves: bool, ending: str) -> None:
    """Both ways to read it: beside the model, and as a schema for the next one."""
    path = write(tmp_path, TEXT)
    given = {"target": "label", "columns": {"age": {"low": 0, "high": 120, "waves": waves}}}
    schema = infer_schema(path, None, given)
    kept = tmp_path / f"schema{ending}"
    if ending == ".json":
        kept.write_text(json.dumps(schema.to_json()))
    else:
        kept.write_text(write_toml(inspect_table(path, given, target="label"), target="label"))
    again = infer_schema(path, None, read_schema(kept))
    assert again.features == schema.features
    assert again.features[0].waves == waves
    assert public_columns(schema.to_json()["columns"])["age"] == schema.features[0]


def test_hashing_is_fixed_and_public() -> None:
    column = Category("job", buckets=32)
    # printf clerk | b2sum -l 64: d0b46d8d…, farmer: c06d3768…, nothing: e4a6a057…; the first byte modulo 32
    assert [column.code(v) for v in ("clerk", "farmer", "")] == [0xD0 % 32, 0xC0 % 32, 0xE4 % 32]


def test_delimiters_blank_lines_and_byte_order_marks(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffa;b;y\n1;2,5;0\n\n3;4;1\n")
    schema = infer_schema(path, "y", {})
    assert [(c.name, c.kind) for c in schema.features] == [("a", "number"), ("b", "number")]
    assert read_table(path, schema)[0].tolist() == [[1, 2.5], [3, 4]]


def test_classes_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n" + "".join(f"{i},{i}\n" for i in (10, 9, 2)))
    assert infer_schema(path, "y", {}).classes == ("2", "9", "10")


AGE, B, C = ({"columns": {name: {"kind": "number"}}} for name in ("age", "b", "c"))
BAD = {
    "has no column 'lable': did you mean 'label'": (TEXT, "lable", {}),
    "name the column to predict": (TEXT, None, {}),
    "column 'age' of '.*' has no finite number in row 2: remove such rows": ("age,y\n1,0\nnan,1\n", "y", AGE),
    "column 'b' of '.*' has no finite number in row 1": ("b,y\n,0\n3,1\n", "y", B),
    "column 'c' of '.*' has no finite number in row 3": ("c,y\n1,0\n3,1\ninf,1\n", "y", C),
    "row 2 of '.*' has 3 cells where the header has 2": ("a,y\n1,0\n1,2,3\n", "y", {}),
    "columns 1 and 2 of '.*' have the same name": ("a,a\n1,0\n", "a", {}),
    "must name every column": ("a,,y\n1,2,0\n", "y", {}),
    "the first line of '.*' must name": ("", "y", {}),
    "holds no rows": ("a,y\n", "y", {}),
    "has one value only": ("a,y\n1,0\n2,0\n", "y", {}),
    "holds fractions and looks like a number: predict it with --task regression": ("a,y\n1,0.5\n2,0\n", "y", {}),
    "has rows without a label": ("a,y\n1,0\n2,\n3,1\n", "y", {}),
    "more than 20 different whole numbers and looks like a number: predict it with --task regression": (
        "a,y\n" + "".join(f"1,{i % 200}\n" for i in range(1500)),
        "y",
        {},
    ),
    "more than 1000 different values": ("a,y\n" + "".join(f"1,w{i % 1100}\n" for i in range(4000)), "y", {}),
    "row 2 of '.*' has a label that is none of the 2 classes": ("a,y\n1,0\n2,7\n", "y", {"classes": [0, 1]}),
    "is said to be a number and holds text": ("a,y\nx,0\n2,1\n", "y", {"columns": {"a": {"kind": "number"}}}),
    "has no column 'agee': did you mean 'age'": (TEXT, "label", {"columns": {"agee": {}}}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_tables_are_one_sentence(tmp_path: Path, message: str) -> None:
    text, target, given = BAD[message]
    path = write(tmp_path, text)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_table(path, infer_schema(path, target, given))
    assert "\n" not in str(caught.value)


def test_a_table_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,y\n\xff\xfe\x00,1\n")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        infer_schema(path, "y", {})


def test_a_public_fill_stands_in_for_missing_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n?,0\n2,1\n")
    rows, _ = read_table(path, infer_schema(path, "y", {"columns": {"a": {"fill": -1}}}))
    assert rows.flatten().tolist() == [-1, 2]


def test_a_million_rows(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    block = "".join(f"{i}.5,{i % 7},{i % 2}\n" for i in range(10_000))
    path.write_text("x,z,y\n" + block * 100)
    rows, labels = read_table(path, infer_schema(path, "y", {}))
    assert rows.shape == (1_000_000, 2)
    assert labels.sum() == 500_000
    assert rows[123_456].tolist() == [3456.5, 3456 % 7]


def test_memory_does_not_grow_with_the_length_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BLOCK", 8000)
    peaks = []
    for repeats in (2, 20):
        path = write(tmp_path, "x,g,y\n" + "".join(f"{i}.5,group{i % 3},{i % 2}\n" for i in range(500)) * repeats)
        tracemalloc.start()
        infer_schema(path, "y", {})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_parquet_has_the_same_rows_as_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    lines = [line.split(",") for line in TEXT.splitlines()]
    table = dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True)) | {"age": [39, 50, 28]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    found: list[Any] = []
    for path in (tmp_path / "rows.parquet", write(tmp_path, TEXT)):
        schema = infer_schema(path, "label", {})
        found.append((schema, read_table(path, schema)))
    assert found[0][0] == found[1][0]
    assert (found[0][1][0] == found[1][1][0]).all()
    assert found[0][1][1].tolist() == [1, 0, 0]


def test_bad_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(InvalidInputError, match="broken.parquet' is not a whole parquet file"):
        infer_schema(broken, "y", {})
    pq.write_table(pa.table({"a": [[1], [2]], "y": [0, 1]}), tmp_path / "nested.parquet")
    with pytest.raises(InvalidInputError, match="'a'"):
        infer_schema(tmp_path / "nested.parquet", "y", {})
    pq.write_table(pa.table({"a": [1.0, None], "y": [0, 1]}), tmp_path / "null.parquet")
    given = {"columns": {"a": {"kind": "number"}}}
    with pytest.raises(InvalidInputError, match="2"):
        read_table(tmp_path / "null.parquet", infer_schema(tmp_path / "null.parquet", "y", given))


def test_bad_schemas(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'lo'.*'low'"):
        public_columns({"a": {"lo": 1}})
    with pytest.raises(InvalidInputError, match="range"):
        public_columns({"a": {"low": 1}})
    with pytest.raises(InvalidInputError, match="low 3.0 not below high 1.0|low 3 not below high 1"):
        public_columns({"a": {"low": 3, "high": 1}})
    with pytest.raises(InvalidInputError, match="'column'"):
        read_schema({"column": {}})
    with pytest.raises(InvalidInputError, match="'.*none.toml'"):
        read_schema(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(InvalidInputError):
        read_schema(tmp_path / "bad.toml")


def test_a_schema_survives_its_file(tmp_path: Path) -> None:
    written = 'target = "label"\nclasses = ["no", "yes"]\n[columns]\nage = {low = 0, high = 99}\n'
    (tmp_path / "s.toml").write_text(written)
    path = write(tmp_path, TEXT)
    schema = infer_schema(path, None, read_schema(tmp_path / "s.toml"))
    again = infer_schema(path, None, read_schema(schema.to_json()))
    assert again.columns[:3] == schema.columns[:3]
    assert again.classes == schema.classes


def test_numpy_numbers_as_classes(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": np.arange(4.0), "y": np.array([0, 2, 10, 2])}), tmp_path / "n.parquet")
    assert infer_schema(tmp_path / "n.parquet", "y", {}).classes == ("0", "2", "10")


# Dates, flags and missing values as model inputs: exact values, equal to those of the exported JSON.


COLUMNS = (
    Category("job", values=("a", "b"), missing=True),
    Number("age", 0, 100, missing=True),
    Number("free", missing=True, fill=3.0),
    Date("born", 1900, 2000, form=DOTTED),
    Date("seen", time=True),
    Flag("smoker"),
    Category("town", buckets=3),
)
CELLS = {
    "job": ["a", "?", "z"],
    "age": ["75", "unknown", "1e9"],
    "free": ["2", "", "x"],
    "born": ["1.1.1950", "2020-07-01", "soon"],
    "seen": ["1970-01-01 06:00", "", "2000-02-29"],
    "smoker": ["yes", "NO", "perhaps"],
    "town": ["Ulm", "", "Bonn"],
}


def encode() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(
        encode_chunk(
            {name: TextColumn.of(cells) for name, cells in CELLS.items()}, Schema(COLUMNS, "y", ("u", "v")), 0, "rows"
        )
    )
    return rows, Encoder(COLUMNS)(rows)


@pytest.mark.slow
def test_every_input_by_hand() -> None:
    rows, inputs = encode()
    assert torch.isfinite(rows).all()
    assert inputs.shape == (3, Encoder(COLUMNS).width) == (3, sum(column.width for column in COLUMNS))
    free = np.array([2.0, 3.0, 3.0])
    waves = np.outer(np.arcsinh(10 * free), WAVES)
    age = np.array([[0.5], [0.0], [1.0]])
    numbers = [age, np.arcsinh(free)[:, None] / 4, np.tanh(free)[:, None], np.sin(waves), np.cos(waves)]
    job = np.array([[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    np.testing.assert_allclose(inputs[:, :9], np.concatenate(numbers, 1), atol=2e-6)
    assert inputs[:, 9:13].tolist() == job.tolist()
    assert inputs[:, 16].tolist() == [1, -1, 0]  # yes, no, neither
    assert inputs[:, -5:].tolist() == [[0, 0, 0, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]


@pytest.mark.slow
def test_dates_by_hand() -> None:
    _, inputs = encode()
    dates = inputs[:, 17:-5]
    assert dates.shape[1] == 2 + 1 + 4 + 4 * 3 + 2
    year = (np.array([-7305.0, 18444, -7305]) / 365.2425 + 70) / 50 - 1  # 1950 is 20 years of 5 leap days before 1970
    np.testing.assert_allclose(dates[:, 0], np.clip(year, -1, 1), atol=1e-3)
    assert dates[1, 0] == 1  # cut to the range
    assert dates[2, 0] == pytest.approx(0, abs=1e-5)  # nothing known: the middle
    assert dates[0, 1] == pytest.approx((1970 - 1900) / 100 - 1, abs=1e-4)
    assert dates[0, 2] == pytest.approx(math.tanh(-30 / 25), abs=1e-4)
    assert dates[2, 2] == pytest.approx(math.tanh((59 / 365.2425) / 25), abs=1e-4)
    assert dates[0, 6] == pytest.approx(math.cos(2 * math.pi * 0.25 / 365.2425), abs=1e-5)
    assert dates[0, -2:].tolist() == pytest.approx([1, 0], abs=1e-5)  # six in the morning
    assert dates[2, -2:].tolist() == pytest.approx([0, 1], abs=1e-5)  # midnight


@pytest.mark.slow
def test_every_set_of_weekdays_can_be_told_from_its_rest() -> None:
    """Seven days in a row have independent inputs: with a constant they span all functions of the weekday."""
    column = Date("d", 1900, 2000)
    weekdays = Encoder([column])(torch.arange(7.0)[:, None])[:, 3:9]
    assert torch.linalg.matrix_rank(torch.cat([weekdays, torch.ones(7, 1)], 1)) == 7
    later = Encoder([column])(torch.arange(7.0)[:, None] + 7 * 1000)[:, 3:9]
    torch.testing.assert_close(weekdays, later)


@pytest.mark.slow
def test_the_json_says_the_same() -> None:
    encoding = describe_columns(COLUMNS)
    rows, inputs = encode()
    found = np.array([[value for block in encoding["blocks"] for value in _compute(block, row)] for row in rows])
    assert found.shape == tuple(inputs.shape) == (3, encoding["shape"][0])
    np.testing.assert_allclose(found, inputs, atol=3e-5)


def _compute(block: dict[str, Any], row: torch.Tensor) -> list[float]:
    """One block of inputs, from the words of ``functions`` alone."""
    place = [column.name for column in COLUMNS].index(block["column"])
    x, function = float(row[place]), block["function"]
    gap = x < GAP / 2
    if function == "missing":
        return [float(gap)]
    if gap:
        x = {"age": 50.0, "free": 3.0, "smoker": 0.5}.get(block["column"], _stand_in(block["column"]))
    if function in ("listed", "hashed"):
        return [float(x == slot) for slot in range(block["count"])]
    if function in ("range", "year"):
        low, high = block["low"], block["high"]
        return [2 * (min(max(x, low), high) - low) / (high - low) - 1]
    turn = 2 * math.pi
    return {
        "asinh": lambda: [math.asinh(x) / 4],
        "tanh": lambda: [math.tanh(x)],
        "sin": lambda: [math.sin(k * math.asinh(10 * x)) for k in block["waves"]],
        "cos": lambda: [math.cos(k * math.asinh(10 * x)) for k in block["waves"]],
        "flag": lambda: [2 * x - 1],
        "soft year": lambda: [math.tanh((x - 10957.275) / 9131.0625)],
        "season sin": lambda: [math.sin(turn * x / 365.2425)],
        "season cos": lambda: [math.cos(turn * x / 365.2425)],
        "week sin": lambda: [math.sin(turn * k * math.floor(x) / 7) for k in block["waves"]],
        "week cos": lambda: [math.cos(turn * k * math.floor(x) / 7) for k in block["waves"]],
        "day sin": lambda: [math.sin(turn * x)],
        "day cos": lambda: [math.cos(turn * x)],
    }[function]()


def _stand_in(name: str) -> float:
    """As 32 bits have it."""
    blocks = describe_columns(COLUMNS)["blocks"]
    found = (b["stand_in"] for b in blocks if b["column"] == name and b["function"] == "missing")
    return float(np.float32(next(found, 0.0)))


@pytest.mark.slow
def test_columns_without_anything_new_keep_their_bits() -> None:
    """What the encoder gives for numbers and categories of schemas from before there were other kinds."""
    columns = [Number("r", 0, 9), Number("f"), Category("c", buckets=4)]
    rows = torch.tensor([[1.3, -2.7, 3.0], [1e30, 3e38, 0.0], [-5.0, -3e38, 1.0]])
    low, high, free = torch.tensor([0.0]), torch.tensor([9.0]), rows[:, 1:2]
    ranged = 2 * (torch.minimum(torch.maximum(rows[:, :1], low), high) - low) / (high - low) - 1
    waves = (torch.asinh(10 * free).unsqueeze(2) * torch.tensor(WAVES)).flatten(1)
    slots = (rows[:, 2:] == torch.arange(4.0)).float()
    before = torch.cat([ranged, torch.asinh(free) / 4, torch.tanh(free), waves.sin(), waves.cos(), slots], 1)
    assert torch.equal(Encoder(columns)(rows).nan_to_num(7.0), before.nan_to_num(7.0))
    assert list(Encoder(columns).state_dict()) == list(Encoder(COLUMNS).state_dict()) == []


@pytest.mark.slow
def test_a_range_with_waves_by_hand() -> None:
    """The clamped number on its range, and the functions of a number without one; the JSON says the same."""
    columns = [Number("r", 1, 9, waves=True), Number("f"), Number("p", 0, 4)]
    rows = torch.tensor([[3.0, -2.0, 1.0], [1e30, 0.5, 9.0], [-5.0, 7.0, 0.0]])
    inputs = Encoder(columns)(rows)
    both = np.stack([[3.0, 9.0, 1.0], [-2.0, 0.5, 7.0]], 1)
    waves = (np.arcsinh(10 * both)[:, :, None] * np.array(WAVES)).reshape(3, -1)
    ranged = np.array([[-0.5, -0.5], [1, 1], [-1, -1]])
    expected = np.concatenate([ranged, np.arcsinh(both) / 4, np.tanh(both), np.sin(waves), np.cos(waves)], 1)
    np.testing.assert_allclose(inputs, expected, atol=2e-6)
    assert Encoder(columns).width == sum(column.width for column in columns) == 9 + 8 + 1
    blocks = describe_columns(columns)["blocks"]
    assert [(b["column"], b["function"]) for b in blocks[:4]] == [
        ("r", "range"),
        ("p", "range"),
        ("r", "cut asinh"),
        ("f", "asinh"),
    ]
    assert [(b["low"], b["high"]) for b in blocks if b["function"].startswith("cut ")] == [(1, 9)] * 4
    assert [b["at"] for b in blocks] == [0, 1, 2, 3, 4, 5, 6, 9, 12, 15]


@pytest.mark.slow
def test_the_days_of_the_test() -> None:
    assert parse_date("1.1.1950", DOTTED) == -7305
    assert parse_date("2020-07-01", DOTTED) == 18444


@pytest.mark.slow
def test_a_file_and_its_cells_in_memory_are_read_alike(tmp_path: Path) -> None:
    schema = Schema((*COLUMNS, Category("y")), "y", ("u", "v"))
    lines = [",".join(CELLS), *(",".join(cells) for cells in zip(*CELLS.values(), strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    inputs = Description("classification", inputs=describe_table(schema), classes=("u", "v"))
    assert torch.equal(encode_rows(tmp_path / "rows.csv", inputs), encode()[0])
    assert torch.equal(encode_rows(CELLS, inputs), encode()[0])
    rows = [{"job": "a", "age": 75, "free": 2.0, "born": "1950-01-01", "seen": None, "smoker": True, "town": "Ulm"}]
    expected = encode()[0][:1].clone()
    expected[0, 4] = GAP
    assert torch.equal(encode_rows(rows, inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(-1.0, 1e38), (-2e37, 0.0)])
def test_a_range_that_32_bits_cannot_compute_with_gets_a_sentence(limits: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match=r"'mass'.*1e\+37"):
        Number("mass", *limits)
    most = Number("mass", -1e37, 1e37, waves=True)
    encoded = Encoder([most])(torch.tensor([[-1e37], [0.0], [1e37]]))
    assert bool(torch.isfinite(encoded).all())
