"""The result of an engine: per-example losses, bounds of per-example norms, and weighted sums of gradients.

With gᵢ the gradient of example i's loss, it gives ‖gᵢ[p]‖² for every parameter p and Σᵢ wᵢ gᵢ for any weights w.
Clipping uses wᵢ = min(1, c/‖gᵢ‖); w = 1 gives the sum of unclipped gradients. :class:`PerExampleGradients` states what
is guaranteed about the rounding of both; ARITHMETIC.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hush._internal.tensors import Named
from hush.per_example.chunks import Chunk, RowDigests
from hush.per_example.rounding import bound_squares, exact_products, round_towards_zero


class GradientWarning(UserWarning):
    """A part of a model is computed slowly, or could not be checked; issued once per model."""


class PerExampleGradients(Protocol):
    """The per-example gradients of one batch, in the arithmetic they are computed in.

    Guarantees, for every input and every order of plain or fused additions (ARITHMETIC.md):

    1. ``sum`` adds, for example i, a vector of norm at most wᵢ·√Σ_names Vᵢ[name], with V = ``squared_norms()``: a norm
       is never underestimated. Values that are not finite stay so.
    2. Each coordinate of ``sum`` is either a sum with at most one addend per example, in the parameter's own type, or
       is summed in double precision and rounded once; the error of that sum is below 1e-6 of the largest wᵢ√Vᵢ for up
       to 384 examples of 4 096 positions, or 1 024 of 512.
    3. A row of weight 0 adds exactly nothing, even if its gradient is not finite, and does not change the shape of any
       other row's arithmetic.
    4. Weights are rounded towards zero if the parameter's type is coarser than theirs.

    It relies on finite weights, one per example, and on tensors of the batch and of the forward that are not changed in
    place before the last sum.
    """

    @property
    def losses(self) -> Tensor:
        """One loss per example, detached, at the first point."""
        ...

    def squared_norms(self, certain: bool = True) -> Named:
        """Vᵢ[name] ≥ ‖gᵢ[name]‖² for every trainable parameter, shape (n,), float64.

        Without ``certain``, the best estimate, for comparisons between engines: not a bound to clip with."""
        ...

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ over the examples start … stop−1 (all by default); ``weights`` has one entry per example."""
        ...

    def sum_block(self, weights: Tensor | Named, before: Sequence[tuple[Any, Tensor | Named]]) -> Named:
        """The same sum over these examples and those ``before``: other results of the same model, with their weights.

        It has the same properties, with the examples of all results as addends."""
        ...


@dataclass(eq=False)
class NonFiniteRows:
    """Which examples are known not to be finite: the others need no mask if their weight is zero."""

    rows: Tensor | None = None  # None if not known yet

    def note(self, squared: Named) -> Named:
        """Return the squared norms unchanged, and record which are not finite."""
        self.rows = ~torch.isfinite(torch.stack(list(squared.values())).sum(0)) if squared else None
        return squared


@dataclass(frozen=True)
class MaterializedGradients:
    """Every per-example gradient, shape (n, …), by name."""

    losses: Tensor
    gradients: Named
    suspects: NonFiniteRows = field(default_factory=NonFiniteRows, repr=False)

    @torch.no_grad()
    def squared_norms(self, certain: bool = True) -> Named:
        """‖gᵢ[name]‖² from the gradients themselves."""
        with exact_products():
            found = {name: bound_squares(g, certain=certain) for name, g in self.gradients.items()}
        return self.suspects.note(found)

    @torch.no_grad()
    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ from the gradients themselves."""
        with exact_products():
            chosen = {
                name: Weights.of(weights_of(weights, name), g.dtype, start, stop, self.suspects.rows)
                for name, g in self.gradients.items()
            }
            return {name: sum_rows(g, chosen[name]) for name, g in self.gradients.items()}

    @torch.no_grad()
    def sum_block(
        self, weights: Tensor | Named, before: Sequence[tuple[MaterializedGradients, Tensor | Named]]
    ) -> Named:
        """One vector-matrix product per result, each added to the last."""
        first, *others = [*before, (self, weights)]
        total = first[0].sum(first[1])
        with exact_products():
            for tape, given in others:
                for name, g in tape.gradients.items():
                    chosen = Weights.of(weights_of(given, name), g.dtype, suspects=tape.suspects.rows)
                    total[name] = add_rows(total[name], g, chosen)
        return total


@dataclass(frozen=True)
class EmptyGradients:
    """The result for a batch without examples: every sum is zero."""

    losses: Tensor
    params: Mapping[str, Tensor]

    def squared_norms(self, certain: bool = True) -> Named:
        """No norms."""
        return {name: p.new_zeros(0, dtype=torch.float64) for name, p in self.params.items()}

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Zeros."""
        return {name: torch.zeros_like(p) for name, p in self.params.items()}

    def sum_block(self, weights: Tensor | Named, before: Sequence[tuple[EmptyGradients, Tensor | Named]]) -> Named:
        """Zeros."""
        return self.sum(weights)


def weights_of(weights: Tensor | Named, name: str) -> Tensor:
    """The weights of one parameter."""
    return weights[name] if isinstance(weights, dict) else weights


@dataclass(frozen=True)
class Weights:
    """The weights of the examples start … stop−1 in the gradients' own type, and which rows must be masked."""

    values: Tensor
    start: int
    stop: int
    dead: Tensor | None

    @staticmethod
    def of(
        values: Tensor, dtype: torch.dtype, start: int = 0, stop: int | None = None, suspects: Tensor | None = None
    ) -> Weights:
        """Round weights towards zero; a row of weight zero is masked, because 0·NaN is NaN, and keeps its position.

        Rows known to be finite (not among the ``suspects``) need no mask."""
        stop = len(values) if stop is None else stop
        values = round_towards_zero(values.detach()[start:stop], dtype)
        dead = values == 0 if suspects is None else (values == 0) & suspects[start:stop]
        return Weights(values, start, stop, dead if bool(dead.any()) else None)

    def part(self, low: int, high: int) -> Weights:
        """The weights of the examples start + low … start + high − 1."""
        dead = None if self.dead is None else self.dead[low:high]
        return Weights(self.values[low:high], self.start + low, self.start + high, dead)

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows of these examples, with zeros in masked rows."""
        part = tensor[self.start : self.stop]
        if self.dead is None:
            return part
        return part.masked_fill(self.dead.view(-1, *[1] * (tensor.dim() - 1)), 0)

    def scale(self, tensor: Tensor) -> Tensor:
        """wᵢ · tensorᵢ of these examples, in the finer of the two types."""
        return self.rows(tensor) * self.values.view(-1, *[1] * (tensor.dim() - 1))


def sum_rows(rows: Tensor, weights: Weights) -> Tensor:
    """Σᵢ wᵢ rowsᵢ, with one addend per example."""
    shape = rows.shape[1:]
    part = weights.rows(rows)
    return (weights.values @ part.reshape(part.shape[0], math.prod(shape))).view(shape)


def add_rows(total: Tensor, rows: Tensor, weights: Weights) -> Tensor:
    """total + Σᵢ wᵢ rowsᵢ, with one addend per example."""
    part = weights.rows(rows)
    flat = part.reshape(part.shape[0], total.numel())
    return torch.addmv(total.reshape(-1), flat.t(), weights.values).view(total.shape)


@dataclass(eq=False)
class BlockSums:
    """The sums of a block of chunks: each is computed when the last chunk was recorded.

    Until then `add` returns ``zeros``: a query that adds up its chunks gets the whole sum with the last one. A chunk
    of several blocks, which begin at the rows ``starts``, is summed block by block, and blocks are added in float64."""

    chunks: int
    starts: tuple[int, ...] = (0,)
    waiting: list[list[tuple[PerExampleGradients, Tensor | Named]]] = field(default_factory=list)
    zeros: Named = field(default_factory=dict)

    def add(self, number: int, tape: PerExampleGradients, weights: Tensor | Named, params: Named) -> Named:
        """The sum of the block if this is its last chunk; ``number`` counts the sums of one chunk."""
        if number == len(self.waiting):
            self.waiting.append([])
        before = self.waiting[number]
        if len(before) + 1 < self.chunks:
            before.append((tape, weights))
            if not self.zeros:
                self.zeros = {name: p.new_zeros(()).expand(p.shape) for name, p in params.items()}
            return dict(self.zeros)
        self.waiting[number] = []
        if len(self.starts) == 1:
            return tape.sum_block(weights, before)
        total: Named = {}
        for start, stop in zip(self.starts, (*self.starts[1:], None), strict=True):
            for name, part in tape.sum(weights, start, stop).items():
                total[name] = total[name].add_(part) if start else part.double()
        return total

    @property
    def complete(self) -> bool:
        """Whether every sum was computed."""
        return not any(self.waiting)


@dataclass(eq=False)
class CurrentPiece:
    """The chunk being computed, and whether anything was recorded of it."""

    piece: Chunk
    block: BlockSums
    params: Named
    recorded: bool = False
    digests: RowDigests | None = None  # collects what is computed for every row, in a run's first check
    sums: int = 0  # number of sums computed of this chunk


_CURRENT: ContextVar[CurrentPiece | None] = ContextVar("piece", default=None)


@contextmanager
def microbatch_scope(
    piece: Chunk, params: Named | None = None, block: BlockSums | None = None, digests: RowDigests | None = None
) -> Iterator[CurrentPiece]:
    """Within it, recordings are of this chunk; it is a whole block unless ``block`` has several."""
    seen = CurrentPiece(piece, block or BlockSums(1), params or {}, digests=digests)
    token = _CURRENT.set(seen)
    try:
        yield seen
    finally:
        _CURRENT.reset(token)


def find_examples(rows: int) -> Tensor | None:
    """Which of ``rows`` rows of the current chunk are examples; None if all are, or if the number differs."""
    seen = _CURRENT.get()
    if seen is None or seen.piece.empty is None or len(seen.piece.empty) != rows:
        return None
    return ~seen.piece.empty


def fit_to_piece(tape: PerExampleGradients) -> PerExampleGradients:
    """Wrap the result for the run's current chunk."""
    seen = _CURRENT.get()
    if seen is None:
        return tape
    seen.recorded = True
    if seen.digests is not None:
        seen.digests.add("", tape)
    return MicrobatchGradients(tape, seen)


@dataclass(frozen=True)
class MicrobatchGradients:
    """The result of a chunk: its empty rows are ignored, and its sums are those of its block."""

    tape: PerExampleGradients
    seen: CurrentPiece

    @property
    def _empty(self) -> Tensor | None:
        return self.seen.piece.empty

    @property
    def losses(self) -> Tensor:
        """The examples' losses; empty rows are left out."""
        losses = self.tape.losses
        return losses if self._empty is None else losses[~self._empty.to(losses.device)]

    def squared_norms(self, certain: bool = True) -> Named:
        """The squared norms, infinite at empty rows."""
        found = self.tape.squared_norms(certain)
        if self.seen.digests is not None:
            self.seen.digests.add("norm", found)
        if self._empty is None or not bool(self._empty.any()):
            return found
        return {name: v.masked_fill(self._empty.to(v.device), torch.inf) for name, v in found.items()}

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ over the chunk's block, if this is its last chunk (:class:`BlockSums`)."""
        assert (start, stop) == (0, None), "a chunk is summed as a whole"
        if self.seen.digests is not None:
            self.seen.digests.add("clip factor", weights)
        number = self.seen.sums
        self.seen.sums += 1
        return self.seen.block.add(number, self.tape, weights, self.seen.params)

    def sum_block(self, weights: Tensor | Named, before: Sequence[tuple[Any, Tensor | Named]]) -> Named:
        """Chunks of a run are added by :meth:`sum`."""
        raise NotImplementedError
