"""The plan by which a method is audited: a few steps on a few digits, so that it can be run hundreds of times."""

from __future__ import annotations

import dataclasses
from typing import Any

from hush.audit.halves import make_features_stage, make_labels_stage
from hush.audit.stage import Stage, make_digits_stage, make_lonely_stage
from hush.claims import claim_steps, pick_accountant
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.privacy import calibration
from hush.queries.adaptive import CHANNEL

SHORT: dict[str, Any] = {"examples": 64, "batch_size": 32, "steps": 4}
ONE_PASS: dict[str, Any] = {"examples": 64, "batch_size": 16, "steps": 4}
WHOLE: dict[str, Any] = {"examples": 64, "batch_size": 64, "steps": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "dp-dice": {"examples": 64, "batch_size": 16, "steps": 24, "clip_feedback": 10.0},
    "dp-bandmf": {"examples": 64, "batch_size": 16, "steps": 8, "bands": 2},
    "dp-matrix-se": ONE_PASS,
    "dp-matrix-se-lambda": ONE_PASS,
    "sanitize-once": WHOLE,
    "sanitize-frozen": {**WHOLE, "steps": 2},
    "sanitize-hybrid": WHOLE,
    "label-rr": WHOLE,
}


def list_audited() -> tuple[str, ...]:
    """Every method that comes with hush and claims something, in their order."""
    return tuple(name for name in catalogue() if name != "sgd")


def make_audit_stage(plan: Plan) -> Stage:
    """The small real problem for a plan, by the half of a row that it protects."""
    match plan.claims()[-1].protects:
        case "features":
            return make_features_stage(plan)
        case "labels":
            return make_labels_stage()
    return make_lonely_stage() if CHANNEL in plan.query.channels else make_digits_stage()


def make_audit_plan(method: str, epsilon: float, delta: float) -> Plan:
    """The method's plan at this ε, by the last of its claims: a claimed one where there is one beside the proven.

    DiceSGD gets more steps, in which its memory can be seen at work, and a feedback of ten clips. Banded noise gets
    batches of half a group, so that its coins are counted on. What releases each
    row or label once or twice needs no more steps than that."""
    shape = SHAPES.get(method, SHORT)
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
