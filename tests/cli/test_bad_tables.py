"""Bad tables, schemas and flags: each is told in one sentence with exit code 2, and no cell of the data is quoted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hush.cli import main
from keeping import keep

MARK = "Qz7Secret"
HEAD = "height,kind,label"
ROWS = tuple(f"{i % 5}.5,{'ab'[i % 2]},{'yes' if i % 2 else 'no'}" for i in range(60))
MARKED = f"1.5,{MARK},yes"
GOOD = "\n".join([HEAD, *ROWS, MARKED]) + "\n"
SHORT = ("--batch-size", "8", "--steps", "1")
LABEL = ("--target", "label", "--public", "classes")


@dataclass(frozen=True)
class Case:
    """A table, a schema in TOML, flags, and words of the one sentence that must be said."""

    sentence: str
    table: str | bytes = GOOD
    schema: str | None = None
    flags: Sequence[str] = LABEL
    name: str = "rows.csv"


def add(column: str, cells: Sequence[str]) -> str:
    """The good table with one column more, whose cells come again and again."""
    lines = GOOD.splitlines()
    more = [f'{line},"{cells[place % len(cells)]}"' for place, line in enumerate(lines[1:])]
    return "\n".join([f"{lines[0]},{column}", *more]) + "\n"


def labelled(cells: Sequence[str]) -> str:
    """The good table with other labels."""
    lines = [",".join(line.split(",")[:2]) for line in GOOD.splitlines()[1:]]
    return "\n".join([HEAD, *(f'{line},"{cells[place % len(cells)]}"' for place, line in enumerate(lines))]) + "\n"


def column(facts: str, name: str = "height") -> str:
    return f"[columns.{name}]\n{facts}\n"


RANGE = "low = 0\nhigh = 9"
REGRESSION = ("--task", "regression", "--target-range", "0", "9")
CASES = {
    # tables
    "an empty file": Case("the first line of 'rows.csv' must name", ""),
    "names alone": Case("holds no rows", HEAD + "\n"),
    "blank lines alone": Case("holds no rows", HEAD + "\n\n\n"),
    "a column without a name": Case("must name every column", GOOD.replace("height,kind", "height,")),
    "a name twice": Case("columns 1 and 2 of 'rows.csv' have the same name", GOOD.replace("height,kind", "a,a")),
    "no first line": Case("has no column 'label'", "\n".join([MARKED, *ROWS])),
    "too many cells": Case("row 62 of 'rows.csv' has 4 cells", GOOD + f"1.5,a,yes,{MARK}\n"),
    "too few cells": Case("row 62 of 'rows.csv' has 2 cells", GOOD + f"1.5,{MARK}\n"),
    "bytes that are no text": Case("is not a text table in UTF-8", GOOD.encode() + b"1.5,\xff\xfe,yes\n"),
    "UTF-16": Case("is not a text table in UTF-8", GOOD.encode("utf-16")),
    "a quote that is not closed": Case("cells where the header has|a quote is not closed", GOOD + f'1.5,"{MARK},yes\n'),
    "a cell without end": Case("a row is longer", GOOD + f"1.5,{MARK * 1_000_000},yes\n"),
    "ten thousand columns": Case("a table may have", ",".join(f"c{i}" for i in range(10_001)) + "\n"),
    "no parquet": Case("is not a whole parquet file", MARK.encode(), name="rows.parquet"),
    "no such file": Case("there is no file or folder", flags=("--data", "none.csv", *LABEL)),
    "a sheet": Case("is none of .csv, .parquet", name="rows.xlsx"),
    "an empty folder": Case("'.'", flags=("--data", ".", *LABEL)),
    # targets
    "no target named": Case("name the column to predict", flags=()),
    "a target that is not there": Case("did you mean 'label'", flags=("--target", "lable")),
    "fractions as labels": Case("holds fractions and looks like a number", labelled(["1.25", "2.5", "7.75"])),
    "decimal commas as labels": Case("holds fractions and looks like a number", labelled(["1,25", "2,5"])),
    "many whole numbers": Case("more than 20 different whole numbers", labelled([str(i) for i in range(50)])),
    "dates as labels": Case("looks like dates", labelled(["2020-01-31", "2021-02-28"])),
    "codes as labels": Case("looks like ids", labelled([f"{MARK}{i}" for i in range(61)])),
    "sentences as labels": Case("looks like free text", labelled([f"the {i} words of {MARK}" for i in range(61)])),
    "one label": Case("has one value only", labelled(["yes"])),
    "a row without a label": Case("has rows without a label", GOOD + "1.5,a,\n"),
    "a label that is no class": Case("row 61 .* is none of the 2 classes", GOOD[:-4] + f"{MARK}\n",
                                     'classes = ["no", "yes"]'),
    "words to predict as numbers": Case("holds text, and a number is to be predicted", flags=(*LABEL, *REGRESSION)),
    "a stray word to predict": Case("to be predicted as a number and holds text",
                                    labelled(["1.5", "2", "3"] * 20 + [MARK]), flags=(*LABEL, *REGRESSION)),
    "a gap to predict": Case("no finite number in row 61", labelled(["1.5", "2", "3"] * 20 + [""]),
                             flags=(*LABEL, *REGRESSION)),
    "a number without a range": Case("regression needs a public range",
                                     labelled(["1.5", "2"]), flags=(*LABEL, "--task", "regression")),
    "classes of a number": Case("a schema with classes is for classification",
                                labelled(["1.5", "2"]), 'classes = ["a", "b"]', (*LABEL, *REGRESSION)),
    # columns
    "thousands or decimals": Case("a comma before three digits", add("price", ["1,234", "5,678"])),
    "points and commas": Case("mixes decimal points and decimal commas", add("price", ["1,5", "1.5"])),
    "slashes": Case("in which either may be the day", add("day", ["3/4/2020", "5/6/2021"])),
    "several formats": Case("dates in several formats", add("day", ["31.1.2020", "2020/02/01"])),
    "two problems": Case("either may be the day.*; 1 more problem: `hush data inspect rows.csv` lists all",
                         add("price", ["1,234"]).replace("height", "when").replace(".5,", "/4/2020,")),
    # schemas against tables
    "text that is said to be a number": Case("holds text", schema=column('kind = "number"', "kind")),
    "gaps that are not provided for": Case("no finite number in row 2", add("w", ["1", ""]), column(RANGE, "w")),
    "a stray word that is not provided for": Case("holds text", add("w", ["1"] * 30 + [MARK]), column(RANGE, "w")),
    "dates of another format": Case("said to be a date written mm/dd/yyyy", add("d", ["31.1.2020"]),
                                    column('format = "mm/dd/yyyy"', "d")),
    "months beyond December": Case("said to be a date written mm/dd/yyyy", add("d", ["31/1/2020"]),
                                   column('format = "mm/dd/yyyy"', "d")),
    "a flag of other words": Case("said to be a flag", schema=column('kind = "flag"', "kind")),
    "a column that is not there": Case("did you mean 'height'", schema=column("low = 0\nhigh = 9", "heigth")),
    # schemas
    "no TOML": Case("is not valid toml", schema="= 3"),
    "an unknown entry": Case("unknown schema entry 'colums'", schema="[colums.a]\nlow = 0"),
    "an unknown fact": Case("did you mean 'low'", schema=column("lo = 0")),
    "an unknown kind": Case("did you mean 'number'", schema=column('kind = "numbre"')),
    "one end": Case("give both low and high", schema=column("low = 0")),
    "a range upside down": Case("not below high", schema=column("low = 9\nhigh = 0")),
    "a range of words": Case("must be a finite number", schema=column('low = "a"\nhigh = "b"')),
    "an endless fill": Case("must be a finite number", schema=column("fill = inf")),
    "half a bucket": Case("whole number", schema=column("buckets = 0.5", "kind")),
    "a million buckets": Case("more than 100000 buckets", schema=column("buckets = 1000000", "kind")),
    "values that are no list": Case("must be a list of words", schema=column('values = "a"', "kind")),
    "the same value twice": Case("must be different", schema=column('values = ["a", "a"]', "kind")),
    "an unknown format": Case("must be one of yyyy-mm-dd", schema=column('kind = "date"\nformat = "yy-m-d"')),
    "a format of a number": Case("'format' of a date", schema=column('kind = "number"\nformat = "dd.mm.yyyy"')),
    "a decimal sign of a date": Case("'decimal' of a number", schema=column('kind = "date"\ndecimal = ","')),
    "an unknown decimal sign": Case("must be '.' or ','", schema=column('decimal = ";"')),
    "missing in words": Case("must be true or false", schema=column('missing = "yes"')),
    "three words of a flag": Case("must be two words", schema=column('kind = "flag"\nvalues = ["a", "b", "c"]')),
    "years before the first": Case("must be years", schema=column('kind = "date"\nlow = -5\nhigh = 2000')),
    "one class": Case("at least two", schema='classes = ["yes"]'),
    "a class twice": Case("must be different", schema='classes = ["yes", "yes"]'),
    "classes that are no list": Case("must be a list of words", schema="classes = 2"),
    "an unknown fact read off": Case("unknown read off", schema='read_off = ["rows"]'),
    "columns that are no table": Case("one table for each column", schema="columns = 3"),
    "a target that is no name": Case("must be the name of a column", schema="target = 3", flags=()),
    # flags
    "an unknown public fact": Case("unknown public fact 'range'", flags=(*LABEL, "--public", "range")),
    "an unknown task": Case("did you mean 'regression'", flags=(*LABEL, "--task", "regresion")),
    "a range upside down to predict": Case("low below high", flags=(*LABEL, "--task", "regression",
                                                                    "--target-range", "9", "0")),
    "a range of classes": Case("add --task regression", flags=(*LABEL, "--target-range", "0", "9")),
    "an unknown model": Case("did you mean 'mlp'", flags=(*LABEL, "--model", "mpl")),
    "a model for images": Case("is for images", flags=(*LABEL, "--model", "lenet")),
    "no rows to test on": Case("there is no file or folder", flags=(*LABEL, "--test-data", "none.csv")),
    "a schema that is not there": Case("cannot be read", flags=(*LABEL, "--schema", "none.toml")),
}  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("what", CASES)
def test_one_sentence_and_no_cell(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[what]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    if "." not in case.flags:
        Path(case.name).write_bytes(case.table if isinstance(case.table, bytes) else case.table.encode())
    data = () if "--data" in case.flags else ("--data", case.name)
    schema = ()
    if case.schema is not None:
        Path("schema.toml").write_text(case.schema)
        schema = ("--schema", "schema.toml")
    code = main(keep(["train", *data, *schema, *case.flags, *SHORT]))
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown.err
    (line,) = shown.err.strip().splitlines()
    assert line.startswith("error: ")
    assert re.search(case.sentence, line), line
    assert MARK.lower() not in line.lower()
    assert "Traceback" not in line


def test_the_good_table_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that none of the others fails for the table's or the flags' sake."""
    (tmp_path / "rows.csv").write_text(GOOD)
    code = main(keep(["train", "--data", tmp_path / "rows.csv", *LABEL, *SHORT, "--secret-seed", "1"]))
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert MARK.lower() not in (shown.out + shown.err).lower()
