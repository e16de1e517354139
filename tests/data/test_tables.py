"""Tables of one's own: kinds found, rows encoded without statistics, bad input in one sentence each."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.errors import InvalidInputError
from hush.tabular import reader
from hush.tabular.columns import Category, Number
from hush.tabular.inspect import infer_schema, inspect_table, write_toml
from hush.tabular.rows import read_table
from hush.tabular.schema import Schema, public_columns, read_schema

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
