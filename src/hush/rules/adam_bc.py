"""DP-AdamBC: Adam whose second moment is freed of the noise's part (Tang, Shpilevskiy, Lécuyer 2024).

Noise of standard deviation s adds s² to E[g̃²], which makes every scale alike and Adam little more than momentum. With
ψ = s² the update is θ ← θ − η(m̂ / √max(v̂ − ψ, ζ′) + wθ). Where s changes over steps (schedules, correlated noise), ψ
is the same moving average of s² as v is of g̃². Only released gradients are averaged: no moment of raw ones exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hush import validate
from hush.identity import PER_STEP
from hush.named import Named, State
from hush.release import Release
from hush.rules.adam import apply_update, check_settings, move_moments, zero_moments
from hush.rules.rule import Rate, rate_at


@dataclass(frozen=True)
class AdamBC:
    """Adam with both biases corrected, of the start and of the noise. ``floor`` is ζ′."""

    lr: Rate = field(default=1e-4, metadata=PER_STEP)
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self.lr, self.beta1, self.beta2, self.weight_decay)
        validate.positive(floor=self.floor)

    def init(self, params: Named) -> State:
        """First and second moments, the noise's part of the second, and the number of steps taken."""
        return zero_moments(params) | {"psi": 0.0}

    @torch.no_grad()
    def step(self, params: Named, release: Release, state: State) -> Named:
        """One step on the released gradient, with ψ from the noise that the release says it has."""
        m, v = move_moments(params, release, state, self.beta1, self.beta2)
        state["psi"] += (1.0 - self.beta2) * (release.noise_std**2 - state["psi"])
        start = 1.0 - self.beta2 ** state["taken"]
        scale = list(torch._foreach_div(v, start))
        torch._foreach_sub_(scale, state["psi"] / start)
        torch._foreach_clamp_min_(scale, self.floor)
        torch._foreach_sqrt_(scale)
        lr, begun = rate_at(self.lr, release.step), 1.0 - self.beta1 ** state["taken"]
        return apply_update(params, m, scale, lr, begun, self.weight_decay)
