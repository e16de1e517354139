"""Methods that protect labels alone: features are public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hush import validate
from hush.errors import BadInput, Refused
from hush.methods.setting import Setting
from hush.noise import Independent
from hush.plan import Plan
from hush.rules import Adam
from hush.sanitize.labels import ASSUMED, RandomisedLabels


def label_rr(
    setting: Setting,
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
        raise Refused(
            f"labels are compared under 'replace', not '{setting.adjacency}': features and who is in the data are "
            "public, and one label changes to another; leave adjacency out"
        )
    if stages not in (1, 2):
        raise BadInput(f"label-rr has one stage or two, got {stages!r}")
    validate.probability(first_share=first_share, first_steps=first_steps)
    total = setting.total_steps
    if stages == 2 and total < 2:
        raise BadInput("two stages need at least two steps: give more steps, or one stage")
    first = min(total - 1, max(1, round(first_steps * total))) if stages == 2 else None
    query = RandomisedLabels(None if prior is None else tuple(map(float, prior)), first, first_share)
    assumptions = setting.assumptions if prior is None else (*setting.assumptions, ASSUMED)
    setting = replace(setting, adjacency="replace", assumptions=assumptions)
    rule = Adam(lr, weight_decay=weight_decay)
    sampler, noise = setting.sampler("shuffled"), Independent(total)
    return setting.plan("label-rr", sampler=sampler, query=query, noise=noise, rule=rule)
