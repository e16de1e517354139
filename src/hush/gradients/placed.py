"""Which rows of a recording are examples, and where its sums are cut.

A run says it once for every piece (:func:`placed`), and every recording inside obeys: a query, also somebody else's,
cannot forget it. A row that is no example has an infinite norm, so that every clipping gives it the weight zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.arithmetic import Piece
from hush.gradients.tape import Tape
from hush.named import Named


@dataclass(eq=False)
class Seen:
    """The piece that is being computed, and whether anything was recorded of it."""

    piece: Piece
    recorded: bool = False


_SEEN: ContextVar[Seen | None] = ContextVar("piece", default=None)


@contextmanager
def placed(piece: Piece) -> Iterator[Seen]:
    """Within it, recordings are of this piece."""
    seen = Seen(piece)
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def as_placed(tape: Tape) -> Tape:
    """The tape as the run's present piece wants it."""
    seen = _SEEN.get()
    if seen is None:
        return tape
    seen.recorded = True
    return PlacedTape(tape, seen.piece)


@dataclass(frozen=True)
class PlacedTape:
    """A tape whose empty rows count for nothing and whose sums are cut into blocks."""

    tape: Tape
    piece: Piece

    @property
    def losses(self) -> Tensor:
        """The examples' losses; empty rows have none."""
        losses = self.tape.losses
        return losses if self.piece.empty is None else losses[~self.piece.empty.to(losses.device)]

    def squared_norms(self, certain: bool = True) -> Named:
        """As they are, infinite at empty rows."""
        found = self.tape.squared_norms(certain)
        if self.piece.empty is None:
            return found
        return {name: v.masked_fill(self.piece.empty.to(v.device), torch.inf) for name, v in found.items()}

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ: parts of a block in the gradients' own type, blocks in float64."""
        assert (start, stop) == (0, None), "a piece is summed as a whole"
        total: Named | None = None
        for bounds in self.piece.blocks:
            block = self._block(weights, bounds)
            if total is None:
                total = block
            else:
                total = {name: total[name].double().add_(value) for name, value in block.items()}
        assert total is not None
        return total

    def _block(self, weights: Tensor | Named, bounds: tuple[int, ...]) -> Named:
        total = self.tape.sum(weights, bounds[0], bounds[1])
        for low, high in zip(bounds[1:-1], bounds[2:], strict=True):
            for name, value in self.tape.sum(weights, low, high).items():
                total[name] += value
        return total
