"""Options that several methods share: optimizer, clipping, and the schedule of the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hush.clipping import Adaptive, ClipMode, ClippedSum, Clipping, Quantile, Query
from hush.clipping.clipped import Clipped
from hush.errors import InvalidInputError, NotProvenError
from hush.matrix_factorization import Workload
from hush.methods.config import PlanConfig
from hush.noise import Independent, Noise, Stages
from hush.optimizers import SGD, ClipUnits, Optimizer, TorchOptim
from hush.plan import Plan

COUNT_SHARE = 20.0  # the noise on the count is L/20, as Andrew et al. recommend: the gradient hardly notices it


@dataclass(frozen=True)
class SGDOptions:
    """m ← μm + (g̃ + wθ); θ ← θ − ηm, with learning rate η, momentum μ and weight decay w."""

    lr: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _ = self.optimizer  # which checks them

    @property
    def optimizer(self) -> SGD:
        """SGD with these settings."""
        return SGD(self.lr, self.momentum, self.weight_decay)

    def workload(self, steps: int) -> Workload:
        """The workload: the sums of noisy gradients in the weights; the learning rate only scales them."""
        return Workload(steps, self.momentum, 1.0 - self.lr * self.weight_decay)


@dataclass(frozen=True)
class AdamOptions:
    """Decay β₁, β₂ of Adam's two running means, and its weight decay."""

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(frozen=True)
class ClippingOptions:
    """Clipping and noise schedule. The defaults are DP-SGD as published.

    ``clip_mode`` is plain, normalised (divided by the clip) or automatic (divided by its own norm; no clip). With
    ``per_layer`` every layer is clipped to its share. ``clip_quantile`` lets the clip follow that quantile of the norms
    from ``clip`` on, at ``clip_rate``; the count behind it gets noise ``count_noise`` (L/20 by default). The noise
    multiplier goes from σ to ``noise_end``·σ in ``noise_stages`` stages.
    """

    clip: float = 1.0
    clip_mode: ClipMode = "plain"
    per_layer: bool = False
    clip_quantile: float | None = None
    clip_rate: float = 0.2
    count_noise: float | None = None
    noise_end: float = 1.0
    noise_stages: int = 10

    def __post_init__(self) -> None:
        if self.clip_quantile is None and self.count_noise is not None:
            raise InvalidInputError("count_noise belongs to adaptive clipping: give a clip_quantile too, such as 0.5")

    @property
    def clipping(self) -> Clipping:
        """The clipping of one example."""
        return Clipping(self.clip, self.clip_mode, self.per_layer)

    def plan(
        self,
        setting: PlanConfig,
        method: str,
        *,
        optimizer: Optimizer,
        query: Clipped | None = None,
        noise: Noise | None = None,
        **parts: Any,
    ) -> Plan:
        """A plan of clipped gradients: DP-SGD's query, sampler and noise unless a method gives others."""
        clipped = query or ClippedSum(self.clip, self.clip_mode, self.per_layer)
        released: Query = clipped
        if noise is not None:
            self._check_own_noise(noise)
        if self.clip_quantile is not None:
            quantile = Quantile(self.clip, self.clip_quantile, self.clip_rate)
            released = Adaptive(clipped, quantile, self._count_noise(setting))
            optimizer = ClipUnits(optimizer, quantile) if self.clip_mode == "plain" else optimizer
        noise = noise or self._independent(setting)
        return setting.plan(
            method, **({"sampler": setting.sampler()} | parts), query=released, noise=noise, optimizer=optimizer
        )

    def _independent(self, setting: PlanConfig) -> Independent:
        steps = setting.total_steps
        return Independent(steps, None if self.noise_end == 1.0 else Stages(steps, self.noise_end, self.noise_stages))

    def _count_noise(self, setting: PlanConfig) -> float:
        return max(1.0, setting.batch_size / COUNT_SHARE) if self.count_noise is None else self.count_noise

    def _check_own_noise(self, noise: Noise) -> None:
        if self.noise_end != 1.0:
            raise NotProvenError(
                "a noise schedule is proven only for noise that is independent over steps, and this method has "
                "correlated noise: leave noise_end at 1, or use dp-sgd"
            )
        if self.clip_quantile is not None and self.clip_mode == "plain" and noise.structure.bands != 1:
            raise NotProvenError(
                "correlated noise cancels over steps only if every step has the same clip, and an adaptive clip "
                "changes: use clip_mode 'normalised', whose bound is 1 at every step"
            )


# A torch optimizer and scheduler in place of a method's SGD: the release is the same.

MakeOptimizer = Callable[[list[tuple[str, Tensor]]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


def make_optimizer(
    optimizer: MakeOptimizer | None, scheduler: MakeScheduler | None, given: Iterable[str]
) -> TorchOptim | None:
    """The optimizer of these two functions, None if neither is given; raises if an option in ``given`` is one that the
    optimizer sets itself.

    ``optimizer`` is called with the ``model.named_parameters()`` that are trained."""
    if optimizer is None:
        if scheduler is not None:
            raise InvalidInputError("a scheduler follows an optimizer: give optimizer=lambda params: … too")
        return None
    _check_function("optimizer", optimizer, "params: torch.optim.AdamW(params, lr=1e-3)")
    if scheduler is not None:
        _check_function("scheduler", scheduler, "optimizer: CosineAnnealingLR(optimizer, T_max=steps)")
    twice = [f.name for f in fields(SGDOptions) if f.name in given]
    if twice:
        raise InvalidInputError(
            f"the optimizer has its own {' and '.join(twice)}: give {_them(twice)} to the optimizer alone"
        )
    return TorchOptim(lambda params: optimizer(list(params.items())), scheduler)


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _check_function(name: str, value: Any, example: str) -> None:
    if not callable(value):
        raise InvalidInputError(
            f"{name} must be a function that makes one, for a plan is made before any model: {name}=lambda {example}, "
            f"got {type(value).__name__}"
        )


def replace_optimizer(plan: Plan, optimizer: TorchOptim) -> Plan:
    """The plan with another optimizer in place of SGD; raises if the method is defined by its optimizer."""
    if plan.trains_on is not None:
        return replace(plan, optimizer=optimizer)
    match plan.optimizer:
        case SGD():
            return replace(plan, optimizer=optimizer)
        case ClipUnits(optimizer=SGD()):
            return replace(plan, optimizer=replace(plan.optimizer, optimizer=optimizer))
    raise InvalidInputError(
        f"method '{plan.method}' is defined by its own optimizer: leave the optimizer out, or use dp-sgd, which takes "
        "any optimizer"
    )
