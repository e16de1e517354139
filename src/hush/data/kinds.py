"""What kind a column is, by what the majority of its cells look like, and why.

Evidence is counted over all rows, a piece at a time and in bounded memory; how many different values there are is
counted in the first ``FIRST_ROWS`` alone, wherever a piece ends. Nineteen cells in twenty decide: a stray word among
numbers is a missing value. No cell, and nothing computed from cells but kind and format, goes into what is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hush.data.columns import Column, is_range
from hush.data.dates import DAY_FIRST, ISO, MONTH_FIRST, UNAMBIGUOUS, has_time, is_written_with_slashes, parse_date
from hush.data.flags import PAIRS, list_pairs
from hush.data.numerals import COMMA, POINT, is_missing, parse_number
from hush.data.reading import Cells
from hush.data.schema import MOST_CLASSES
from hush.data.tables import count_texts, list_different, numbers, texts

MAJORITY = 0.95
FIRST_ROWS = 20_000  # of which different values are counted
ENOUGH = 50  # rows, before the number of different values says anything
SENTENCE = 4  # words
_ID_NAME = re.compile(r"(?:.*[^a-z])?(?:id|ids|uid|uuid|guid|mrn|ssn|key|identifier)|.*[a-z](?:Id|ID|UUID|Key)")


@dataclass(frozen=True)
class Guess:
    """A column as it looks, the reason in words, and the problem that keeps it from being used as it is, if any."""

    column: Column
    why: str
    problem: str = ""


@dataclass
class Evidence:
    """What one column has shown so far; its different values only if they are wanted (``listed``). Where a schema says
    what it is (``given``), ``stray`` counts the cells of a date or a flag that are none. ``first_other`` is the number
    of the first row whose label is none of the ``classes`` that a schema lists."""

    name: str
    listed: bool = False
    given: Column | None = None
    classes: frozenset[str] = frozenset()
    stray: int = 0
    first_other: int | None = None
    rows: int = 0
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    pairs: frozenset[int] = frozenset(range(len(PAIRS)))
    whole: bool = True
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    first_rows: int = 0
    first_values: set[str] = field(default_factory=set)
    first_gap: int | None = None  # the number of the first row without a plain number

    @property
    def present(self) -> int:
        """Cells that hold something."""
        return self.rows - self.missing

    def add(self, cells: Cells) -> None:
        """Take some more rows into account."""
        found = numbers(cells) if self._decimal == POINT or isinstance(cells, np.ndarray) else None
        if found is not None:
            self._add_numbers(found)
        else:
            self._add_texts(cells)
        if self.given is not None and self.given.kind in ("date", "flag"):
            parsed = (
                (count, self.given.parse(cell)) for cell, count in count_texts(cells).items() if not is_missing(cell)
            )
            self.stray += sum(count for count, value in parsed if value is None)
        if self.classes and self.first_other is None:
            others = (self.rows + place for place, cell in enumerate(texts(cells), start=1) if cell not in self.classes)
            self.first_other = next(others, None)
        if self.rows < FIRST_ROWS:
            self._count_different(texts(cells[: FIRST_ROWS - self.rows]))
        if self.listed and len(self.values) <= MOST_CLASSES:
            self.values.update(list_different(cells))
        self.rows += len(cells)

    @property
    def _decimal(self) -> str:
        return POINT if self.given is None else self.given.decimal

    def _add_numbers(self, found: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        finite = found[np.isfinite(found)]
        if len(finite) < len(found) and self.first_gap is None:
            self.first_gap = self.rows + int(np.flatnonzero(~np.isfinite(found))[0]) + 1
        self.missing += int(np.isnan(found).sum())
        self.counts["infinite"] += int(np.isinf(found).sum())
        self.counts.update({"number": len(finite), POINT: len(finite), COMMA: int((finite % 1 == 0).sum())})
        self.counts["only " + POINT] += int((finite % 1 != 0).sum())
        self.whole = self.whole and bool((finite % 1 == 0).all())
        if not np.isin(finite, (0.0, 1.0)).all():
            self.pairs = frozenset()
        elif len(finite):
            self.pairs &= list_pairs("0")
        if len(finite):
            self._stretch(POINT, float(finite.min()), float(finite.max()))

    def _add_texts(self, cells: Cells) -> None:
        if self.first_gap is None:
            sign = self._decimal
            gaps = (self.rows + place for place, cell in enumerate(texts(cells), 1) if parse_number(cell, sign) is None)
            self.first_gap = next(gaps, None)
        for cell, count in count_texts(cells).items():
            if is_missing(cell):
                self.missing += count
            else:
                self._add_word(cell, count)

    def _add_word(self, cell: str, count: int) -> None:
        if self.pairs:
            self.pairs &= list_pairs(cell)
        plain, comma = parse_number(cell, POINT), parse_number(cell, COMMA)
        for sign, value in ((POINT, plain), (COMMA, comma)):
            if value is not None:
                self.counts[sign] += count
                self._stretch(sign, value, value)
        self.counts["number"] += count * (plain is not None or comma is not None)
        if (plain is None) != (comma is None):
            self.counts["only " + (POINT if comma is None else COMMA)] += count
        elif plain is not None and plain != comma and COMMA in cell:
            self.counts["either"] += count
        self.whole = self.whole and (plain is None or plain.is_integer()) and (comma is None or comma.is_integer())
        if plain is None and comma is None:
            for look in _list_looks(cell):
                self.counts[look] += count

    def _stretch(self, sign: str, low: float, high: float) -> None:
        self.lows[sign] = min(low, self.lows.get(sign, low))
        self.highs[sign] = max(high, self.highs.get(sign, high))

    def _count_different(self, cells: list[str]) -> None:
        there = [cell for cell in cells if not is_missing(cell)]
        self.first_rows += len(there)
        self.first_values.update(there)

    @property
    def different(self) -> int:
        """How many different values the first rows have."""
        return len(self.first_values)

    def is_most(self, count: int) -> bool:
        """Whether so many cells are nearly all of those that hold something."""
        return self.present > 0 and count >= MAJORITY * self.present

    def holds_numbers(self) -> bool:
        """Whether nearly all cells are numbers, whatever else they may be."""
        return self.is_most(self.counts["number"])

    def has_many(self, share: float) -> bool:
        """Whether more than this share of the first rows is different from all others."""
        return self.first_rows >= ENOUGH and self.different > share * self.first_rows


@lru_cache(maxsize=1 << 17)
def _list_looks(cell: str) -> tuple[str, ...]:
    """What a word that is no number is counted as: the format of the date that it is, a sentence, a code."""
    dated = parse_date(cell, ISO) is not None
    forms = [form for form in UNAMBIGUOUS if (form == ISO or not dated) and parse_date(cell, form) is not None]
    words = cell.split()
    looks = {
        "time": bool(forms) and has_time(cell),
        "slashes": is_written_with_slashes(cell),
        "sentence": len(words) >= SENTENCE,
        "code": len(words) == 1 and any(letter.isdigit() for letter in cell),
    }
    return (*forms, *(name for name, there in looks.items() if there))


def guess_column(seen: Evidence, public: Collection[str] = ()) -> Guess:
    """The column as it looks; its range and its categories only where they are said to be public."""
    name = seen.name
    if not seen.present:
        return Guess(Column(name, "ignore"), "no row has a value")
    if seen.pairs:
        return Guess(Column(name, "flag"), "two words for yes and no")
    if _ID_NAME.fullmatch(name) and seen.whole and not _is_dated(seen) and seen.has_many(0.05):
        return Guess(Column(name, "id"), "it is named like an id and has many different values")
    if seen.holds_numbers():
        return _guess_number(seen, public)
    if _is_dated(seen):
        return _guess_date(seen)
    if seen.counts["sentence"] > seen.present / 2 and seen.different > min(ENOUGH, seen.first_rows / 2):
        return Guess(Column(name, "text"), "most cells are sentences")
    if seen.has_many(0.5):
        if seen.counts["code"] > seen.present / 2:
            return Guess(Column(name, "id"), "nearly every row has a code of its own")
        return Guess(Column(name, "text"), "nearly every row has words of its own")
    return _guess_category(seen, public)


def repeats(seen: Evidence, kind: str) -> bool:
    """Whether some values of an id stand in several rows, or of a category that looks like one: codes, and many."""
    coded = kind == "category" and seen.counts["code"] > seen.present / 2 and seen.has_many(0.05)
    return (kind == "id" or coded) and 0 < seen.different < seen.first_rows


def _is_dated(seen: Evidence) -> bool:
    return seen.is_most(sum(seen.counts[form] for form in UNAMBIGUOUS) + seen.counts["slashes"])


def _guess_number(seen: Evidence, public: Collection[str]) -> Guess:
    counts, name = seen.counts, seen.name
    column = Column(name, "number", missing=True)
    points, commas = counts["only " + POINT], counts["only " + COMMA]
    why = "nearly all cells are numbers"
    if counts["either"] and not points and not commas:
        return Guess(column, why, "has a comma before three digits, for thousands or for decimals: write decimal = '.' "
                     "or decimal = ',' for it into the schema")  # fmt: skip
    sign = COMMA if commas > points else POINT
    if not seen.is_most(counts[sign]):
        return Guess(column, why, "mixes decimal points and decimal commas: write its numbers in one way")
    if "ranges" in public and is_range(seen.lows[sign], seen.highs[sign]):
        column = replace(column, low=seen.lows[sign], high=seen.highs[sign])
    if sign == COMMA:
        return Guess(replace(column, decimal=COMMA), why + ", with a decimal comma")
    return Guess(column, why)


def _guess_date(seen: Evidence) -> Guess:
    why = "nearly all cells are dates"
    best = max(UNAMBIGUOUS, key=lambda form: seen.counts[form])
    column = Column(seen.name, "date", form=best, time=seen.counts["time"] > seen.present / 2)
    if seen.is_most(seen.counts[best] + (seen.counts[ISO] if best != ISO else 0)):
        return Guess(column, f"{why}, written {best}")
    if seen.is_most(seen.counts["slashes"]):
        return Guess(
            Column(seen.name, "date"),
            why,
            f"has dates such as 3/4/2020, in which either may be the day: write format = '{DAY_FIRST}' or "
            f"'{MONTH_FIRST}' for it into the schema",
        )
    return Guess(Column(seen.name, "date"), why, "has dates in several formats: write them in one, best yyyy-mm-dd")


def _guess_category(seen: Evidence, public: Collection[str]) -> Guess:
    why = "words that come again"
    if seen.counts["number"] > seen.present / 2:
        why = "numbers and words, more than one word in twenty"
    column = Column(seen.name, "category", missing=True)
    if "categories" in public and len(seen.values) <= MOST_CLASSES:
        column = replace(column, values=tuple(sorted(value for value in seen.values if not is_missing(value))))
    return Guess(column, why)
