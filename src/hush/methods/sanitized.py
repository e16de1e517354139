"""Methods that release activations: features are protected, labels are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hush import validate
from hush.errors import BadInput, Refused
from hush.methods import shapes
from hush.methods.setting import Setting
from hush.noise import Independent
from hush.plan import Plan
from hush.queries import ClipMode, Clipping, Query
from hush.rules import SGD, Adam, Rule
from hush.sanitize.adapting import Adapting
from hush.sanitize.hybrid import Hybrid
from hush.sanitize.published import Published
from hush.sanitize.released import Released
from hush.sanitize.threshold import AdaptiveThreshold

HeadRule = Literal["adam", "sgd"]
FRONT = "the layers before the sanitisation layer were made without looking at the rows that are trained on"


def sanitize(
    setting: Setting,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    nonnegative: bool = False,
    threshold_share: float | None = None,
) -> Plan:
    """The sanitisation layer as published: noisy activations, plain gradients; its ε is claimed, not proven.

    For comparing with its paper. The weights before the layer learn from raw features and give them away: use
    sanitize-once, sanitize-frozen or sanitize-hybrid where somebody is to be protected.

    ``threshold_share`` is t of the adaptive threshold C = t·‖W‖, set anew after each epoch.
    """
    if setting.adjacency is not None:
        raise Refused(
            "the paper's formula is that of DP-SGD for adding or removing a record, and no other was published: leave "
            "adjacency out, or use method sanitize-once"
        )
    accountant = "rdp" if setting.accountant == "auto" else setting.accountant
    rdp = replace(setting, accountant=accountant, counted=False, adjacency="add-remove")
    query = Published(setting.rate, nonnegative)
    released: Query = query
    if threshold_share is not None:
        released = Adapting(query, AdaptiveThreshold(threshold_share), setting.per_epoch)
    return _plan(replace(rdp, sample_rate=None), "sanitize", released, lr, weight_decay)


def sanitize_once(
    setting: Setting,
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
    setting: Setting,
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
    count = shapes.epochs(setting) if releases is None else releases
    if isinstance(count, bool) or not 1 <= count <= setting.total_steps:
        raise BadInput(f"releases must be a whole number from 1 to the {setting.total_steps} steps, got {count}")
    query = Released(count, setting.per_epoch, nonnegative)
    return _plan(_frozen(setting), "sanitize-frozen", query, lr, weight_decay, rule)


def sanitize_hybrid(
    setting: Setting,
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


def _replacing(setting: Setting) -> Setting:
    """Under replace, the only relation in which labels and membership can be public and features private."""
    if setting.adjacency not in (None, "replace"):
        raise Refused(
            f"released rows are compared under 'replace', not '{setting.adjacency}': every record has a row of its "
            "own, so that it shows who is in the data, and only the features behind it are hidden; leave adjacency out"
        )
    return replace(setting, adjacency="replace")


def _frozen(setting: Setting) -> Setting:
    return replace(_replacing(setting), assumptions=(*setting.assumptions, FRONT))


def _plan(
    setting: Setting, method: str, query: Query, lr: float, weight_decay: float, chosen: HeadRule = "adam"
) -> Plan:
    validate.one_of(("adam", "sgd"), rule=chosen)
    if setting.sampling == "same-order":
        raise Refused("rows are released whatever the order of the batches is: use sampling 'shuffled', at the same ε")
    rule: Rule = (Adam if chosen == "adam" else SGD)(lr, weight_decay=weight_decay)
    noise = Independent(setting.total_steps)
    return setting.plan(method, sampler=setting.sampler("shuffled"), query=query, noise=noise, rule=rule)
