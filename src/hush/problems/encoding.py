"""The inputs that dates and missing values become: functions of one row and of public facts, without parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hush.data.columns import WEEK_WAVES, Column
from hush.data.dates import DAYS_IN_YEAR

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
