"""Evidence for the kind of a column: counts over all rows.

It is private: it was computed from every row, without noise. Each cell is counted alone, independent of other
cells. One rule decides for every kind: the type of 95 % of the cells that are not empty (``MAJORITY``). The others are
strays, which are missing values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAJORITY = 0.95  # of the cells that are not empty: the one rule by which every kind is inferred
ENOUGH = 50  # rows needed before the number of different values is used


@dataclass
class Evidence:
    """The counts of one column.

    ``decimal`` is the decimal sign that a schema gives. ``values`` are its different values, only if ``listed``.
    ``stray`` counts the cells that are not of the kind that a schema gives, None if it gives none. ``first_gap`` is the
    number of the first row without a number, ``first_other`` of the first whose label is none of the ``classes`` of a
    schema. ``different`` values are counted in the first rows alone (``first_rows`` of them with a value). ``untried``
    has the notations that few cells had, which are no longer looked for many cells at a time."""

    name: str
    listed: bool = False
    decimal: str = "."
    classes: frozenset[str] = frozenset()
    stray: int | None = None
    first_other: int | None = None
    rows: int = 0
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # by kind and notation
    words: Counter[str] = field(default_factory=Counter)  # for yes and no, in lower case
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    first_rows: int = 0
    different: int = 0
    first_gap: int | None = None
    untried: set[str] = field(default_factory=set, compare=False)

    @property
    def present(self) -> int:
        """Cells with a value."""
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

    @property
    def numeric(self) -> bool:
        """Whether nearly all cells are numbers, even if they also fit another kind."""
        return self.is_most(self.counts["number"])

    def has_many(self, share: float) -> bool:
        """Whether the different values are more than this share of the first rows."""
        return self.first_rows >= ENOUGH and self.different > share * self.first_rows

    def stretch(self, sign: str, low: float, high: float) -> None:
        """Numbers from low to high occurred, read with this decimal sign."""
        self.lows[sign] = min(low, self.lows.get(sign, low))
        self.highs[sign] = max(high, self.highs.get(sign, high))
