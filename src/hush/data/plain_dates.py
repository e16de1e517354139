"""Dates of a long column that are written with all their digits, many at a time: 2009-06-24, 24.06.2009 10:30:00.

They are what `hush.data.dates.parse_date` says of each. What is written in another way, or is no date, is left out here
and goes to that function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush.data.streaming import Words

CLOCK = "Thh:nn:ss"  # what may follow a day, as far as the minutes or the seconds
WIDTHS = (10, 16, 19)  # bytes of a day, and with minutes and seconds
Bytes = NDArray[np.uint8]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class PlainDates:
    """Those cells of a column that are plain dates of a format: their places, the days since 1970, whether each has a
    time, and whether it is one word."""

    places: Whole
    days: NDArray[np.float64]
    timed: NDArray[np.bool_]
    unspaced: NDArray[np.bool_]


def find_dates(cells: Words, form: str) -> PlainDates:
    """The plain dates of a format among the cells."""
    found = [_find_of_width(cells, form, width) for width in WIDTHS]
    return PlainDates(
        np.concatenate([each.places for each in found]),
        np.concatenate([each.days for each in found]),
        np.concatenate([each.timed for each in found]),
        np.concatenate([each.unspaced for each in found]),
    )


def _find_of_width(cells: Words, form: str, width: int) -> PlainDates:
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


def _fit(written: Bytes, pattern: str) -> NDArray[np.bool_]:
    """Which rows have a digit wherever the pattern has a small letter, and its signs elsewhere."""
    fits = np.ones(len(written), np.bool_)
    for place, letter in sorted(enumerate(pattern), key=lambda found: found[1].islower()):  # signs first
        if not fits.any():
            return fits
        column = written[:, place]
        if letter.islower():
            fits &= column - ord("0") <= 9  # of unsigned bytes: whatever is below "0" is large
        elif letter == "T":
            fits &= (column == ord("T")) | (column == ord(" "))
        else:
            fits &= column == ord(letter)
    return fits


def _join(digits: Bytes, pattern: str, part: str) -> Whole:
    """The number that stands at a part of the pattern; 0 where the pattern does not have it."""
    total = np.zeros(len(digits), np.int64)
    start = pattern.find(part)
    for place in range(start, start + len(part) if start >= 0 else start):
        total = 10 * total + digits[:, place]
    return total


def _count_days(digits: Bytes, pattern: str) -> tuple[Whole, NDArray[np.bool_]]:
    """(days since 1970, whether there is such a day) by the calendar of Gregory."""
    year, month, day = (_join(digits, pattern, part) for part in ("yyyy", "mm", "dd"))
    first = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    start, end = (each.astype("M8[D]").astype(np.int64) for each in (first, first + 1))
    good = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= end - start)
    return start + day - 1, good
