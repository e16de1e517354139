"""The plan by which a method is audited: a few steps on a few digits, so that it can be run hundreds of times."""

from __future__ import annotations

import dataclasses
from typing import Any

from hush.claims import claim_steps, pick_accountant
from hush.methods import make_plan
from hush.plan import Plan
from hush.privacy import calibration

SHORT: dict[str, Any] = {"examples": 64, "batch_size": 32, "steps": 4}
REPLAYED: dict[str, Any] = {"examples": 64, "batch_size": 16, "steps": 24, "clip_feedback": 10.0}


def make_audit_plan(method: str, epsilon: float, delta: float) -> Plan:
    """The method's plan at this ε, by the last of its claims: a claimed one where there is one beside the proven.

    DiceSGD gets more steps, in which its memory can be seen at work, and a feedback of ten clips."""
    shape = REPLAYED if method == "dp-dice" else SHORT
    plan = make_plan(method, delta=delta, noise_multiplier=1.0, accept_claimed=True, **shape)
    if not plan.private:
        return plan

    def event(sigma: float) -> Any:
        return claim_steps(plan, None, sigma)[-1].event

    accountant = pick_accountant(plan, event(1.0))
    sigma = calibration.smallest_sigma(
        event, epsilon, plan.delta_left(), adjacency=plan.neighbours, accountant=accountant
    )
    return dataclasses.replace(plan, sigma=sigma)
