"""Adam (Kingma & Ba 2015) on private gradients, with decoupled weight decay as an option (Loshchilov & Hutter 2019).

m ← β₁m + (1−β₁)g̃;  v ← β₂v + (1−β₂)g̃²;  θ ← θ − η(m̂ / (√v̂ + ζ) + wθ).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hush._internal import validate
from hush._internal.identity import PER_STEP
from hush._internal.tensors import Named, State
from hush.noise.base import NoisyGradient
from hush.optimizers.base import Rate, check_rate, rate_at


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction."""

    lr: Rate = field(default=1e-3, metadata=PER_STEP)
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_settings(self.lr, self.beta1, self.beta2, self.weight_decay)
        validate.positive(eps=self.eps)

    def init(self, params: Named) -> State:
        return _zero_moments(params)

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        m, v = _move_moments(params, release, state, self.beta1, self.beta2)
        scale = list(torch._foreach_div(v, 1.0 - self.beta2 ** state["taken"]))
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, self.eps)
        lr, start = rate_at(self.lr, release.step), 1.0 - self.beta1 ** state["taken"]
        return _apply_update(params, m, scale, lr, start, self.weight_decay)


def _check_settings(lr: Rate, beta1: float, beta2: float, weight_decay: float) -> None:
    check_rate(lr)
    validate.probability(beta1=beta1, beta2=beta2)
    validate.non_negative(weight_decay=weight_decay)


def _zero_moments(params: Named) -> State:
    zeros = {n: torch.zeros_like(p) for n, p in params.items()}
    return {"m": zeros, "v": {n: z.clone() for n, z in zeros.items()}, "taken": 0}


def _move_moments(
    params: Named, release: NoisyGradient, state: State, beta1: float, beta2: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Update the moving averages of the noisy gradient and of its square in place, without bias correction."""
    state["taken"] += 1
    grads = [release.gradient[name] for name in params]
    m = [state["m"][name] for name in params]
    v = [state["v"][name] for name in params]
    torch._foreach_lerp_(m, grads, 1.0 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, value=1.0 - beta2)
    return m, v


def _apply_update(
    params: Named,
    m: list[Tensor],
    scale: list[Tensor],
    lr: float,
    start: float,
    weight_decay: float,
) -> Named:
    """θ ← θ − η(m/(start · scale) + wθ) in place; returns the update by name."""
    targets, update = list(params.values()), list(torch._foreach_div(m, scale))
    torch._foreach_mul_(update, -lr / start)
    decay = lr * weight_decay
    if decay:
        torch._foreach_add_(update, targets, alpha=-decay)
    torch._foreach_add_(targets, update)
    return dict(zip(params, update, strict=True))


@dataclass(frozen=True)
class AdamBC:
    """DP-AdamBC (Tang, Shpilevskiy, Lécuyer 2024): Adam with the noise subtracted from the second moment.

    Noise of standard deviation s adds s² to E[g̃²], which makes all scales nearly equal and reduces Adam to momentum.
    With ψ = s² the update is θ ← θ − η(m̂ / √max(v̂ − ψ, ζ′) + wθ), where ``floor`` is ζ′. Where s changes over steps
    (schedules, correlated noise), ψ is the same moving average of s² as v is of g̃². Only noisy gradients are averaged.
    """

    lr: Rate = field(default=1e-4, metadata=PER_STEP)
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_settings(self.lr, self.beta1, self.beta2, self.weight_decay)
        validate.positive(floor=self.floor)

    def init(self, params: Named) -> State:
        return _zero_moments(params) | {"psi": 0.0}

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        m, v = _move_moments(params, release, state, self.beta1, self.beta2)
        state["psi"] += (1.0 - self.beta2) * (release.noise_std**2 - state["psi"])
        start = 1.0 - self.beta2 ** state["taken"]
        scale = list(torch._foreach_div(v, start))
        torch._foreach_sub_(scale, state["psi"] / start)
        torch._foreach_clamp_min_(scale, self.floor)
        torch._foreach_sqrt_(scale)
        lr, begun = rate_at(self.lr, release.step), 1.0 - self.beta1 ** state["taken"]
        return _apply_update(params, m, scale, lr, begun, self.weight_decay)
