"""`hush plan`: noise and minutes over ε × batch size × epochs, before anything is trained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hush._internal import validate
from hush._internal.storage import check_page, write_page
from hush.bench.timing import TIMED_PLAN
from hush.cli import prepare as t
from hush.cli.console import delayed_status, say, show, show_block, show_json, show_table
from hush.cli.options import DEFAULT_EPSILON, Planning
from hush.cli.prepare import read_method_options, read_shares, warn_delta
from hush.datasets.problem import Problem
from hush.errors import HushError, InvalidInputError
from hush.guarantees import claim_steps
from hush.methods import PlanConfig, make_plan
from hush.report.plan_page import (
    PlanRow,
    Sensitivity,
    choose,
    count_weights,
    explain_outlook,
    explain_row,
    list_cells,
    name_columns,
    nearby_plans,
    plan_grid,
    with_minutes,
)
from hush.statistics.releases import compose_plan

SIZES, LARGEST = 5, 4096  # default batch sizes: this many powers of two, up to the largest
Number = TypeVar("Number", int, float)


def plan(given: Planning) -> None:
    """Run `hush plan`."""
    if given.out is not None:
        check_page(given.out)
    task, setting, weights = _read(given)
    chosen = read_method_options(given.method, given.settings)
    with delayed_status("calibrating the noise") as notify:
        found = list(plan_grid(given.method, setting, _grid(given, setting.examples), notify, **chosen))
        charge = partial(_charge_others, task=task, given=given)
        rows = _charge([replace(row, weights=weights) for row in found], charge)
        if task is not None:
            notify("timing some steps")
            rows = with_minutes(rows, task, _shorten(given.method, setting, chosen))
        best = choose(rows, _pick_epsilon(rows))
        silent = given.as_json and given.out is None
        outlook = None if silent else _look_around(given.method, setting, best, notify, charge, **chosen)
    warn_delta(given.delta, setting.examples)
    if given.out is not None and outlook is not None:
        from hush.report.plan_page import render_plan

        write_page(given.out, render_plan(rows, outlook, setting))
    if given.as_json or outlook is None:
        show_json([_as_json(row, best) for row in rows])
        return
    _show(rows, best)
    for sentence in (explain_row(best, rows), *explain_outlook(outlook)):
        show()
        show_block(sentence)
    if given.out is not None:
        show()
        show(f"written: {given.out}")


def _read(given: Planning) -> tuple[Problem | None, PlanConfig, int | None]:
    """The task if there is one, the settings that do not vary, and the number of weights if known."""
    if given.method == "auto":
        raise InvalidInputError(
            "`hush plan` compares settings of one method: name it, or compare methods with `hush account --method auto`"
        )
    task = None
    examples, weights = given.examples, given.parameters
    if given.data is not None or given.problem is not None:
        if examples is not None or weights is not None:
            raise InvalidInputError(
                "--data and --problem determine the numbers of examples and weights: leave these numbers out"
            )
        task = t.load_task(given)
        examples, weights = task.examples, count_weights(task)
    if task is None:
        _check_without_data(given)
    if examples is None:
        raise InvalidInputError("the number of examples is missing: give --examples 60000, or the data with --data")
    if weights is not None:
        validate.positive_int(parameters=weights)
        validate.finite(parameters=weights)  # an integer may exceed the range of floats
    unit = "example" if task is None else task.unit
    return task, PlanConfig(examples, batch_size=1, delta=given.delta, unit=unit), weights


def _check_without_data(given: Planning) -> None:
    """Raise for options that have no effect without data."""
    if read_shares(given):
        raise InvalidInputError("releases before training can only be planned with the data: give them with --data")
    t.check_described(given)
    others = (given.private_metrics, given.class_weights, given.rows_per_unit, given.public_test or None)
    if any(value is not None for value in others):
        own = "--private-metrics, --class-weights, --rows-per-unit and --public-test"
        raise InvalidInputError(f"{own} describe the data: give them with --data, or name a --problem")


def _charge(rows: Sequence[PlanRow], charge: Callable[[PlanRow], PlanRow]) -> list[PlanRow]:
    """The rows with all releases within their ε, without those whose ε is too small; raises if none is left."""
    found: list[PlanRow] = []
    refusals: dict[float, HushError] = {}
    for row in rows:
        try:
            found.append(charge(row))
        except HushError as error:
            refusals[row.epsilon] = error
    for epsilon, refusal in refusals.items():
        if not found:
            raise refusal
        say(f"rows at ε = {epsilon:g} are left out: {refusal}")
    return found


def _charge_others(row: PlanRow, task: Problem | None, given: Planning) -> PlanRow:
    """The row with all requested releases composed within its ε, as `hush train` charges them."""
    if task is None:
        return row
    plan, _ = compose_plan(row.plan, task, row.epsilon, metrics=given.private_metrics, **read_shares(given))
    return replace(row, plan=plan)


def _look_around(
    method: str,
    setting: PlanConfig,
    best: PlanRow,
    notify: Callable[[str], None],
    charge: Callable[[PlanRow], PlanRow],
    **chosen: Any,
) -> Sensitivity:
    """The sensitivity at the recommended row; its curve begins where ε is enough for all releases."""
    short: set[float] = set()

    def charge_or_note(row: PlanRow) -> PlanRow:
        try:
            return charge(row)
        except HushError:
            short.add(row.epsilon)
            return row

    found = nearby_plans(method, setting, best, notify, charge=charge_or_note, **chosen)
    enough = tuple(point for point in found.curve if point[0] not in short)
    return replace(found, curve=enough or found.curve[-1:])


def _grid(given: Planning, examples: int) -> list[tuple[float, int, float]]:
    batches = default_batches(examples) if given.batch_size is None else _read_list("batch-size", given.batch_size, int)
    epsilons, epochs = _read_list("epsilon", given.epsilon, float), _read_list("epochs", given.epochs, float)
    return list(itertools.product(epsilons, batches, epochs))


def default_batches(examples: int) -> list[int]:
    """Five powers of two, the largest at most 4096 and at most the number of examples."""
    top = min(LARGEST, examples).bit_length() - 1
    return [2**power for power in range(max(0, top - SIZES + 1), top + 1)]


def _read_list(name: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInputError(f"--{name} takes comma-separated numbers, such as 1,3,8; got '{text}'") from error
    for value in values:
        validate.positive(**{name.replace("-", "_"): value})
    return sorted(set(values))


def _pick_epsilon(rows: Sequence[PlanRow]) -> float:
    """ε = 3 if it is among them, otherwise the smallest: the table does not decide which ε is right."""
    known = {row.epsilon for row in rows}
    return DEFAULT_EPSILON if DEFAULT_EPSILON in known else min(known)


def _shorten(method: str, setting: PlanConfig, chosen: dict[str, Any]) -> Callable[[int], Any]:
    """A plan of a few steps for a batch size, for timing."""

    def short(batch: int) -> Any:
        at = replace(setting, epsilon=1.0, batch_size=batch, steps=TIMED_PLAN)
        return make_plan(method, at, calibrate=False, **chosen)

    return short


def _as_json(row: PlanRow, best: PlanRow) -> dict[str, Any]:
    return {
        "method": row.plan.method,
        "epsilon": row.epsilon,
        "delta": row.plan.delta,
        "unit": row.plan.unit,
        "protects": claim_steps(row.plan)[0].protects,
        "batch_size": row.batch_size,
        "epochs": row.epochs,
        "steps": row.plan.steps,
        "noise_multiplier": row.plan.sigma,
        "noise_std": row.plan.noise_std,
        "parameters": row.weights,
        "step_noise": row.step_noise,
        "run_noise": row.run_noise,
        "minutes": row.minutes,
        "recommended": row is best,
    }


def _show(rows: Sequence[PlanRow], best: PlanRow) -> None:
    columns, meaning = name_columns(best)
    show_block(meaning)
    show()
    show_table("", columns, (list_cells(row, best) for row in rows))
