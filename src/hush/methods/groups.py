"""Options that several methods share: how they descend, how an example is bounded, how the noise changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hush.errors import BadInput, Refused
from hush.matrices import Workload
from hush.methods.setting import Setting
from hush.noise import Independent, Noise, Stages
from hush.plan import Plan
from hush.queries import Adaptive, ClipMode, ClippedSum, Clipping, Quantile, Query
from hush.queries.clipped import Clipped
from hush.rules import SGD, ClipUnits, Rule

COUNT_SHARE = 20.0  # the noise on the count is L/20, as Andrew et al. recommend: the gradient hardly notices it


@dataclass(frozen=True)
class Descent:
    """m ← μm + (g̃ + wθ); θ ← θ − ηm, with learning rate η, momentum μ and weight decay w."""

    lr: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _ = self.rule  # which checks them

    @property
    def rule(self) -> SGD:
        """SGD with these settings."""
        return SGD(self.lr, self.momentum, self.weight_decay)

    def workload(self, steps: int) -> Workload:
        """Which sums of the noise the model sees; the learning rate only scales them."""
        return Workload(steps, self.momentum, 1.0 - self.lr * self.weight_decay)


@dataclass(frozen=True)
class Moments:
    """Decay β₁, β₂ of Adam's two running means, and its weight decay."""

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Gradients:
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
            raise BadInput("count_noise belongs to adaptive clipping: give a clip_quantile too, such as 0.5")

    @property
    def clipping(self) -> Clipping:
        """How one example is bounded."""
        return Clipping(self.clip, self.clip_mode, self.per_layer)

    def plan(
        self,
        setting: Setting,
        method: str,
        *,
        rule: Rule,
        query: Clipped | None = None,
        noise: Noise | None = None,
        **parts: Any,
    ) -> Plan:
        """A plan of clipped gradients: DP-SGD's query, sampler and noise unless a method brings its own."""
        clipped = query or ClippedSum(self.clip, self.clip_mode, self.per_layer)
        released: Query = clipped
        if noise is not None:
            self._check_own_noise(noise)
        if self.clip_quantile is not None:
            quantile = Quantile(self.clip, self.clip_quantile, self.clip_rate)
            released = Adaptive(clipped, quantile, self._count_noise(setting))
            rule = ClipUnits(rule, quantile) if self.clip_mode == "plain" else rule
        noise = noise or self._independent(setting)
        return setting.plan(method, **({"sampler": setting.sampler()} | parts), query=released, noise=noise, rule=rule)

    def _independent(self, setting: Setting) -> Independent:
        steps = setting.total_steps
        return Independent(steps, None if self.noise_end == 1.0 else Stages(steps, self.noise_end, self.noise_stages))

    def _count_noise(self, setting: Setting) -> float:
        return max(1.0, setting.batch_size / COUNT_SHARE) if self.count_noise is None else self.count_noise

    def _check_own_noise(self, noise: Noise) -> None:
        if self.noise_end != 1.0:
            raise Refused(
                "a noise schedule is proven for noise that is independent over steps, and this method brings its own, "
                "correlated one: leave noise_end at 1, or use dp-sgd"
            )
        if self.clip_quantile is not None and self.clip_mode == "plain" and noise.structure.bands != 1:
            raise Refused(
                "correlated noise cancels over steps only if every step has the same clip, and an adaptive clip "
                "changes: use clip_mode 'normalised', whose bound is 1 at every step"
            )
