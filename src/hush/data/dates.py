"""Dates as people write them, as days since 1 January 1970, a part of a day for the time.

A date is read by the format of its column alone, or as ISO 8601, which cannot be taken for another. "03/04/2020" is a
day in March or in April: a column of such dates is refused until a schema says which. A time zone is not looked at: the
time of day is the one that stands there.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

ISO = "yyyy-mm-dd"
DOTTED = "dd.mm.yyyy"
DAY_FIRST, MONTH_FIRST = "dd/mm/yyyy", "mm/dd/yyyy"
FORMATS = (ISO, "yyyy/mm/dd", DOTTED, DAY_FIRST, MONTH_FIRST)
UNAMBIGUOUS = (ISO, "yyyy/mm/dd", DOTTED)
FIRST_YEAR, LAST_YEAR = 1900.0, 2100.0  # the public range of a date that has none of its own
DAYS_IN_YEAR = 365.2425  # on average, in the Gregorian calendar
LONGEST_DATE = 40  # characters
_EPOCH = date(1970, 1, 1).toordinal()
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
    """Days since the first of January 1970, or None where the cell is no date of that format."""
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
    """Whether this is a date of the form 3/4/2020, of which nobody can say whether the day or the month comes first."""
    return any(
        _PATTERNS[form].fullmatch(text.strip()) for form in (DAY_FIRST, MONTH_FIRST) if len(text) <= LONGEST_DATE
    )
