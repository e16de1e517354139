"""The base of every kind of column; each kind is in its own module.

The smallest and largest value of a column, its mean, or the list of its categories are statistics of private rows;
scaling by them and releasing the model would release them unaccounted. So a column is encoded by public facts only, and
a row's encoding never depends on another row. A number or category that may be ``missing``, every flag and every date
has one input more, 1 where there is no value; the others are then those of ``fill`` or of the range's middle, and 0 for
a flag. Ids and free text are no inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal.validate import finite
from hush.errors import InvalidInputError
from hush.tabular.cells import Cells, TextColumn, count_texts, is_missing
from hush.tabular.columns.evidence import Evidence

LARGEST = 1e37  # the largest number that the encoder computes with in 32 bits
GAP = -1e38  # marks a missing value among a table's numbers, which must be finite
Range = tuple[float, float]
Inputs = tuple["Column", str, dict[str, Any]]
"""Some inputs of one column: the column, the name of the function, and its facts with their ``count``."""


def is_range(low: float, high: float) -> bool:
    """Whether low is below high, and both and their difference are finite as 32-bit numbers."""
    with np.errstate(over="ignore"):
        distance = np.float32(high) - np.float32(low)
    return bool(0 < distance < np.inf)


def check_range(name: str, low: float | None, high: float | None) -> None:
    """Refuse a range with one end, with low not below high, or beyond what 32 bits compute with."""
    finite(**{f"{end} of column '{name}'": v for end, v in (("low", low), ("high", high)) if v is not None})
    if (low is None) != (high is None):
        raise InvalidInputError(f"column '{name}' has one end of a range: give both low and high")
    if low is None or high is None:
        return
    if not is_range(low, high):
        raise InvalidInputError(f"column '{name}' has low {low} not below high {high}, as 32-bit numbers")
    if max(abs(low), abs(high)) > LARGEST:
        raise InvalidInputError(f"the range of column '{name}' goes beyond {LARGEST:g}, where 32-bit numbers end")


def check_switch(column: Column, *entries: str) -> None:
    """Refuse entries of a schema that are not true or false."""
    for entry in entries:
        if not isinstance(getattr(column, entry), bool):
            raise InvalidInputError(f"'{entry}' of column '{column.name}' must be true or false")


def _is_entry(attribute: Field[Any]) -> bool:
    return attribute.default is not MISSING and attribute.metadata.get("in_schema", True)


@dataclass(frozen=True)
class Guess:
    """The inferred kind of a column, the reason, and the problem that prevents its use, if any."""

    column: Column
    why: str
    problem: str = ""


@dataclass(frozen=True)
class Column:
    """One column of a table: the public facts about it. The base of all kinds, and itself a column without inputs."""

    name: str

    kind: ClassVar[str]
    described: ClassVar[str] = ""  # the description of a column without inputs
    cell: ClassVar[str] = ""  # how a cell becomes x, for a program that implements the encoding
    functions: ClassVar[Mapping[str, str]] = {}  # how x becomes inputs, likewise
    hint: ClassVar[str] = ""  # a comment in a written schema without public facts of the column
    no_target: ClassVar[str] = ""  # the content of this kind, if it cannot be predicted
    renamed: ClassVar[Mapping[str, str]] = {}  # attributes that have another name in a schema

    # To and from a schema.

    @classmethod
    def entries(cls) -> dict[str, Any]:
        """The entries that a schema may have for this kind, with their defaults."""
        return {cls.renamed.get(f.name, f.name): f.default for f in fields(cls) if _is_entry(f)}

    @classmethod
    def from_schema(cls, name: str, facts: Mapping[str, Any]) -> Self:
        """The column with the facts that this kind has; others are ignored."""
        attributes, known = {entry: attribute for attribute, entry in cls.renamed.items()}, cls.entries()
        return cls(name, **{attributes.get(key, key): value for key, value in facts.items() if key in known})

    def to_schema(self) -> dict[str, Any]:
        """The entries of the column in a schema: its kind, and all values that differ from their default."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if _is_entry(f)}
        facts = {key: value for key, value in facts.items() if value != getattr(type(self), key)}
        for attribute, entry in self.renamed.items():
            if attribute in facts:
                facts[entry] = facts.pop(attribute)
        return {"kind": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in facts.items()}}

    # Encoding.

    @property
    def width(self) -> int:
        """The number of its inputs to the model."""
        return 0

    @property
    def used(self) -> bool:
        """Whether it is an input of the model."""
        return self.width > 0

    @property
    def marks_missing(self) -> bool:
        """Whether ``GAP`` marks a missing value, with a separate input for it."""
        return False

    @property
    def stand_in(self) -> float:
        """The value that replaces a missing one in the other inputs."""
        return 0.0

    def encode(self, cells: Cells, what: str) -> NDArray[Any]:
        """The cells as one number each, as tables are stored; ``what`` names the column in errors."""
        raise NotImplementedError

    @classmethod
    def list_inputs(cls, columns: Sequence[Any]) -> list[Inputs]:
        """The inputs of all columns of this kind in their order, without those for missing values."""
        return []

    @classmethod
    def build_layer(cls, columns: Sequence[Any], places: Sequence[int]) -> nn.Module:
        """A module that maps rows (n, all columns), these at ``places``, to the inputs of `list_inputs`."""
        raise NotImplementedError

    # Description.

    def describe(self) -> str:
        """The encoding in a line."""
        return self.described

    @property
    def written_specially(self) -> bool:
        """Whether its cells are not plain numbers or ISO dates."""
        return False

    def describe_writing(self) -> dict[str, Any]:
        """The facts that a program needs to read its cells."""
        return {}

    # Inference.

    @classmethod
    def count_cells(cls, seen: Evidence, cells: TextColumn) -> TextColumn:
        """Count cells of this kind many at a time, and return the other cells."""
        return cells

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        """Count a word that occurs ``count`` times; returns whether later kinds of ``GUESSED`` are skipped for it."""
        return False

    @classmethod
    def fits(cls, seen: Evidence, text: str) -> bool:
        """Whether nearly all cells are of this kind, and a text is written as they are."""
        return False

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        """The column if it looks like this kind; its range and categories only if they are declared public."""
        return None

    def count_strays(self, seen: Evidence) -> int:
        """The number of cells with a value that is not of this kind."""
        return seen.stray or 0

    def count_unread(self, cells: Cells) -> int:
        """The number of such cells among ``cells``, if a schema gives the kind and the evidence does not count them."""
        return 0

    def find_mismatch(self, seen: Evidence, what: str) -> str:
        """Why the cells cannot be read as the schema's kind; empty if they can."""
        return ""


class ConstantLayer(nn.Module):
    """A layer without parameters, whose constants are buffers outside its state."""

    def keep(self, **constants: Tensor) -> None:
        """Store constants by their names."""
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)


def index(places: Sequence[int]) -> Tensor:
    """Column indices as a tensor."""
    return torch.tensor(list(places), dtype=torch.long)


def add_missing(shown: str, missing: bool = True) -> str:
    """The line about a column that has an input for missing values."""
    return f"{shown}, and whether it is missing" if missing else shown


def count_unread(cells: Cells, parse: Callable[[str], float | None]) -> int:
    """The number of cells with a value that ``parse`` cannot read."""
    return sum(count for text, count in count_texts(cells).items() if not is_missing(text) and parse(text) is None)
