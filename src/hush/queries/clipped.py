"""The clipped sum of per-example gradients: Σ gᵢ · min(1, c/‖gᵢ‖) (Abadi et al. 2016).

Normalised by 1/c (De et al. 2022) it is Σ gᵢ · min(1/c, 1/‖gᵢ‖), which makes the learning rate independent of c. An
example whose gradient is not finite contributes exactly zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hush import validate
from hush.gradients import record
from hush.named import Losses, Named, State, Sums
from hush.queries.query import Channel
from hush.release import Release

ClipMode = Literal["plain", "normalised"]


@dataclass(frozen=True)
class ClippedSum:
    """Per-example gradients, clipped to norm ``clip`` and summed."""

    clip: float
    mode: ClipMode = "plain"
    engine: str = "auto"

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip)
        validate.one_of(("plain", "normalised"), clip_mode=self.mode)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """One channel; an example adds at most ``clip``, or 1 where the sum is normalised."""
        return {"gradient": Channel(self.clip if self.mode == "plain" else 1.0)}

    def init(self, params: Named) -> tuple[State, State]:
        """No state."""
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The clipped sum of one piece."""
        tape = record(model, losses, content, engine=self.engine)
        norms = total_norms(tape.squared_norms())
        weights = clip_factors(norms, self.clip, self.mode)
        return {"gradient": tape.sum(weights), "diagnostics": diagnostics(tape.losses, norms > self.clip)}

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: Release, update: Named, public: State) -> State:
        """Nothing to learn from the release."""
        return public


def total_norms(squared: Named) -> Tensor:
    """‖gᵢ‖ over all parameters, from the squared norms by parameter; in double precision."""
    return torch.stack([value.double() for value in squared.values()]).sum(0).sqrt()


def clip_factors(norms: Tensor, clip: float, mode: ClipMode) -> Tensor:
    """min(1, c/‖g‖), or that divided by c; zero where the norm is not finite."""
    factors = (clip / norms).clamp(max=1.0)  # a zero norm gives infinity, which the clamp makes 1
    if mode == "normalised":
        factors = factors / clip
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def diagnostics(losses: Tensor, clipped: Tensor) -> Named:
    """What a person training wants to see and nobody else may: loss, batch size, clipped examples."""
    finite = torch.isfinite(losses)
    return {
        "loss": torch.where(finite, losses, torch.zeros_like(losses)).double().sum(),
        "examples": torch.tensor(float(len(losses)), dtype=torch.float64, device=losses.device),
        "clipped": clipped.double().sum(),
    }
