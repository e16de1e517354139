"""Column kinds by majority of cells; how numbers, dates and flags are parsed; what is reported to the owner."""

from __future__ import annotations

import csv
import random
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import DataError, InvalidInputError
from hush.tabular.cells import TextColumn
from hush.tabular.columns import GAP, Category, Date, Flag, Id, Ignored, Number, Text
from hush.tabular.columns.date import (
    DAY_FIRST,
    DOTTED,
    FORMATS,
    ISO,
    MONTH_FIRST,
    has_time,
    is_written_with_slashes,
    parse_date,
)
from hush.tabular.columns.evidence import MAJORITY
from hush.tabular.columns.flag import parse_flag
from hush.tabular.columns.number import COMMA, POINT, numbers, parse_number, read_numbers
from hush.tabular.inspect import infer, inspect_table
from hush.tabular.rows import read_table
from hush.tabular.schema import Schema, public_columns
from schemas import infer_schema

MANY = 100


def write(folder: Path, **columns: list[str]) -> Path:
    """A table of a hundred rows; shorter columns come again and again."""
    lines = [";".join(cells[row % len(cells)] for cells in columns.values()) for row in range(MANY)]
    (folder / "rows.csv").write_text("\n".join([";".join(columns), *lines]) + "\n", encoding="utf-8")
    return folder / "rows.csv"


KINDS = {
    "plain numbers": (["1", "2.5", "-3e2"], Number("x", missing=True)),
    "a stray word": (["1.5"] * 95 + ["pending"] * 5, Number("x", missing=True)),
    "six stray words": (["1.5"] * 94 + ["pending"] * 6, Category("x", missing=True)),
    "gaps do not count": (["7", "", "NA", "?"], Number("x", missing=True)),
    "decimal commas": (["1,5", "2"], Number("x", missing=True, decimal=COMMA)),
    "commas and thousands": (["1.234,5", "2"], Number("x", missing=True, decimal=COMMA)),
    "points and thousands": (["1,234.5", "1,234"], Number("x", missing=True)),
    "thousands twice": (["1,234,567", "1,234"], Number("x", missing=True)),
    "Swiss thousands": (["1'234.5", "12"], Number("x", missing=True)),
    "ISO dates": (["2020-01-31", "1999-12-01"], Date("x")),
    "ISO times": (["2020-01-31T10:30", "1999-12-01 23:59:59Z"], Date("x", time=True)),
    "dotted dates": (["31.01.2020", "1.2.1999", ""], Date("x", form=DOTTED)),
    "yes and no": (["yes", "No", ""], Flag("x")),
    "ja and nein": (["ja", "nein"], Flag("x")),
    "bits": (["0", "1"], Flag("x")),
    "true and false": (["True", "False"], Flag("x")),
    "yes and maybe": (["yes", "no", "maybe"], Category("x", missing=True)),
    "words of two pairs": (["yes", "false"], Category("x", missing=True)),
    "words": (["red", "green", "blue"], Category("x", missing=True)),
    "codes": ([f"A-{place}" for place in range(MANY)], Id("x")),
    "names": ([f"Ann{'abcdefghij'[p // 10]}{'abcdefghij'[p % 10]}" for p in range(MANY)], Text("x")),
    "sentences": ([f"it was number {place} of all" for place in range(MANY)], Text("x")),
    "nothing": (["", "NA"], Ignored("x")),
}


@pytest.mark.parametrize("what", KINDS)
def test_the_kind_of_a_column(tmp_path: Path, what: str) -> None:
    cells, column = KINDS[what]
    schema = infer_schema(write(tmp_path, x=cells, y=["a", "b"]), "y", {})
    assert schema.columns[0] == column


@pytest.mark.parametrize(("name", "kind"), [("patient_id", "id"), ("customerId", "id"), ("paid", "number")])
def test_whole_numbers_are_ids_by_their_name(tmp_path: Path, name: str, kind: str) -> None:
    path = write(tmp_path, **{name: [str(1000 + place // 2) for place in range(MANY)], "y": ["a", "b"]})
    inferred = infer(path, "y", {})
    assert inferred.require().columns[0].kind == kind
    warned = [text for text in inferred.inspection.list_repeating() if f"--unit {name}" in text]
    assert len(warned) == (kind == "id")


def test_an_id_of_each_row_needs_no_warning(tmp_path: Path) -> None:
    found = inspect_table(write(tmp_path, row_id=[str(place) for place in range(MANY)]), {})
    assert found.findings[0].column.kind == "id"
    assert found.list_repeating() == []


def test_rows_with_gaps_and_strays(tmp_path: Path) -> None:
    path = write(
        tmp_path, x=["1,5"] * 96 + ["", "pending", "2.000", "7"], d=["31.12.1969", "2.1.1970", "n"], y=["a", "b"]
    )
    given = {"columns": {"d": {"format": DOTTED}}}
    with pytest.raises(InvalidInputError, match="dd.mm.yyyy"):
        infer_schema(path, "y", given)
    path = write(tmp_path, x=["1,5"] * 96 + ["", "pending", "2.000", "7"], d=["31.12.1969"] * 99 + ["n"], y=["a", "b"])
    rows, _ = read_table(path, infer_schema(path, "y", given))
    assert rows[95:, 0].tolist() == pytest.approx([1.5, GAP, GAP, 2000, 7])
    assert rows[98:, 1].tolist() == pytest.approx([-1, GAP])


def test_counts_are_for_the_owner(tmp_path: Path) -> None:
    path = write(tmp_path, x=["1.5"] * 90 + [""] * 7 + ["pending"] * 3, y=["a", "b"])
    found = infer(path, "y", {})
    assert found.inspection.count_strays() == [
        "x: 7 of 100 cells are empty and 3 hold no number, missing values all of them"
    ]
    assert not any(digit in str(found.inspection.findings[0].describe()) for digit in ("'7'", "100", " 3 "))


def test_no_value_of_the_rows_decides_an_encoding(tmp_path: Path) -> None:
    """Other numbers, categories and dates of the same kinds give the same columns."""
    first = write(tmp_path, n=["1", "2.5"], c=["a", "b"], d=["2020-01-01"], y=["u", "v"])
    columns = infer_schema(first, "y", {}).columns
    again = write(tmp_path, n=["-9e9", "0.25"], c=["zz", "q"], d=["1950-12-31"], y=["u", "v"])
    assert infer_schema(again, "y", {}).columns == columns


@pytest.mark.parametrize("stray", ["1,5", "0,25", "1.234,5"])
def test_the_comma_of_one_number_decides_nothing(tmp_path: Path, stray: str) -> None:
    numbers = [str(100 + i) for i in range(MANY)]
    columns = infer_schema(write(tmp_path, n=numbers, y=["u", "v"]), "y", {}).columns
    assert infer_schema(write(tmp_path, n=[*numbers[:-1], stray], y=["u", "v"]), "y", {}).columns == columns


def test_the_time_of_one_date_decides_nothing(tmp_path: Path) -> None:
    """One row more with a time of day must not change how many inputs the model has."""
    days = [f"2020-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(MANY)]

    def is_timed(cells: list[str]) -> bool:
        return infer_schema(write(tmp_path, d=cells, y=["u", "v"]), "y", {}).columns[0].time

    assert not is_timed(days)
    assert not is_timed([*days[:-1], "2020-01-31 10:30"])
    assert is_timed([f"{day}T09:15" for day in days])


def test_what_is_assumed(tmp_path: Path) -> None:
    path = write(tmp_path, n=["1,5", "2"], y=["u", "v"])
    kinds = "the names and kinds of the columns are public (kinds were read off the rows)"
    written = "how dates and numbers are written in the columns is public (it was read off the rows)"
    said = infer_schema(path, "y", {}).assumed
    assert kinds in said
    assert written in said
    columns = {"n": {"decimal": ",", "low": 0, "high": 9}, "y": {"kind": "category"}}
    known = infer_schema(path, "y", {"columns": columns}).assumed
    assert kinds not in known
    assert written not in known
    looked = infer_schema(path, "y", {"columns": columns, "read_off": ["kinds", "ranges"]}).assumed
    assert kinds in looked
    assert "the ranges of the columns, read off the rows, are public anyway" in looked
    assert not any("were not computed from the rows" in text for text in looked)


def test_all_problems_and_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, p=["1,234", "5,678"], d=["3/4/2020"], y=["1.5", "2.5"])
    found = infer(path, "y", {"columns": {"q": {}}})
    expected = ("holds fractions", "has no column 'q'", "has a comma before three digits", "has dates such as 3/4/2020")
    assert len(found.problems) == len(expected)
    for text, words in zip(found.problems, expected, strict=True):
        assert words in text
    with pytest.raises(InvalidInputError, match="3"):
        found.require()


@given(st.floats(-1e15, 1e15, allow_nan=False), st.sampled_from(["", "'", " ", "\u00a0"]), st.booleans())
def test_numbers_come_back(value: float, thousands: str, comma: bool) -> None:
    text = f"{value:,.6f}".replace(",", "_")
    decimal = COMMA if comma else POINT
    written = text.replace(".", decimal).replace("_", thousands)
    assert parse_number(written, decimal) == float(f"{value:.6f}")


@given(st.integers(1000, 10**12))
def test_a_sign_of_thousands_is_no_decimal_sign(value: int) -> None:
    assert parse_number(f"{value:,}", POINT) == value
    assert parse_number(f"{value:,}".replace(",", "."), COMMA) == value


@given(st.text(max_size=20), st.sampled_from([POINT, COMMA]), st.sampled_from(FORMATS))
def test_no_text_is_too_much(text: str, decimal: str, form: str) -> None:
    for found in (parse_number(text, decimal), parse_date(text, form), parse_flag(text), parse_flag(text, ("a", "b"))):
        assert found is None or abs(found) < 1e300 or found == parse_number(text, decimal)
    assert has_time(text) == (":" in text)
    assert is_written_with_slashes(text) in (True, False)


@given(st.dates(), st.sampled_from(FORMATS))
def test_dates_come_back(day: date, form: str) -> None:
    parts = {"yyyy": f"{day.year:04d}", "mm": f"{day.month:02d}", "dd": f"{day.day:02d}"}
    text = form
    for part, digits in parts.items():
        text = text.replace(part, digits)
    found = parse_date(text, form)
    assert found is not None
    assert date(1970, 1, 1) + timedelta(days=found) == day
    assert parse_date(day.isoformat(), form) == found


def test_dates_that_are_none() -> None:
    for text in ("2020-02-30", "2020-13-01", "20-01-01", "2020-01-01 25:00", "2020-01-01T10:61", "1.1.2020x", ""):
        assert parse_date(text, ISO) is None
        assert parse_date(text, DOTTED) is None
    assert parse_date("3/4/2020", DAY_FIRST) != parse_date("3/4/2020", MONTH_FIRST)
    assert parse_date("1970-01-02 06:00", ISO) == 1.25
    assert [parse_number(text) for text in ("1,23", "1,2345", ",123", "inf", "nan", "1e999", "9" * 500)] == [None] * 7
    assert [parse_number(text, COMMA) for text in ("1.5", "1.23,4", "1.234.5", "1,5,5")] == [None] * 4


@pytest.mark.parametrize("text", ["2021_05", "1_000.5", "1_2e3", "١٢", "１２", "-٣.٥"])
def test_what_python_alone_takes_for_a_number_is_none(text: str) -> None:
    float(text)  # it does
    assert parse_number(text, POINT) is parse_number(text, COMMA) is None
    assert numbers(TextColumn.of([text, "1"])) is numbers(TextColumn.of([text, "NA"])) is None


def test_spaces_around_a_number_are_no_part_of_it() -> None:
    found = numbers(TextColumn.of([" 12", "12\u00a0", "\u20091.5\t"]))
    assert found is not None
    assert found.tolist() == [12.0, 12.0, 1.5]
    assert [parse_number(text) for text in (" 12", "12\u00a0", "\u20091.5\t")] == [12.0, 12.0, 1.5]


def test_months_with_an_underscore_are_words(tmp_path: Path) -> None:
    path = write(tmp_path, month=[f"2021_{month:02d}" for month in range(1, 13)], n=["1", "2"], y=["u", "v"])
    month, number, _ = infer_schema(path, "y", {}).columns
    assert (month.kind, number.kind) == ("category", "number")
    given = {"columns": {"month": {"kind": "number"}}}
    with pytest.raises(InvalidInputError, match="'month'.*'.*'"):
        infer_schema(path, "y", given)


def test_a_schema_keeps_what_is_new() -> None:
    facts = {
        "a": {"kind": "number", "missing": True, "decimal": ","},
        "b": {"kind": "date", "format": DOTTED, "time": True, "low": 2000, "high": 2020},
        "c": {"kind": "flag", "values": ["m", "f"]},
    }
    columns = public_columns(facts)
    assert (columns["b"].form, columns["b"].time, columns["c"].parse("f")) == (DOTTED, True, 1.0)


class TestHeader:
    """The first row of a file without a header must not be published as the names of the columns."""

    ROWS = [
        f"{20 + i % 50},{1990 + i % 20}-05-17,{'mw'[i % 2]},{i % 7}.5,{'no' if i % 3 else 'yes'}" for i in range(80)
    ]

    @pytest.mark.parametrize(
        ("head", "target", "options"),
        [
            ("34,1991-02-03,m,2.5,yes", "yes", {}),
            ("age,born,sex,weight,yes", "yes", {}),
            ("34,born,sex,weight,ill", "ill", {}),
            ("age,1991-02-03,sex,weight,ill", "ill", {}),
            ("age,born,sex,2.5,ill", "2.5", {"regression": True}),
        ],
    )
    def test_a_cell_is_no_name(self, head, target, options, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([head, *self.ROWS]) + "\n")
        with pytest.raises(DataError) as caught:
            infer_schema(path, target, {"target_range": [0, 9]} if options else {}, **options)
        assert str(path) in str(caught.value)
        assert not set(head.split(",")) & set(str(caught.value).split("'"))

    @pytest.mark.parametrize(
        ("head", "target", "named"),
        [
            ("age,born,sex,weight,ill", "ill", {}),
            ("0,born,sex,1,ill", "ill", {}),
            ("1,born,sex,2,ill", "ill", {}),
            ("2020,born,sex,2021,ill", "ill", {"columns": {"2020": {"kind": "number"}, "2021": {"kind": "number"}}}),
        ],
    )
    def test_a_name_is_no_cell(self, head, target, named, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([head, *self.ROWS]) + "\n")
        assert [c.name for c in infer_schema(path, target, named).columns] == head.split(",")


# Each cell is parsed independently: no cell changes how another is read.


ROWS = 400
STRAYS = ["x", "?!", "7", "1.5", "1,5", "2020-01-01", "12\x00", "inf", '"', "yes and no and so on", "٣", "9" * 500]
ORDINARY = {
    "flag": ["yes", "no"],
    "bits": ["0", "1"],
    "number": ["1.5", "-2", "3e2"],
    "thousandths": ["1.234", "0.125", "12.375"],
    "padded": ["1.5\x00\x00", "2\x00", "30.25\x00"],
    "comma": ["1,5", "2,25", "12,75"],
    "date": ["2020-01-31", "1999-12-01"],
    "dotted": ["31.01.2020", "01.12.1999"],
    "moment": ["2020-01-31 10:30", "1999-12-01 23:15"],
    "category": ["red", "green", "blue"],
    "sentence": [f"it was number {i} of them" for i in range(ROWS // 4)],
    "id": [f"A-{i}" for i in range(ROWS)],
}


def write_cells(path: Path, cells: list[str]) -> Path:
    lines = [f'"{cell}"' if "," in cell else cell.replace('"', '""""') for cell in cells]
    path.write_text("x,y\n" + "".join(f"{line},{'uv'[i % 2]}\n" for i, line in enumerate(lines)), encoding="utf-8")
    return path


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("kind", ORDINARY)
def test_a_stray_cell_changes_no_other_row(tmp_path: Path, kind: str, stray: str) -> None:
    """Neither the kind of its column, nor the encoding of any other cell, also where it is the last row."""
    cells = (ORDINARY[kind] * ROWS)[:ROWS]
    schema = infer_schema(write_cells(tmp_path / "a.csv", cells), "y", {})
    rows, _ = read_table(tmp_path / "a.csv", schema)
    for place in (0, ROWS - 1):
        changed = write_cells(tmp_path / "b.csv", [*cells[:place], stray, *cells[place + 1 :]])
        found = infer_schema(changed, "y", {})
        assert found == schema
        others = [i for i in range(ROWS) if i != place]
        assert read_table(changed, found)[0][others].numpy().tobytes() == rows[others].numpy().tobytes()


def test_padding_is_no_part_of_a_number_whatever_the_other_cells_are(tmp_path: Path) -> None:
    """16 000 cells with NUL bytes at their ends and one word: the word is missing, and nothing else."""
    cells = [f"{i / 8}\x00\x00" for i in range(16_000)]
    cells[7] = "word"
    path = write_cells(tmp_path / "a.csv", cells)
    rows, _ = read_table(path, infer_schema(path, "y", {}))
    values = rows[:, 0].numpy()
    assert values[7] == np.float32(GAP)
    assert np.delete(values, 7).tolist() == [np.float32(i / 8) for i in range(16_000) if i != 7]


@pytest.mark.parametrize("kind", ["flag", "number", "date", "comma", "sentence", "id"])
def test_one_threshold_for_every_kind(tmp_path: Path, kind: str) -> None:
    """Nineteen in twenty decide: with 5 % of other words the kind is the same, with more it is a category or text."""
    cells, words = (ORDINARY[kind] * ROWS)[:ROWS], ["alpha", "beta", "gamma"]
    most = round((1 - MAJORITY) * ROWS)
    wanted = infer_schema(write_cells(tmp_path / "a.csv", cells), "y", {}).columns[0]
    for strays, same in ((most, True), (most + 1, False)):
        mixed = [*cells[:-strays], *(words * ROWS)[:strays]]
        found = infer_schema(write_cells(tmp_path / "b.csv", mixed), "y", {}).columns[0]
        assert (found == wanted) is same


def test_a_count_that_is_mostly_zero_is_a_number(tmp_path: Path) -> None:
    cells = ["0"] * (ROWS - 10) + [str(100 + i) for i in range(10)]
    assert infer_schema(write_cells(tmp_path / "a.csv", cells), "y", {}).columns[0].kind == "number"
    rare = ["0"] * (ROWS - 10) + ["1"] * 10
    assert infer_schema(write_cells(tmp_path / "b.csv", rare), "y", {}).columns[0].kind == "flag"


def test_one_fraction_does_not_say_what_a_comma_means(tmp_path: Path) -> None:
    cells = ["1,234"] * (ROWS - 1)
    for stray in ("1,234", "1.5", "1,5"):
        assert infer(write_cells(tmp_path / "a.csv", [*cells, stray]), "y", {}).problems
    assert not infer(write_cells(tmp_path / "b.csv", [*cells[:200], *["1.5"] * 200]), "y", {}).problems


def test_numbers_alone_and_together_are_the_same() -> None:
    cells = [*STRAYS, *(cell for cells in ORDINARY.values() for cell in cells[:5])]
    together = read_numbers(TextColumn.of(cells))
    assert np.concatenate([read_numbers(TextColumn.of([cell])) for cell in cells]).tobytes() == together.tobytes()


def test_inferred_kinds_are_an_assumption(tmp_path: Path) -> None:
    path = write_cells(tmp_path / "a.csv", ORDINARY["flag"] * 50)
    inferred = [text for text in infer_schema(path, "y", {}).assumed if "kinds" in text]
    assert len(inferred) == 1
    given = {"columns": {"x": {"kind": "flag"}, "y": {"kind": "category"}}, "classes": ["u", "v"]}
    assert not [text for text in infer_schema(path, "y", given).assumed if "kinds" in text]


def mix_table(rows: int, seed: int) -> list[list[str]]:
    """Rows of all kinds of cells, ordinary and stray."""
    draw = random.Random(seed)
    return [
        [draw.choice(STRAYS if draw.random() < 0.1 else ["", *cells]) for cells in ORDINARY.values()]
        for _ in range(rows)
    ]


def test_a_row_is_encoded_alike_whatever_the_other_rows_are(tmp_path: Path) -> None:
    """By a given schema, each row of a permuted, a longer and a shorter table has the bits that it has alone."""
    facts = {
        "flag": {"kind": "flag"},
        "bits": {"kind": "flag"},
        "comma": {"decimal": ",", "missing": True},
        "date": {"kind": "date"},
        "dotted": {"format": "dd.mm.yyyy"},
        "moment": {"time": True},
        "category": {"kind": "category", "missing": True},
        "sentence": {"buckets": 5},
        "id": {"values": ["A-1", "A-2"]},
    }
    columns = {kind: facts.get(kind, {"kind": "number", "missing": True}) for kind in ORDINARY}
    schema = Schema((*public_columns(columns).values(), Category("y")), "y", ("u", "v"))
    table, draw = mix_table(300, 1), random.Random(2)

    def encode(rows: list[list[str]], name: str) -> list[bytes]:
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*columns, "y"], *([*row, "u"] for row in rows)])
        return [row.tobytes() for row in read_table(tmp_path / name, schema)[0].numpy()]

    whole = encode(table, "whole.csv")
    order = draw.sample(range(300), 300)
    assert encode([table[place] for place in order], "permuted.csv") == [whole[place] for place in order]
    assert encode([*mix_table(200, 3), *table, *mix_table(50, 4)], "added.csv")[200:500] == whole
    kept = sorted(draw.sample(range(300), 40))
    assert encode([table[place] for place in kept], "removed.csv") == [whole[place] for place in kept]
    assert [encode([table[place]], "one.csv")[0] for place in kept[:15]] == [whole[place] for place in kept[:15]]
