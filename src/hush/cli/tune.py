"""`hush tune`: search settings and train a model, at a proven ε that includes the search."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
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
    read_shares,
    sanitise_task,
    warn_not_saved,
)
from hush.datasets.problem import Problem
from hush.errors import DistributedError, InvalidInputError, NotProvenError, RunStateError
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import check_name
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.release.folder import RELEASE
from hush.run_directory import RunDirectory, open_search
from hush.statistics.private_metrics import plan_metrics
from hush.training import Execution, Outcome, ProblemRun, train_in_memory
from hush.tuning import Candidate, Winner, charge_search, price_search, read_space, run_trials

SPACE = ["lr=0.05..5"]
OWN = ("lr", "clip", "clip_mode")  # method options that have their own flags


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

    def train(plan: Plan) -> tuple[float, Outcome]:
        job = _start(given, task, losses, network, plan)
        train_in_memory(job.run)
        return _judge(job.conclude(public_test=given.public_test))

    with delayed_status("computing the cost of the search"):
        plan = price_search(
            space, make, epsilon=default_epsilon(given).epsilon, mean_trials=given.mean_trials, shape=given.shape
        )
    check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
    task = sanitise_task(task, plan, given)
    with seeded(given.seed):
        network = task.model().to(find_device(given.device))
    first = _start(given, task, losses, network, plan, out=given.out)  # may raise, so it comes before the charge
    first.run.check_arithmetic()
    if given.ledger is not None:
        dataset = DATASET if given.dataset is None else given.dataset
        charge_search(Ledger(given.ledger), dataset, plan, new_dataset=given.new_dataset)
    say(f"searching {', '.join(space)}; the duration reveals the number of trials: do not publish it")
    left = "nothing of it was released" if given.ledger is None else "what was entered in the ledger stays spent"
    with say_when_interrupted(f"stopped: a search cannot be resumed, and {left}"):
        winner = run_trials(plan, space, make, train)
    if winner is None:
        raise RunStateError("the search gave no model, which is one of its possible outcomes; its cost is spent")
    _answer(given, plan, winner)


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
    if read_shares(given):
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


def _start(
    given: Tuning, task: Problem, losses: Any, network: nn.Module, plan: Plan, out: Path | None = None
) -> ProblemRun:
    """A run of the plan before its first step; raises for anything that would fail in every trial."""
    return ProblemRun.start(
        task,
        plan,
        copy.deepcopy(network),  # a factory may return the same object, and trials must not share weights
        losses,
        directory=RunDirectory(out, False),
        dataset=given.dataset,
        rows_per_unit=given.rows_per_unit,
        execution=Execution(microbatch=given.microbatch),
    )


def _judge(outcome: Outcome) -> tuple[float, Outcome]:
    """Accuracy, or negative loss: exact on public rows, from noisy counts on private ones."""
    released = outcome.released
    if "private_metrics" in released:
        return float(released["private_metrics"]["figures"]["accuracy"]), outcome
    accuracy, loss = (released["test_figures"].get(name) for name in ("test_accuracy", "test_loss"))
    return float(accuracy) if accuracy is not None else -float(loss), outcome


def _answer(given: Tuning, plan: Plan, winner: Winner[Outcome]) -> None:
    outcome = winner.made
    warn_not_saved(given)
    chosen = {"parameters": winner.candidate, "score": winner.score}
    released = None if given.out is None else outcome.release(given.out / RELEASE, {"chosen": chosen})
    alone = replace(plan, trials=None).guarantee()
    result = {
        **outcome.summarize(),
        **chosen,
        "winner_epsilon": alone.epsilon,
        "mean_trials": given.mean_trials,
        "shape": given.shape,
        "noise_multiplier": plan.sigma,
        **outcome.released,
        "out": None if given.out is None else str(given.out),
        "release": None if released is None else str(released),
    }
    if given.as_json:
        show_json(result)
        return
    show(f"score {winner.score:.4g} with " + ", ".join(f"{k} = {v:.4g}" for k, v in winner.candidate.items()))
    show(f"the winner alone would be ε = {rounded_up(alone.epsilon)}; the whole search costs:")
    show_text(result["statement"])
    if released is not None:
        show(f"released, may be published: {released}")
