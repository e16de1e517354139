"""`hush audit`: how much a method really leaks, measured, beside what it claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import show, show_progress
from hush.cli.shell import AsJson
from hush.privacy.guarantee import rounded_down, rounded_up


def audit(
    method: Annotated[str, typer.Option(help="A method's name, or package.module:factory.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="The ε that the audited plan claims.")] = 4.0,
    delta: Annotated[float, typer.Option(help="Its δ.")] = 1e-5,
    runs: Annotated[int, typer.Option(help="Runs, half of them with the canary.")] = 400,
    seed: Annotated[int | None, typer.Option(help="Make the audit repeatable.")] = None,
    comparisons: Annotated[int, typer.Option(help="Audits that this one is one of: a verdict allows for them.")] = 1,
    update: Annotated[
        Path | None, typer.Option(help="Put what was refuted into this file of findings.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a method again and again on real digits, with one example more or less, and measure what its releases tell.

    The bound holds at 95 %. The verdict `refuted` needs 99.99 %; `consistent` proves nothing.

    Example: `hush audit --method dp-sgd --epsilon 4 --runs 400`
    """
    from hush.audit.auditing import audit_stage
    from hush.audit.findings import add_findings
    from hush.audit.method import make_audit_plan
    from hush.audit.stage import make_digits_stage

    plan = make_audit_plan(method, epsilon, delta)
    with show_progress(quiet=as_json) as bar:
        task = bar.add_task(f"auditing {method}", total=runs)
        verdicts = audit_stage(
            plan,
            make_digits_stage(),
            runs=runs,
            seed=seed,
            comparisons=comparisons,
            progress=lambda done, _: bar.update(task, completed=done),
        )
    if update is not None:
        add_findings(update, verdicts)
    for verdict in verdicts:
        found = verdict.to_json()
        if as_json:
            _show_line(found)
            continue
        show(
            f"{verdict.method}, {verdict.status} ε = {rounded_up(verdict.claimed_epsilon)} at δ = "
            f"{rounded_up(verdict.delta)}: at least ε = {rounded_down(verdict.epsilon_lower)} (95 %) was measured by "
            f"{verdict.adversary} in {verdict.runs} runs, estimated {rounded_down(verdict.epsilon_estimate)}; "
            f"{verdict.verdict}"
        )


def _show_line(found: dict[str, Any]) -> None:
    typer.echo(json.dumps(found, allow_nan=False))
