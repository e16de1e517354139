"""Augmentation multiplicity: an example's gradient is the mean over K views of it, taken before clipping.

De et al. 2022, "Unlocking high-accuracy differentially private image classification": gᵢ = (1/K) Σ_k ∇loss(view_k(xᵢ)).
An example still has one clipped contribution, so this is free of privacy cost as long as a view looks at its own
example alone. To the engine the views are so many points of one combined gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush import validate
from hush.gradients.tape import Point
from hush.named import Losses


@dataclass(frozen=True)
class Augmented:
    """Losses whose gradient is averaged over ``views`` draws of ``augment(content)``: one content in, one out."""

    losses: Losses
    augment: Callable[[Any], Any]
    views: int

    def __post_init__(self) -> None:
        validate.whole(views=self.views)

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The mean loss over the views, one number per example."""
        return torch.stack([self.losses(model, self.augment(content)) for _ in range(self.views)]).mean(0)

    def points(self, content: Any, points: Sequence[Point]) -> list[Point]:
        """Every point at every view; each view is drawn once, so that all points see the same ones."""
        contents = [self.augment(content) for _ in range(self.views)]
        return [Point(p.coefficient / self.views, p.params, view) for p in points for view in contents]
