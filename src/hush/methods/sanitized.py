"""Methods that release activations: features are protected, labels are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hush._internal import validate
from hush.clipping import ClipMode, Clipping, Query
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import bandmf
from hush.methods.config import PlanConfig
from hush.noise import Independent
from hush.optimizers import SGD, Adam, Optimizer
from hush.plan import Plan
from hush.sanitize.adaptive import AdaptiveClip, AdaptiveThreshold
from hush.sanitize.labels import ASSUMED, RandomisedLabels
from hush.sanitize.privatised import Hybrid, Published, Released

HeadRule = Literal["adam", "sgd"]
FRONT = "the layers before the sanitisation layer were made without looking at the training rows"


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
    sanitize-once, sanitize-frozen or sanitize-hybrid if you need protection.

    ``threshold_share`` is t of the adaptive threshold C = t·‖W‖, recomputed after each epoch.
    """
    if setting.adjacency is not None:
        raise NotProvenError(
            "the paper's formula is that of DP-SGD for adding or removing a record, and no other was published: leave "
            "adjacency out, or use method sanitize-once"
        )
    accountant = "rdp" if setting.accountant == "auto" else setting.accountant
    rdp = replace(setting, accountant=accountant, counted=False, adjacency="add-remove")
    query = Published(setting.rate, nonnegative)
    released: Query = query
    if threshold_share is not None:
        released = AdaptiveClip(query, AdaptiveThreshold(threshold_share), setting.per_epoch)
    return _plan(replace(rdp, sample_rate=None), "sanitize", released, lr, weight_decay)


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

    Where the noise drowns a single row, ``rule="sgd"`` at a rate far below 1/(Cσ√n)² adds up the rows of a class as
    they are, and beats Adam, which makes steps of the same length of noise and of signal.
    """
    return _plan(_frozen(setting), "sanitize-once", Released(1, 1, nonnegative), lr, weight_decay, rule)


def sanitize_frozen(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    nonnegative: bool = False,
    releases: int | None = None,
    rule: HeadRule = "adam",
) -> Plan:
    """The same with k releases of each record behind frozen layers, one an epoch by default.

    For comparing with the published layer at the price that it really has; sanitize-once is rarely worse.
    """
    count = bandmf.epochs(setting) if releases is None else releases
    if isinstance(count, bool) or not 1 <= count <= setting.total_steps:
        raise InvalidInputError(
            f"releases must be a whole number from 1 to the {setting.total_steps} steps, got {count}"
        )
    query = Released(count, setting.per_epoch, nonnegative)
    return _plan(_frozen(setting), "sanitize-frozen", query, lr, weight_decay, rule)


def sanitize_hybrid(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    clip: float = 1.0,
    clip_mode: ClipMode = "plain",
    nonnegative: bool = False,
) -> Plan:
    """Layers before by clipped noisy gradients, the head on noisy activations: both in one proven ε.

    For public labels and layers that must learn from the private features.
    """
    query = Hybrid(Clipping(clip, clip_mode), nonnegative)
    return _plan(_replacing(setting), "sanitize-hybrid", query, lr, weight_decay)


def _replacing(setting: PlanConfig) -> PlanConfig:
    """Under replace, the only relation in which labels and membership can be public and features private."""
    if setting.adjacency not in (None, "replace"):
        raise NotProvenError(
            f"released rows are compared under 'replace', not '{setting.adjacency}': every record has a row of its "
            "own, so that it shows who is in the data, and only the features behind it are hidden; leave adjacency out"
        )
    return replace(setting, adjacency="replace")


def _frozen(setting: PlanConfig) -> PlanConfig:
    return replace(_replacing(setting), assumptions=(*setting.assumptions, FRONT))


def _plan(
    setting: PlanConfig, method: str, query: Query, lr: float, weight_decay: float, chosen: HeadRule = "adam"
) -> Plan:
    validate.choice(("adam", "sgd"), rule=chosen)
    if setting.sampling == "same-order":
        raise NotProvenError(
            "rows are released whatever the order of the batches is: use sampling 'shuffled', at the same ε"
        )
    rule: Optimizer = (Adam if chosen == "adam" else SGD)(lr, weight_decay=weight_decay)
    noise = Independent(setting.total_steps)
    return setting.plan(method, sampler=setting.sampler("shuffled"), query=query, noise=noise, rule=rule)


# Methods that protect labels alone: features are public.


def label_rr(
    setting: PlanConfig,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    stages: int = 1,
    prior: Sequence[float] | None = None,
    first_share: float = 0.5,
    first_steps: float = 0.5,
) -> Plan:
    """Randomised response on the labels, in one stage or two, then any training (Ghazi et al. 2021).

    For public features and private labels: who clicked, not what was shown.

    ``prior`` has a public number for each class, in place of all alike. With ``stages=2`` a model of ``first_share`` of
    the examples, trained for ``first_steps`` of the steps, is the prior of the others. σ is 1/ε.
    """
    if setting.adjacency not in (None, "replace"):
        raise NotProvenError(
            f"labels are compared under 'replace', not '{setting.adjacency}': features and who is in the data are "
            "public, and one label changes to another; leave adjacency out"
        )
    if stages not in (1, 2):
        raise InvalidInputError(f"label-rr has one stage or two, got {stages!r}")
    validate.probability(first_share=first_share, first_steps=first_steps)
    total = setting.total_steps
    if stages == 2 and total < 2:
        raise InvalidInputError("two stages need at least two steps: give more steps, or one stage")
    first = min(total - 1, max(1, round(first_steps * total))) if stages == 2 else None
    query = RandomisedLabels(None if prior is None else tuple(map(float, prior)), first, first_share)
    assumptions = setting.assumptions if prior is None else (*setting.assumptions, ASSUMED)
    setting = replace(setting, adjacency="replace", assumptions=assumptions)
    rule = Adam(lr, weight_decay=weight_decay)
    sampler, noise = setting.sampler("shuffled"), Independent(total)
    return setting.plan("label-rr", sampler=sampler, query=query, noise=noise, rule=rule)
