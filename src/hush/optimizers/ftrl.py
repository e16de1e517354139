"""Follow the regularised leader on noisy prefix sums (DP-FTRL, Kairouz et al. 2021).

θₜ = θ₀ − η s̃ₜ, where s̃ₜ is the noisy sum of all gradients so far and η = 1/λ. With momentum, mₜ = γ mₜ₋₁ + s̃ₜ takes the
place of s̃ₜ. The release holds the increments of s̃, so a tree's or a factorisation's noise cancels in the sum instead of
adding up. Written in increments this is SGD with heavy-ball momentum; kept as sums, nothing drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hush._internal import validate
from hush._internal.tensors import Named, State
from hush.noise.base import NoisyGradient
from hush.optimizers.base import check_momentum


@dataclass(frozen=True)
class FTRL:
    """The leader of all linearised losses so far, held near the start by λ = 1/lr."""

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validate.positive(lr=self.lr)
        check_momentum(self.momentum)

    def init(self, params: Named) -> State:
        """Where it started, the sum so far, and the momentum of the sums."""
        start = {n: p.detach().clone() for n, p in params.items()}
        state: State = {"start": start, "sum": {n: torch.zeros_like(p) for n, p in start.items()}}
        if self.momentum:
            state["moment"] = {n: torch.zeros_like(p) for n, p in start.items()}
        return state

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        """θ = θ₀ − η s̃."""
        targets, names = list(params.values()), list(params)
        before = [p.detach().clone() for p in targets]
        total = [state["sum"][n] for n in names]
        torch._foreach_add_(total, [release.gradient[n] for n in names])
        if self.momentum:
            moment = [state["moment"][n] for n in names]
            torch._foreach_mul_(moment, self.momentum)
            torch._foreach_add_(moment, total)
            total = moment
        torch._foreach_copy_(targets, [state["start"][n] for n in names])
        torch._foreach_add_(targets, torch._foreach_mul(total, -self.lr))
        return dict(zip(names, torch._foreach_sub(targets, before), strict=True))
