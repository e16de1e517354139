"""The pass over a table that finds what its columns are: evidence is counted over all rows, a piece at a time.

Memory is bounded, whatever the table's length. How many different values there are is counted in the first
``FIRST_ROWS`` alone, wherever a piece ends. In a column of a long file numbers, plain dates and decimal commas are
counted many at a time; all other words are gathered over many pieces, and each different one is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hush.data.dates import ISO, UNAMBIGUOUS, has_time, is_written_with_slashes, parse_date
from hush.data.evidence import Evidence
from hush.data.flags import list_pairs
from hush.data.numerals import COMMA, POINT, is_missing, parse_number
from hush.data.plain_dates import find_dates
from hush.data.reading import Cells, Count, pieces
from hush.data.schema import MOST_CLASSES
from hush.data.streaming import ONLY_COMMA, Tally, Words
from hush.data.tables import count_texts, find_first, list_different, numbers
from hush.errors import BadInput

FIRST_ROWS = 20_000  # of which different values are counted
SENTENCE = 4  # words
ROOM = 1 << 25  # bytes of words that were gathered and not looked at yet, of all columns together
_NUMBER_BEGINS = re.compile(r"[+\-.,\d]")
_DATE_BEGINS = re.compile("[0-9]")


def look(path: Path, begin: Callable[[str], Evidence], count: Count) -> dict[str, Evidence]:
    """What every column shows; ``begin`` gives what one has shown before its first row."""
    seen: dict[str, Looker] = {}
    for piece in pieces(path, count):
        seen = seen or {name: Looker(begin(name)) for name in piece}
        for name, cells in piece.items():
            seen[name].add(cells)
        if sum(looker.waiting for looker in seen.values()) > ROOM:
            _settle(seen.values())
    if not seen:
        raise BadInput(f"'{path}' holds no rows")
    _settle(seen.values())
    return {name: looker.evidence for name, looker in seen.items()}


def _settle(lookers: Iterable[Looker]) -> None:
    for looker in lookers:
        looker.settle()


class Looker:
    """Looks at one column, some rows at a time; `settle` completes the evidence."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._decimal = POINT if evidence.given is None else evidence.given.decimal
        self._first_values: set[str] = set()
        self._tally = Tally()
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
        found = numbers(cells) if self._decimal == POINT or isinstance(cells, np.ndarray) else None
        if found is not None:
            self._add_numbers(found)
        else:
            self._add_texts(cells)
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

    def _add_numbers(self, found: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        seen, there = self.evidence, np.isfinite(found)
        finite = found if there.all() else found[there]
        if len(finite) < len(found):
            if seen.first_gap is None:
                seen.first_gap = seen.rows + int(np.argmin(there)) + 1
            seen.missing += int(np.isnan(found).sum())
            seen.counts["infinite"] += int(np.isinf(found).sum())
        whole = int((np.floor(finite) == finite).sum())
        seen.counts.update({"number": len(finite), POINT: len(finite), COMMA: whole})
        seen.counts["only " + POINT] += len(finite) - whole
        seen.whole = seen.whole and whole == len(finite)
        if seen.pairs and len(finite):
            bits = bool(((finite == 0) | (finite == 1)).all())
            seen.pairs = seen.pairs & list_pairs("0") if bits else frozenset()
        if len(finite):
            seen.stretch(POINT, float(finite.min()), float(finite.max()))

    def _add_texts(self, cells: Cells) -> None:
        if self.evidence.first_gap is None:
            sign = self._decimal
            self.evidence.first_gap = self._number_first(cells, lambda text: parse_number(text, sign) is None)
        if isinstance(cells, Words):
            self._tally.add(self._add_commas(self._add_dates(cells)))
        else:
            for text, count in count_texts(cells).items():
                self._add_text(text, count)

    def _add_dates(self, cells: Words) -> Words:
        """Count the plain dates, and give the other cells. A format that few cells have is not looked for again."""
        seen, left = self.evidence, np.ones(len(cells), np.bool_)
        for form in self._dated:
            found = find_dates(cells, form)
            if len(found.places) < len(cells) / 2:
                self._dated = tuple(other for other in self._dated if other != form)
            if len(found.places):
                left[found.places] = False
                seen.pairs = frozenset()
                timed, words = int(found.timed.sum()), int(found.unspaced.sum())
                seen.counts.update({form: len(found.places), "time": timed, "code": words})
        return cells if left.all() else cells.pick(np.flatnonzero(left))

    def _add_commas(self, cells: Words) -> Words:
        """Count the numbers that have a decimal comma and can have no other meaning, and give the other cells."""
        if not self._with_commas:
            return cells
        seen, (values, others) = self.evidence, cells.read_commas(ONLY_COMMA)
        found = values[~np.isnan(values)]
        self._with_commas = len(found) > len(cells) / 2
        if not len(found):
            return cells
        seen.pairs = frozenset()
        seen.counts.update({COMMA: len(found), "number": len(found), "only " + COMMA: len(found)})
        seen.whole = seen.whole and bool((np.floor(found) == found).all())
        seen.stretch(COMMA, float(found.min()), float(found.max()))
        return cells.pick(others)

    def _add_text(self, text: str, count: int) -> None:
        if is_missing(text):
            self.evidence.missing += count
        else:
            self._add_word(text, count)

    def _add_word(self, cell: str, count: int) -> None:
        seen = self.evidence
        if seen.pairs:
            seen.pairs &= list_pairs(cell)
        plain = comma = None
        if _NUMBER_BEGINS.match(cell):  # nothing else is a number, and most words end here
            plain, comma = parse_number(cell, POINT), parse_number(cell, COMMA)
        if plain is None and comma is None:
            for name in list_looks(cell):
                seen.counts[name] += count
            return
        for sign, value in ((POINT, plain), (COMMA, comma)):
            if value is not None:
                seen.counts[sign] += count
                seen.stretch(sign, value, value)
        seen.counts["number"] += count
        if (plain is None) != (comma is None):
            seen.counts["only " + (POINT if comma is None else COMMA)] += count
        elif plain != comma and COMMA in cell:
            seen.counts["either"] += count
        seen.whole = seen.whole and (plain is None or plain.is_integer()) and (comma is None or comma.is_integer())

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
        if given.kind == "date" and isinstance(cells, Words):
            left = np.ones(len(cells), np.bool_)
            left[find_dates(cells, given.form).places] = False
            cells = cells.pick(np.flatnonzero(left))
        return sum(
            count for text, count in count_texts(cells).items() if not is_missing(text) and given.parse(text) is None
        )


def _take_first(cells: Cells, count: int) -> Cells:
    return cells.take_first(count) if isinstance(cells, Words) else cells[:count]


@lru_cache(maxsize=1 << 15)
def list_looks(cell: str) -> tuple[str, ...]:
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
