"""What kind a column is, by what the majority of its cells look like, and why.

Nineteen cells in twenty decide: a stray word among numbers is a missing value. No cell, and nothing computed from cells
but kind and format, goes into what is found.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from hush.data.columns import Column, is_range
from hush.data.dates import DAY_FIRST, ISO, MONTH_FIRST, UNAMBIGUOUS
from hush.data.evidence import ENOUGH, Evidence
from hush.data.numerals import COMMA, POINT, is_missing
from hush.data.schema import MOST_CLASSES

_ID_NAME = re.compile(r"(?:.*[^a-z])?(?:id|ids|uid|uuid|guid|mrn|ssn|key|identifier)|.*[a-z](?:Id|ID|UUID|Key)")


@dataclass(frozen=True)
class Guess:
    """A column as it looks, the reason in words, and the problem that keeps it from being used as it is, if any."""

    column: Column
    why: str
    problem: str = ""


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
        column = replace(column, low=seen.lows[sign], high=seen.highs[sign], waves=True)
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
