"""`hush audit`: measure how much a method leaks, and compare it with its claim."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush._internal import validate
from hush._internal.storage import check_page, write_page
from hush.cli.console import AsJson, say, show, show_progress, show_table
from hush.errors import InvalidInputError

if TYPE_CHECKING:
    from hush.audit.audit import Audit, AuditSettings

COLUMNS = ("method", "status", "claimed ε", "at least (95 %)", "estimate", "verdict", "adversary")


def audit(
    method: Annotated[
        str | None, typer.Option(help="A method's name, or package.module:factory.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every method that claims a guarantee.")] = False,
    problem: Annotated[
        str | None,
        typer.Option(
            help="Audit on the first rows and with the model of this problem, one of `hush problems`; by default on "
            "digits, with a small model made for audits.",
            show_default=False,
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="The ε that the audited plan claims.")] = 4.0,
    delta: Annotated[float, typer.Option(help="The δ that the audited plan claims.")] = 1e-5,
    runs: Annotated[int, typer.Option(help="Number of runs; half of them contain the canary.")] = 400,
    seed: Annotated[int | None, typer.Option(help="Seed that makes the audit repeatable.")] = None,
    comparisons: Annotated[int, typer.Option(help="Planned audits with this one; the verdict corrects for all.")] = 1,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Save finished audits in this file and skip those already in it (with --all: audit.jsonl).",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        Path | None, typer.Option(help="Add refuted claims to this file of findings.", show_default=False)
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a page with the plots of one audit.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a method many times on real digits, with and without one example, and measure what its releases reveal.

    Half of the runs contain an example, the canary, that is made to be detected. An adversary who knows everything but
    the secret sees what each run released and decides whether the canary was present. The success rate gives a lower
    bound on ε at 95 % confidence. The verdict is about the whole claim: `refuted` needs 99.99 % confidence, corrected
    for all comparisons; `consistent` proves nothing, because a better adversary may detect more.

    The adversary is the strongest that applies to the method. `--all` makes the table of all methods, in a few minutes
    on one core; run it again to continue after an interruption. `--json` prints one object per line.

    Examples: `hush audit --method dp-sgd --epsilon 4 --page audit.html`,
    `hush audit --method dp-adam --problem breast-cancer-mlp`, `hush audit --all --update findings.json`,
    `hush audit --method mypackage.mymodule:my_method`
    """
    from hush.audit.audit import AuditSettings

    if (method is None) == (not every):
        raise InvalidInputError("nothing to audit: give --method NAME, or --all for every method")
    if page is not None and (every or store is not None):
        raise InvalidInputError("a page shows the scores of one new audit: give --method, and no --store")
    if page is not None:
        check_page(page)
    validate.positive_int(comparisons=comparisons)
    names = _list_all(problem) if method is None else (method,)
    settings = AuditSettings(epsilon, delta, runs, seed, comparisons * len(names), problem)
    kept = Path("audit.jsonl") if every and store is None else store
    asked = AuditOptions(settings, comparisons, kept, update, page, as_json)
    found = [_audit_one(name, asked) for name in names]
    if every and not as_json:
        show_table("", COLUMNS, [_row(entry) for entries in found for entry in entries])


def _list_all(problem: str | None) -> tuple[str, ...]:
    """Every method that claims a guarantee; on a named problem, those that can be audited there."""
    from hush.audit.audit import list_audited, list_whole

    if problem is None:
        return list_audited()
    found = list_whole()
    others = [name for name in list_audited() if name not in found]
    say(f"skipped, because they protect a part of a row and are audited without --problem: {', '.join(others)}")
    return found


@dataclass(frozen=True)
class AuditOptions:
    """Settings for every method; ``settings.comparisons`` is the ``announced`` audits per method times the methods."""

    settings: AuditSettings
    announced: int
    store: Path | None
    update: Path | None
    page: Path | None
    as_json: bool


def _audit_one(method: str, asked: AuditOptions) -> list[dict[str, Any]]:
    """The verdicts on a method: from the store, or by a new audit."""
    from hush.accounting.guarantee import rounded_down, rounded_up
    from hush.audit.audit import add_findings, find_audits
    from hush.audit.bounds import Verdict

    known = find_audits(asked.store, method, asked.settings) if asked.store is not None else []
    entries = known or _audit_now(method, asked)
    verdicts = [Verdict.from_json(entry) for entry in entries]
    if asked.update is not None:
        add_findings(asked.update, verdicts)
    for entry, verdict in zip(entries, verdicts, strict=True):
        if asked.as_json:
            typer.echo(json.dumps(entry, allow_nan=False))
            continue
        show(
            f"{verdict.method}, {verdict.status} ε = {rounded_up(verdict.claimed_epsilon)} at δ = "
            f"{rounded_up(verdict.delta)}: at least ε = {rounded_down(verdict.epsilon_lower)} (95 %) was measured by "
            f"{verdict.adversary} in {verdict.runs} runs, estimated {_down(verdict.epsilon_estimate)}; "
            f"{verdict.verdict}"
        )
    return entries


def _audit_now(method: str, asked: AuditOptions) -> list[dict[str, Any]]:
    """Run an audit, save and draw it if requested. An audit beyond those announced counts as more comparisons: the
    number cannot be raised after seeing a verdict."""
    from hush.audit.audit import count_audits, find_announced, keep_audits
    from hush.audit.bounds import allow_for_repeats

    number = 1 if asked.store is None else count_audits(asked.store, method) + 1
    methods = asked.settings.comparisons // asked.announced
    before = None if asked.store is None else find_announced(asked.store, method)
    announced = asked.announced if before is None else min(asked.announced, before)
    allowed = methods * allow_for_repeats(announced, number)
    began = process_time()
    made = _run_audit(method, replace(asked.settings, comparisons=allowed), asked.as_json)
    took = process_time() - began
    if asked.page is not None:
        _draw(made, method, asked.page)
    named = [replace(verdict, method=method) for verdict in made.verdicts]
    if asked.store is None:
        return [verdict.to_json() for verdict in named]
    return keep_audits(asked.store, named, asked.settings, announced=asked.announced, cpu_seconds=took)


def _run_audit(method: str, settings: AuditSettings, quiet: bool) -> Audit:
    from hush.audit.audit import audit_claims, make_audit_plan, make_audit_setup

    plan = make_audit_plan(method, settings.epsilon, settings.delta)
    with show_progress(quiet=quiet) as bar:
        task = bar.add_task(f"auditing {method}", total=settings.runs)
        return audit_claims(
            plan,
            make_audit_setup(plan, settings.problem),
            runs=settings.runs,
            seed=settings.seed,
            comparisons=settings.comparisons,
            progress=lambda done, _: bar.update(task, completed=done),
        )


def _draw(made: Audit, method: str, page: Path) -> None:
    from hush.report.audit_page import render_audit

    write_page(page, render_audit(made, method))
    say(f"written: {page}")


def _row(entry: dict[str, Any]) -> list[str]:
    from hush.accounting.guarantee import rounded_down, rounded_up

    return [
        entry["method"],
        entry["status"],
        rounded_up(entry["claimed_epsilon"]),
        rounded_down(entry["epsilon_lower"]),
        _down(entry["epsilon_estimate"]),
        entry["verdict"],
        entry["adversary"],
    ]


def _down(value: float | None) -> str:
    from hush.accounting.guarantee import rounded_down

    return "∞" if value is None or value == float("inf") else rounded_down(value)
