"""`hush account`: the ε of a plan, or the σ for an ε, before any data is touched."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from hush.cli import options as o
from hush.cli.comparing import compared, listed, patient, show_candidates
from hush.cli.console import say, show, show_json, show_table
from hush.methods import make_plan, reason
from hush.plan import Plan
from hush.privacy.accounting import Adjacency


def account(
    examples: Annotated[int, typer.Option(help="Number of examples N, a public number.")],
    method: o.MethodName = "dp-sgd",
    batch_size: o.BatchSize = 256,
    epochs: o.Epochs = None,
    delta: o.Delta = 1e-5,
    epsilon: o.Epsilon = None,
    noise_multiplier: o.NoiseMultiplier = None,
    node_noise: o.NodeNoise = None,
    accountant: o.Accountant = "auto",
    sample_rate: o.SampleRate = None,
    steps: o.Steps = None,
    sampling: o.Sampling = None,
    adjacency: o.Adjacent = None,
    accept_claimed: o.AcceptClaimed = False,
    settings: o.Settings = None,
    as_json: o.AsJson = False,
) -> None:
    """Say what a plan costs (give the noise), or how much noise an ε needs (give `--epsilon`).

    Example: `hush account --examples 60000 --batch-size 256 --epochs 20 --noise-multiplier 1.0`
    """
    public: dict[str, Any] = {
        "examples": examples,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "sample_rate": sample_rate,
        "sampling": sampling,
        "delta": delta,
        "epsilon": epsilon,
        "adjacency": cast("Adjacency | None", adjacency),
        "accountant": accountant,
        "accept_claimed": accept_claimed,
    }
    chosen = o.method_options(method, settings)
    candidates = compared(method, chosen, **public)
    with patient(f"computing the noise of {method}"):
        plan = make_plan(method, noise_multiplier=noise_multiplier, node_noise=node_noise, **public, **chosen)
    plan = plan.with_rounding()
    warn_delta(delta, examples)
    summary = summarise(plan)
    if candidates:
        summary["candidates"] = listed(candidates)
    if as_json:
        show_json(summary)
        return
    if candidates:
        show(reason(candidates))
    show(str(plan.guarantee()))
    apart = ("claims", "assumptions", "candidates")
    show_table("", ("what", "value"), [(k, v) for k, v in summary.items() if k not in apart])
    if candidates:
        show_candidates(candidates)
    if len(summary["claims"]) > 1:
        rows = ((c["epsilon"], c["status"], c["reason"]) for c in summary["claims"])
        show_table("every ε that is said about it", ("ε", "status", "reason"), rows)


def warn_delta(delta: float, examples: int) -> None:
    """δ of 1/N or more allows publishing somebody's record outright."""
    if delta >= 1 / examples:
        say(f"warning: δ = {delta:g} is not below 1/N = {1 / examples:.2g}, so it permits releasing a whole record")


def summarise(plan: Plan) -> dict[str, Any]:
    """The fields of `hush account --json`."""
    claims = plan.claims()
    best = claims[0]
    return {
        "method": plan.method,
        "epsilon": best.epsilon,
        "delta": plan.delta,
        "noise_multiplier": plan.sigma if plan.private else 0.0,
        "accountant": best.accountant,
        "adjacency": best.adjacency,
        "status": best.status,
        "steps": plan.steps,
        "sample_rate": getattr(plan.sampler.participation, "rate", None),
        "sensitivity": plan.sensitivity,
        "noise_std": plan.noise_std if plan.private else 0.0,
        "rounding": plan.charge,
        "claims": [{"epsilon": c.epsilon, "status": c.status, "reason": c.reason} for c in claims],
        "assumptions": list(best.assumptions),
    }
