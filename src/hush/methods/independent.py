"""Methods with independent noise: ordinary SGD for comparison, DP-SGD, DP-Adam, DP-AdamBC, DiSK and DiceSGD."""

from __future__ import annotations

from hush.clipping import ClipMode, ErrorFeedback, PlainSum, TwoPoint
from hush.methods.config import PlanConfig
from hush.methods.options import AdamOptions, ClippingOptions, SGDOptions
from hush.noise import Independent
from hush.optimizers import SGD, Adam, AdamBC, KalmanFilter
from hush.plan import Plan


def sgd(setting: PlanConfig, *, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> Plan:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee.

    For knowing what privacy costs in accuracy; it protects no one.
    """
    return setting.plan(
        "sgd",
        sampler=setting.sampler("shuffled"),
        query=PlainSum(),
        noise=Independent(setting.total_steps),
        optimizer=SGD(lr, momentum, weight_decay),
    )


def dp_sgd(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions) -> Plan:
    """DP-SGD: clipped per-example gradients, independent noise, SGD (Abadi et al. 2016).

    For a first private model; nothing that was measured is clearly better.
    """
    return gradients.plan(setting, "dp-sgd", optimizer=descent.optimizer)


def dp_adam(
    setting: PlanConfig, moments: AdamOptions, gradients: ClippingOptions, *, lr: float = 1e-2, eps: float = 1e-8
) -> Plan:
    """DP-Adam: DP-SGD's release, Adam as the rule.

    For gradients that differ by orders of magnitude between layers.
    """
    return gradients.plan(
        setting, "dp-adam", optimizer=Adam(lr, moments.beta1, moments.beta2, eps, moments.weight_decay)
    )


def dp_adam_bc(
    setting: PlanConfig,
    gradients: ClippingOptions,
    moments: AdamOptions = AdamOptions(),
    *,
    lr: float = 1e-4,
    floor: float = 1e-8,
) -> Plan:
    """DP-AdamBC: Adam with the noise's part taken out of its second moment (Tang et al. 2024).

    For comparing with its paper; plain dp-adam was better where both were measured.
    """
    optimizer = AdamBC(lr, moments.beta1, moments.beta2, floor, moments.weight_decay)
    return gradients.plan(setting, "dp-adam-bc", optimizer=optimizer)


def dp_disk(
    setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, kappa: float = 0.7, gamma: float = 0.5
) -> Plan:
    """DiSK: gradients at two points, and a Kalman filter before SGD (Zhang et al. 2024).

    For half a point of accuracy where a step may take twice as long.
    """
    query = TwoPoint.of(gradients.clipping, kappa, gamma)
    return gradients.plan(setting, "dp-disk", query=query, optimizer=KalmanFilter(descent.optimizer, kappa))


def dp_dice(
    setting: PlanConfig,
    *,
    lr: float = 0.3,
    clip: float = 1.0,
    clip_feedback: float = 1.0,
    clip_mode: ClipMode = "plain",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Plan:
    """DiceSGD: what clipping cuts off is fed back later (Zhang et al. 2024); its published ε is claimed, not proven.

    For comparing with its paper; at a proven ε it trains far behind the others.
    """
    return setting.plan(
        "dp-dice",
        sampler=setting.sampler(),
        query=ErrorFeedback(clip, clip_feedback, clip_mode),
        noise=Independent(setting.total_steps),
        optimizer=SGD(lr, momentum, weight_decay),
    )
