"""The query of DiceSGD: the part of the gradient removed by clipping is stored and fed back in later steps.

Zhang, Bu, Wu, Hong 2024, "Differentially private SGD without clipping bias: an error-feedback approach", all on the
scale of the sum: v = Σ clip(gᵢ, C₁) + clip(e, C₂) is released with noise, and e ← e + Σgᵢ − v. The error e contains
unclipped gradients. It is private, never leaves the query, and is not part of any release.

There are two values of ε. The paper's, with status "claimed": DP-SGD with noise s = σC₁√(1 + 2C₂/C₁). The proven one:
after the first step e may differ arbitrarily between neighbouring datasets, whether the example was sampled or not, so
every step changes by up to 2C₂, and by C₁ more where the example takes part. With K ~ Binomial(T, q) participations,
δ(ε) = E_K δ_Gauss(ε; √(4C₂²T + (C₁² + 4C₁C₂)K)/s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hush._internal import validate
from hush._internal.dp_event import dp_event
from hush._internal.tensors import Losses, Named, State, Sums
from hush.accounting.gaussian import Participating
from hush.clipping.base import Channel, Claim
from hush.clipping.clipped import ROUNDED_UP, ClipMode, Clipping, diagnostics
from hush.errors import InvalidInputError, NotProvenError
from hush.noise.base import NoisyGradient
from hush.per_example.gradients import per_example_gradients
from hush.sampling import Participation

LARGEST_ERROR = 1e18  # limit of the error's norm: far above useful values, far below overflow
SMALLEST_SHARE = 1e-6  # smallest feedback relative to the clip: keeps the rounding of a sum far below its charge

PROVEN = (
    "covers the error memory: what clipping cuts off one person's gradient stays in the memory and can come back in "
    "every later step, so every step is charged for it, sampled or not"
)
CLAIMED = (
    "the paper's formula, which charges a person only for the steps whose batch they are in; the error memory replays "
    "them in other steps too, and no proof covers that"
)


@dataclass(frozen=True)
class ErrorFeedback:
    """Σ clip(gᵢ, ``clip``) + clip(e, ``feedback``), with the error e kept inside."""

    clip: float
    feedback: float
    mode: ClipMode = "plain"
    engine: str = "auto"

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip, clip_feedback=self.feedback)
        if self.feedback < SMALLEST_SHARE * self.clip:
            raise InvalidInputError(
                f"clip_feedback {self.feedback:g} is less than {SMALLEST_SHARE:g} of the clip, where rounding exceeds "
                "the feedback: use dp-sgd, or a larger clip_feedback"
            )
        if self.mode == "automatic":
            raise InvalidInputError(
                "clip_mode 'automatic' removes nothing that could be fed back: use 'plain' or 'normalised'"
            )
        _ = self.clipping  # its checks

    @property
    def clipping(self) -> Clipping:
        """How one example is bounded, before the division by the clip."""
        return Clipping(self.clip)

    @property
    def scale(self) -> float:
        """The divisor of the released sum: the clip if normalised."""
        return self.clip if self.mode == "normalised" else 1.0

    @property
    def channels(self) -> Mapping[str, Channel]:
        """One channel with a hidden state; an example's own gradient adds at most the clip."""
        return {"gradient": Channel(self.clip / self.scale, proof="hidden-state")}

    @property
    def reach(self) -> float:
        """Gradient and error together, (C₁ + 2C₂)/C₁: the clipped error may differ by 2C₂."""
        return 1.0 + 2.0 * self.feedback / self.clip

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {"error": {name: torch.zeros_like(p) for name, p in params.items()}}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Clipped and unclipped sums of one piece; examples without a finite gradient are in neither."""
        tape = per_example_gradients(model, losses, content, engine=self.engine)
        weighed = self.clipping.weigh(tape.squared_norms())
        everybody = torch.isfinite(weighed.norms).to(weighed.norms.dtype)
        return {
            "gradient": tape.sum(weighed.weights),
            "raw": tape.sum(everybody),
            "diagnostics": diagnostics(tape.losses, weighed.clipped),
        }

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """v = Σ clip(gᵢ) + clip(e), and the next error."""
        error = private["error"]
        norm = total_norm(error) * ROUNDED_UP
        back = 1.0 if norm <= self.feedback else self.feedback / norm
        value = {name: clipped.double() + back * error[name].double() for name, clipped in sums["gradient"].items()}
        after = {name: (e + sums["raw"][name] - value[name]).to(e.dtype) for name, e in error.items()}
        return {"gradient": {n: v / self.scale for n, v in value.items()}}, {"error": bounded(after)}

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        if (rate := participation.poisson_rate) is None:
            raise NotProvenError(
                f"error feedback is analysed for Poisson batches only, not for {type(participation).__name__}: "
                "use sampling 'poisson'"
            )
        std = noise_std["gradient"] * self.scale
        c1, c2 = self.clip, self.feedback
        proven = Participating(steps, rate, c1 * (c1 + 4 * c2) / std**2, always=4 * (c2 / std) ** 2)
        sigma = std / (c1 * math.sqrt(1 + 2 * c2 / c1))
        sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        claimed = dp_event.SelfComposedDpEvent(sampled, steps)
        return Claim(proven, "add-remove", "proven", PROVEN), Claim(claimed, "add-remove", "claimed", CLAIMED)


def total_norm(named: Named) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in named.values()))


def bounded(error: Named) -> Named:
    """The error, protected from overflow: scaled down if huge, zero if not finite.

    The proof holds for any finite error.
    """
    norm = total_norm(error)
    if norm <= LARGEST_ERROR:
        return error
    if not math.isfinite(norm):
        return {name: torch.zeros_like(value) for name, value in error.items()}
    return {name: value * (LARGEST_ERROR / norm) for name, value in error.items()}
