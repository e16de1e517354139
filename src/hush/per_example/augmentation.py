"""The points of a combined gradient, and augmentation multiplicity.

Augmentation multiplicity: an example's gradient is the mean over K views of it, taken before clipping. De et al. 2022,
"Unlocking high-accuracy differentially private image classification": gᵢ = (1/K) Σ_k ∇loss(view_k(xᵢ)). An example
still has one clipped contribution, so this has no privacy cost as long as a view depends on its own example only. The
engine treats the views as points of one combined gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named
from hush.data_source import tensors_of
from hush.errors import InvalidInputError
from hush.privacy_unit import UnitLosses, UnitRows, flatten, unflatten


@dataclass(frozen=True)
class Point:
    """One term of a combined gradient gᵢ = Σ_p coefficient_p ∇lossᵢ(params_p; content_p).

    ``None`` means the model's own parameters, or the batch's own content."""

    coefficient: float = 1.0
    params: Named | None = None
    content: Any = None


@dataclass(frozen=True)
class Augmented:
    """Losses whose gradient is averaged over ``views`` draws of ``augment(content)``: one content in, one out."""

    losses: Losses
    augment: Callable[[Any], Any]
    views: int

    def __post_init__(self) -> None:
        validate.positive_int(views=self.views)

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The mean loss over the views, one number per example."""
        return torch.stack([self.losses(model, self.augment(content)) for _ in range(self.views)]).mean(0)

    def points(self, content: Any, points: Sequence[Point]) -> list[Point]:
        """Every point at every view; each view is drawn once, so that all points use the same views."""
        contents = [self.augment(content) for _ in range(self.views)]
        return [Point(p.coefficient / self.views, p.params, view) for p in points for view in contents]


def average_rows(losses: Losses, most: int) -> Losses:
    """Turn losses of rows into losses of units with at most ``most`` rows (:mod:`hush.privacy_unit`); augmentation
    applies to each row."""
    if not isinstance(losses, Augmented):
        return UnitLosses(losses, most)
    return Augmented(UnitLosses(losses.losses, most), _OfRows(losses.augment, most), losses.views)


@dataclass(frozen=True)
class _OfRows:
    """An augmentation of rows, applied to the rows of units."""

    augment: Callable[[Any], Any]
    most: int

    def __call__(self, content: UnitRows) -> UnitRows:
        return UnitRows(unflatten(self.augment(flatten(content.rows)), self.most), content.weights)


def make_rewinder(device: torch.device) -> Callable[[], None]:
    """Save the state of torch's generators, and so the number of the next draw (hush.per_example.model_rng); the
    returned function restores it."""
    state = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return rewind


def read_batch_size(content: Any) -> int:
    """The number of examples: the first dimension, which all tensors of the content share."""
    tensors = tensors_of(content)
    sizes = sorted({t.shape[0] for t in tensors if t.dim() > 0})
    if len(sizes) != 1 or any(t.dim() == 0 for t in tensors):
        raise InvalidInputError("every tensor of a batch must have the examples in its first dimension")
    return sizes[0]
