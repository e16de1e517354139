"""`hush ledger`: the total that all runs have spent on a dataset, and its budget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hush._internal.validate import choice
from hush.cli.console import AsJson, show, show_json, show_lines
from hush.cli.options import check_exists
from hush.errors import InvalidInputError

if TYPE_CHECKING:
    from hush._internal.settings import Adjacency
    from hush.accounting.guarantee import Protects, Status
    from hush.ledger.book import Ledger
    from hush.ledger.entries import Budget, Spend
    from hush.ledger.total import Scope, Total

app = typer.Typer(help="Show what was spent on a dataset, and set its budget.", no_args_is_help=True)

LedgerPath = Annotated[Path, typer.Argument(help="The ledger file.", metavar="LEDGER")]
NewDataset = Annotated[
    bool, typer.Option("--new-dataset", help="Confirm a name that is new to a ledger with a budget.")
]
Unit = Annotated[str | None, typer.Option(help="Privacy unit: 'example' (one row), or a column that groups rows.")]
Part = Annotated[
    str | None, typer.Option("--protects", help="Protected part of the data: example, features or labels.")
]
Dataset = Annotated[str | None, typer.Option(help="Name of the data in the ledger; 'default' if not given.")]


@app.command("show")
def show_ledger(
    ledger: LedgerPath,
    dataset: Annotated[
        str | None, typer.Option(help="Name of the data in the ledger; all of them if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the total; by default that of the budget, or one that fits the spends.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger's hash chain, and show the spends on each dataset with their total."""
    check_exists(ledger, "ledger")
    from hush.ledger.book import Ledger

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
        show("nothing was spent, and no budget is set")
    for entry in found:
        show(f"{entry['dataset']}: {entry['sentence']}")
        _show_more(entry)
        _show_totals(entry)
        show_lines(_run_line(row) for row in entry["runs"])


@app.command("budget")
def budget(
    ledger: LedgerPath,
    epsilon: Annotated[
        float | None, typer.Option(help="Largest ε that all runs together may spend; shows the budget if not given.")
    ] = None,
    delta: Annotated[float, typer.Option(help="δ at which the total is compared with the budget.")] = 1e-5,
    dataset: Dataset = None,
    unit: Unit = None,
    protects: Part = None,
    as_json: AsJson = False,
) -> None:
    """Set or show the budget of a dataset: a run that would exceed it is refused before it starts.

    A budget limits one total: that of whole rows, or of the unit and part given here. A dataset has one budget, the one
    set last; without --unit and --protects it keeps its unit and part.
    """
    from hush.ledger.book import Ledger
    from hush.ledger.entries import Budget, check_budget

    name, scope = _name(dataset), _scope(unit, protects)
    if epsilon is not None:
        check_budget(Budget(epsilon, delta))
    elif scope is not None:
        raise InvalidInputError("--unit and --protects describe a budget: give its --epsilon too")
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
    run: Annotated[str, typer.Argument(help="A name for the spend, for example what it was.", metavar="RUN")],
    epsilon: Annotated[float, typer.Option(help="ε of the spend.")],
    delta: Annotated[float, typer.Option(help="δ of the spend.")],
    adjacency: Annotated[str, typer.Option(help="Adjacency: add-remove, replace or zero-out.")] = "add-remove",
    status: Annotated[str, typer.Option(help="Status of the guarantee: proven or claimed.")] = "proven",
    dataset: Dataset = None,
    unit: Unit = None,
    protects: Part = None,
    new_dataset: NewDataset = False,
    as_json: AsJson = False,
) -> None:
    """Enter a spend made outside hush: a run of another library, a published statistic."""
    from hush.ledger.book import Ledger
    from hush.ledger.entries import check_halves, check_spend
    from hush.ledger.total import Scope

    check_spend(epsilon, delta, run, adjacency, status)
    scope = _scope(unit, protects) or Scope()
    check_halves(scope, adjacency, status)
    name = _name(dataset)
    opened = Ledger(ledger)
    relation, known = cast("Adjacency", adjacency), cast("Status", status)
    opened.add(name, epsilon, delta, run=run, adjacency=relation, status=known, new_dataset=new_dataset, scope=scope)
    _notify(opened, name, as_json)


@app.command("cap")
def cap(
    ledger: LedgerPath,
    unit: Annotated[str, typer.Option(help="The privacy unit: a column that groups rows, such as patient_id.")],
    rows: Annotated[int, typer.Option(help="Largest number of rows per unit.")],
    dataset: Dataset = None,
    new_dataset: NewDataset = False,
    as_json: AsJson = False,
) -> None:
    """Declare a public limit on the rows of one unit, such as a patient: spends per row then count that often.

    Without it, a spend per row has no finite ε per patient. The limit must follow from how the data were collected, not
    from counting them: one more patient could change the count. Totals that use it say so.
    """
    from hush.ledger.book import Ledger
    from hush.ledger.entries import Cap

    declared = Cap(unit, rows)
    name = _name(dataset)
    opened = Ledger(ledger)
    opened.cap(name, declared.unit, declared.rows, new_dataset=new_dataset)
    found = _summary(opened, opened.known_as(name), None)
    if as_json:
        show_json(found)
        return
    show(f"declared: no {unit} has more than {rows} rows; totals that use this declaration say so")
    show(f"{found['dataset']}: {found['sentence']}")
    _show_totals(found)


@app.command("close")
def close(
    ledger: LedgerPath,
    run: Annotated[str, typer.Argument(help="The run's name in `hush ledger show`.", metavar="RUN")],
    stopped_blindly: Annotated[
        bool,
        typer.Option(
            "--stopped-blindly",
            help="Confirm that no release of this run, or of a run before it, was looked at before it was stopped.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; its log shows how many steps it took.")] = None,
    dataset: Dataset = None,
    as_json: AsJson = False,
) -> None:
    """Declare that a run was ended before its last step, without looking at anything that was released.

    A run that stopped early counts with all its planned steps, because the time to stop may have been chosen by looking
    at its releases. A closed run counts with the steps in its log, the total states the declaration, and the run cannot
    be resumed. Only a method whose steps are drawn independently can be closed.
    """
    if not stopped_blindly:
        raise InvalidInputError(
            "a run that was stopped by looking at its releases counts with all its planned steps: add "
            "--stopped-blindly if nothing released was looked at, otherwise there is nothing to close"
        )
    from hush.ledger.book import Ledger
    from hush.ledger.run_account import close_run  # needs torch, unlike the rest of this module
    from hush.release.folder import PRIVATE_PART

    name = _name(dataset)
    opened = Ledger(ledger, create=False)
    if out is None:
        raise InvalidInputError(
            f"the log of run '{run}' shows how many steps it took: give the run's folder with --out"
        )
    close_run(opened, name, run, out / PRIVATE_PART)
    _notify(opened, name, as_json)


def _notify(opened: Ledger, dataset: str, as_json: bool) -> None:
    name = opened.known_as(dataset)
    if as_json:
        show_json(_summary(opened, name, None))
    else:
        show(f"{name}: {opened.total(name).sentence()}")


def _name(dataset: str | None) -> str:
    """The dataset's name, 'default' if none was given; raises for an empty name."""
    from hush.ledger.book import DATASET
    from hush.ledger.entries import check_name

    name = DATASET if dataset is None else dataset
    check_name(name)
    return name


def _run_line(row: dict[str, Any]) -> str:
    line = "  {run}: {method}, {steps} of {planned} steps, {status}, {mechanism}, {since}".format(**row)
    return line + _about(row) + (f", {row['reason']}" if row["reason"] else "")


def _show_more(entry: dict[str, Any]) -> None:
    """Show the budget below a dataset's sentence, and the filter if it adds information."""
    if entry["budget"] is not None:
        show(_budget_sentence(entry["budget"], entry["epsilon"]))
    if entry["filter"] is not None and entry["filter"]["holds"]:
        show(
            f"the budget also holds by a Rényi filter of order {entry['filter']['order']:g}, however the runs were "
            "chosen and stopped"
        )


def _scope(unit: str | None, protects: str | None) -> Scope | None:
    """The requested unit and part; None if neither was given."""
    if unit is None and protects is None:
        return None
    from hush.accounting.guarantee import PROTECTED
    from hush.ledger.total import ROW, Scope

    choice(PROTECTED, protects=protects or "example")
    return Scope(ROW if unit is None else unit, cast("Protects", protects or "example"))


def _about(row: dict[str, Any]) -> str:
    """The unit and part that a spend is about, unless it is one whole row."""
    from hush.ledger.total import ROW, Scope

    about = (row["unit"], row["protects"])
    return "" if about == (ROW, "example") else f", for {Scope(*about).describe()}"


def _show_totals(entry: dict[str, Any]) -> None:
    """Show the totals for other units, and for parts of their data."""
    from hush.ledger.total import Scope

    for total in entry["totals"][1:]:
        show(f"  {Scope(total['unit'], total['protects']).describe()}: {total['sentence']}")


def _summary(ledger: Ledger, dataset: str, delta: float | None) -> dict[str, Any]:
    total, filtered = ledger.total(dataset, delta), ledger.filtered(dataset)
    mechanisms: dict[int, str] = {}
    others = [ledger.total(dataset, delta, scope=scope) for scope in ledger.scopes(dataset)[1:]]
    return {
        "dataset": dataset,
        **_fields(total),
        "so_far": None,  # runs are charged as a whole, so no smaller ε is claimed
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
    """The spend as JSON fields; ``mechanisms`` names costs that several spends share."""
    from hush.accounting.events import name_event
    from hush.accounting.guarantee import rounded_up

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
    from hush.accounting.guarantee import rounded_up

    assert budget is not None
    over = " (exceeded)" if spent > budget["epsilon"] else ""
    return f"budget: ε = {rounded_up(budget['epsilon'])} at δ = {rounded_up(budget['delta'])}{_about(budget)}{over}"
