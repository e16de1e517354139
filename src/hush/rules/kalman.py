"""DiSK's Kalman filter around any rule: the rule sees filtered gradients (Zhang et al. 2024).

g̃ₜ ← (1 − κ) g̃ₜ₋₁ + κ gₜ, started at the first noisy gradient. Together with the two-point query, which predicts how the
gradient changed since, it is a Kalman filter with constant gain κ. κ = 1 is no filter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hush import validate
from hush.named import Named, State
from hush.release import Release
from hush.rules.rule import Rule


@dataclass(frozen=True)
class Kalman:
    """``rule`` on the filtered gradient, with the noise that is left in it."""

    rule: Rule
    kappa: float = 0.7

    def __post_init__(self) -> None:
        validate.rate(kappa=self.kappa)

    def init(self, params: Named) -> State:
        """The filtered gradient, its noise variance, and the rule's own state."""
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"filtered": zeros, "variance": 0.0, "taken": 0, "rule": self.rule.init(params)}

    @torch.no_grad()
    def step(self, params: Named, release: Release, state: State) -> Named:
        """Filter, then step. The variance is that of noise which is independent over steps."""
        gain = self.kappa if state["taken"] else 1.0
        state["taken"] += 1
        filtered = [state["filtered"][name] for name in params]
        torch._foreach_lerp_(filtered, [release.gradient[name] for name in params], gain)
        state["variance"] = (1.0 - gain) ** 2 * state["variance"] + gain**2 * release.noise_std**2
        values = release.values | {"gradient": dict(zip(params, filtered, strict=True))}
        std = {**release.std, "gradient": state["variance"] ** 0.5}
        return self.rule.step(params, Release(release.step, values, std), state["rule"])
