"""The terms of which a per-example gradient is a sum, each with the cheapest way to its norm and its weighted sum.

A linear use of a weight contributes gᵢ = Σ_p b_ip a_ipᵀ over its positions p. With one position ‖gᵢ‖² = ‖aᵢ‖²‖bᵢ‖²
(Goodfellow 2015, "Efficient per-example gradient computations"); with few, ‖gᵢ‖² = Σ_pq (a_ip·a_iq)(b_ip·b_iq); with
many it is cheaper to hold gᵢ itself. The weighted sum is one product of matrices, as in ordinary training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hush.gradients.tape import squares, weighted_rows

CHUNK = 1 << 20  # elements of per-example gradients that are held at once where they are only needed for a norm


class Term(Protocol):
    """One use's part of the gradient of one parameter."""

    def rows(self, start: int, stop: int) -> Tensor:
        """The per-example gradients of examples start … stop−1, shape (stop − start, *parameter)."""
        ...

    def squares(self) -> Tensor:
        """The squared norms of this term alone, shape (n,)."""
        ...

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """Σᵢ wᵢ gᵢ over the rows in ``keep`` (None: all)."""
        ...


@dataclass(frozen=True)
class Rows:
    """Per-example gradients held as they are, shape (n, *parameter)."""

    values: Tensor

    def rows(self, start: int, stop: int) -> Tensor:
        """A view."""
        return self.values[start:stop]

    def squares(self) -> Tensor:
        """‖gᵢ‖² directly."""
        return squares(self.values)

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """One product of a vector and a matrix."""
        return weighted_rows(self.values, weights)


@dataclass(frozen=True)
class Outer:
    """gᵢ = Σ_p b_ip a_ipᵀ with a of shape (n, P, in) and b of shape (n, P, out)."""

    a: Tensor
    b: Tensor

    @property
    def positions(self) -> int:
        """P."""
        return self.a.shape[1]

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ by one batched product."""
        return self.b[start:stop].transpose(1, 2) @ self.a[start:stop]

    def squares(self) -> Tensor:
        """By the outer product's norm, the Gram matrices, or the gradients in chunks: whichever costs least."""
        if self.positions == 1:
            return squares(self.a) * squares(self.b)
        if self.positions * (self.a.shape[2] + self.b.shape[2]) <= self.a.shape[2] * self.b.shape[2]:
            gram = (self.a @ self.a.transpose(1, 2)).mul_(self.b @ self.b.transpose(1, 2))
            return gram.sum((1, 2)).clamp_(min=0)
        return chunked_squares([self], self.a.shape[0], self.a.shape[2] * self.b.shape[2])

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """(w·b)ᵀ a: one product of matrices."""
        a, b = self.a, self.b
        if keep is not None:
            a, b, weights = a.index_select(0, keep), b.index_select(0, keep), weights.index_select(0, keep)
        scaled = b * weights.to(b.dtype)[:, None, None]
        return scaled.flatten(0, 1).t() @ a.flatten(0, 1)


def chunked_squares(terms: list[Term], n: int, size: int) -> Tensor:
    """‖Σ_terms gᵢ‖² with the per-example gradients of a few examples in memory at a time."""
    step = max(1, CHUNK // max(size, 1))
    parts = []
    for start in range(0, n, step):
        total = terms[0].rows(start, min(n, start + step))
        for term in terms[1:]:
            total = total + term.rows(start, min(n, start + step))
        parts.append(squares(total))
    return torch.cat(parts)


def together(terms: list[Term]) -> list[Term]:
    """Fewer terms with the same sum: rows are added, positions of linear uses are put side by side."""
    held = [t for t in terms if isinstance(t, Rows)]
    outer = [t for t in terms if isinstance(t, Outer)]
    other = [t for t in terms if not isinstance(t, (Rows, Outer))]
    merged: list[Term] = []
    if held:
        merged.append(held[0] if len(held) == 1 else Rows(torch.stack([t.values for t in held]).sum(0)))
    if outer:
        merged.append(
            outer[0]
            if len(outer) == 1
            else Outer(torch.cat([t.a for t in outer], 1), torch.cat([t.b for t in outer], 1))
        )
    return merged + other
