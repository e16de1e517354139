"""What an engine hands back: per-example losses, exact per-example norms, and weighted sums of per-example gradients.

With gᵢ the gradient of example i's own loss, a tape answers ‖gᵢ[p]‖² for every parameter p and Σᵢ wᵢ gᵢ for any weights
w. Clipping is the second with wᵢ = min(1, c/‖gᵢ‖); the sum of unclipped gradients is w = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hush.errors import BadInput
from hush.named import Named


class GradientWarning(UserWarning):
    """Said once per model: a part of it takes the slow road, or could not be checked."""


@dataclass(frozen=True)
class Point:
    """One term of a combined gradient gᵢ = Σ_p coefficient_p ∇lossᵢ(params_p; content_p).

    ``None`` is the model's own parameters, and the batch's own content."""

    coefficient: float = 1.0
    params: Named | None = None
    content: Any = None


class Tape(Protocol):
    """The per-example gradients of one batch, however they are held."""

    @property
    def losses(self) -> Tensor:
        """One loss per example, detached, at the first point."""
        ...

    def squared_norms(self) -> Named:
        """‖gᵢ[name]‖² for every trainable parameter, shape (n,); what is not finite stays not finite."""
        ...

    def sum(self, weights: Tensor | Named) -> Named:
        """Σᵢ wᵢ gᵢ; a row of weight 0 contributes exactly nothing, even if its gradient is not finite."""
        ...


@dataclass(frozen=True)
class HeldTape:
    """A tape that holds every per-example gradient, shape (n, …), by name."""

    losses: Tensor
    gradients: Named

    def squared_norms(self) -> Named:
        """‖gᵢ[name]‖² from the gradients themselves."""
        return {name: squares(g) for name, g in self.gradients.items()}

    def sum(self, weights: Tensor | Named) -> Named:
        """Σᵢ wᵢ gᵢ from the gradients themselves."""
        return {name: weighted_rows(g, weights_of(weights, name)) for name, g in self.gradients.items()}


@dataclass(frozen=True)
class EmptyTape:
    """The tape of a batch without examples: every sum is zero."""

    losses: Tensor
    params: Mapping[str, Tensor]

    def squared_norms(self) -> Named:
        """No norms."""
        return {name: p.new_zeros(0) for name, p in self.params.items()}

    def sum(self, weights: Tensor | Named) -> Named:
        """Zeros."""
        return {name: torch.zeros_like(p) for name, p in self.params.items()}


def weights_of(weights: Tensor | Named, name: str) -> Tensor:
    """The weights of one parameter."""
    return weights[name] if isinstance(weights, dict) else weights


def squares(rows: Tensor) -> Tensor:
    """The squared norm of each row of a tensor of shape (n, …)."""
    flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    return norms.square_()


def kept(weights: Tensor) -> Tensor | None:
    """The rows whose weight is not zero, or None where that is all of them."""
    if bool(torch.all(weights)):
        return None
    return weights.nonzero().squeeze(1)


def weighted_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ rowsᵢ over the rows of weight other than zero only: 0·NaN would be NaN."""
    keep = kept(weights)
    if keep is not None:
        rows, weights = rows.index_select(0, keep), weights.index_select(0, keep)
    return (weights.to(rows.dtype) @ rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))).view(rows.shape[1:])


def rewinder(device: torch.device) -> Callable[[], None]:
    """Remember torch's generators; the function returned brings them back to this moment."""
    state = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return rewind


def batch_size(content: Any) -> int:
    """The number of examples: the first dimension that all tensors of the content share."""
    tensors = [leaf for leaf in pytree.tree_leaves(content) if isinstance(leaf, Tensor)]
    sizes = sorted({t.shape[0] for t in tensors if t.dim() > 0})
    if len(sizes) != 1 or any(t.dim() == 0 for t in tensors):
        raise BadInput("every tensor of a batch must have the examples in its first dimension")
    return sizes[0]


def check_losses(losses: Any, n: int) -> None:
    """One loss per example, or a sentence that says so; how many examples a batch has is private."""
    if not isinstance(losses, Tensor) or losses.shape != (n,):
        got = f"{losses.dim()} dimensions" if isinstance(losses, Tensor) else repr(type(losses).__name__)
        got = "another number of them" if isinstance(losses, Tensor) and losses.dim() == 1 else got
        raise BadInput(f"losses must return one loss per example, shape (n,), got {got}: use reduction='none'")
