"""Methods with independent noise: ordinary SGD for comparison, DP-SGD and DP-Adam."""

from __future__ import annotations

from hush.methods.setting import Setting
from hush.noise import Independent
from hush.plan import Plan
from hush.queries import ClipMode, ClippedSum, PlainSum
from hush.rules import SGD, Adam


def sgd(setting: Setting, *, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> Plan:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee."""
    return setting.plan(
        "sgd",
        sampler=setting.sampler("shuffled"),
        query=PlainSum(),
        noise=Independent(setting.total_steps),
        rule=SGD(lr, momentum, weight_decay),
    )


def dp_sgd(
    setting: Setting,
    *,
    lr: float = 1.0,
    clip: float = 1.0,
    clip_mode: ClipMode = "plain",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Plan:
    """DP-SGD: clipped per-example gradients, independent noise, SGD (Abadi et al. 2016)."""
    return setting.plan(
        "dp-sgd",
        sampler=setting.sampler(),
        query=ClippedSum(clip, clip_mode),
        noise=Independent(setting.total_steps),
        rule=SGD(lr, momentum, weight_decay),
    )


def dp_adam(
    setting: Setting,
    *,
    lr: float = 1e-2,
    clip: float = 1.0,
    clip_mode: ClipMode = "plain",
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Plan:
    """DP-Adam: DP-SGD's release, Adam as the rule."""
    return setting.plan(
        "dp-adam",
        sampler=setting.sampler(),
        query=ClippedSum(clip, clip_mode),
        noise=Independent(setting.total_steps),
        rule=Adam(lr, beta1, beta2, eps, weight_decay),
    )
