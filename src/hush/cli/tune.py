"""`hush tune`: settings, a model and a proven ε that covers the search for them."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from hush._internal.storage import writable_directory
from hush.accounting.guarantee import rounded_up
from hush.accounting.noise_tails import SHARE
from hush.accounting.selection import Trials
from hush.cli import options as t
from hush.cli.console import delayed_status, say, say_when_interrupted, show, show_json
from hush.cli.options import (
    Given,
    allow_smaller_batch,
    apply_table_defaults,
    check_delta,
    default_epsilon,
    find_device,
    fit_batch,
    read_method_options,
    take,
    unset_options,
)
from hush.cli.run_directory import RunDirectory, warn_not_saved
from hush.cli.train import Training, asks_for_releases, choose_released, make_fields, plan_metrics, sanitise_task
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import Problem
from hush.errors import InvalidInputError, Refused
from hush.ledger.book import DATASET, Ledger
from hush.ledger.run_account import Account, cost_of
from hush.methods import make_plan
from hush.methods.config import METHOD, PRIVACY, option
from hush.plan import Plan
from hush.randomness import Secret, seeded
from hush.release.folder import RELEASE, check_room
from hush.run import Run
from hush.training import train as take_steps
from hush.tuning import Candidate, Winner, check_space, costs_the_same, read_space, select_best

SPACE = ["lr=0.05..5"]
CEILINGS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)  # of the ε of a search whose noise was given
LEFT_OUT = (
    "resume",
    "keep_secret",
    "checkpoint_every",
    "secret_seed",
    "recipe",
    "overwrite",
    "batch_may_shrink",
    "stop",
    "noise_shards",
    "fit_budget",
)
OWN = ("lr", "clip", "clip_mode")  # options of the methods that are flags


@dataclass(frozen=True, kw_only=True)
class Tuning(Training):
    """What `hush tune` takes."""

    search: list[str] | None = field(
        default=None,
        metadata=option(
            "What to search: lr=0.1..2 (evenly in the logarithm) or clip=0.5,1,2; lr=0.05..5 by default.",
            METHOD,
            metavar="NAME=VALUES",
        ),
    )
    mean_trials: float = field(default=10.0, metadata=option("How many trials there are on average.", METHOD))
    shape: float = field(
        default=1.0,
        metadata=option("How their number is spread: 1 geometric, 0 logarithmic (less ε), inf Poisson.", PRIVACY),
    )
    strategy: str = field(
        default="random", metadata=option("How candidates are drawn: random, which is what the proof is for.", METHOD)
    )


@dataclass(frozen=True)
class Made:
    """A trained trial and what may be said of it."""

    run: Run
    figures: dict[str, Any]


def _note_open(given: Given) -> Given:
    """What was given, with the names of the numbers that are left open. A learning rate is none of them: it is
    searched, or it is one for what is."""
    noted = unset_options(given)
    return allow_smaller_batch({**noted, "left_open": noted["left_open"] - {"lr"}})


@take(Tuning, without=LEFT_OUT, resolve=_note_open)
def tune(given: Tuning) -> None:
    """Search for good settings at a proven price: the best of a secret number of trials, and nothing else, is released.

    Example: `hush tune --problem digits-mlp --epsilon 3 --search lr=0.1..2 --search clip=0.5,1 --public-test --out run`
    """
    _check_options(given)
    if given.out is not None:
        _check_free(given.out)
    task = t.load_task(given)
    losses = t.with_views(task, given.augment, given.views)
    given = fit_batch(apply_table_defaults(given, task), task.examples)
    space = read_space(given.search or SPACE)
    with delayed_status("computing the price of the search"):
        plan = check_space(space, lambda candidate: _make_plan(given, task, candidate))
        plan = _calibrate(plan, default_epsilon(given).epsilon)
    check_delta(given.delta, plan.sampler.examples, accepted=given.accept_delta)
    task = sanitise_task(task, plan, given)
    with seeded(given.seed):
        network = task.model().to(find_device(given.device))
    _start(given, task, losses, network, plan)  # which may refuse, before all is spent
    _charge(given, plan)
    say(f"searching {', '.join(space)}; how long it takes says how many trials there are: keep that to yourself")
    assert plan.trials is not None
    left = "nothing of it was released" if given.ledger is None else "what was entered in the ledger stays spent"
    with say_when_interrupted(f"stopped: a search cannot be resumed, and {left}"):
        winner = select_best(plan.trials, space, lambda drawn: _run_trial(given, task, losses, network, plan, drawn))
    if winner is None:
        raise Refused("the search gave no model, which is one of its outcomes; what it cost is spent")
    _answer(given, task, plan, winner)


def _check_options(given: Tuning) -> None:
    if given.strategy != "random":
        raise Refused(
            f"a search that learns from earlier scores ('{given.strategy}') has no proof for what its result gives "
            "away: use --strategy random, which draws every candidate anew"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Refused(
            "several processes were started, and each of them would make and release a search of its own, which all "
            "have to be paid for: run hush tune in one process, without torchrun"
        )
    if given.public_test == (given.private_metrics is not None):
        raise InvalidInputError(
            "say what trials are scored on: --public-test (the test rows, or those of --test-data, are public) or "
            "--private-metrics EPS (by counts with noise, which are part of every trial)"
        )
    if asks_for_releases(given):
        raise Refused(
            "ranges and class weights that are released before training would be released anew in every trial: give "
            "ranges in a --schema and weights as numbers"
        )
    if given.method in ("auto", "sgd"):
        raise InvalidInputError(f"hush tune needs a private method by name, such as dp-sgd, and not '{given.method}'")
    _check_searched(given)


def _check_free(out: Path) -> None:
    """Refuse a folder with a release in it: a search never replaces one."""
    check_room(out / RELEASE, overwrite=True)  # what hush did not write
    if (out / RELEASE).is_dir() and any((out / RELEASE).iterdir()):
        raise InvalidInputError(
            f"'{out}' holds a release already, which a search never replaces: name another folder with --out"
        )


def _check_searched(given: Tuning) -> None:
    """Refuse what is both searched and given as one value."""
    own = {name: getattr(given, name) for name in OWN}
    fixed = read_method_options(given.method, given.settings, **own)
    for name in sorted(fixed.keys() & read_space(given.search or SPACE).keys()):
        flag = "--set" if own.get(name) is None else f"--{name.replace('_', '-')}"
        if not given.search:
            raise InvalidInputError(
                f"'{name}' is what is searched where --search names nothing else: say with --search what to search, or "
                f"leave out {flag} for it"
            )
        raise InvalidInputError(f"'{name}' is searched and set: leave out --search or {flag} for it")


def _make_plan(given: Tuning, task: Problem, candidate: Candidate) -> Plan:
    """The plan of a candidate at σ = 1 or at the noise that was given, with its score and the price of choosing."""
    fixed = {name: getattr(given, name) for name in OWN}
    chosen = read_method_options(given.method, given.settings, **{**fixed, **candidate})
    asked = default_epsilon(given)
    setting = asked.setting(task.examples, counted=True, assumptions=task.assumptions, unit=task.unit)
    plan = make_plan(given.method, setting, calibrate=False, **chosen)
    if given.private_metrics is not None:
        plan = plan_metrics(plan, task, given.private_metrics, None)
    return replace(plan, trials=Trials(given.mean_trials, given.shape, asked.epsilon or CEILINGS[-1]))


def _calibrate(plan: Plan, epsilon: float | None) -> Plan:
    """The plan with the noise for ε, or with the least ceiling that its given noise keeps under. The tails of the noise
    take what they may at most, for how many numbers get noise is known when a trial starts."""
    most = replace(plan, tails=SHARE * plan.delta)
    assert plan.trials is not None
    if epsilon is not None:
        if most.delta_left() <= 0:
            raise Refused(
                f"at ε = {epsilon:g} what trials lose of δ cannot be counted: give a smaller ε, or fewer trials"
            )
        return most.calibrated(epsilon)
    for ceiling in CEILINGS:
        found = replace(most, trials=replace(plan.trials, ceiling=ceiling))
        if found.guarantee().epsilon <= ceiling:
            return found
    raise Refused(f"with this noise the search costs more than ε = {CEILINGS[-1]:g}: give more noise, or fewer trials")


def _charge(given: Tuning, plan: Plan) -> None:
    """The whole search as one entry of the ledger, before its first trial."""
    if given.ledger is None:
        return
    account = Account(
        Ledger(given.ledger),
        DATASET if given.dataset is None else given.dataset,
        run=Secret.fresh().name[:16],
        method=f"tune {plan.method}",
        planned=plan.steps,
        cost=cost_of(plan.with_rounding()),
        new_dataset=given.new_dataset,
    )
    account.charge()


def _run_trial(
    given: Tuning, task: Problem, losses: Any, network: nn.Module, base: Plan, candidate: Candidate
) -> tuple[float, Made]:
    """Train one candidate in memory, from a copy of the network and under a secret of its own, and score it."""
    plan = replace(_make_plan(given, task, candidate), sigma=base.sigma, tails=base.tails, trials=base.trials)
    if not costs_the_same(base, plan):
        raise Refused("this candidate has another privacy event than the search was accounted for")
    run = _start(given, task, losses, network, plan)
    for _ in take_steps(run):
        pass
    evaluation = evaluate_problem(run.model, task)
    fields = make_fields(evaluation, task)
    told = choose_released(run, task, evaluation, RunDirectory(None, False), public=given.public_test, fields=fields)
    return _score(told), Made(run, told)


def _start(given: Tuning, task: Problem, losses: Any, network: nn.Module, plan: Plan) -> Run:
    """A run of the plan before its first step; refused for what would fail in every trial alike."""
    return plan.start(
        copy.deepcopy(network),  # a factory may give one object again, and trials must not go on from each other
        losses,
        task.train,
        unit=task.whose,
        rows_per_unit=given.rows_per_unit,
        microbatch=given.microbatch,
    )


def _score(told: dict[str, Any]) -> float:
    """Accuracy, or less loss: of public rows exactly, of private ones by the counts with noise alone."""
    if "private_metrics" in told:
        return float(told["private_metrics"]["figures"]["accuracy"])
    figures = told["test_figures"]
    accuracy, loss = figures.get("test_accuracy"), figures.get("test_loss")
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
        **winner.made.figures,
        "out": None if given.out is None else str(given.out),
        "release": None if released is None else str(released),
        "sentence": str(guarantee),
    }
    if given.as_json:
        show_json(result)
        return
    show(f"score {winner.score:.4g} with " + ", ".join(f"{k} = {v:.4g}" for k, v in winner.candidate.items()))
    show(f"the winner alone would be ε = {rounded_up(alone.epsilon)}; the search is what the data have paid for:")
    show(result["sentence"])
    if released is not None:
        show(f"released, may be copied: {released}")


def _release(given: Tuning, task: Problem, run: Run, winner: Winner[Made]) -> Path | None:
    if given.out is None:
        return None
    writable_directory(given.out)
    told = {**winner.made.figures, "chosen": {"parameters": winner.candidate, "score": winner.score}}
    named = given.dataset or task.name
    return run.release(given.out / RELEASE, description=task.describe(), dataset=named, figures=told)
