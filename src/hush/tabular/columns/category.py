"""Categories: words of a public list, or hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal.validate import positive_int
from hush.errors import InvalidInputError
from hush.tabular.cells import Cells, is_missing, map_texts
from hush.tabular.columns.base import Column, ConstantLayer, Guess, Inputs, add_missing, check_switch, index
from hush.tabular.columns.evidence import Evidence

MOST_CLASSES = 1000
MOST_BUCKETS = 100_000
BUCKETS = 32


@dataclass(frozen=True)
class Category(Column):
    """A word of a few. With a public list of ``values``: one slot each, and one for anything else; without one: hashed
    (BLAKE2b) into a fixed number of slots."""

    values: tuple[str, ...] = ()
    buckets: int = BUCKETS
    missing: bool = False

    kind: ClassVar[str] = "category"
    hint: ClassVar[str] = '# values = ["…"]: a public list makes a better input than hashing'
    cell: ClassVar[str] = (
        "the cell as text without white space at its ends; of a typed file's number the shortest decimal, a whole "
        "number without '.0', a missing one as empty text"
    )
    functions: ClassVar[Mapping[str, str]] = {
        "listed": "one input for each of values and one more: 1 at the place of the cell's text, at the last for any "
        "other text, and 0 elsewhere",
        "hashed": "as many inputs as buckets: 1 at the place h mod buckets and 0 elsewhere, where h is the BLAKE2b "
        "digest of 8 bytes of the cell's text in UTF-8, read as an unsigned little-endian number",
    }
    gap: ClassVar[str] = "one input more, the last: 1 for a missing word, where all others are 0"

    def __post_init__(self) -> None:
        positive_int(buckets=self.buckets)
        if self.buckets > MOST_BUCKETS:
            raise InvalidInputError(f"column '{self.name}' has more than {MOST_BUCKETS} buckets")
        check_switch(self, "missing")

    @property
    def width(self) -> int:
        return (len(self.values) + 1 if self.values else self.buckets) + self.missing

    def code(self, value: str) -> int:
        """The slot of a word; the last one for a missing value, where it has one for that."""
        if self.missing and is_missing(value):
            return self.width - 1
        if not self.values:
            return _hash(value, self.buckets)
        return _places(self.values).get(value, len(self.values))

    def encode(self, cells: Cells, what: str) -> NDArray[Any]:
        return map_texts(cells, self.code)

    @classmethod
    def list_inputs(cls, columns: Sequence[Category]) -> list[Inputs]:
        found: list[Inputs] = []
        for c in columns:
            facts: dict[str, Any] = {"values": list(c.values)} if c.values else {"buckets": c.buckets}
            facts = {"count": c.width, **facts, **({"missing": cls.gap} if c.missing else {})}
            found.append((c, "listed" if c.values else "hashed", facts))
        return found

    @classmethod
    def build_layer(cls, columns: Sequence[Category], places: Sequence[int]) -> nn.Module:
        return _Slots(columns, places)

    def describe(self) -> str:
        listed = f"{len(self.values)} public values, one slot each, one for anything else"
        hashed = f"no public list given: hashed into {self.buckets} slots"
        return add_missing(listed if self.values else hashed, self.missing)

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        why = "words that come again"
        if seen.counts["number"] > seen.present / 2:
            why = "numbers and words, more than one word in twenty"
        known = "categories" in public and len(seen.values) <= MOST_CLASSES
        values = tuple(sorted(value for value in seen.values if not is_missing(value))) if known else ()
        return Guess(cls(seen.name, values, missing=True), why)


@lru_cache(maxsize=65536)
def _hash(value: str, buckets: int) -> int:
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


@lru_cache(maxsize=256)
def _places(values: tuple[str, ...]) -> dict[str, int]:
    return {value: place for place, value in enumerate(values)}


class _Slots(ConstantLayer):
    def __init__(self, columns: Sequence[Category], places: Sequence[int]) -> None:
        super().__init__()
        slots = [(place, float(slot)) for place, c in zip(places, columns, strict=True) for slot in range(c.width)]
        self.keep(column=index([place for place, _ in slots]), slot=torch.tensor([slot for _, slot in slots]))

    def forward(self, rows: Tensor) -> Tensor:
        """1 at a category's slot, 0 at all others."""
        return (rows[:, self.get_buffer("column")] == self.get_buffer("slot")).to(rows.dtype)
