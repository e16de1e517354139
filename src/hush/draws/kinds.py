"""Which draws of a model belong to single examples, and which to all of them.

A shape does not say it: at a batch of 64 a table of 64 numbers that all examples share looks like one number for each.
So before a model is used, its draws are watched on two and on three copies of its first example. A dimension that grew
from 2 to 3 holds the examples; a draw that did not grow is shared; one that grew otherwise (two rows an example, say)
has no place for an example unless each is computed alone. The decision does not depend on the size of any batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from hush.errors import Refused

SIZES = (2, 3)
Shape = tuple[int, ...]


class Unplaced(Exception):
    """A draw whose numbers cannot be told apart by example unless each example is computed alone."""


@dataclass(frozen=True)
class Shared:
    """A draw that all examples share: it had this shape at both sizes."""

    shape: Shape


@dataclass(frozen=True)
class PerExample:
    """A draw with the examples in one of its dimensions."""

    dim: int = 0


@dataclass(frozen=True)
class Folded:
    """A draw that grows with the batch in another way."""


Kind = Shared | PerExample | Folded
DrawLog = list[tuple[int, Shape]]
"""The number and shape of each draw, in order."""


@dataclass(frozen=True)
class Kinds:
    """The kinds of a model's draws, by their number."""

    by_number: dict[int, Kind] = field(default_factory=dict)

    @staticmethod
    def of(two: DrawLog, three: DrawLog, *, rows: int = 1) -> Kinds:
        """From the draws on two and on three copies of one example, of so many rows each."""
        if [number for number, _ in two] != [number for number, _ in three]:
            raise Refused(
                "the number of random draws in a forward depends on the size of the batch, so one example more would "
                "move the others' draws: draw tensors that have the examples in one dimension"
            )
        found: dict[int, Kind] = {}
        for (number, a), (_, b) in zip(two, three, strict=True):
            kind = _decide_kind(a, b, rows)
            if found.setdefault(number, kind) != kind:
                raise Refused("the model sets torch's generator and draws different shapes from it: remove that")
        return Kinds(found)

    @cached_property
    def is_simple(self) -> bool:
        """Every draw has the examples first or is one number for all: then the order of draws does not matter."""
        return all(kind in (PerExample(0), Shared(())) for kind in self.by_number.values())

    def find(self, number: int, shape: Shape, n: int) -> Kind:
        """The kind of a draw of this shape where n rows are computed together; refuses what was not seen."""
        if shape == () and not isinstance(self.by_number.get(number), Folded):
            return Shared(())
        kind = PerExample(0) if self.is_simple else self.by_number.get(number)
        fits = kind == Shared(shape) or isinstance(kind, Folded)
        if isinstance(kind, PerExample):
            fits = kind.dim < len(shape) and shape[kind.dim] == n
        if kind is None or not fits:
            raise Refused(
                f"random draw {number} of a forward has another shape than when the model was first tried: draw "
                "tensors with the examples in their first dimension, or single numbers (shape ()), in every forward"
            )
        return kind


def guess_kind(shape: Shape, n: int) -> Kind:
    """For ordinary training, where nothing is proven: the examples are first wherever the size says so."""
    return PerExample(0) if shape and shape[0] == n else Shared(shape)


def _decide_kind(two: Shape, three: Shape, rows: int) -> Kind:
    if two == three:
        return Shared(two)
    if len(two) != len(three):
        return Folded()
    grown = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    (dim, *more) = grown
    return PerExample(dim) if not more and (two[dim], three[dim]) == tuple(rows * size for size in SIZES) else Folded()
