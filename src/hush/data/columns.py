"""What a column of a table is, and how it becomes numbers without looking at anybody else's row.

The smallest and largest value of a column, its mean, or the list of its categories are statistics of private rows;
scaling by them and releasing the model would release them unaccounted. So a column is encoded by public facts only:

- a number with a public range [low, high]: clamped to it and mapped to [−1, 1]; and, with ``waves``, the functions of
  the next line of the clamped number besides;
- a number without one: asinh(x)/4, tanh(x), and sin(k u), cos(k u) for u = asinh(10 x) and k = 1, 2, 4: waves on a
  logarithmic scale, of which some resolve the column whatever its unit is;
- a category with a public list of values: one slot each, and one for anything else;
- a category without one: hashed (BLAKE2b) into a fixed number of slots;
- a flag: −1 for no and 1 for yes;
- a date: its year, mapped to [−1, 1] from a public range of years, and waves of the year, the week and, where it has a
  time, the day; without a range of years 1900 … 2100 and tanh((year − 2000)/25) besides;
- a number or category that may be ``missing``, every flag and every date: one input more, 1 where there is no value.
  The others are then those of ``fill`` or of the range's middle, and 0 for a flag.

Ids and free text are no inputs.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from hush.data.dates import FIRST_YEAR, FORMATS, ISO, LAST_YEAR, parse_date
from hush.data.flags import parse_flag
from hush.data.numerals import COMMA, POINT, is_missing
from hush.errors import BadInput
from hush.validate import finite, one_of, whole

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
    awaited: bool = False  # its range is a placeholder until it is released with noise (`hush.data.awaited`)

    def __post_init__(self) -> None:
        one_of(KINDS, kind=self.kind)
        whole(buckets=self.buckets)
        if self.buckets > MOST_BUCKETS:
            raise BadInput(f"column '{self.name}' has more than {MOST_BUCKETS} buckets")
        finite(**{f"{k} of column '{self.name}'": v for k, v in self._numbers().items() if v is not None})
        if (self.low is None) != (self.high is None):
            raise BadInput(f"column '{self.name}' has one end of a range: give both low and high")
        if self.low is not None and self.high is not None and not is_range(self.low, self.high):
            raise BadInput(f"column '{self.name}' has low {self.low} not below high {self.high}, as 32-bit numbers")
        if self.low is not None and max(abs(self.low), abs(self.high or 0.0)) > LARGEST:
            raise BadInput(f"the range of column '{self.name}' goes beyond {LARGEST:g}, where 32-bit numbers end")
        self._check_writing()

    def _check_writing(self) -> None:
        """How its cells are written."""
        for word, truth in (("missing", self.missing), ("time", self.time), ("waves", self.waves)):
            if not isinstance(truth, bool):
                raise BadInput(f"'{word}' of column '{self.name}' must be true or false")
        if self.decimal not in (POINT, COMMA):
            raise BadInput(f"the decimal sign of column '{self.name}' must be '.' or ','")
        if self.form not in FORMATS:
            raise BadInput(f"the format of column '{self.name}' must be one of {', '.join(FORMATS)}")
        if self.kind != "date" and (self.time or self.form != ISO):
            raise BadInput(f"column '{self.name}' has the format of a date and is said to be a {self.kind}")
        if self.kind != "number" and self.waves:
            raise BadInput(f"column '{self.name}' has the waves of a number and is said to be a {self.kind}")
        if self.kind != "number" and self.decimal != POINT:
            raise BadInput(f"column '{self.name}' has the decimal sign of a number and is said to be a {self.kind}")
        if self.kind == "flag" and len(self.values) not in (0, 2):
            raise BadInput(f"the values of the flag '{self.name}' must be two words, the one for no first")
        if self.kind == "date" and self.low is not None and not 1 <= self.low < float(self.high or 0) <= MOST_YEARS:
            raise BadInput(f"low and high of the date '{self.name}' must be years from 1 to {MOST_YEARS}")

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
        """How it is encoded, in words."""
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
