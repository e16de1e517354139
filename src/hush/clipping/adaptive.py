"""Quantile-adaptive clipping: the clip follows a quantile of the gradient norms, which is estimated privately.

Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially private learning with adaptive clipping". A second channel
counts the unclipped examples as indicators minus ½ (one example moves it by at most ½) with noise σ_b, and

    C ← C · exp(−η (b̃ − quantile)),   b̃ = ½ + (Σ (1[‖gᵢ‖ ≤ C] − ½) + σ_b z)/L.

The two channels share one event: the gradient's own multiplier is (σ⁻² − (2σ_b)⁻²)^(−½). The gradient is divided by C,
so its bound is 1 at every step for any C, and all noise that is proven for constant clipping is proven here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums
from hush.clipping.base import PLAIN_SUM, Channel, Claim, PlainSumProof
from hush.clipping.clipped import LARGEST, SMALLEST, Clipped, Clipping, diagnostics
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient
from hush.sampling import Participation

CHANNEL = "unclipped"


@dataclass(frozen=True)
class Quantile:
    """The initial clip ``start``, the quantile of the norms it tracks (``target``) and its learning rate."""

    start: float
    target: float = 0.5
    rate: float = 0.2

    def __post_init__(self) -> None:
        validate.positive(clip=self.start, clip_rate=self.rate)
        Clipping(self.start)  # its checks
        validate.probability(clip_quantile=self.target)

    def after(self, clip: float, release: NoisyGradient) -> float:
        fraction = 0.5 + float(release.values[CHANNEL]["count"])
        moved = clip * math.exp(-self.rate * (fraction - self.target))
        return min(max(moved, SMALLEST), LARGEST)  # bounded, because the clip would follow vanishing gradients to zero


@dataclass(frozen=True)
class Adaptive:
    """A clipped query whose clip tracks a quantile of the norms; its sums are divided by the clip."""

    query: Clipped
    quantile: Quantile
    count_noise: float

    def __post_init__(self) -> None:
        validate.positive(count_noise=self.count_noise)
        if self.query.clipping.mode == "automatic":
            raise InvalidInputError("clip_mode 'automatic' has no clip to adapt: use clip_mode 'plain' or 'normalised'")

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The gradient, bounded by 1, and the count of indicators minus ½, with its own noise."""
        return {"gradient": Channel(1.0), CHANNEL: Channel(0.5, std=self.count_noise, exact=True)}

    def init(self, params: Named) -> tuple[State, State]:
        """The clip is public: it is computed from noisy counts alone."""
        public, private = self.query.init(params)
        return {"clip": self.quantile.start, "query": public}, private

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        clip = public["clip"]
        clipping = replace(self.query.clipping, clip=clip, mode="normalised")
        tape = self.query.tape(model, losses, content, public["query"])
        weighed = clipping.weigh(tape.squared_norms())
        finite = weighed.norms.isfinite()
        indicators = (0.5 - weighed.clipped.to(weighed.norms.dtype)) * finite
        gradient = tape.sum(weighed.weights)
        count = indicators.sum()  # halves: exact
        return {
            "gradient": gradient,
            CHANNEL: {"count": count},
            "diagnostics": diagnostics(tape.losses, weighed.clipped),
        }

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"], CHANNEL: sums[CHANNEL]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        clip = self.quantile.after(public["clip"], release)
        return {"clip": clip, "query": self.query.observe(release, update, public["query"])}

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        return PLAIN_SUM
