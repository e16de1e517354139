"""Dates: how people write them, and what they become."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.errors import InvalidInputError
from hush.tabular.cells import Cells, Floats, Places, TextColumn, as_doubles, map_texts
from hush.tabular.columns.base import (
    GAP,
    Column,
    ConstantLayer,
    Guess,
    Inputs,
    Range,
    add_missing,
    check_range,
    check_switch,
    count_unread,
    index,
)
from hush.tabular.columns.evidence import Evidence

# Dates as people write them, as days since 1 January 1970, a part of a day for the time.
#
# A date is read by the format of its column alone, or as ISO 8601, which cannot be taken for another. "03/04/2020" is a
# day in March or in April: a column of such dates is refused until a schema says which. A time zone is ignored: the
# time of day is the one that is written.

ISO = "yyyy-mm-dd"
DOTTED = "dd.mm.yyyy"
DAY_FIRST, MONTH_FIRST = "dd/mm/yyyy", "mm/dd/yyyy"
FORMATS = (ISO, "yyyy/mm/dd", DOTTED, DAY_FIRST, MONTH_FIRST)
UNAMBIGUOUS = (ISO, "yyyy/mm/dd", DOTTED)
LONGEST_DATE = 40  # characters
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY = 1 - _EPOCH  # 1 January of the year 1
_TIME = (
    r"(?:[T ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]{1,9})?)?"
    r"(?: ?(?:Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_PART = {"yyyy": "(?P<year>[0-9]{4})", "mm": "(?P<month>[0-9]{1,2})", "dd": "(?P<day>[0-9]{1,2})"}


def _compile(form: str) -> re.Pattern[str]:
    pattern = re.escape(form)
    for part, found in _PART.items():
        pattern = pattern.replace(part, found)
    return re.compile(pattern + _TIME)


_PATTERNS = {form: _compile(form) for form in FORMATS}


@lru_cache(maxsize=65536)
def parse_date(text: str, form: str) -> float | None:
    """Days since 1 January 1970, or None if the cell is not a date of that format."""
    text = text.strip()
    if len(text) > LONGEST_DATE:
        return None
    found = _PATTERNS[form].fullmatch(text)
    if found is None:
        return None if form == ISO else parse_date(text, ISO)
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 60:
        return None
    try:
        day = date(int(found["year"]), int(found["month"]), int(found["day"])).toordinal() - _EPOCH
    except ValueError:
        return None
    return day + (hour * 3600 + minute * 60 + second) / 86_400


def has_time(text: str) -> bool:
    """Whether a date is written with a time of day."""
    return ":" in text


def is_written_with_slashes(text: str) -> bool:
    """Whether this is a date of the form 3/4/2020, in which the order of day and month is ambiguous."""
    return any(
        _PATTERNS[form].fullmatch(text.strip()) for form in (DAY_FIRST, MONTH_FIRST) if len(text) <= LONGEST_DATE
    )


FIRST_YEAR, LAST_YEAR = 1900.0, 2100.0  # the public range of a date without a given one
MOST_YEARS = 9999
DAYS_IN_YEAR = 365.2425  # on average, in the Gregorian calendar
WEEK_WAVES = (1.0, 2.0, 3.0)  # with sine and cosine they separate any set of weekdays from the others
YEAR_OF_DAY_0 = 1970.0
MIDDLE, SLOPE = 2000.0, 25.0  # of the soft step over the years that are most usual
_DATE_BEGINS = re.compile("[0-9]")


def count_days(year: float) -> float:
    """Days from 1 January 1970 to the beginning of a year, in years of average length."""
    return (year - YEAR_OF_DAY_0) * DAYS_IN_YEAR


@dataclass(frozen=True)
class Date(Column):
    """A date: its year, mapped to [−1, 1] from a public range of years (``low``, ``high``), and waves of the year, the
    week and, with ``time``, the day. Without a range the years are 1900 … 2100, and tanh((year − 2000)/25) is added.
    ``form`` is how its cells are written."""

    low: float | None = None
    high: float | None = None
    form: str = ISO
    time: bool = False

    kind: ClassVar[str] = "date"
    renamed: ClassVar[Mapping[str, str]] = {"form": "format"}
    hint: ClassVar[str] = "# low = …, high = …: a public range of years"
    no_target: ClassVar[str] = "dates"
    cell: ClassVar[str] = (
        "days from 1 January 1970 to the date, and where the column has a time the part of the day that has passed"
    )
    functions: ClassVar[Mapping[str, str]] = {
        "year": "2·(min(max(x, low), high) − low)/(high − low) − 1, one input; low and high are in days",
        "soft year": "tanh((x − 10957.275)/9131.0625), one input",
        "season sin": "sin(2π·x/365.2425), one input",
        "season cos": "cos(2π·x/365.2425), one input",
        "week sin": "sin(2π·k·⌊x⌋/7) for each k of waves, as many inputs",
        "week cos": "cos(2π·k·⌊x⌋/7) for each k of waves, as many inputs",
        "day sin": "sin(2π·x), one input",
        "day cos": "cos(2π·x), one input",
    }

    def __post_init__(self) -> None:
        check_range(self.name, self.low, self.high)
        check_switch(self, "time")
        if self.form not in FORMATS:
            raise InvalidInputError(f"the format of column '{self.name}' must be one of {', '.join(FORMATS)}")
        if self.low is not None and not 1 <= self.low < float(self.high or 0) <= MOST_YEARS:
            raise InvalidInputError(f"low and high of the date '{self.name}' must be years from 1 to {MOST_YEARS}")

    @property
    def years(self) -> Range:
        """The public range."""
        return (FIRST_YEAR, LAST_YEAR) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def width(self) -> int:
        return (1 if self.low is not None else 2) + 2 + 2 * len(WEEK_WAVES) + 2 * self.time + 1

    @property
    def marks_missing(self) -> bool:
        return True

    @property
    def stand_in(self) -> float:
        return count_days(sum(self.years) / 2)

    def parse(self, text: str) -> float | None:
        """A cell as a number of days, or None."""
        day = parse_date(text, self.form)
        return day if day is None or self.time else float(math.floor(day))

    def encode(self, cells: Cells, what: str) -> NDArray[Any]:
        if not isinstance(cells, TextColumn):
            return map_texts(cells, self._parse_or_gap)
        plain = find_dates(cells, self.form)
        values = np.full(len(cells), np.nan)
        values[plain.places] = plain.days if self.time else np.floor(plain.days)
        others = np.flatnonzero(np.isnan(values))
        if len(others):
            values[others] = map_texts(cells.pick(others), self._parse_or_gap)
        return values

    def _parse_or_gap(self, text: str) -> float:
        return GAP if (value := self.parse(text)) is None else value

    @classmethod
    def list_inputs(cls, columns: Sequence[Date]) -> list[Inputs]:
        return [(c, function, c._facts(function)) for function in cls.functions for c in columns if c._has(function)]

    def _has(self, function: str) -> bool:
        return self.low is None if function == "soft year" else self.time or not function.startswith("day")

    def _facts(self, function: str) -> dict[str, Any]:
        if function == "year":
            return {"count": 1, "low": count_days(self.years[0]), "high": count_days(self.years[1])}
        waves = {"count": len(WEEK_WAVES), "waves": list(WEEK_WAVES)}
        return waves if function.startswith("week") else {"count": 1}

    @classmethod
    def build_layer(cls, columns: Sequence[Date], places: Sequence[int]) -> nn.Module:
        return _Dates(columns, places)

    def describe(self) -> str:
        (first, last), day = self.years, ", time of day" if self.time else ""
        given = "" if self.low is not None else "no public range given: "
        return add_missing(f"{given}year in {first:g} … {last:g}, time of year{day} and weekday")

    @property
    def written_specially(self) -> bool:
        return self.form != ISO or self.time

    def describe_writing(self) -> dict[str, Any]:
        return {"format": self.form, "time": self.time}

    @classmethod
    def count_cells(cls, seen: Evidence, cells: TextColumn) -> TextColumn:
        """Plain dates. A format that few cells have is not looked for again."""
        left = np.ones(len(cells), np.bool_)
        for form in UNAMBIGUOUS if len(cells) else ():
            if form in seen.untried:
                continue
            found = find_dates(cells, form)
            if len(found.places) < len(cells) / 2:
                seen.untried.add(form)
            if len(found.places):
                left[found.places] = False
                timed, words = int(found.timed.sum()), int(found.unspaced.sum())
                seen.counts.update({form: len(found.places), "time": timed, "code": words})
        return cells if left.all() else cells.pick(np.flatnonzero(left))

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        if not _DATE_BEGINS.match(word):
            return False
        dated = parse_date(word, ISO) is not None
        forms = [form for form in UNAMBIGUOUS if (form == ISO or not dated) and parse_date(word, form) is not None]
        for name in forms:
            seen.counts[name] += count
        seen.counts["time"] += count * (bool(forms) and has_time(word))
        seen.counts["slashes"] += count * is_written_with_slashes(word)
        return False

    @classmethod
    def fits(cls, seen: Evidence, text: str) -> bool:
        forms = [form for form in FORMATS if seen.is_most(seen.counts[form])]
        return any(parse_date(text, form) is not None for form in forms)

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        counts, why = seen.counts, "nearly all cells are dates"
        if not seen.is_most(sum(counts[form] for form in UNAMBIGUOUS) + counts["slashes"]):
            return None
        best = max(UNAMBIGUOUS, key=lambda form: counts[form])
        column = cls(seen.name, form=best, time=seen.is_most(counts["time"]))
        if seen.is_most(seen.present - column.count_strays(seen)):
            return Guess(column, f"{why}, written {best}")
        doubt = "has dates in several formats: write them in one, best yyyy-mm-dd"
        if seen.is_most(counts["slashes"]):
            doubt = (
                "has dates such as 3/4/2020, in which either may be the day: write format = "
                f"'{DAY_FIRST}' or '{MONTH_FIRST}' for it into the schema"
            )
        return Guess(cls(seen.name), why, doubt)

    def count_strays(self, seen: Evidence) -> int:
        if seen.stray is not None:
            return seen.stray
        return seen.present - seen.counts[self.form] - (seen.counts[ISO] if self.form != ISO else 0)

    def count_unread(self, cells: Cells) -> int:
        if isinstance(cells, TextColumn):
            left = np.ones(len(cells), np.bool_)
            left[find_dates(cells, self.form).places] = False
            cells = cells.pick(np.flatnonzero(left))
        return count_unread(cells, self.parse)

    def find_mismatch(self, seen: Evidence, what: str) -> str:
        if seen.is_few(self.count_strays(seen)):
            return ""
        return f"{what} is said to be a date written {self.form}, and more than one cell in twenty is not"


class _Dates(ConstantLayer):
    def __init__(self, columns: Sequence[Date], places: Sequence[int]) -> None:
        super().__init__()
        placed = list(zip(places, columns, strict=True))
        self.keep(
            places=index(places),
            low=torch.tensor([count_days(c.years[0]) for c in columns], dtype=torch.float32),
            high=torch.tensor([count_days(c.years[1]) for c in columns], dtype=torch.float32),
            free=index([place for place, c in placed if c.low is None]),
            timed=index([place for place, c in placed if c.time]),
            waves=torch.tensor(WEEK_WAVES),
        )

    def forward(self, rows: Tensor) -> Tensor:
        """The inputs of all dates, function after function, each for all dates that have it, of days d since 1970: the
        year; the soft year, where no range was given; sine and cosine of 2π d/365.2425 (the year), of 2π k ⌊d⌋/7 for
        k = 1, 2, 3 (the week) and of 2π d (the day)."""
        days, low, high = rows[:, self.get_buffer("places")], self.get_buffer("low"), self.get_buffer("high")
        year = 2 * (torch.minimum(torch.maximum(days, low), high) - low) / (high - low) - 1
        soft = torch.tanh((rows[:, self.get_buffer("free")] - count_days(MIDDLE)) / (SLOPE * DAYS_IN_YEAR))
        season = torch.remainder(days, DAYS_IN_YEAR) * (2 * math.pi / DAYS_IN_YEAR)
        week = torch.remainder(torch.floor(days), 7) * (2 * math.pi / 7)
        weeks = (week.unsqueeze(2) * self.get_buffer("waves")).flatten(1)
        day = torch.remainder(rows[:, self.get_buffer("timed")], 1) * (2 * math.pi)
        return torch.cat([year, soft, season.sin(), season.cos(), weeks.sin(), weeks.cos(), day.sin(), day.cos()], 1)


# Dates of a long column that are written with all their digits, many at a time: 2009-06-24, 24.06.2009 10:30:00.
#
# The results equal those of `parse_date`, which reads every cell that is written in another way.

CLOCK = "Thh:nn:ss"  # what may follow a day, as far as the minutes or the seconds
WIDTHS = (10, 16, 19)  # bytes of a day, and with minutes and seconds


@dataclass(frozen=True)
class PlainDates:
    """Those cells of a column that are plain dates of a format: their places, the days since 1970, whether each has a
    time, and whether it is one word."""

    places: Places
    days: Floats
    timed: NDArray[np.bool_]
    unspaced: NDArray[np.bool_]


def find_dates(cells: TextColumn, form: str) -> PlainDates:
    """The plain dates of a format among the cells."""
    if form == ISO and (days := _read_days(cells)) is not None:
        places = np.flatnonzero(~np.isnan(days))
        return PlainDates(places, days[places], np.zeros(len(places), np.bool_), np.ones(len(places), np.bool_))
    found = [_find_of_width(cells, form, width) for width in WIDTHS]
    return PlainDates(
        np.concatenate([each.places for each in found]),
        np.concatenate([each.days for each in found]),
        np.concatenate([each.timed for each in found]),
        np.concatenate([each.unspaced for each in found]),
    )


def _find_of_width(cells: TextColumn, form: str, width: int) -> PlainDates:
    places, written = cells.list_bytes(width)
    pattern = (form + CLOCK)[:width]
    fits = np.flatnonzero(_fit(written, pattern))
    places, digits = places[fits], written[fits] - ord("0")
    whole, good = _count_days(digits, pattern)
    days = whole.astype(np.float64)
    if width > len(form):
        hours, minutes, seconds = (_join(digits, pattern, part) for part in ("hh", "nn", "ss"))
        good &= (hours <= 23) & (minutes <= 59) & (seconds <= 60)
        days = days + (hours * 3600 + minutes * 60 + seconds) / 86_400
    unspaced = written[fits, len(form)] == ord("T") if width > len(form) else np.ones(len(fits), np.bool_)
    return PlainDates(places[good], days[good], np.full(int(good.sum()), width > len(form)), unspaced[good])


def _fit(written: NDArray[np.uint8], pattern: str) -> NDArray[np.bool_]:
    """Which rows have a digit wherever the pattern has a small letter, and its signs elsewhere."""
    fits = np.ones(len(written), np.bool_)
    for place, letter in sorted(enumerate(pattern), key=lambda found: found[1].islower()):  # signs first
        if not fits.any():
            return fits
        column = written[:, place]
        if letter.islower():
            fits &= column - ord("0") <= 9  # of unsigned bytes: what is below "0" becomes large
        elif letter == "T":
            fits &= (column == ord("T")) | (column == ord(" "))
        else:
            fits &= column == ord(letter)
    return fits


def _join(digits: NDArray[np.uint8], pattern: str, part: str) -> Places:
    """The number at a part of the pattern; 0 if the pattern does not have the part."""
    total = np.zeros(len(digits), np.int64)
    start = pattern.find(part)
    for place in range(start, start + len(part) if start >= 0 else start):
        total = 10 * total + digits[:, place]
    return total


def _count_days(digits: NDArray[np.uint8], pattern: str) -> tuple[Places, NDArray[np.bool_]]:
    """(days since 1970, whether there is such a day) by the Gregorian calendar."""
    year, month, day = (_join(digits, pattern, part) for part in ("yyyy", "mm", "dd"))
    first = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    start, end = (each.astype("M8[D]").astype(np.int64) for each in (first, first + 1))
    good = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= end - start)
    return start + day - 1, good


def _read_days(cells: TextColumn) -> Floats | None:
    """Days since 1970, read by Arrow, where every cell is an ISO date of ten characters or missing (NaN); else None."""
    days = cells.cast(pa.date32()) if cells.length_range == (10, 10) else None
    if days is None:
        return None
    found = as_doubles(days.cast(pa.int32()))
    return None if (found < _FIRST_DAY).any() else found  # the year 0 does not exist
