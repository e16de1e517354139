"""The query of DiSK: per-example gradients at two points, combined before clipping.

Zhang, Bu, Balle, Hong, Razaviyayn, Mirrokni 2024, "DiSK: Differentially private optimizer with simplified Kalman filter
for noise reduction": gᵢ = a ∇ℓᵢ(θ + γ·dir) + (1 − a) ∇ℓᵢ(θ), a = (1 − κ)/(κγ), dir the last update. gᵢ is clipped after
the combination, so one example adds at most c and the noise is that of DP-SGD. dir is computed from released parameters
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums, trainable
from hush.clipping.base import PLAIN_SUM, Channel, Claim, PlainSumProof
from hush.clipping.clipped import Clipping, clipped_sums
from hush.noise.base import NoisyGradient
from hush.per_example.augmentation import Point
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import PerExampleGradients
from hush.sampling import Participation


@dataclass(frozen=True)
class TwoPoint:
    """The clipped sum of a ∇ℓᵢ(θ + γ·dir) + (1 − a) ∇ℓᵢ(θ); one gradient is enough where a is 0 or 1."""

    clipping: Clipping
    a: float
    gamma: float
    engine: str = "auto"

    def __post_init__(self) -> None:
        validate.non_negative(a=self.a, gamma=self.gamma)

    @staticmethod
    def of(clipping: Clipping, kappa: float, gamma: float) -> TwoPoint:
        """The query for a Kalman filter of gain κ: a = (1 − κ)/(κγ)."""
        validate.rate(kappa=kappa)
        validate.positive(gamma=gamma)
        a = (1.0 - kappa) / (kappa * gamma)
        return TwoPoint(clipping, 1.0 if math.isclose(a, 1.0) else a, gamma)  # κ = 1/(1 + γ), in floating point

    @property
    def channels(self) -> Mapping[str, Channel]:
        """One channel with the bound of a clipped sum: the combination is clipped, not its terms."""
        return {"gradient": Channel(self.clipping.bound)}

    def init(self, params: Named) -> tuple[State, State]:
        """The direction, public: zero before the first update."""
        if self.a == 0:
            return {}, {}
        return {"direction": {name: torch.zeros_like(p) for name, p in params.items()}}, {}

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        """The combined gradients: one draw of the batch and of the model's randomness for both points."""
        return per_example_gradients(
            model, losses, content, engine=self.engine, points=self._points(trainable(model), public)
        )

    def _points(self, params: Named, public: State) -> list[Point]:
        here = Point(1.0 - self.a)
        if self.a == 0:
            return [here]
        ahead = Point(self.a, {n: p.detach() + self.gamma * public["direction"][n] for n, p in params.items()})
        return [ahead] if self.a == 1 else [here, ahead]

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        return clipped_sums(self.tape(model, losses, content, public), self.clipping)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """The next direction is the last update, which is public like the parameters."""
        return {} if self.a == 0 else {"direction": update}

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        return PLAIN_SUM
