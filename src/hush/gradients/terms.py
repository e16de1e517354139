"""The terms of which a per-example gradient is a sum, each with the cheapest way to its norm and its weighted sum.

A linear use of a weight contributes gᵢ = Σ_p b_ip a_ipᵀ over its positions p. With one position ‖gᵢ‖² = ‖aᵢ‖²‖bᵢ‖²
(Goodfellow 2015, "Efficient per-example gradient computations"); with few, ‖gᵢ‖² = Σ_pq (a_ip·a_iq)(b_ip·b_iq); with
many it is cheaper to hold gᵢ itself. The weighted sum is one product of matrices, as in ordinary training.

Positions (and terms) can cancel: then neither their Gram matrices nor the sum over a batch know gᵢ better than to the
rounding of what it is made of, and a huge example would pass for a small one. So a norm includes what rounding may hide
(``hidden``), which is nothing to speak of unless almost everything cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hush.gradients.costs import ROOM, chunk_of, held_is_cheaper
from hush.gradients.tape import squares


@dataclass(frozen=True)
class Weights:
    """The weights of one sum: all of them, and the rows whose weight is not zero (None: every row)."""

    values: Tensor
    keep: Tensor | None

    @staticmethod
    def of(values: Tensor, dtype: torch.dtype) -> Weights:
        """Weights in the gradients' own type; rows of weight zero are left out of every sum, since 0·NaN is NaN."""
        values = values.detach().to(dtype)
        if bool(values.all()):
            return Weights(values, None)
        keep = values.nonzero().squeeze(1)
        return Weights(values.index_select(0, keep), keep)

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows that count."""
        return tensor if self.keep is None else tensor.index_select(0, self.keep)

    def scale(self, tensor: Tensor) -> Tensor:
        """wᵢ · tensorᵢ of the rows that count."""
        return self.rows(tensor) * self.values.view(-1, *[1] * (tensor.dim() - 1))


TINY = 1e-36  # a squared norm below this is taken for it: the square of a smaller float32 vanishes
ROUNDING = 4.0  # units in the last place that the sums of products may lose


def hidden_by_rounding(a: Tensor, b: Tensor, copies: int = 1) -> Tensor:
    """A bound on the part of ‖Σ_p b_p a_pᵀ‖² that rounding may hide: by Cauchy and Schwarz, of ‖a‖²‖b‖²."""
    scale = ROUNDING * torch.finfo(a.dtype).eps * copies
    return squares(a).clamp_(min=TINY).mul_(squares(b).clamp_(min=TINY)).mul_(scale)


class Term(Protocol):
    """One use's part of the gradient of one parameter."""

    def hidden(self) -> Tensor:
        """What rounding may hide of the squared norms where parts of the gradient cancel, shape (n,)."""
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """The per-example gradients of examples start … stop−1, shape (stop − start, *parameter)."""
        ...

    def squares(self) -> Tensor:
        """The squared norms of this term alone, shape (n,)."""
        ...

    def weighted(self, weights: Weights) -> Tensor:
        """Σᵢ wᵢ gᵢ."""
        ...


@dataclass(frozen=True)
class Rows:
    """Per-example gradients held as they are, shape (n, *parameter)."""

    values: Tensor

    def hidden(self) -> Tensor:
        """The rounding of the gradient itself, which matters where another term cancels it."""
        return squares(self.values).mul_(ROUNDING * torch.finfo(self.values.dtype).eps)

    def rows(self, start: int, stop: int) -> Tensor:
        """A view."""
        return self.values[start:stop]

    def squares(self) -> Tensor:
        """‖gᵢ‖² directly."""
        return squares(self.values)

    def weighted(self, weights: Weights) -> Tensor:
        """One product of a vector and a matrix."""
        rows = weights.rows(self.values)
        return (weights.values @ rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))).view(rows.shape[1:])


@dataclass(frozen=True)
class Outer:
    """gᵢ = Σ_p b_ip a_ipᵀ with a of shape (n, P, in) and b of shape (n, P, out)."""

    a: Tensor
    b: Tensor

    def hidden(self) -> Tensor:
        """Of the sum over positions."""
        return hidden_by_rounding(self.a, self.b)

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ by one batched product."""
        return self.b[start:stop].transpose(1, 2) @ self.a[start:stop]

    def squares(self) -> Tensor:
        """By the outer product's norm, the Gram matrices, or the gradients in chunks: whichever costs least."""
        n, positions, inputs = self.a.shape
        outputs = self.b.shape[2]
        if positions == 1:
            return squares(self.a).clamp_(min=TINY).mul_(squares(self.b).clamp_(min=TINY))
        if held_is_cheaper(positions, inputs, outputs):
            return chunked_squares([self], n, inputs * outputs)
        step = chunk_of(positions * max(inputs, outputs, positions), n)
        pairs = zip(torch.split(self.a, step), torch.split(self.b, step), strict=True)
        return torch.cat([gram_squares(a, b) for a, b in pairs]).add_(self.hidden())

    def weighted(self, weights: Weights) -> Tensor:
        """(w·b)ᵀ a: one product of matrices."""
        a, b = weights.rows(self.a), weights.scale(self.b)
        return b.flatten(0, 1).t() @ a.flatten(0, 1)

    def cheapest(self) -> Term:
        """The gradients themselves where that is the cheaper way, else these factors."""
        n, positions, inputs = self.a.shape
        outputs = self.b.shape[2]
        small = inputs * outputs <= ROOM * positions * (inputs + outputs)
        if positions > 1 and small and held_is_cheaper(positions, inputs, outputs):
            return Rows(self.rows(0, n))
        return self


def gram_squares(a: Tensor, b: Tensor) -> Tensor:
    """Σ_pq (a_p·a_q)(b_p·b_q) of each example, for a and b with positions in dimension 1."""
    product = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(b, b.transpose(1, 2)))
    return product.sum((1, 2)).clamp_(min=0)


def chunked_squares(terms: Sequence[Term], n: int, size: int) -> Tensor:
    """‖Σ_terms gᵢ‖², and what rounding may hide of it, with the gradients of a few examples in memory at a time."""
    step = chunk_of(size, n)
    parts = []
    for start in range(0, n, step):
        total = terms[0].rows(start, min(n, start + step))
        for term in terms[1:]:
            total = total + term.rows(start, min(n, start + step))
        parts.append(squares(total))
    found = torch.cat(parts)
    for term in terms:
        found = found + term.hidden()
    return found


def together(terms: list[Term]) -> list[Term]:
    """Fewer terms with the same sum: rows are added, positions of linear uses are put side by side."""
    if len(terms) < 2:
        return terms
    held = [t for t in terms if isinstance(t, Rows)]
    outer = [t for t in terms if isinstance(t, Outer)]
    merged: list[Term] = [t for t in terms if not isinstance(t, (Rows, Outer))]
    if held:
        merged.append(Rows(torch.stack([t.values for t in held]).sum(0)) if len(held) > 1 else held[0])
    if outer:
        merged.append(Outer(torch.cat([t.a for t in outer], 1), torch.cat([t.b for t in outer], 1)))
    return merged
