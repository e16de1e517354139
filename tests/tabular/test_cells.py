"""Profiles of long columns: the vectorised counts equal the cell-by-cell counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from hush.errors import InvalidInputError
from hush.tabular import inspect, reader
from hush.tabular.cells import TextColumn, WordCounts
from hush.tabular.columns import Column, Date, Evidence, Flag, Number
from hush.tabular.columns.date import DAY_FIRST, DOTTED, FORMATS, ISO, UNAMBIGUOUS, find_dates, parse_date
from hush.tabular.columns.number import COMMA, ONLY_COMMA, WITH_COMMA, numbers, parse_number, read_numbers
from hush.tabular.inspect import ColumnProfiler, infer
from hush.tabular.rows import read_table

pa = pytest.importorskip("pyarrow")

GAPS = ["", "NA", "nan", "NaN", "None", "?", " ", "null"]
NUMBERS = ["1", "7", "7.0", "-2.5", "3e2", "+4", ".5", "3.", " 8 ", "-0", "1e400", "0.1", "5e-324", "9" * 30]
COMMAS = ["1,5", "2,25", "-3,0", "1,234", "1.234,5", "7", "12345,678", "0,1234", "1 234,5", ",5", "5,", "007,25"]
THOUSANDS = ["1,234.5", "1,234", "12,345,678", "1'234.5", "1 234.5", "1\u00a0234.5", "123,4567"]
DATES = ["2020-01-31", "1999-12-01", "2020-02-29", "2019-02-29", "0000-01-01", "9999-12-31", "2020-13-01", "2020-1-5"]
TIMES = ["2020-01-31T10:30", "1999-12-01 23:59:59", "2020-01-31 24:00:00", "2020-02-30 10:10:10", "2020-01-31x10:30"]
DOTS = ["31.01.2020", "1.2.1999", "30.02.2020", "31.12.1969 10:30", "31.12.1969T10:30:05", "2020-01-31"]
SLASHES = ["31/01/2020", "01/31/2020", "3/4/2020", "2020/03/04", "2020/13/04", "99/99/2020", "03/04/2020 10:30"]
FLAGS = ["yes", "no", "Yes", "NO ", "ja", "true", "0", "1", "sí"]
WORDS = [
    "red",
    "a b c d e",
    "it was number 7",
    "A-1",
    "B²",
    "x" * 500,
    "9" * 401,
    "٣",
    "１２",
    "1_000",
    '"',
    "a,b",
    "-",
]
POOLS = {
    "numbers": NUMBERS,
    "commas": COMMAS,
    "thousands": THOUSANDS,
    "dates": DATES,
    "times": TIMES,
    "dotted": DOTS,
    "slashes": SLASHES,
    "flags": FLAGS,
    "words": WORDS,
    "infinities": ["inf", "-inf", "nan", "Infinity"],
}
GIVEN = {
    "nothing": None,
    "ISO dates": Date("x"),
    "day first": Date("x", form=DAY_FIRST, time=True),
    "dotted": Date("x", form=DOTTED),
    "flag": Flag("x"),
    "decimal comma": Number("x", decimal=COMMA, missing=True),
}


def mix(seed: int, main: str, rows: int = 120) -> list[str]:
    """Cells of one pool and, from the middle on, some of all others; and gaps."""
    draw, others = random.Random(seed), [word for pool in POOLS.values() for word in pool]
    stray = draw.choice([0.0, 0.03, 0.3])
    cells = [draw.choice(POOLS[main]) for _ in range(rows)]
    for place in range(rows):
        if draw.random() < 0.1:
            cells[place] = draw.choice(GAPS)
        elif place > rows / 2 and draw.random() < stray:
            cells[place] = draw.choice(others)
    return cells


def look_at(pieces: Sequence[Sequence[str]], given: Column | None) -> Evidence:
    looker = ColumnProfiler(Evidence("x", True, classes=frozenset(POOLS["flags"])), given)
    for piece in pieces:
        looker.add(TextColumn.of(piece))
    return looker.mark_updated()


@pytest.mark.parametrize("given", GIVEN.values(), ids=list(GIVEN))
@pytest.mark.parametrize("main", POOLS)
def test_many_at_a_time_is_one_by_one(main: str, given: Column | None) -> None:
    for seed in range(4):
        cells = mix(seed, main)
        pieces = [cells[:50], cells[50:51], cells[51:]]
        found = look_at(pieces, given)
        assert found == look_at([[cell] for cell in cells], given)
        assert found.rows == 120


@pytest.mark.parametrize("main", POOLS)
def test_numbers_of_any_spelling(main: str) -> None:
    for seed in range(4):
        cells = mix(seed, main)
        for sign in (".", COMMA):
            alone = np.concatenate([read_numbers(TextColumn.of([cell]), sign) for cell in cells])
            assert alone.tobytes() == read_numbers(TextColumn.of(cells), sign).tobytes()
            parsed = np.array([np.nan if (v := parse_number(cell, sign)) is None else v for cell in cells])
            assert np.where(np.isfinite(alone), alone, np.nan).tobytes() == parsed.tobytes()
        one_by_one = [numbers(TextColumn.of([cell])) for cell in cells]
        assert any(found is None for found in one_by_one) == (numbers(TextColumn.of(cells)) is None)


@pytest.mark.parametrize("form", FORMATS)
def test_plain_dates_are_what_each_alone_is(form: str) -> None:
    days = [date(1, 1, 1) + timedelta(days=step) for step in range(0, 3_652_058, 1733)]
    days += [date(year, 2, 28) + timedelta(days=1) for year in (1899, 1900, 2000, 2019, 2020, 2100)]
    spelled = [_spell(form, day.year, day.month, day.day) for day in days]
    strange = [_spell(form, *parts) for parts in ((0, 1, 1), (2020, 0, 1), (2020, 13, 1), (2019, 2, 29), (2020, 4, 31))]
    times = [f"{_spell(form, 1999, 12, 31)}{end}" for end in ("T10:30", " 23:59:60", " 24:00", "T10:60", "x10:30")]
    cells = [*spelled, *strange, *times, "", "2020", "１９９９-12-01", "yyyy-mm-dd"]
    found = find_dates(TextColumn(pa.array(cells)), form)
    parsed = {place: parse_date(cell, form) for place, cell in enumerate(cells)}
    assert found.days.tolist() == [parsed[place] for place in found.places.tolist()]
    assert set(range(len(spelled))) <= set(found.places.tolist())
    assert not {parsed[place] for place in set(parsed) - set(found.places.tolist())} - {None}
    assert found.timed.sum() == 2  # 10:30 and 23:59:60
    assert found.unspaced.sum() == len(found.places) - 1


def _spell(form: str, year: int, month: int, day: int) -> str:
    return form.replace("yyyy", f"{year:04}").replace("mm", f"{month:02}").replace("dd", f"{day:02}")


@pytest.mark.parametrize("pattern", [WITH_COMMA, ONLY_COMMA])
def test_decimal_commas_are_what_each_alone_is(pattern: str) -> None:
    cells = [*COMMAS, *THOUSANDS, *WORDS, *NUMBERS, "1,234,5", "12,34", "1234,567"]
    values, others = TextColumn(pa.array(cells)).read_commas(pattern)
    chosen = sorted(set(range(len(cells))) - set(others.tolist()))
    assert len(chosen) >= 6
    assert [values[place] for place in chosen] == [parse_number(cells[place], COMMA) for place in chosen]
    if pattern == ONLY_COMMA:
        assert all(parse_number(cells[place]) is None for place in chosen)


def test_words_are_counted_over_pieces_and_given_once() -> None:
    tally = WordCounts()
    for piece in (["a", "b", None, "a"], ["b"], ["c", "", "a"]):
        tally.add(TextColumn(pa.array(piece)))
    assert sorted(tally.drain()) == [("", 2), ("a", 3), ("b", 2), ("c", 1)]
    assert tally.size == 0
    assert list(tally.drain()) == []


def test_little_room_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that are looked at after every piece say what those say that are looked at once."""
    columns = {main: mix(7, main, 400) for main in POOLS if main != "words"}
    lines = ["\t".join(cells) for cells in zip(*columns.values(), ["u", "v"] * 200, strict=True)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["\t".join([*columns, "y"]), *lines]) + "\n")
    monkeypatch.setattr(reader, "BLOCK", 4000)
    whole = infer(path, "y", {}, ("ranges", "categories")).inspection
    monkeypatch.setattr(inspect, "ROOM", 0)
    assert infer(path, "y", {}, ("ranges", "categories")).inspection == whole
    assert {form for form in UNAMBIGUOUS if whole.seen["dates"].counts[form]} >= {ISO}


def test_odd_rows_are_encoded_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table in one block and in many: the same kinds, the same refusals, the same bits."""
    columns = {main: mix(3, main, 300) for main in POOLS if main != "words"}
    lines = ["\t".join(cells) for cells in zip(*columns.values(), ["u", "v"] * 150, strict=True)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["\t".join([*columns, "y"]), *lines]) + "\n")
    problem = {name: {"kind": "ignore"} for name in ("commas", "slashes", "thousands")}
    dated = {
        "slashes": {"format": DAY_FIRST},
        "commas": {"decimal": COMMA, "missing": True},
        "thousands": {"missing": True},
    }
    for given in ({"columns": problem}, {"columns": dated}, {}):
        found = []
        for block in (1 << 22, 3000):
            monkeypatch.setattr(reader, "BLOCK", block)
            inferred = infer(path, "y", given)
            try:
                rows, labels = read_table(path, inferred.require())
                found.append((inferred.schema, rows.numpy().tobytes(), labels.tolist()))
            except InvalidInputError as error:
                found.append((inferred.problems, str(error)))
        assert found[0] == found[1]


def test_the_first_gap_and_the_first_strange_label_are_numbered() -> None:
    for cells in (["1"] * 70 + ["x", "1"], ["1", ""], ["yes"] * 40 + ["zz"] + ["yes"] * 40):
        found = look_at([cells[:1], cells[1:]], None)
        alone = look_at([cells], None)
        assert (found.first_gap, found.first_other) == (alone.first_gap, alone.first_other)
