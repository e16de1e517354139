"""Stochastic gradient descent with momentum and weight decay, on private gradients.

m ← μm + (g̃ + wθ);  θ ← θ − ηm. With μ = 0 and w = 0 this is DP-SGD's own update (Abadi et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from hush._internal import validate
from hush._internal.identity import PER_STEP
from hush._internal.tensors import Named, State
from hush.noise.base import NoisyGradient
from hush.optimizers.base import Rate, check_momentum, check_rate, rate_at


@dataclass(frozen=True)
class SGD:
    """SGD with optional heavy-ball momentum and (coupled) weight decay, as in torch.optim.SGD."""

    lr: Rate = field(default=0.1, metadata=PER_STEP)
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_momentum(self.momentum)
        validate.non_negative(weight_decay=self.weight_decay)

    def init(self, params: Named) -> State:
        return {"momentum": {n: torch.zeros_like(p) for n, p in params.items()}} if self.momentum else {}

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        """θ ← θ − ηm."""
        targets = list(params.values())
        grads = [release.gradient[name] for name in params]
        if self.weight_decay:
            grads = list(torch._foreach_add(grads, targets, alpha=self.weight_decay))
        if self.momentum:
            buffers = [state["momentum"][name] for name in params]
            torch._foreach_mul_(buffers, self.momentum)
            torch._foreach_add_(buffers, grads)
            grads = buffers
        update = torch._foreach_mul(grads, -rate_at(self.lr, release.step))
        torch._foreach_add_(targets, update)
        return dict(zip(params, update, strict=True))
