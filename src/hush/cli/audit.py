"""`hush audit`: how much a method really leaks, measured, beside what it claims."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush._internal import validate
from hush._internal.storage import check_page, write_page
from hush.accounting.guarantee import rounded_down, rounded_up
from hush.cli.console import say, show, show_progress, show_table
from hush.cli.options import AsJson
from hush.errors import InvalidInputError

if TYPE_CHECKING:
    from hush.audit.audit import Audit, AuditSettings

COLUMNS = ("method", "status", "claimed ε", "at least (95 %)", "estimate", "verdict", "adversary")


def audit(
    method: Annotated[
        str | None, typer.Option(help="A method's name, or package.module:factory.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every method that claims something.")] = False,
    problem: Annotated[
        str | None,
        typer.Option(
            help="Audit on the first rows and with the model of this problem, one of `hush problems`; by default on "
            "digits, with a small model that is made for audits.",
            show_default=False,
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="The ε that the audited plan claims.")] = 4.0,
    delta: Annotated[float, typer.Option(help="Its δ.")] = 1e-5,
    runs: Annotated[int, typer.Option(help="Runs, half of them with the canary.")] = 400,
    seed: Annotated[int | None, typer.Option(help="Make the audit repeatable.")] = None,
    comparisons: Annotated[int, typer.Option(help="Audits that this one is one of: a verdict allows for them.")] = 1,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Keep what is finished in this file, and do not audit again what is in it (--all: audit.jsonl).",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        Path | None, typer.Option(help="Put what was refuted into this file of findings.", show_default=False)
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Draw the audit of a method on this page.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a method again and again on real digits, with one example more or less, and measure what its releases tell.

    Half of the runs have an example, the canary, that is made to be seen. An adversary who knows everything but the
    secret looks at what each run released and says whether the canary was there. How often that is right bounds ε from
    below: at least so much is lost, at 95 %. The verdict is about the whole claim: `refuted` needs 99.99 %, after
    allowing for every comparison that was made; `consistent` proves nothing, for a better adversary may see more.

    The adversary is the strongest that applies to the method. `--all` makes the table of all methods, a few minutes on
    one core; stopped, it goes on where it was. `--json` prints one object a line.

    Examples: `hush audit --method dp-sgd --epsilon 4 --page audit.html`,
    `hush audit --method dp-adam --problem breast-cancer-mlp`, `hush audit --all --update findings.json`,
    `hush audit --method mypackage.mymodule:my_method`
    """
    from hush.audit.audit import AuditSettings

    if (method is None) == (not every):
        raise InvalidInputError("say what to audit: --method NAME, or --all for every method")
    if page is not None and (every or store is not None):
        raise InvalidInputError("a page draws the scores of one audit that is made now: give --method, and no --store")
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
    """Every method that claims something; on a problem by name, those that can be audited there."""
    from hush.audit.audit import list_audited, list_whole

    if problem is None:
        return list_audited()
    found = list_whole()
    others = [name for name in list_audited() if name not in found]
    say(f"left out, as they protect a part of a row and are audited without --problem: {', '.join(others)}")
    return found


@dataclass(frozen=True)
class AuditOptions:
    """What is to be done with every method; ``announced`` audits of it were counted on, in ``settings`` times their
    methods."""

    settings: AuditSettings
    announced: int
    store: Path | None
    update: Path | None
    page: Path | None
    as_json: bool


def _audit_one(method: str, asked: AuditOptions) -> list[dict[str, Any]]:
    """The verdicts on a method: from the store, or by an audit now."""
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
    """An audit, kept and drawn where that was asked for; one more than was announced counts as more comparisons, and
    whoever has seen a verdict cannot announce more than before it."""
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
    return "∞" if value is None or value == float("inf") else rounded_down(value)
