"""`hush account`: the ε of a plan, or the σ for an ε, before any data is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hush.cli.console import delayed_status, show, show_json, show_table, show_text
from hush.cli.options import AccountOptions
from hush.cli.prepare import (
    compare_candidates,
    list_candidates,
    read_method_options,
    show_candidates,
    warn_delta,
)
from hush.methods import Candidate, explain_choice, make_plan
from hush.plan import Plan

APART = ("claims", "assumptions", "candidates")  # printed below the table


def account(given: AccountOptions) -> None:
    """Run `hush account`."""
    chosen = read_method_options(given.method, given.settings)
    setting = given.setting(given.examples)
    if given.epsilon is None:  # only reports the claims about a plan, and marks claimed ones
        setting = replace(setting, accept_claimed=True)
    candidates = compare_candidates(given.method, setting, chosen)
    with delayed_status(f"computing the noise of {given.method}"):
        plan = make_plan(given.method, setting, **chosen)
    warn_delta(given.delta, given.examples)
    summary = summarise(plan)
    if candidates:
        summary["candidates"] = list_candidates(candidates)
    if given.as_json:
        show_json(summary)
    else:
        _show(plan, summary, candidates)


def _show(plan: Plan, summary: dict[str, Any], candidates: tuple[Candidate, ...]) -> None:
    if candidates:
        show(explain_choice(candidates))
    claims = plan.claims()
    show_text(str(claims[0]))
    shown = {**summary, "status": claims[0].describe_status()}
    show_table("", ("name", "value"), [(k, v) for k, v in shown.items() if k not in APART])
    if candidates:
        show_candidates(candidates)
    if len(summary["claims"]) > 1:
        rows = ((c.epsilon, c.describe_status(), c.reason) for c in claims)
        show_table("every ε claimed for this plan", ("ε", "status", "reason"), rows)


def summarise(plan: Plan) -> dict[str, Any]:
    """The fields of `hush account --json`."""
    claims = plan.claims()
    best = claims[0]
    return {
        "method": plan.method,
        "epsilon": best.epsilon,
        "delta": plan.delta,
        "noise_multiplier": plan.sigma if plan.has_guarantee else 0.0,
        "accountant": best.accountant,
        "adjacency": best.adjacency,
        "unit": best.unit,
        "protects": best.protects,
        "status": best.status,
        "steps": plan.steps,
        "sample_rate": getattr(plan.sampler.participation, "rate", None),
        "sensitivity": plan.sensitivity,
        "noise_std": plan.noise_std if plan.has_guarantee else 0.0,
        "rounding": plan.charge,
        "claims": [
            {"epsilon": c.epsilon, "status": c.status, "reason": c.reason, "protects": c.protects} for c in claims
        ],
        "assumptions": list(best.assumptions),
    }
