"""What the cells of a column have shown: counts over all rows, from which its kind follows.

It is private: it was computed from everybody's cells, without noise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hush.data.columns import Column
from hush.data.flags import PAIRS

MAJORITY = 0.95
ENOUGH = 50  # rows, before the number of different values says anything
COUNTED = ("rows", "missing", "stray", "first_rows", "different")
PLACES = ("first_gap", "first_other")


@dataclass
class Evidence:
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
    pairs: frozenset[int] = frozenset(range(len(PAIRS)))
    whole: bool = True
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
        """Whether so many cells are nearly all of those that hold something."""
        return self.present > 0 and count >= MAJORITY * self.present

    def holds_numbers(self) -> bool:
        """Whether nearly all cells are numbers, whatever else they may be."""
        return self.is_most(self.counts["number"])

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
            **{name: getattr(self, name) for name in (*COUNTED, *PLACES, "whole", "lows", "highs")},
            "counts": dict(self.counts),
            "pairs": sorted(self.pairs),
            "values": sorted(self.values),
        }

    def fill_from(self, found: dict[str, Any]) -> None:
        """Take over what `to_json` gave; a KeyError, TypeError or ValueError says that it is none."""
        for name in COUNTED:
            setattr(self, name, int(found[name]))
        for name in PLACES:
            setattr(self, name, None if found[name] is None else int(found[name]))
        self.whole = bool(found["whole"])
        self.lows, self.highs = ({sign: float(end) for sign, end in found[k].items()} for k in ("lows", "highs"))
        self.counts = Counter({name: int(count) for name, count in found["counts"].items()})
        self.pairs = frozenset(map(int, found["pairs"]))
        self.values = set(map(str, found["values"]))
