"""`hush tune`: settings, a model and a proven ε that includes the search for them."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from hush.accounting.guarantee import rounded_up
from hush.cli import prepare as t
from hush.cli.console import delayed_status, say, say_when_interrupted, show, show_json, show_text
from hush.cli.options import Tuning
from hush.cli.prepare import (
    apply_table_defaults,
    check_delta,
    check_delta_range,
    check_out,
    default_epsilon,
    find_device,
    fit_batch,
    read_method_options,
    warn_not_saved,
)
from hush.cli.train import asks_for_releases, choose_released, make_fields, plan_metrics, sanitise_task
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import Problem
from hush.errors import DistributedError, InvalidInputError, NotProvenError, RunStateError
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import check_name
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.release.folder import RELEASE
from hush.run import Run
from hush.run_directory import RunDirectory, open_search
from hush.tuning import Candidate, Winner, charge_search, price_search, read_space, run_trials

SPACE = ["lr=0.05..5"]
OWN = ("lr", "clip", "clip_mode")  # method options that have their own flags


@dataclass(frozen=True)
class Made:
    """A trained trial and what may be published about it."""

    run: Run
    metrics: dict[str, Any]


def tune(given: Tuning) -> None:
    """Run `hush tune`."""
    if given.dataset is not None:
        check_name(given.dataset)
    _check_options(given)
    check_out(given, data=given.data, private=True)
    check_delta_range(given.delta, accepted=given.accept_delta)
    with open_search(given.out):
        _search(given)


def _search(given: Tuning) -> None:
    task = t.load_task(given)
    if task.pending_classes is not None:
        raise InvalidInputError(
            "a search needs the classes of its data: name them in a schema (classes = […]), or declare them public "
            "(--public classes)"
        )
    losses = t.with_views(task, given.augment, given.views)
    given = fit_batch(apply_table_defaults(given, task), task.examples)
    space = read_space(given.search or SPACE)

    def make(candidate: Candidate) -> Plan:
        return _make_plan(given, task, candidate)

    with delayed_status("computing the cost of the search"):
        plan = price_search(
            space, make, epsilon=default_epsilon(given).epsilon, mean_trials=given.mean_trials, shape=given.shape
        )
    check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
    task = sanitise_task(task, plan, given)
    with seeded(given.seed):
        network = task.model().to(find_device(given.device))
    first = _start(given, task, losses, network, plan)  # may raise, so it comes before the charge
    first.check_arithmetic()
    RunDirectory(given.out, False).check_release(first, task.describe(), given.dataset or task.name)
    if given.ledger is not None:
        dataset = DATASET if given.dataset is None else given.dataset
        charge_search(Ledger(given.ledger), dataset, plan, new_dataset=given.new_dataset)
    say(f"searching {', '.join(space)}; the duration reveals the number of trials: do not publish it")
    left = "nothing of it was released" if given.ledger is None else "what was entered in the ledger stays spent"
    with say_when_interrupted(f"stopped: a search cannot be resumed, and {left}"):
        winner = run_trials(
            plan,
            space,
            make,
            lambda own: _start(given, task, losses, network, own),
            lambda run: _judge(given, task, run),
        )
    if winner is None:
        raise RunStateError("the search gave no model, which is one of its possible outcomes; its cost is spent")
    _answer(given, task, plan, winner)


def _check_options(given: Tuning) -> None:
    if given.strategy != "random":
        raise NotProvenError(
            f"a search that learns from earlier scores ('{given.strategy}') has no proof: use --strategy random, which "
            "draws every candidate independently"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DistributedError(
            "several processes were started, and each would run, charge and release its own search: run hush tune in "
            "one process, without torchrun"
        )
    if given.public_test == (given.private_metrics is not None):
        raise InvalidInputError(
            "the data for scoring trials are missing: give --public-test (the test rows, or those of --test-data, are "
            "public) or --private-metrics EPS (noisy counts, which are part of every trial)"
        )
    if asks_for_releases(given):
        raise NotProvenError(
            "ranges and class weights that are released before training would be released again in every trial: give "
            "ranges in a --schema and weights as numbers"
        )
    if given.method in ("auto", "sgd"):
        raise InvalidInputError(f"hush tune needs a private method such as dp-sgd, not '{given.method}'")
    _check_searched(given)


def _check_searched(given: Tuning) -> None:
    """Raise for a setting that is both searched and given as one value."""
    own = {name: getattr(given, name) for name in OWN}
    fixed = read_method_options(given.method, given.settings, **own)
    for name in sorted(fixed.keys() & read_space(given.search or SPACE).keys()):
        flag = "--set" if own.get(name) is None else f"--{name.replace('_', '-')}"
        if not given.search:
            raise InvalidInputError(
                f"'{name}' is searched by default if --search names nothing else: name other settings with --search, "
                f"or leave out {flag} for it"
            )
        raise InvalidInputError(f"'{name}' is both searched and set: leave out --search or {flag} for it")


def _make_plan(given: Tuning, task: Problem, candidate: Candidate) -> Plan:
    """The plan of a candidate at σ = 1 or at the noise that was given, with its score."""
    fixed = {name: getattr(given, name) for name in OWN}
    chosen = read_method_options(given.method, given.settings, **{**fixed, **candidate})
    asked = default_epsilon(given)
    setting = asked.setting(task.examples, counted=True, assumptions=task.assumptions, unit=task.unit)
    plan = make_plan(given.method, setting, calibrate=False, **chosen)
    return plan if given.private_metrics is None else plan_metrics(plan, task, given.private_metrics, None)


def _judge(given: Tuning, task: Problem, run: Run) -> tuple[float, Made]:
    evaluation = evaluate_problem(run.model, task)
    fields = make_fields(evaluation, task)
    outcome = choose_released(run, task, evaluation, RunDirectory(None, False), public=given.public_test, fields=fields)
    return _score(outcome), Made(run, outcome)


def _start(given: Tuning, task: Problem, losses: Any, network: nn.Module, plan: Plan) -> Run:
    """A run of the plan before its first step; raises for anything that would fail in every trial."""
    return plan.start(
        copy.deepcopy(network),  # a factory may return the same object, and trials must not share weights
        losses,
        task.train,
        unit=task.whose,
        rows_per_unit=given.rows_per_unit,
        microbatch=given.microbatch,
    )


def _score(outcome: dict[str, Any]) -> float:
    """Accuracy, or negative loss: exact on public rows, from noisy counts on private ones."""
    if "private_metrics" in outcome:
        return float(outcome["private_metrics"]["figures"]["accuracy"])
    metrics = outcome["test_figures"]
    accuracy, loss = metrics.get("test_accuracy"), metrics.get("test_loss")
    return float(accuracy) if accuracy is not None else -float(loss)


def _answer(given: Tuning, task: Problem, plan: Plan, winner: Winner[Made]) -> None:
    run = winner.made.run
    warn_not_saved(given)
    released = _release(given, task, run, winner)
    guarantee, alone = run.guarantee, replace(plan, trials=None).guarantee()
    result = {
        "problem": task.name,
        "method": plan.method,
        "parameters": winner.candidate,
        "score": winner.score,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "status": guarantee.status,
        "protects": guarantee.protects,
        "winner_epsilon": alone.epsilon,
        "mean_trials": given.mean_trials,
        "shape": given.shape,
        "noise_multiplier": plan.sigma,
        "steps": plan.steps,
        **winner.made.metrics,
        "out": None if given.out is None else str(given.out),
        "release": None if released is None else str(released),
        "sentence": guarantee.sentence(),
        "statement": str(guarantee),
    }
    if given.as_json:
        show_json(result)
        return
    show(f"score {winner.score:.4g} with " + ", ".join(f"{k} = {v:.4g}" for k, v in winner.candidate.items()))
    show(f"the winner alone would be ε = {rounded_up(alone.epsilon)}; the whole search costs:")
    show_text(result["statement"])
    if released is not None:
        show(f"released, may be published: {released}")


def _release(given: Tuning, task: Problem, run: Run, winner: Winner[Made]) -> Path | None:
    if given.out is None:
        return None
    outcome = {**winner.made.metrics, "chosen": {"parameters": winner.candidate, "score": winner.score}}
    named = given.dataset or task.name
    return run.release(given.out / RELEASE, description=task.describe(), dataset=named, metrics=outcome)
