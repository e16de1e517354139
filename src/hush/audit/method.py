"""The plan by which a method is audited: a few steps on a few digits, so that it can be run hundreds of times."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from hush import problems
from hush.audit.halves import make_features_stage, make_labels_stage
from hush.audit.stage import Stage, extend, make_digits_stage, make_lonely_stage
from hush.claims import find_sigma
from hush.errors import BadInput, Refused
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.queries.adaptive import CHANNEL
from hush.randomness import seeded
from hush.source import as_source

WHOLE_ROW = "example"
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


def list_whole() -> tuple[str, ...]:
    """Those of them that protect whole rows, and can be audited on any problem."""
    return tuple(name for name in list_audited() if _name_protected(make_audit_plan(name, 4.0, 1e-5)) == WHOLE_ROW)


def make_audit_stage(plan: Plan, problem: str | None = None) -> Stage:
    """The small real problem for a plan, by the half of a row that it protects; or the first rows and the model of a
    ``problem`` by name, for a plan that protects whole rows."""
    if problem is not None:
        return _extend_problem(plan, problem)
    match _name_protected(plan):
        case "features":
            return make_features_stage(plan)
        case "labels":
            return make_labels_stage()
    return make_lonely_stage() if CHANNEL in plan.query.channels else make_digits_stage()


def _extend_problem(plan: Plan, problem: str) -> Stage:
    """As many rows as the plan is for, and the problem's own model with a canary beside it."""
    if _name_protected(plan) != WHOLE_ROW:
        raise Refused(
            f"method '{plan.method}' protects {_name_protected(plan)}, and is audited on digits that are made for "
            "that: leave --problem out"
        )
    found = problems.load(problem)
    if found.examples < plan.sampler.examples:
        raise BadInput(f"'{problem}' has {found.examples} rows, and an audit needs {plan.sampler.examples}")
    with seeded(0):
        model = found.model()
    return extend(model, found.losses, as_source(found.train).take(torch.arange(plan.sampler.examples)))


def _name_protected(plan: Plan) -> str:
    return plan.claims()[-1].protects


def make_audit_plan(method: str, epsilon: float, delta: float) -> Plan:
    """The method's plan at this ε, by the last of its claims: a claimed one where there is one beside the proven.

    DiceSGD gets more steps, in which its memory can be seen at work, and a feedback of ten clips. Banded noise gets
    batches of half a group, so that its coins are counted on. What releases each
    row or label once or twice needs no more steps than that."""
    shape = SHAPES.get(method, SHORT)
    plan = make_plan(method, delta=delta, noise_multiplier=1.0, accept_claimed=True, **shape)
    return dataclasses.replace(plan, sigma=find_sigma(plan, epsilon, -1)) if plan.private else plan
