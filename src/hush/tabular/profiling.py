"""The pass over a table that finds what its columns are: evidence is counted over all rows, a piece at a time.

Memory is bounded, whatever the table's length. How many different values there are is counted in the first
``FIRST_ROWS`` alone, wherever a piece ends. Numbers, plain dates and decimal commas are counted many at a time; all
other words are gathered over many pieces, and each different one is looked at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hush.errors import InvalidInputError
from hush.tabular.columns import Column, is_range
from hush.tabular.encode import count_texts, find_first, list_different
from hush.tabular.reader import (
    COMMA,
    DAY_FIRST,
    FORMATS,
    ISO,
    MONTH_FIRST,
    ONLY_COMMA,
    PAIRS,
    PLAIN,
    POINT,
    UNAMBIGUOUS,
    Cells,
    Count,
    TextColumn,
    WordCounts,
    find_dates,
    has_time,
    is_missing,
    is_written_with_slashes,
    parse_date,
    parse_number,
    pieces,
    read_number,
)
from hush.tabular.schema import MOST_CLASSES

# What the cells of a column have shown: counts over all rows, from which its kind follows.
#
# It is private: it was computed from everybody's cells, without noise. Each cell is counted by itself: what it counts
# as never depends on another cell.

MAJORITY = 0.95  # of the cells that hold something: the one rule by which every kind is inferred
ENOUGH = 50  # rows, before the number of different values says anything
COUNTED = ("rows", "missing", "stray", "first_rows", "different")
PLACES = ("first_gap", "first_other")


@dataclass
class ColumnProfile:
    """What one column has shown so far; its different values only if they are wanted (``listed``). Where a schema says
    what it is (``given``), ``stray`` counts the cells of a date or a flag that are none. ``first_other`` is the number
    of the first row whose label is none of the ``classes`` that a schema lists, ``first_gap`` that of the first row
    without a plain number. ``different`` values are counted in the first rows alone (``first_rows`` with a value)."""

    name: str
    listed: bool = False
    given: Column | None = None
    classes: frozenset[str] = frozenset()
    stray: int = 0
    first_other: int | None = None
    rows: int = 0
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)  # of yes and no, in small letters
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    first_rows: int = 0
    different: int = 0
    first_gap: int | None = None

    @property
    def present(self) -> int:
        """Cells that hold something."""
        return self.rows - self.missing

    def is_most(self, count: int) -> bool:
        """Whether this number of cells is nearly all of those that are not empty."""
        return self.present > 0 and count >= MAJORITY * self.present

    def is_few(self, count: int, of: int | None = None) -> bool:
        """Whether this number of cells is negligible among those that are not empty, or among ``of``."""
        return count <= (1 - MAJORITY) * (self.present if of is None else of)

    @property
    def whole(self) -> bool:
        """Whether numbers with a fraction are strays."""
        return self.is_few(self.counts["fraction"])

    def is_flag(self) -> bool:
        """Whether nearly all cells are one of two words for yes and no. Cells of 0 and 1 are a flag only if other
        numbers are strays among the cells that are not the commoner of the two: a count is often 0."""
        for no, yes in PAIRS:
            pair = self.words[no] + self.words[yes]
            others = self.counts["number"] - pair if no == "0" else 0
            if self.is_most(pair) and self.is_few(others, self.present - max(self.words[no], self.words[yes])):
                return True
        return False

    def holds_numbers(self) -> bool:
        """Whether nearly all cells are numbers, whatever else they may be."""
        return self.is_most(self.counts["number"])

    def holds(self, text: str) -> bool:
        """Whether a text is written as nearly all cells are: a number, a date, or a word of the column's flag."""
        signs, forms = (tuple(k for k in known if self.is_most(self.counts[k])) for known in ((POINT, COMMA), FORMATS))
        numeric = any(parse_number(text, sign) is not None for sign in signs)
        dated = any(parse_date(text, form) is not None for form in forms)
        flags = [pair for pair in PAIRS if self.is_most(self.words[pair[0]] + self.words[pair[1]])]
        return numeric or dated or any(text.strip().lower() in pair for pair in flags)

    def has_many(self, share: float) -> bool:
        """Whether more than this share of the first rows is different from all others."""
        return self.first_rows >= ENOUGH and self.different > share * self.first_rows

    def stretch(self, sign: str, low: float, high: float) -> None:
        """Numbers from low to high came, read with this decimal sign."""
        self.lows[sign] = min(low, self.lows.get(sign, low))
        self.highs[sign] = max(high, self.highs.get(sign, high))

    def to_json(self) -> dict[str, Any]:
        """What was found, as plain data; what was asked for is not in it."""
        return {
            **{name: getattr(self, name) for name in (*COUNTED, *PLACES, "lows", "highs")},
            "counts": dict(self.counts),
            "words": dict(self.words),
            "values": sorted(self.values),
        }

    def fill_from(self, found: dict[str, Any]) -> None:
        """Take over what `to_json` gave; a KeyError, TypeError or ValueError says that it is none."""
        for name in COUNTED:
            setattr(self, name, int(found[name]))
        for name in PLACES:
            setattr(self, name, None if found[name] is None else int(found[name]))
        self.lows, self.highs = ({sign: float(end) for sign, end in found[k].items()} for k in ("lows", "highs"))
        self.counts = Counter({name: int(count) for name, count in found["counts"].items()})
        self.words = Counter({name: int(count) for name, count in found["words"].items()})
        self.values = set(map(str, found["values"]))


FIRST_ROWS = 20_000  # of which different values are counted
SENTENCE = 4  # words
ROOM = 1 << 25  # bytes of words that were gathered and not looked at yet, of all columns together
_NUMBER_BEGINS = re.compile(r"[+\-.,\d]")
_DATE_BEGINS = re.compile("[0-9]")
_PLAIN = re.compile(PLAIN.removesuffix("$"))
_FLAG_WORDS = frozenset(word for pair in PAIRS for word in pair)
_DOTTED = r"^[+-]?[0-9]{1,3}\.[0-9]{3}$"  # a plain decimal that may be a whole number with a sign of thousands


def profile_columns(
    path: Path, begin: Callable[[str], ColumnProfile], count: Count, unit: str = ""
) -> dict[str, ColumnProfile]:
    """What every column shows; ``begin`` gives what one has shown before its first row. The column ``unit`` is read as
    exact text."""
    seen: dict[str, ColumnProfiler] = {}
    for piece in pieces(path, count, exact=unit):
        seen = seen or {name: ColumnProfiler(begin(name)) for name in piece}
        for name, cells in piece.items():
            seen[name].add(cells)
        if sum(looker.waiting for looker in seen.values()) > ROOM:
            _settle(seen.values())
    if not seen:
        raise InvalidInputError(f"'{path}' holds no rows")
    _settle(seen.values())
    return {name: looker.evidence for name, looker in seen.items()}


def _settle(lookers: Iterable[ColumnProfiler]) -> None:
    for looker in lookers:
        looker.settle()


class ColumnProfiler:
    """Looks at one column, some rows at a time; `settle` completes the evidence."""

    def __init__(self, evidence: ColumnProfile) -> None:
        self.evidence = evidence
        self._decimal = POINT if evidence.given is None else evidence.given.decimal
        self._first_values: set[str] = set()
        self._tally = WordCounts()
        self._dated: tuple[str, ...] = UNAMBIGUOUS  # formats that are worth looking for
        self._with_commas = True  # whether decimal commas are

    @property
    def waiting(self) -> int:
        """Bytes of words that were gathered and not looked at yet."""
        return self._tally.size

    def settle(self) -> None:
        """Look at the words that were gathered."""
        for word, count in self._tally.drain():
            self._add_text(word.strip(), count)

    def add(self, cells: Cells) -> None:
        """Take some more rows into account."""
        seen = self.evidence
        if isinstance(cells, TextColumn):
            self._add_texts(cells)
        else:
            self._add_typed(cells)
        if seen.given is not None and seen.given.kind in ("date", "flag"):
            seen.stray += self._count_stray(cells)
        if seen.classes and seen.first_other is None:
            seen.first_other = self._number_first(cells, lambda text: text not in seen.classes)
        if seen.rows < FIRST_ROWS:
            self._count_different(_take_first(cells, FIRST_ROWS - seen.rows))
        if seen.listed and len(seen.values) <= MOST_CLASSES:
            seen.values.update(list_different(cells))
        seen.rows += len(cells)

    def _number_first(self, cells: Cells, which: Callable[[str], bool]) -> int | None:
        """The number of the first row of whose cell ``which`` is true."""
        place = find_first(cells, which)
        return None if place is None else self.evidence.rows + place + 1

    def _add_typed(self, found: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Numbers of a file that has types."""
        seen, there = self.evidence, np.isfinite(found)
        if seen.first_gap is None and not there.all():
            seen.first_gap = seen.rows + int(np.argmin(there)) + 1
        seen.missing += int(np.isnan(found).sum())
        seen.counts["infinite"] += int(np.isinf(found).sum())
        finite = found[there]
        self._count_bits(finite)
        self._count_plain(finite)

    def _add_texts(self, cells: TextColumn) -> None:
        seen, sign = self.evidence, self._decimal
        if seen.first_gap is None:
            seen.first_gap = self._number_first(cells, lambda text: parse_number(text, sign) is None)
        if sign == POINT:
            values, others = cells.plain
            self._add_plain(cells, values)
            cells = cells.pick(others)
        self._tally.add(self._add_commas(self._add_dates(cells)))

    def _add_plain(self, cells: TextColumn, values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Count the plain decimals; of 0 and 1 only those of one character are words of a flag."""
        seen = self.evidence
        there = np.flatnonzero(~np.isnan(values))
        bits = there[(values[there] == 0) | (values[there] == 1)]
        if len(bits):
            self._count_bits(values[bits[cells.pick(bits).lengths == 1]])
        thousand = np.rint(values[there] * 1000)
        near = (np.abs(values[there]) < 1000) & (np.abs(values[there] * 1000 - thousand) < 1e-6)
        fractions = there[near & (np.floor(values[there]) != values[there])]
        if len(fractions):
            dotted = fractions[cells.pick(fractions).match(_DOTTED)]
            if len(dotted):
                seen.counts[COMMA] += len(dotted)
                seen.stretch(COMMA, float(values[dotted].min()) * 1000, float(values[dotted].max()) * 1000)
        self._count_plain(values[there])

    def _count_bits(self, finite: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        self.evidence.words.update({"0": int((finite == 0).sum()), "1": int((finite == 1).sum())})

    def _count_plain(self, finite: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Plain decimals: a whole one is the same with either decimal sign, a fraction speaks for the point."""
        seen = self.evidence
        if not len(finite):
            return
        whole = np.floor(finite) == finite
        fractions = len(finite) - int(whole.sum())
        seen.counts.update({"number": len(finite), POINT: len(finite), COMMA: len(finite) - fractions})
        seen.counts.update({"only " + POINT: fractions, "fraction": fractions})
        seen.stretch(POINT, float(finite.min()), float(finite.max()))
        if fractions < len(finite):
            seen.stretch(COMMA, float(finite[whole].min()), float(finite[whole].max()))

    def _add_dates(self, cells: TextColumn) -> TextColumn:
        """Count the plain dates, and give the other cells. A format that few cells have is not looked for again."""
        seen, left = self.evidence, np.ones(len(cells), np.bool_)
        for form in self._dated:
            found = find_dates(cells, form)
            if len(found.places) < len(cells) / 2:
                self._dated = tuple(other for other in self._dated if other != form)
            if len(found.places):
                left[found.places] = False
                timed, words = int(found.timed.sum()), int(found.unspaced.sum())
                seen.counts.update({form: len(found.places), "time": timed, "code": words})
        return cells if left.all() else cells.pick(np.flatnonzero(left))

    def _add_commas(self, cells: TextColumn) -> TextColumn:
        """Count the numbers that have a decimal comma and can have no other meaning, and give the other cells."""
        if not self._with_commas:
            return cells
        seen, (values, others) = self.evidence, cells.read_commas(ONLY_COMMA)
        found = values[~np.isnan(values)]
        self._with_commas = len(found) > len(cells) / 2
        if not len(found):
            return cells
        seen.counts.update({COMMA: len(found), "number": len(found), "only " + COMMA: len(found)})
        seen.counts["fraction"] += int((np.floor(found) != found).sum())
        seen.stretch(COMMA, float(found.min()), float(found.max()))
        return cells.pick(others)

    def _add_text(self, text: str, count: int) -> None:
        if is_missing(text):
            self.evidence.missing += count
        else:
            self._add_word(text, count)

    def _add_word(self, cell: str, count: int) -> None:
        seen = self.evidence
        if (word := cell.lower()) in _FLAG_WORDS:
            seen.words[word] += count
        plain = comma = None
        if _NUMBER_BEGINS.match(cell):  # nothing else is a number, and most words end here
            plain, comma = parse_number(cell, POINT), parse_number(cell, COMMA)
        if plain is None and comma is None:
            seen.counts["infinite"] += count * math.isinf(read_number(cell))
            for name in match_patterns(cell):
                seen.counts[name] += count
            return
        decimal = self._decimal == POINT and plain is not None and _PLAIN.fullmatch(cell) is not None
        if decimal and plain is not None and plain.is_integer():  # counted as those that Arrow reads
            comma = plain
        for sign, value in ((POINT, plain), (COMMA, comma)):
            if value is not None:
                seen.counts[sign] += count
                seen.stretch(sign, value, value)
        seen.counts["number"] += count
        if decimal:
            seen.counts["only " + POINT] += count * (plain != comma)
        elif (plain is None) != (comma is None):
            seen.counts["only " + (POINT if comma is None else COMMA)] += count
        elif plain != comma and COMMA in cell:
            seen.counts["either"] += count
        seen.counts["fraction"] += count * any(v is not None and not v.is_integer() for v in (plain, comma))

    def _count_different(self, cells: Cells) -> None:
        counted = {text: count for text, count in count_texts(cells).items() if not is_missing(text)}
        self._first_values.update(counted)
        self.evidence.first_rows += sum(counted.values())
        self.evidence.different = len(self._first_values)

    def _count_stray(self, cells: Cells) -> int:
        """How many cells hold a value that is none of the kind that the schema says."""
        given = self.evidence.given
        if given is None:
            return 0
        if given.kind == "date" and isinstance(cells, TextColumn):
            left = np.ones(len(cells), np.bool_)
            left[find_dates(cells, given.form).places] = False
            cells = cells.pick(np.flatnonzero(left))
        return sum(
            count for text, count in count_texts(cells).items() if not is_missing(text) and given.parse(text) is None
        )


def _take_first(cells: Cells, count: int) -> Cells:
    return cells.take_first(count) if isinstance(cells, TextColumn) else cells[:count]


@lru_cache(maxsize=1 << 15)
def match_patterns(cell: str) -> tuple[str, ...]:
    """What a word that is no number is counted as: the format of the date that it is, a sentence, a code."""
    forms, slashes = [], False
    if _DATE_BEGINS.match(cell):
        dated = parse_date(cell, ISO) is not None
        forms = [form for form in UNAMBIGUOUS if (form == ISO or not dated) and parse_date(cell, form) is not None]
        slashes = is_written_with_slashes(cell)
    words = cell.split()
    looks = {
        "time": bool(forms) and has_time(cell),
        "slashes": slashes,
        "sentence": len(words) >= SENTENCE,
        "code": len(words) == 1 and any(letter.isdigit() for letter in cell),
    }
    return (*forms, *(name for name, there in looks.items() if there))


# What kind a column is, by what the majority of its cells look like, and why.
#
# One rule for every kind: nineteen in twenty of the cells that hold something decide (``MAJORITY``), and the others are
# strays, which are missing values. No cell, and nothing computed from cells but kind and format, goes into what is
# found; that kinds were inferred from the rows is an assumption of the guarantee.

_ID_NAME = re.compile(r"(?:.*[^a-z])?(?:id|ids|uid|uuid|guid|mrn|ssn|key|identifier)|.*[a-z](?:Id|ID|UUID|Key)")


@dataclass(frozen=True)
class InferredType:
    """The inferred type of a column, the reason, and the problem that prevents its use, if any."""

    column: Column
    why: str
    problem: str = ""


def guess_column(seen: ColumnProfile, public: Collection[str] = ()) -> InferredType:
    """The column as it looks; its range and its categories only where they are said to be public."""
    name = seen.name
    if not seen.present:
        return InferredType(Column(name, "ignore"), "no row has a value")
    if seen.is_flag():
        return InferredType(Column(name, "flag"), "two words for yes and no")
    if _ID_NAME.fullmatch(name) and seen.whole and not _is_dated(seen) and seen.has_many(0.05):
        return InferredType(Column(name, "id"), "it is named like an id and has many different values")
    if seen.holds_numbers():
        return _guess_number(seen, public)
    if _is_dated(seen):
        return _guess_date(seen)
    if seen.is_most(seen.counts["sentence"]) and seen.different > min(ENOUGH, seen.first_rows / 2):
        return InferredType(Column(name, "text"), "nearly all cells are sentences")
    if seen.has_many(0.5):
        if seen.is_most(seen.counts["code"]):
            return InferredType(Column(name, "id"), "nearly every row has a code of its own")
        return InferredType(Column(name, "text"), "nearly every row has words of its own")
    return _guess_category(seen, public)


def repeats(seen: ColumnProfile, kind: str) -> bool:
    """Whether values of an id, or of a category that looks like one (many codes), occur in several rows."""
    coded = kind == "category" and seen.counts["code"] > seen.present / 2 and seen.has_many(0.05)
    return (kind == "id" or coded) and 0 < seen.different < seen.first_rows


def _is_dated(seen: ColumnProfile) -> bool:
    return seen.is_most(sum(seen.counts[form] for form in UNAMBIGUOUS) + seen.counts["slashes"])


def _guess_number(seen: ColumnProfile, public: Collection[str]) -> InferredType:
    counts, name = seen.counts, seen.name
    column = Column(name, "number", missing=True)
    points, commas = counts["only " + POINT], counts["only " + COMMA]
    why = "nearly all cells are numbers"
    if counts["either"] and seen.is_few(points + commas, points + commas + counts["either"]):
        doubt = (
            "has a comma before three digits, for thousands or for decimals: write decimal = '.' or decimal = ',' for "
            "it "
            "into the schema"
        )
        return InferredType(column, why, doubt)
    sign = COMMA if commas > points and not seen.is_few(commas) else POINT  # a stray comma decides nothing
    if not seen.is_most(counts[sign]):
        return InferredType(column, why, "mixes decimal points and decimal commas: write its numbers in one way")
    if "ranges" in public and is_range(seen.lows[sign], seen.highs[sign]):
        column = replace(column, low=seen.lows[sign], high=seen.highs[sign], waves=True)
    if sign == COMMA:
        return InferredType(replace(column, decimal=COMMA), why + ", with a decimal comma")
    return InferredType(column, why)


def _guess_date(seen: ColumnProfile) -> InferredType:
    why = "nearly all cells are dates"
    best = max(UNAMBIGUOUS, key=lambda form: seen.counts[form])
    column = Column(seen.name, "date", form=best, time=seen.is_most(seen.counts["time"]))
    if seen.is_most(seen.counts[best] + (seen.counts[ISO] if best != ISO else 0)):
        return InferredType(column, f"{why}, written {best}")
    if seen.is_most(seen.counts["slashes"]):
        return InferredType(
            Column(seen.name, "date"),
            why,
            f"has dates such as 3/4/2020, in which either may be the day: write format = '{DAY_FIRST}' or "
            f"'{MONTH_FIRST}' for it into the schema",
        )
    return InferredType(
        Column(seen.name, "date"), why, "has dates in several formats: write them in one, best yyyy-mm-dd"
    )


def _guess_category(seen: ColumnProfile, public: Collection[str]) -> InferredType:
    why = "words that come again"
    if seen.counts["number"] > seen.present / 2:
        why = "numbers and words, more than one word in twenty"
    column = Column(seen.name, "category", missing=True)
    if "categories" in public and len(seen.values) <= MOST_CLASSES:
        column = replace(column, values=tuple(sorted(value for value in seen.values if not is_missing(value))))
    return InferredType(column, why)
