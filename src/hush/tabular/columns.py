"""What a column of a table is, and how it becomes numbers without looking at anybody else's row.

The smallest and largest value of a column, its mean, or the list of its categories are statistics of private rows;
scaling by them and releasing the model would release them unaccounted. So a column is encoded by public facts only:

- a number with a public range [low, high]: clamped to it and mapped to [−1, 1]; and, with ``waves``, also the functions
  of the next line, applied to the clamped number;
- a number without one: asinh(x)/4, tanh(x), and sin(k u), cos(k u) for u = asinh(10 x) and k = 1, 2, 4: waves on a
  logarithmic scale, of which some resolve the column whatever its unit is;
- a category with a public list of values: one slot each, and one for anything else;
- a category without one: hashed (BLAKE2b) into a fixed number of slots;
- a flag: −1 for no and 1 for yes;
- a date: its year, mapped to [−1, 1] from a public range of years, and waves of the year, the week and, if it has a
  time, the day; without a range the years are 1900 … 2100, and tanh((year − 2000)/25) is added;
- a number or category that may be ``missing``, every flag and every date: one input more, 1 where there is no value.
  The others are then those of ``fill`` or of the range's middle, and 0 for a flag.

Ids and free text are no inputs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from hush._internal.validate import choice, finite, positive_int
from hush.errors import InvalidInputError
from hush.tabular.reader import (
    COMMA,
    DAYS_IN_YEAR,
    FIRST_YEAR,
    FORMATS,
    ISO,
    LAST_YEAR,
    POINT,
    is_missing,
    parse_date,
    parse_flag,
)

Kind = Literal["number", "category", "flag", "date", "id", "text", "ignore"]
KINDS = ("number", "category", "flag", "date", "id", "text", "ignore")
UNUSED = {"ignore": "not used", "id": "an id says who a row is about: not used", "text": "free text: not used"}
WAVES = (1.0, 2.0, 4.0)
WEEK_WAVES = (1.0, 2.0, 3.0)  # with sine and cosine they tell any set of weekdays from any other
BUCKETS = 32
MOST_BUCKETS = 100_000
MOST_YEARS = 9999
LARGEST = 1e37  # of numbers that the encoder computes with in 32 bits
GAP = -1e38  # stands for a missing value among a table's numbers, which must be finite
Range = tuple[float, float]


@dataclass(frozen=True)
class Column:
    """One column: its kind, and the public facts about it.

    ``low`` and ``high`` of a date are years. ``missing`` gives a number or a category an input that says whether there
    is a value. ``decimal`` is the decimal sign of numbers that are text, ``form`` the format of a date, ``time`` says
    whether its time of day counts. ``values`` of a flag are its words for no and yes. ``waves`` gives a number that has
    a range the inputs of one that has none as well; without a range it has them anyway."""

    name: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    buckets: int = BUCKETS
    fill: float | None = None
    missing: bool = False
    decimal: str = POINT
    form: str = ISO
    time: bool = False
    waves: bool = False
    awaited: bool = False  # its range is a placeholder until it is released with noise (`hush.tabular.schema`)

    def __post_init__(self) -> None:
        choice(KINDS, kind=self.kind)
        positive_int(buckets=self.buckets)
        if self.buckets > MOST_BUCKETS:
            raise InvalidInputError(f"column '{self.name}' has more than {MOST_BUCKETS} buckets")
        finite(**{f"{k} of column '{self.name}'": v for k, v in self._numbers().items() if v is not None})
        if (self.low is None) != (self.high is None):
            raise InvalidInputError(f"column '{self.name}' has one end of a range: give both low and high")
        if self.low is not None and self.high is not None and not is_range(self.low, self.high):
            raise InvalidInputError(
                f"column '{self.name}' has low {self.low} not below high {self.high}, as 32-bit numbers"
            )
        if self.low is not None and max(abs(self.low), abs(self.high or 0.0)) > LARGEST:
            raise InvalidInputError(
                f"the range of column '{self.name}' goes beyond {LARGEST:g}, where 32-bit numbers end"
            )
        self._check_writing()

    def _check_writing(self) -> None:
        """How its cells are written."""
        for word, truth in (("missing", self.missing), ("time", self.time), ("waves", self.waves)):
            if not isinstance(truth, bool):
                raise InvalidInputError(f"'{word}' of column '{self.name}' must be true or false")
        if self.decimal not in (POINT, COMMA):
            raise InvalidInputError(f"the decimal sign of column '{self.name}' must be '.' or ','")
        if self.form not in FORMATS:
            raise InvalidInputError(f"the format of column '{self.name}' must be one of {', '.join(FORMATS)}")
        if self.kind != "date" and (self.time or self.form != ISO):
            raise InvalidInputError(f"column '{self.name}' has the format of a date and is said to be a {self.kind}")
        if self.kind != "number" and self.waves:
            raise InvalidInputError(f"column '{self.name}' has the waves of a number and is said to be a {self.kind}")
        if self.kind != "number" and self.decimal != POINT:
            raise InvalidInputError(
                f"column '{self.name}' has the decimal sign of a number and is said to be a {self.kind}"
            )
        if self.kind == "flag" and len(self.values) not in (0, 2):
            raise InvalidInputError(f"the values of the flag '{self.name}' must be two words, the one for no first")
        if self.kind == "date" and self.low is not None and not 1 <= self.low < float(self.high or 0) <= MOST_YEARS:
            raise InvalidInputError(f"low and high of the date '{self.name}' must be years from 1 to {MOST_YEARS}")

    def _numbers(self) -> dict[str, float | None]:
        return {"low": self.low, "high": self.high, "fill": self.fill}

    @property
    def used(self) -> bool:
        """Whether the model sees it."""
        return self.kind not in UNUSED

    @property
    def tells_missing(self) -> bool:
        """Whether it has an input that says that there is no value."""
        return self.kind in ("flag", "date") or (self.kind == "number" and self.missing)

    @property
    def has_waves(self) -> bool:
        """Whether it has the inputs of a number without a range."""
        return self.kind == "number" and (self.low is None or self.waves)

    @property
    def years(self) -> Range:
        """The public range of a date."""
        return (FIRST_YEAR, LAST_YEAR) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def width(self) -> int:
        """How many inputs of the model this column becomes."""
        if not self.used:
            return 0
        if self.kind == "number":
            return (self.low is not None) + (2 + 2 * len(WAVES)) * self.has_waves + self.tells_missing
        if self.kind == "flag":
            return 2
        if self.kind == "date":
            return (1 if self.low is not None else 2) + 2 + 2 * len(WEEK_WAVES) + 2 * self.time + 1
        return (len(self.values) + 1 if self.values else self.buckets) + self.missing

    def is_written_specially(self) -> bool:
        """Whether its cells are read in another way than plain numbers and ISO dates."""
        return self.decimal != POINT or self.form != ISO or self.time

    def code(self, value: str) -> int:
        """The slot of a category; the last one for a missing value, where it has one for that."""
        if self.missing and is_missing(value):
            return self.width - 1
        if not self.values:
            return _hashed(value, self.buckets)
        return _places(self.values).get(value, len(self.values))

    def parse(self, text: str) -> float | None:
        """A flag's or a date's cell as a number, or None."""
        if self.kind == "flag":
            return parse_flag(text, self.values)
        day = parse_date(text, self.form)
        return day if day is None or self.time else float(math.floor(day))

    def encoding(self) -> str:
        """A description of the encoding."""
        if not self.used:
            return UNUSED[self.kind]
        shown = self._describe_values()
        return f"{shown}, and whether it is missing" if self.tells_missing or self.missing else shown

    def _describe_values(self) -> str:
        if self.kind == "flag":
            return "−1 for no, 1 for yes"
        if self.kind == "date":
            (first, last), day = self.years, ", time of day" if self.time else ""
            given = "" if self.low is not None else "no public range given: "
            return f"{given}year in {first:g} … {last:g}, time of year{day} and weekday"
        if self.kind == "number":
            functions = f"{2 + 2 * len(WAVES)} fixed functions on a logarithmic scale"
            if self.low is None:
                return f"no public range given: {functions}"
            limits = f"range {self.low:g} … {self.high:g} mapped to [−1, 1]"
            limits = "range to be released with noise before training" if self.awaited else limits
            return f"{limits}, and {functions}" if self.waves else limits
        if self.values:
            return f"{len(self.values)} public values, one slot each, one for anything else"
        return f"no public list given: hashed into {self.buckets} slots"


def is_range(low: float, high: float) -> bool:
    """Whether low is below high and both, and their distance, are numbers of 32 bits, in which tables are kept."""
    with np.errstate(over="ignore"):
        distance = np.float32(high) - np.float32(low)
    return bool(0 < distance < np.inf)


@lru_cache(maxsize=65536)
def _hashed(value: str, buckets: int) -> int:
    return (
        int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        % buckets
    )


@lru_cache(maxsize=256)
def _places(values: tuple[str, ...]) -> dict[str, int]:
    return {value: place for place, value in enumerate(values)}


# The inputs that dates and missing values become: functions of one row and of public facts, without parameters.

YEAR_OF_DAY_0 = 1970.0
MIDDLE, SLOPE = 2000.0, 25.0  # of the soft step over the years that are most usual


def count_days(year: float) -> float:
    """Days from 1 January 1970 to the beginning of a year, in years of average length."""
    return (year - YEAR_OF_DAY_0) * DAYS_IN_YEAR


def find_stand_in(column: Column) -> float:
    """What takes the place of a missing number: the column's fill, else the middle of its public range."""
    if column.kind == "date":
        return count_days(sum(column.years) / 2)
    if column.kind == "flag":
        return 0.5
    if column.fill is not None or column.low is None or column.high is None:
        return column.fill or 0.0
    return column.low / 2 + column.high / 2


class Dates(nn.Module):
    """(n, columns) with days d since 1970 at the places of dates to (n, width): function after function, each for all
    dates that have it.

    year: d mapped to [−1, 1] from the public range of years. Soft year, where no range was given:
    tanh((year − 2000)/25). Then sine and cosine of 2π d/365.2425 (the year), of 2π k ⌊d⌋/7 for k = 1, 2, 3 (the week)
    and of 2π d (the day)."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        dates = [i for i, c in enumerate(columns) if c.kind == "date"]
        self._keep("places", torch.tensor(dates, dtype=torch.long))
        self._keep("low", torch.tensor([count_days(columns[i].years[0]) for i in dates], dtype=torch.float32))
        self._keep("high", torch.tensor([count_days(columns[i].years[1]) for i in dates], dtype=torch.float32))
        self._keep("free", torch.tensor([i for i in dates if columns[i].low is None], dtype=torch.long))
        self._keep("timed", torch.tensor([i for i in dates if columns[i].time], dtype=torch.long))
        self._keep("waves", torch.tensor(WEEK_WAVES))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The inputs of all dates."""
        days, low, high = rows[:, self.get_buffer("places")], self.get_buffer("low"), self.get_buffer("high")
        year = 2 * (torch.minimum(torch.maximum(days, low), high) - low) / (high - low) - 1
        soft = torch.tanh((rows[:, self.get_buffer("free")] - count_days(MIDDLE)) / (SLOPE * DAYS_IN_YEAR))
        season = torch.remainder(days, DAYS_IN_YEAR) * (2 * math.pi / DAYS_IN_YEAR)
        week = torch.remainder(torch.floor(days), 7) * (2 * math.pi / 7)
        weeks = (week.unsqueeze(2) * self.get_buffer("waves")).flatten(1)
        day = torch.remainder(rows[:, self.get_buffer("timed")], 1) * (2 * math.pi)
        return torch.cat([year, soft, season.sin(), season.cos(), weeks.sin(), weeks.cos(), day.sin(), day.cos()], 1)
