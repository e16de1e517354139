"""`hush ledger`: what has been spent on a dataset by all runs together, and how much may be."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hush._internal.validate import choice
from hush.accounting.accountant import Adjacency
from hush.accounting.events import name_event
from hush.accounting.guarantee import PROTECTED, Protects, Status, rounded_up
from hush.cli.console import show, show_json, show_lines
from hush.cli.options import AsJson
from hush.errors import InvalidInputError
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import Budget, Cap, Spend, check_budget, check_halves, check_name, check_spend
from hush.ledger.total import ROW, Scope, Total
from hush.release.folder import PRIVATE_PART

app = typer.Typer(help="What has been spent on a dataset, and its budget.", no_args_is_help=True)

LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.", metavar="LEDGER")]
NewDataset = Annotated[
    bool, typer.Option("--new-dataset", help="Needed where the ledger has a budget and does not know the name yet.")
]
Unit = Annotated[str | None, typer.Option(help="Whose data: 'example' (one row) or a column, all rows of one value.")]
Part = Annotated[str | None, typer.Option("--protects", help="Which part of them: example, features or labels.")]
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
    as_json: AsJson = False,
) -> None:
    """Check the ledger's hash chain, and show the spends on each dataset and their total."""
    opened = Ledger(ledger, create=False, write=False)
    names = opened.datasets() if dataset is None else [opened.known_as(dataset)]
    if dataset is not None and names[0] not in opened.datasets():
        there = ", ".join(f"'{name}'" for name in opened.datasets())
        raise InvalidInputError(f"the ledger '{ledger}' has no dataset '{dataset}': it has {there or 'none'}")
    found = [_summary(opened, name, delta) for name in names]
    if as_json:
        show_json({"ledger": str(ledger), "datasets": found})
        return
    if not found:
        show("nothing has been spent, and no budget is set")
    for entry in found:
        show(f"{entry['dataset']}: {entry['sentence']}")
        _show_more(entry)
        _show_totals(entry)
        show_lines(_run_line(row) for row in entry["runs"])


@app.command("budget")
def budget(
    ledger: LedgerPath,
    epsilon: Annotated[
        float | None, typer.Option(help="The most that all runs together may spend; without it the budget is shown.")
    ] = None,
    delta: Annotated[float, typer.Option(help="δ at which the total is compared.")] = 1e-5,
    dataset: Dataset = None,
    unit: Unit = None,
    protects: Part = None,
    as_json: AsJson = False,
) -> None:
    """Set the budget of a dataset, or show it: a run that would exceed it is refused before it starts.

    It is for one total: that of whole rows, or of the unit and part that are named. A dataset has one budget, which is
    the last that was set; without --unit and --protects it stays for what it was for.
    """
    name, scope = _name(dataset), _scope(unit, protects)
    if epsilon is not None:
        check_budget(Budget(epsilon, delta))
    elif scope is not None:
        raise InvalidInputError("--unit and --protects say what a budget is for: give its --epsilon too")
    opened = Ledger(ledger, create=epsilon is not None, write=epsilon is not None)
    if epsilon is not None:
        opened.set_budget(name, epsilon, delta, scope=scope)
    name = opened.known_as(name)
    summary = _summary(opened, name, None)
    if as_json:
        shown = ("epsilon", "delta", "unit", "protects", "status", "assumptions", "so_far", "filter")
        values = {key: summary[key] for key in shown}
        show_json({"ledger": str(ledger), "dataset": name, "budget": summary["budget"], "spent": values})
        return
    if summary["budget"] is None:
        show(f"dataset '{name}' has no budget; {summary['sentence']}")
        return
    show(f"{name}: {summary['sentence']}")
    _show_more(summary)


@app.command("add")
def add(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="A name for the spend, such as what it was.", metavar="RUN")],
    epsilon: Annotated[float, typer.Option(help="Its ε.")],
    delta: Annotated[float, typer.Option(help="Its δ.")],
    adjacency: Annotated[str, typer.Option(help="add-remove, replace or zero-out.")] = "add-remove",
    status: Annotated[str, typer.Option(help="proven, or claimed.")] = "proven",
    dataset: Dataset = None,
    unit: Unit = None,
    protects: Part = None,
    new_dataset: NewDataset = False,
    as_json: AsJson = False,
) -> None:
    """Enter a spend that was made elsewhere: another library's run, a published statistic."""
    check_spend(epsilon, delta, run, adjacency, status)
    scope = _scope(unit, protects) or Scope()
    check_halves(scope, adjacency, status)
    name = _name(dataset)
    opened = Ledger(ledger)
    relation, known = cast(Adjacency, adjacency), cast(Status, status)
    opened.add(name, epsilon, delta, run=run, adjacency=relation, status=known, new_dataset=new_dataset, scope=scope)
    _tell(opened, name, as_json)


@app.command("cap")
def cap(
    ledger: LedgerPath,
    unit: Annotated[str, typer.Option(help="The unit: a column, all rows of one value of which belong together.")],
    rows: Annotated[int, typer.Option(help="How many rows one has at most.")],
    dataset: Dataset = None,
    new_dataset: NewDataset = False,
    as_json: AsJson = False,
) -> None:
    """Declare as a public fact how many rows one patient, say, has at most: spends per row then count that often.

    Without it, a spend per row has no finite ε per patient. The number must be known from how the data were collected,
    not counted in them: with one patient more it could be another. Totals that rest on it say so.
    """
    declared = Cap(unit, rows)
    name = _name(dataset)
    opened = Ledger(ledger)
    opened.cap(name, declared.unit, declared.rows, new_dataset=new_dataset)
    found = _summary(opened, opened.known_as(name), None)
    if as_json:
        show_json(found)
        return
    show(f"declared: no {unit} has more than {rows} rows; this rests on your word, and totals that need it say so")
    show(f"{found['dataset']}: {found['sentence']}")
    _show_totals(found)


@app.command("close")
def close(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="The run, as `hush ledger show` names it.", metavar="RUN")],
    stopped_blindly: Annotated[
        bool,
        typer.Option(
            "--stopped-blindly",
            help="To be said: nobody had looked at anything that it, or a run before it, had released.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, whose log shows how many steps it took.")] = None,
    dataset: Dataset = None,
    as_json: AsJson = False,
) -> None:
    """Declare that a run stopped for good before its last step, and that whoever stopped it had looked at nothing.

    A run that stopped early is counted with all its planned steps: when to stop may have been chosen by looking at what
    it had released. Closed, it is counted with the steps that its log shows, the total says on whose word, and the run
    cannot be resumed. Only a method whose steps are drawn independently can be closed.
    """
    if not stopped_blindly:
        raise InvalidInputError(
            "a run that was stopped by looking at it stays counted with all its planned steps: say --stopped-blindly "
            "if nobody had looked, else there is nothing to close"
        )
    from hush.ledger.run_account import close_run  # which needs torch, as nothing else here does

    name = _name(dataset)
    opened = Ledger(ledger, create=False)
    if out is None:
        raise InvalidInputError(
            f"the log of run '{run}' shows how many steps it took: give the run's folder with --out"
        )
    close_run(opened, name, run, out / PRIVATE_PART)
    _tell(opened, name, as_json)


def _tell(opened: Ledger, dataset: str, as_json: bool) -> None:
    name = opened.known_as(dataset)
    if as_json:
        show_json(_summary(opened, name, None))
    else:
        show(f"{name}: {opened.total(name).sentence()}")


def _name(dataset: str | None) -> str:
    """The dataset's name, 'default' where none was given; an empty one is refused."""
    name = DATASET if dataset is None else dataset
    check_name(name)
    return name


def _run_line(row: dict[str, Any]) -> str:
    line = "  {run}: {method}, {steps} of {planned} steps, {status}, {mechanism}, {since}".format(**row)
    return line + _about(row) + (f", {row['reason']}" if row["reason"] else "")


def _show_more(entry: dict[str, Any]) -> None:
    """What stands under a dataset's sentence: the budget, and the filter where it says more."""
    if entry["budget"] is not None:
        show(_budget_sentence(entry["budget"], entry["epsilon"]))
    if entry["filter"] is not None and entry["filter"]["holds"]:
        show(
            f"the budget also holds by a Rényi filter of order {entry['filter']['order']:g}, however the runs were "
            "chosen and stopped"
        )


def _scope(unit: str | None, protects: str | None) -> Scope | None:
    """What was asked for, if anything was."""
    if unit is None and protects is None:
        return None
    choice(PROTECTED, protects=protects or "example")
    return Scope(ROW if unit is None else unit, cast(Protects, protects or "example"))


def _about(row: dict[str, Any]) -> str:
    """Whose data a spend is about and which part of them, where that is not one whole row."""
    scope = Scope(row["unit"], row["protects"])
    return "" if scope == Scope() else f", for {scope.in_words()}"


def _show_totals(entry: dict[str, Any]) -> None:
    """The totals for other units, and for parts of their data."""
    for total in entry["totals"][1:]:
        show(f"  {Scope(total['unit'], total['protects']).in_words()}: {total['sentence']}")


def _summary(ledger: Ledger, dataset: str, delta: float | None) -> dict[str, Any]:
    total, filtered = ledger.total(dataset, delta), ledger.filtered(dataset)
    mechanisms: dict[int, str] = {}
    others = [ledger.total(dataset, delta, scope=scope) for scope in ledger.scopes(dataset)[1:]]
    return {
        "dataset": dataset,
        **_fields(total),
        "so_far": None,  # runs are charged as a whole: no smaller ε is claimed
        "filter": None if filtered is None else {**asdict(filtered), "holds": filtered.holds},
        "budget": _pair(ledger.budget(dataset)),
        "totals": [_fields(found) for found in (total, *others)],
        "rows_per_unit": dict(ledger.caps(dataset)),
        "runs": [_row(spend, mechanisms) for spend in ledger.spends(dataset).values()],
    }


def _fields(total: Total) -> dict[str, Any]:
    return {
        "epsilon": total.epsilon,
        "delta": total.delta,
        "unit": total.scope.unit,
        "protects": total.scope.protects,
        "adjacency": total.adjacency,
        "status": total.status,
        "composition": total.composition,
        "assumptions": list(total.assumptions),
        "sentence": total.sentence(),
    }


def _row(spend: Spend, mechanisms: dict[int, str]) -> dict[str, Any]:
    """The spend as JSON fields; ``mechanisms`` are the names of costs that others share."""
    cost = spend.cost
    if (mechanism := mechanisms.get(id(cost))) is None:
        stated = ", ".join(f"ε {rounded_up(e)} at δ {rounded_up(d)}" for d, e in cost.points[:1])
        mechanism = mechanisms[id(cost)] = stated if cost.event is None else name_event(cost.event)
    return {
        "run": spend.run,
        "method": spend.method,
        "steps": spend.steps,
        "planned": spend.planned,
        "status": cost.status,
        "adjacency": cost.adjacency,
        "unit": cost.unit,
        "protects": cost.protects,
        "delta": cost.delta,
        "limit": spend.steps,
        "stopped_blindly": spend.blindly,
        "part_of": spend.part_of or None,
        "reason": spend.reason,
        "assumptions": list(cost.assumptions),
        "mechanism": mechanism,
        "since": spend.at,
    }


def _pair(budget: Budget | None) -> dict[str, Any] | None:
    if budget is None:
        return None
    about = {"unit": budget.scope.unit, "protects": budget.scope.protects}
    return {"epsilon": budget.epsilon, "delta": budget.delta, **about}


def _budget_sentence(budget: dict[str, Any] | None, spent: float) -> str:
    assert budget is not None
    over = " (exceeded)" if spent > budget["epsilon"] else ""
    return f"budget: ε = {rounded_up(budget['epsilon'])} at δ = {rounded_up(budget['delta'])}{_about(budget)}{over}"
