"""A per-example gradient as a sum of terms, each with the cheapest way to compute its norm and its weighted sum.

A linear use of a weight contributes gᵢ = Σ_p b_ip a_ipᵀ over its positions p. With one position ‖gᵢ‖² = ‖aᵢ‖²‖bᵢ‖²
(Goodfellow 2015, "Efficient per-example gradient computations"); with few, ‖gᵢ‖² = Σ_pq (a_ip·a_iq)(b_ip·b_iq); with
many positions it is cheaper to materialize gᵢ. The weighted sum is one matrix product, as in ordinary training.

Positions (and terms) can cancel: then Gram matrices and batch sums know gᵢ only up to the rounding of its parts, and a
huge example could look small. So every squared norm here is an upper bound that includes its own rounding, and sums
over positions that are not materialized are computed in double precision (ARITHMETIC.md). The *reach* of an example is
s = Σ_p ‖a_p‖‖b_p‖, the largest norm that its positions could add up to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hush.per_example.result import Weights, add_rows, sum_rows
from hush.per_example.rounding import (
    BLOCK,
    FLOOR,
    SPARE,
    align,
    bound_squares,
    empty_aligned,
    gamma,
    underflow,
    underflow_margin,
)

# The cost model that chooses the cheaper way to a norm for each layer: per example, for a weight of in × out used at P
# positions, in nanoseconds of one core. Materializing the gradient costs P·in·out·a + in·out·b (compute, store, read
# for the norm and read for the sum); comparing positions costs P²·(in + out)·c + P²·d for the norm (two Gram matrices),
# and for the sum the gradients once more, a few at a time (P·in·out·a and a little), or with few positions a double
# precision product (2·P·in·out·a). So products are left out of the comparison. If materializing takes too much memory,
# only the norm is chosen: Gram matrices, or the gradients of a few examples at a time.
# benchmarks/layer_costs.py measures the ways for the convolutions of the benchmark models and prints the choice.
HOLD = 1.5  # b: write, and read twice, one number of a materialized gradient
GRAM = 0.040  # c: one multiplication in a small product
ENTRY = 1.0  # d: one entry of the two Gram matrices
PRODUCT = 0.022  # a: one multiplication in a large product
FEW = 16  # positions up to which a double precision product is as fast as the gradients once more
ROOM = 2.0  # the gradient of a matrix is materialized only up to this many times the size of its factors
CHUNK = 1 << 18  # size of one temporary of a norm: a megabyte stays in the second-level cache
DOUBLES = 1 << 17  # size of one factor of a product in double precision
SHALLOWEST, DEEPEST = 64, 1024  # positions that such a product sums
TRIFLE = 1 + 1e-9  # covers a few roundings in double precision


def held_is_cheaper(positions: int, inputs: int, outputs: int, *, again: bool = False) -> bool:
    """Whether to materialize the per-example gradient rather than compare positions; ``again`` if only for the norm."""
    gram = positions**2 * ((inputs + outputs) * GRAM + ENTRY)
    return inputs * outputs * (HOLD + again * positions * PRODUCT) < gram


def chunk_of(numbers_per_example: int, n: int) -> int:
    """How many examples to process at a time so that a temporary stays in the cache.

    If possible all groups are of one size, because products of another number of examples may round differently."""
    most = max(1, min(n, CHUNK // max(1, numbers_per_example)))
    even = next(size for size in range(most, 0, -1) if n % size == 0) if n else most
    return even if 2 * even >= most else most


def depth_of(width: int) -> int:
    """How many positions of this width a double precision product sums at a time."""
    return min(DEEPEST, max(SHALLOWEST, DOUBLES // max(1, width)))


@dataclass(frozen=True)
class RoundingBound:
    """How far rounding can move the rows of a term from their exact values: γ_roundings · s, s of shape (n,)."""

    roundings: int
    s: Tensor


class Term(Protocol):
    """The contribution of one use to the gradient of one parameter, for n examples.

    Guarantees, for every input and every order of additions (ARITHMETIC.md):

    1. ``rows`` are the per-example gradients, each within γ · s of what ``sum_in_double`` sums (``reach``).
    2. ``bound_squares()`` is never below the squared norm of what ``sum`` adds for an example with weight 1.
    3. ``sum`` has one addend per example, or is computed in double precision and rounded once.
    4. Rows of weight 0 add exactly nothing, in either sum.
    """

    def rows(self, start: int, stop: int) -> Tensor:
        """The per-example gradients of examples start … stop−1, shape (stop − start, *parameter)."""
        ...

    def reach(self) -> RoundingBound:
        """How far :meth:`rows` may be from the gradients that :meth:`sum_in_double` sums."""
        ...

    def bound_squares(self, certain: bool = True) -> Tensor:
        """Upper bounds of the squared norms of what :meth:`sum` adds with weight 1, shape (n,), float64.

        Without ``certain``, the best estimate."""
        ...

    def sum(self, weights: Weights) -> Tensor:
        """Σᵢ wᵢ gᵢ with one addend per example, or in double precision and rounded once."""
        ...

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """``total`` + Σᵢ wᵢ gᵢ, with one addend per example or in double precision; ``total`` is such a sum over other
        examples, or None, and may be written to."""
        ...

    def sum_in_double(self, weights: Weights) -> Tensor:
        """Σᵢ wᵢ gᵢ in double precision."""
        ...


def sum_terms(parts: Sequence[tuple[Term, Weights]]) -> Tensor:
    """Σᵢ wᵢ gᵢ over the examples of terms of one kind."""
    (first, weights), *others = parts
    if not others:
        return first.sum(weights)
    if isinstance(first, OuterProduct) and first.a.shape[1] == 1:
        pairs = [(w.scale(t.b), w.rows(t.a)) for t, w in parts if isinstance(t, OuterProduct)]
        return torch.cat([b.squeeze(1) for b, _ in pairs]).t() @ torch.cat([a.squeeze(1) for _, a in pairs])
    total = first.add_sum(None, weights)
    for term, more in others:
        total = term.add_sum(total, more)
    return total


def add_doubles(total: Tensor | None, more: Tensor) -> Tensor:
    """The sum of two sums in double precision, the first of which may be missing."""
    return more if total is None else total.add_(more)


@dataclass(frozen=True)
class Materialized:
    """Materialized per-example gradients, shape (n, *parameter)."""

    values: Tensor

    def rows(self, start: int, stop: int) -> Tensor:
        """A view."""
        return self.values[start:stop]

    def reach(self) -> RoundingBound:
        """The rows are summed directly."""
        return RoundingBound(0, bound_squares(self.values).sqrt_())

    def bound_squares(self, certain: bool = True) -> Tensor:
        """‖gᵢ‖² directly."""
        return bound_squares(self.values, certain=certain)

    def sum(self, weights: Weights) -> Tensor:
        """One vector-matrix product: one addend per example."""
        return sum_rows(self.values, weights)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same, added to a sum."""
        return sum_rows(self.values, weights) if total is None else add_rows(total, self.values, weights)

    def sum_in_double(self, weights: Weights) -> Tensor:
        """The same in double precision, a few examples at a time."""
        shape, m = self.values.shape[1:], weights.stop - weights.start
        total, step = self.values.new_zeros(math.prod(shape), dtype=torch.float64), chunk_of(math.prod(shape), m)
        for low in range(0, m, step):
            part = weights.part(low, min(m, low + step))
            total += part.values.double() @ part.rows(self.values).flatten(1).double()
        return total.view(shape)


@dataclass(frozen=True)
class TurnedRows:
    """Materialized per-example gradients with the parameter's second dimension last: norms and sums use this layout,
    and only a sum is transposed."""

    held: Materialized

    def rows(self, start: int, stop: int) -> Tensor:
        """A view."""
        return self.held.rows(start, stop).movedim(-1, 2)

    def reach(self) -> RoundingBound:
        """The rows are summed directly."""
        return self.held.reach()

    def bound_squares(self, certain: bool = True) -> Tensor:
        """‖gᵢ‖², which does not depend on the order."""
        return self.held.bound_squares(certain)

    def sum(self, weights: Weights) -> Tensor:
        """One addend per example."""
        return self.held.sum(weights).movedim(-1, 1).contiguous()

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same, added to a sum; the result is a view of one in this layout."""
        return self.held.add_sum(None if total is None else total.movedim(1, -1), weights).movedim(-1, 1)

    def sum_in_double(self, weights: Weights) -> Tensor:
        """The same in double precision."""
        return self.held.sum_in_double(weights).movedim(-1, 1).contiguous()


@dataclass(frozen=True)
class OuterProduct:
    """gᵢ = Σ_p b_ip a_ipᵀ with a of shape (n, P, in) and b of shape (n, P, out)."""

    a: Tensor
    b: Tensor

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ by one batched product."""
        a, b = align(self.a[start:stop]), align(self.b[start:stop])
        out = empty_aligned(a, (len(a), b.shape[2], a.shape[2]))
        return torch.bmm(b.transpose(1, 2), a, out=out)

    def reach(self) -> RoundingBound:
        """The bound for the sum over positions."""
        n, positions = self.a.shape[:2]
        a, b = (bound_squares(t.reshape(n * positions, -1), underflow_margin(t.dtype)) for t in (self.a, self.b))
        return RoundingBound(positions, a.mul_(b).sqrt_().view(n, positions).sum(1))

    def bound_squares(self, certain: bool = True) -> Tensor:
        """By the outer product's norm, the Gram matrices, or the gradients in chunks: whichever is cheapest."""
        n, positions, inputs = self.a.shape
        outputs = self.b.shape[2]
        if positions == 1:
            return bound_squares(self.a, certain=certain).mul_(bound_squares(self.b, certain=certain))
        if held_is_cheaper(positions, inputs, outputs, again=True):
            return bound_in_chunks([self], n, inputs * outputs, certain)
        step = chunk_of(positions * max(inputs, outputs, positions), n)
        pairs = zip(torch.split(self.a, step), torch.split(self.b, step), strict=True)
        return torch.cat([bound_by_grams(a, b, certain) for a, b in pairs])

    def sum(self, weights: Weights) -> Tensor:
        """(w·b)ᵀ a: one matrix product, which has one addend per example only if there is one position."""
        if self.a.shape[1] > 1:
            return self.sum_in_double(weights).to(self.a.dtype)
        return weights.scale(self.b).squeeze(1).t() @ weights.rows(self.a).squeeze(1)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same, added to a sum; in double precision if there are several positions."""
        if self.a.shape[1] > 1:
            return add_doubles(total, self.sum_in_double(weights))
        return self.sum(weights) if total is None else total.add_(self.sum(weights))

    def sum_in_double(self, weights: Weights) -> Tensor:
        """The same in double precision, with chunks of positions that stay in the cache."""
        a = weights.rows(self.a).flatten(0, 1)
        b = weights.rows(self.b).flatten(0, 1)
        w = weights.values.double().repeat_interleave(self.a.shape[1])[:, None]
        total = a.new_zeros(b.shape[1], a.shape[1], dtype=torch.float64)
        step = depth_of(a.shape[1] + b.shape[1])
        for low in range(0, len(a), step):
            part = slice(low, low + step)
            total.addmm_((b[part] * w[part]).t(), a[part].double())
        return total

    def choose_form(self) -> Term:
        """Materialized gradients if that is cheaper, otherwise these factors."""
        n, positions, inputs = self.a.shape
        outputs = self.b.shape[2]
        small = inputs * outputs <= ROOM * positions * (inputs + outputs)
        if positions > 1 and small and held_is_cheaper(positions, inputs, outputs):
            return Materialized(self.rows(0, n))
        return Recomputed(self.a, self.b) if positions > FEW else self


@dataclass(frozen=True)
class Recomputed(OuterProduct):
    """The same with many positions: the gradients of a few examples at a time are computed again for the sum."""

    def list_groups(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """The gradients of examples start … stop−1 as they are summed, and the index of the first of each group."""
        step = chunk_of(self.a.shape[2] * self.b.shape[2], stop - start)
        for low in range(start, stop, step):
            yield low, self.rows(low, min(stop, low + step))

    def bound_squares(self, certain: bool = True) -> Tensor:
        """Bounds for the gradients with the rounding that they are summed with."""
        found = super().bound_squares(certain)
        if not certain:
            return found
        reach, largest = self.reach(), torch.finfo(self.a.dtype).max / 2
        return add_allowance(found, [reach], self.a.dtype).masked_fill_(reach.s > largest, math.inf)

    def sum(self, weights: Weights) -> Tensor:
        """One addend per example."""
        return self.add_sum(None, weights)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same, added to a sum."""
        out = self.a.new_zeros(self.b.shape[2], self.a.shape[2]) if total is None else total
        for low, rows in Recomputed(weights.rows(self.a), weights.rows(self.b)).list_groups(0, len(weights.values)):
            out.view(-1).addmv_(rows.flatten(1).t(), weights.values[low : low + len(rows)])
        return out


def compute_grams(a: Tensor) -> Tensor:
    """The Gram matrices (a_p·a_q) of each example; inner products of more than ``BLOCK`` numbers in chunks."""
    a = align(a)
    if a.shape[2] <= BLOCK:
        return torch.bmm(a, a.transpose(1, 2), out=empty_aligned(a, (len(a), a.shape[1], a.shape[1])))
    total = a.new_zeros(a.shape[0], a.shape[1], a.shape[1], dtype=torch.float64)
    for part in torch.split(a, BLOCK, 2):
        total += torch.bmm(part, part.transpose(1, 2))
    return total


def bound_by_grams(a: Tensor, b: Tensor, certain: bool) -> Tensor:
    """Σ_pq (a_p·a_q)(b_p·b_q) + γ s² of each example, for a and b with positions in dimension 1."""
    inner = (min(a.shape[2], BLOCK), min(b.shape[2], BLOCK))
    return bound_from_grams(compute_grams(a), compute_grams(b), inner, a.dtype, certain)


def bound_from_grams(left: Tensor, right: Tensor, inner: tuple[int, int], dtype: torch.dtype, certain: bool) -> Tensor:
    """The same from Gram matrices (m, P, P) with ``inner`` roundings per entry; at least ``FLOOR`` · s²."""
    found = (left * right).sum((1, 2), dtype=torch.float64)
    if not certain:
        return found.clamp_(min=0)
    ends = [t.diagonal(dim1=1, dim2=2).double().add_(underflow_margin(dtype)) for t in (left, right)]
    s = ends[0].mul_(ends[1]).sqrt_().sum(1)
    diagonal = 1.0 + 2 * max(gamma(k + SPARE, dtype) for k in inner)  # error of ‖a_p‖² from a_p·a_p, and of b
    pairs = left.shape[1] ** 2
    off = gamma(sum(inner) + SPARE, dtype) + gamma(pairs + SPARE, torch.float64) * diagonal**2
    whole = s.square_().mul_(TRIFLE * diagonal**2)
    found.masked_fill_(found.isinf(), torch.nan)  # the maximum would drop -inf
    return torch.maximum(found.add_(whole, alpha=off), whole * FLOOR).add_(pairs * underflow(dtype))


def bound_in_chunks(terms: Sequence[Term], n: int, size: int, certain: bool) -> Tensor:
    """‖Σ_terms gᵢ‖² with the gradients of a few examples in memory at a time."""
    step = chunk_of(size, n)
    parts = []
    for start in range(0, n, step):
        total = terms[0].rows(start, min(n, start + step))
        for term in terms[1:]:
            total = total + term.rows(start, min(n, start + step))
        parts.append(bound_squares(total, certain=certain))
    found = torch.cat(parts)
    return add_allowance(found, [term.reach() for term in terms], total.dtype) if certain else found


def add_allowance(found: Tensor, reaches: Sequence[RoundingBound], dtype: torch.dtype) -> Tensor:
    """Bounds (‖computed rows‖ + γ s)² of the exact gradients, at least ``FLOOR`` · s²."""
    off = sum((r.s * gamma(r.roundings + len(reaches) + SPARE, dtype) for r in reaches), torch.zeros_like(found))
    whole = sum((r.s for r in reaches), torch.zeros_like(found))
    bound = found.sqrt_().add_(off).square_()
    return torch.maximum(bound, whole.square_().mul_(FLOOR)).mul_(TRIFLE)


def merge_terms(terms: list[Term]) -> list[Term]:
    """Fewer terms with the same sum: rows are added, positions of linear uses are concatenated."""
    if len(terms) < 2:
        return terms
    held = [t for t in terms if isinstance(t, Materialized)]
    outer = [t for t in terms if isinstance(t, OuterProduct)]
    merged: list[Term] = [t for t in terms if not isinstance(t, (Materialized, OuterProduct))]
    if held:
        merged.append(Materialized(torch.stack([t.values for t in held]).sum(0)) if len(held) > 1 else held[0])
    if outer:
        together = OuterProduct(torch.cat([t.a for t in outer], 1), torch.cat([t.b for t in outer], 1))
        merged.append(together if merged else together.choose_form())
    return merged
