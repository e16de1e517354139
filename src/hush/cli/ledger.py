"""`hush ledger`: what has been spent on a dataset by all runs together, and how much may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hush.cli import options as o
from hush.cli.console import show, show_json
from hush.errors import BadInput
from hush.privacy.accounting import Adjacency
from hush.privacy.events import describe
from hush.privacy.guarantee import Status, rounded_up
from hush.privacy.ledger import DATASET, Budget, Ledger, Spend

app = typer.Typer(help="What has been spent on a dataset, and its budget.", no_args_is_help=True)

LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.", metavar="LEDGER")]
Dataset = Annotated[str | None, typer.Option(help="The data's name in the ledger; 'default' if not given.")]


@app.command("show")
def show_ledger(
    ledger: LedgerPath,
    dataset: Annotated[
        str | None, typer.Option(help="The data's name in the ledger; all of them if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the total; the budget's by default, else one that suits the spends.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Check the ledger's hash chain, and show the spends on each dataset and their total."""
    opened = Ledger(ledger, create=False)
    names = opened.datasets() if dataset is None else [dataset]
    if dataset is not None and dataset not in opened.datasets():
        raise BadInput(f"the ledger '{ledger}' has no dataset '{dataset}': it has {opened.datasets() or 'none'}")
    found = [_summary(opened, name, delta) for name in names]
    if as_json:
        show_json({"ledger": str(ledger), "datasets": found})
        return
    if not found:
        show("nothing has been spent, and no budget is set")
    for entry in found:
        show(f"{entry['dataset']}: {entry['sentence']}")
        if entry["budget"] is not None:
            show(_budget_sentence(entry["budget"], entry["epsilon"]))
        for row in entry["runs"]:
            show("  {run}: {method}, {steps} of {planned} steps, {status}, {mechanism}, {since}".format(**row))


@app.command("budget")
def budget(
    ledger: LedgerPath,
    epsilon: Annotated[float | None, typer.Option(help="The most that all runs together may spend.")] = None,
    delta: Annotated[float, typer.Option(help="δ at which the total is compared.")] = 1e-5,
    dataset: Dataset = None,
    as_json: o.AsJson = False,
) -> None:
    """Set the budget of a dataset, or show it: training stops before it is exceeded."""
    name = dataset or DATASET
    opened = Ledger(ledger, create=epsilon is not None)
    if epsilon is not None:
        opened.set_budget(name, epsilon, delta)
    found = opened.budget(name)
    spent = opened.total(name)
    if as_json:
        values = {"epsilon": spent.epsilon, "delta": spent.delta, "status": spent.status}
        show_json({"ledger": str(ledger), "dataset": name, "budget": _pair(found), "spent": values})
        return
    if found is None:
        show(f"dataset '{name}' has no budget; {spent.sentence()}")
        return
    show(f"{name}: {spent.sentence()}")
    show(_budget_sentence(_pair(found), spent.epsilon))


@app.command("add")
def add(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="A name for the spend, such as what it was.")],
    epsilon: Annotated[float, typer.Option(help="Its ε.")],
    delta: Annotated[float, typer.Option(help="Its δ.")],
    adjacency: Annotated[str, typer.Option(help="add-remove, replace or zero-out.")] = "add-remove",
    status: Annotated[str, typer.Option(help="proven, or claimed.")] = "proven",
    dataset: Dataset = None,
    as_json: o.AsJson = False,
) -> None:
    """Enter a spend that was made elsewhere: another library's run, a published statistic."""
    opened = Ledger(ledger)
    relation, known = cast(Adjacency, adjacency), cast(Status, status)
    opened.add(dataset or DATASET, epsilon, delta, run=run, adjacency=relation, status=known)
    found = _summary(opened, dataset or DATASET, None)
    if as_json:
        show_json(found)
    else:
        show(f"{found['dataset']}: {found['sentence']}")


def _summary(ledger: Ledger, dataset: str, delta: float | None) -> dict[str, Any]:
    total = ledger.total(dataset, delta)
    return {
        "dataset": dataset,
        "epsilon": total.epsilon,
        "delta": total.delta,
        "adjacency": total.adjacency,
        "status": total.status,
        "composition": total.composition,
        "sentence": total.sentence(),
        "budget": _pair(ledger.budget(dataset)),
        "runs": [_row(spend) for spend in ledger.spends(dataset).values()],
    }


def _row(spend: Spend) -> dict[str, Any]:
    cost = spend.cost
    stated = ", ".join(f"ε {rounded_up(e)} at δ {rounded_up(d)}" for d, e in cost.points[:1])
    return {
        "run": spend.run,
        "method": spend.method,
        "steps": spend.steps,
        "planned": spend.planned,
        "status": cost.status,
        "adjacency": cost.adjacency,
        "delta": cost.delta,
        "mechanism": stated if cost.event is None else describe(cost.event),
        "since": spend.at,
    }


def _pair(budget: Budget | None) -> dict[str, float] | None:
    return None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}


def _budget_sentence(budget: dict[str, float] | None, spent: float) -> str:
    assert budget is not None
    over = " (exceeded)" if spent > budget["epsilon"] else ""
    return f"budget: ε = {rounded_up(budget['epsilon'])} at δ = {rounded_up(budget['delta'])}{over}"
