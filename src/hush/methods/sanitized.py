"""Methods that release activations or labels instead of sums of gradients; `hush.sanitize` is imported on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from hush._internal import validate
from hush.clipping import PlainSum, Query
from hush.data_release import PrivatisedData
from hush.errors import InvalidInputError, NotProvenError
from hush.methods.config import PlanConfig
from hush.noise import Independent
from hush.optimizers import SGD, Adam, Optimizer
from hush.plan import Plan

HeadRule = Literal["adam", "sgd"]


def sanitize(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    nonnegative: bool = False,
    threshold_share: float | None = None,
) -> Plan:
    """The sanitisation layer as published: noisy activations, plain gradients; its ε is claimed, not proven.

    For comparing with its paper. The weights before the layer learn from raw features and reveal them: use
    sanitize-once or dp-sgd if you need protection.

    ``threshold_share`` is t of the adaptive threshold C = t·‖W‖, recomputed after each epoch. The setting
    ``sanitize_scale`` selects one of two interpretations of its noise.
    """
    if setting.adjacency is not None:
        raise NotProvenError(
            "the paper's only formula is that of DP-SGD for adding or removing a record: leave "
            "adjacency out, or use method sanitize-once"
        )
    accountant = "rdp" if setting.accountant == "auto" else setting.accountant
    rdp = replace(setting, accountant=accountant, counted=False, adjacency="add-remove")
    from hush.sanitize.adaptive import AdaptiveThreshold
    from hush.sanitize.privatised import PerNumberLayer, PublishedLayer, SpreadSum

    threshold = None if threshold_share is None else AdaptiveThreshold(threshold_share)
    layer = PublishedLayer(setting.rate, nonnegative, threshold, setting.per_epoch)
    if setting.sanitize_scale == "per-number":
        if setting.sanitize_width is None:
            raise InvalidInputError(
                "the cost of noise per number depends on how many numbers a record has: give sanitize_width"
            )
        layer = PerNumberLayer(**vars(layer), width=setting.sanitize_width)
    return _plan(replace(rdp, sample_rate=None), "sanitize", SpreadSum(), layer, Adam(lr, weight_decay=weight_decay))


def sanitize_once(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    nonnegative: bool = False,
    rule: HeadRule = "adam",
) -> Plan:
    """Every record's features released once with noise behind frozen layers, then any training on that.

    For public labels and as many epochs as one likes: the ε does not grow with them.

    If the noise is much larger than a single row, ``rule="sgd"`` at a rate far below 1/(Cσ√n)² averages the rows of a
    class, and is better than Adam, whose step length is the same for noise and for signal.
    """
    from hush.sanitize.privatised import SanitizedFeatures

    validate.choice(("adam", "sgd"), rule=rule)
    descent = (Adam if rule == "adam" else SGD)(lr, weight_decay=weight_decay)
    return _plan(_replacing(setting), "sanitize-once", PlainSum(), SanitizedFeatures(nonnegative), descent)


def _replacing(setting: PlanConfig) -> PlanConfig:
    """Check that the adjacency is replace, the only one in which labels and membership can be public and features
    private."""
    if setting.adjacency not in (None, "replace"):
        raise NotProvenError(
            f"released rows are compared under 'replace', not '{setting.adjacency}': every record has a row of its "
            "own, so that it shows who is in the data, and only the features behind it are hidden; leave adjacency out"
        )
    return replace(setting, adjacency="replace")


def _plan(setting: PlanConfig, method: str, query: Query, trains_on: PrivatisedData, optimizer: Optimizer) -> Plan:
    if setting.sampling == "same-order":
        raise NotProvenError(
            "rows are released independently of the order of the batches: use sampling 'shuffled', at the same ε"
        )
    parts: dict[str, Any] = {"sampler": setting.sampler("shuffled"), "noise": Independent(setting.total_steps)}
    return setting.plan(method, query=query, optimizer=optimizer, trains_on=trains_on, **parts)


# Methods that protect labels alone: features are public.


def label_rr(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    prior: Sequence[float] | None = None,
) -> Plan:
    """Randomised response on the labels, then any training (Ghazi et al. 2021).

    For public features and private labels: who clicked, not what was shown.

    ``prior`` has a public weight for each class; uniform by default. σ is 1/ε.
    """
    if setting.adjacency not in (None, "replace"):
        raise NotProvenError(
            f"labels are compared under 'replace', not '{setting.adjacency}': features and who is in the data are "
            "public, and one label changes to another; leave adjacency out"
        )
    from hush.sanitize.labels import RandomisedLabels

    labels = RandomisedLabels(None if prior is None else tuple(map(float, prior)))
    parts: dict[str, Any] = {"sampler": setting.sampler("shuffled"), "noise": Independent(setting.total_steps)}
    parts |= {"query": PlainSum(), "optimizer": Adam(lr, weight_decay=weight_decay)}
    return replace(setting, adjacency="replace").plan("label-rr", trains_on=labels, **parts)
