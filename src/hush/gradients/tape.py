"""What an engine hands back: per-example losses, bounds of per-example norms, and weighted sums of gradients.

With gᵢ the gradient of example i's own loss, a tape answers ‖gᵢ[p]‖² for every parameter p and Σᵢ wᵢ gᵢ for any weights
w. Clipping is the second with wᵢ = min(1, c/‖gᵢ‖); the sum of unclipped gradients is w = 1. What is promised about the
rounding of both is in :class:`Tape`; ARITHMETIC.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hush.errors import BadInput
from hush.gradients.exact import exact_products
from hush.gradients.rounding import squares, towards_zero
from hush.named import Named
from hush.source import tensors_of


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
    """The per-example gradients of one batch, however they are held, in the arithmetic they are computed in.

    Guarantees, for every input and every order of plain or fused additions (ARITHMETIC.md):

    1. ``sum`` adds, for example i, a vector of norm at most wᵢ·√Σ_names Vᵢ[name], V being ``squared_norms()``: a norm
       is never underestimated. What is not finite stays not finite.
    2. Each coordinate of ``sum`` is either a sum of at most one addend an example, in the parameter's own type, or is
       summed in double precision and rounded once; that sum errs by less than 1e-6 of the largest wᵢ√Vᵢ for up to
       384 examples of 4 096 positions, or 1 024 of 512 (:func:`hush.gradients.rounding.double_error`).
    3. A row of weight 0 adds exactly nothing, even if its gradient is not finite, and no other row's arithmetic has
       another shape because of it.
    4. Weights are rounded towards zero where the parameter's type is coarser than theirs.
    """

    @property
    def losses(self) -> Tensor:
        """One loss per example, detached, at the first point."""
        ...

    def squared_norms(self, certain: bool = True) -> Named:
        """Vᵢ[name] ≥ ‖gᵢ[name]‖² for every trainable parameter, shape (n,), float64.

        Without ``certain`` the best estimate instead, for comparisons between engines: no bound to clip by."""
        ...

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ over the examples start … stop−1 (all by default); ``weights`` has one for every example."""
        ...


@dataclass(eq=False)
class Suspects:
    """Which examples a tape has found not to be finite: the others need no mask where their weight is zero."""

    rows: Tensor | None = None  # None: nobody has looked

    def noted(self, squared: Named) -> Named:
        """The squared norms as they are, after a look at them."""
        self.rows = ~torch.isfinite(torch.stack(list(squared.values())).sum(0)) if squared else None
        return squared


@dataclass(frozen=True)
class HeldTape:
    """A tape that holds every per-example gradient, shape (n, …), by name."""

    losses: Tensor
    gradients: Named
    suspects: Suspects = field(default_factory=Suspects, repr=False)

    @torch.no_grad()
    def squared_norms(self, certain: bool = True) -> Named:
        """‖gᵢ[name]‖² from the gradients themselves."""
        with exact_products():
            found = {name: squares(g, certain=certain) for name, g in self.gradients.items()}
        return self.suspects.noted(found)

    @torch.no_grad()
    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ from the gradients themselves."""
        with exact_products():
            chosen = {
                name: Weights.of(weights_of(weights, name), g.dtype, start, stop, self.suspects.rows)
                for name, g in self.gradients.items()
            }
            return {name: weighted_rows(g, chosen[name]) for name, g in self.gradients.items()}


@dataclass(frozen=True)
class EmptyTape:
    """The tape of a batch without examples: every sum is zero."""

    losses: Tensor
    params: Mapping[str, Tensor]

    def squared_norms(self, certain: bool = True) -> Named:
        """No norms."""
        return {name: p.new_zeros(0, dtype=torch.float64) for name, p in self.params.items()}

    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Zeros."""
        return {name: torch.zeros_like(p) for name, p in self.params.items()}


def weights_of(weights: Tensor | Named, name: str) -> Tensor:
    """The weights of one parameter."""
    return weights[name] if isinstance(weights, dict) else weights


@dataclass(frozen=True)
class Weights:
    """The weights of the examples start … stop−1 in the gradients' own type, and which rows must not be looked at."""

    values: Tensor
    start: int
    stop: int
    dead: Tensor | None

    @staticmethod
    def of(
        values: Tensor, dtype: torch.dtype, start: int = 0, stop: int | None = None, suspects: Tensor | None = None
    ) -> Weights:
        """Weights rounded towards zero; a row of weight zero is masked, since 0·NaN is NaN, and keeps its place.

        Rows that are known to be finite (not among the ``suspects``) need no mask."""
        stop = len(values) if stop is None else stop
        values = towards_zero(values.detach()[start:stop], dtype)
        dead = values == 0 if suspects is None else (values == 0) & suspects[start:stop]
        return Weights(values, start, stop, dead if bool(dead.any()) else None)

    def part(self, low: int, high: int) -> Weights:
        """Those of the examples start + low … start + high − 1."""
        dead = None if self.dead is None else self.dead[low:high]
        return Weights(self.values[low:high], self.start + low, self.start + high, dead)

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows of these examples, with zeros for those that do not count."""
        part = tensor[self.start : self.stop]
        if self.dead is None:
            return part
        return part.masked_fill(self.dead.view(-1, *[1] * (tensor.dim() - 1)), 0)

    def scale(self, tensor: Tensor) -> Tensor:
        """wᵢ · tensorᵢ of these examples, in the tensor's or the weights' type, whichever is finer."""
        return self.rows(tensor) * self.values.view(-1, *[1] * (tensor.dim() - 1))


def weighted_rows(rows: Tensor, weights: Weights) -> Tensor:
    """Σᵢ wᵢ rowsᵢ, one addend an example."""
    shape = rows.shape[1:]
    part = weights.rows(rows)
    return (weights.values @ part.reshape(part.shape[0], math.prod(shape))).view(shape)


def rewinder(device: torch.device) -> Callable[[], None]:
    """Remember torch's generators, and so the number of the next draw (hush.draws); the function returned brings them
    back to this moment."""
    state = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return rewind


def batch_size(content: Any) -> int:
    """The number of examples: the first dimension that all tensors of the content share."""
    tensors = tensors_of(content)
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
