"""Hyperparameter search with a proven guarantee: the best of a random, secret number of independent trials.

>>> import torch, hush
>>> from torch.nn.functional import cross_entropy
>>> x, y = torch.rand(200, 4), torch.randint(0, 2, (200,))
>>> def losses(model, batch):  # one loss per example
...     return cross_entropy(model(batch[0]), batch[1], reduction="none")
>>> def score(model):  # on public rows
...     return -float(losses(model, (x[:50], y[:50])).mean())
>>> network, trials = torch.nn.Linear(4, 2), {"mean_trials": 2, "steps": 4, "batch_size": 50}
>>> found = hush.tune(network, losses, (x, y), score=score, search={"lr": (0.1, 2.0)}, epsilon=3, **trials)
>>> 0.1 <= found.parameters["lr"] <= 2.0, found.guarantee.epsilon <= 3  # the ε covers the search
(True, True)

Papernot and Steinke 2022 (*Hyperparameter tuning with Rényi differential privacy*): draw a number K from a truncated
negative binomial or Poisson distribution, run the same randomized mechanism K times independently, and release the
best. The Rényi divergence of the release is bounded by that of one trial and by the mean and shape of K
(`hush.accounting.selection.Trials`). The conditions of the proof, and how they are met here:

- *trials are independent and identically distributed*: every trial draws its candidate from one public distribution
  (`Range`, `Choice`) and its own secret from the operating system, and does not depend on other trials. A search that
  learns from earlier scores is a different mechanism.
- *one event bounds every trial*: candidates may change the clip norm, which scales the noise, and anything after the
  noise, but nothing that changes the event. A candidate with a different event is not run.
- *the score is public or part of the trial*: computed on rows declared public, or from noisy counts in the event.
- *nothing else is released*: K, losing trials and their scores stay in this process's memory. A failed trial gets the
  worst score. If there is no trial (Poisson) or all failed, the outcome is that there is no model.

The duration of a search reveals something about K to anyone who can measure it: keep it private too.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.random import Generator
from torch import nn

from hush._internal.tensors import Losses
from hush.accounting import events
from hush.accounting.accountant import MOST_IMPRECISE
from hush.accounting.guarantee import Guarantee
from hush.accounting.noise_precision import precision_of
from hush.accounting.noise_tails import SHARE
from hush.accounting.selection import Trials
from hush.errors import DistributedError, InvalidInputError, NotProvenError
from hush.ledger.book import Ledger
from hush.ledger.run_account import Account, cost_of
from hush.plan import Plan
from hush.randomness import Secret, generator, streams
from hush.release.folder import RELEASE
from hush.run import Run
from hush.run_directory import RunDirectory, open_search
from hush.training import plan_for_data, train_in_memory

Model = TypeVar("Model")
Candidate = dict[str, Any]
CEILINGS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)  # of the ε of a search whose noise was given
SCORED_PUBLICLY = "the trials are scored on public data alone"
TRIAL_PAIRS = 10**8  # pairs of numbers of noise in one trial, at most: coordinates times steps, over two


@dataclass(frozen=True)
class Range:
    """Numbers between two positive bounds, uniform in the logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise InvalidInputError(
                f"a search range needs two positive numbers, the smaller one first, got {self.low}..{self.high}"
            )

    def pick(self, uniform: float) -> Any:
        """Map a uniform number in [0, 1) to a value."""
        return self.low * (self.high / self.low) ** uniform

    def ends(self) -> list[Any]:
        """The smallest and the largest value."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Choice:
    """One of these values, with equal probability."""

    values: tuple[Any, ...]

    def pick(self, uniform: float) -> Any:
        """Map a uniform number in [0, 1) to a value."""
        return self.values[int(uniform * len(self.values))]

    def ends(self) -> list[Any]:
        """All values."""
        return list(self.values)


Space = Mapping[str, Range | Choice]


@dataclass(frozen=True)
class Winner(Generic[Model]):
    """The best trial: its settings, its score and its model."""

    candidate: Candidate
    score: float
    made: Model


def _draw_candidate(space: Space, source: Generator) -> Candidate:
    """Draw one candidate from the search space."""
    return {name: kind.pick(float(source.random())) for name, kind in space.items()}


def check_space(space: Space, make: Callable[[Candidate], Plan]) -> Plan:
    """The plan that accounts for every trial; raises if an end of the space has a different privacy event."""
    middle = {name: kind.pick(0.5) for name, kind in space.items()}
    plan = make(middle)
    for name, kind in space.items():
        for value in kind.ends():
            if not _costs_the_same(plan, make({**middle, name: value})):
                raise NotProvenError(
                    f"'{name}' changes the privacy event, but all trials must have the same one: search over settings "
                    "that leave the event unchanged, such as lr and clip"
                )
    return plan


def _costs_the_same(plan: Plan, other: Plan) -> bool:
    """Whether two plans have the same event, δ and extra δ, so that one cost holds for both."""
    return _list_price(plan) == _list_price(other)


def _list_price(plan: Plan) -> tuple[Any, ...]:
    return events.to_json(plan.event()), plan.delta, plan.delta_left(), plan.neighbours, plan.composed, plan.trials


def price_search(
    space: Space, make: Callable[[Candidate], Plan], *, epsilon: float | None, mean_trials: float, shape: float
) -> Plan:
    """The plan that every trial is accounted by, with the noise for which the whole search costs ``epsilon``.

    ``make`` gives the plan of a candidate; without an ε the noise is the plan's, and the plan gets the smallest ceiling
    above the cost of the search. The finite precision of the noise is that of `TRIAL_PAIRS` pairs, and the tails of
    noise that is not independent take their largest share of δ, because the number of coordinates is known only when a
    trial starts."""
    trials = Trials(mean_trials, shape, epsilon or CEILINGS[-1])
    plan = check_space(space, lambda candidate: replace(make(candidate), trials=trials))
    independent = plan.draws_independently
    most = (
        replace(plan, precision=precision_of(TRIAL_PAIRS)) if independent else replace(plan, tails=SHARE * plan.delta)
    )
    if most.precision is not None:
        least = (1 + math.exp(min(epsilon or CEILINGS[0], 700.0))) * trials.imprecise(most.precision).delta
        if least > MOST_IMPRECISE * plan.delta:
            raise NotProvenError(
                f"the finite precision of the noise of all trials takes more than a tenth of δ = {plan.delta:g}: "
                "give a larger δ, a smaller ε or fewer trials"
            )
    if epsilon is not None:
        if most.delta_left() <= 0:
            raise NotProvenError(
                f"at ε = {epsilon:g} the δ that trials lose cannot be bounded: give a smaller ε, or fewer trials"
            )
        return most.with_epsilon(epsilon)
    for ceiling in CEILINGS:
        found = replace(most, trials=replace(trials, ceiling=ceiling))
        if found.guarantee().epsilon <= ceiling:
            return found
    raise NotProvenError(
        f"with this noise the search costs more than ε = {CEILINGS[-1]:g}: give more noise, or fewer trials"
    )


def charge_search(ledger: Ledger, dataset: str, plan: Plan, *, new_dataset: bool = False) -> None:
    """Enter the whole search in the ledger, before its first trial."""
    Account(
        ledger,
        dataset,
        run=Secret.fresh().name[:16],
        method=f"tune {plan.method}",
        planned=plan.steps,
        cost=cost_of(plan.with_arithmetic()),
        new_dataset=new_dataset,
    ).charge()


def run_trials(
    plan: Plan,
    space: Space,
    make: Callable[[Candidate], Plan],
    train: Callable[[Plan], tuple[float, Model]],
) -> Winner[Model] | None:
    """The best of a secret number of trials of a plan that `price_search` gave: ``train`` trains a copy of the model in
    memory under this plan, with its own secret, and scores it."""

    def run_trial(candidate: Candidate) -> tuple[float, Model]:
        own = replace(make(candidate), sigma=plan.sigma, tails=plan.tails, precision=plan.precision)
        own = replace(own, trials=plan.trials)
        if not _costs_the_same(plan, own):
            raise NotProvenError(
                "this candidate changes the privacy event that the search was accounted for: search other settings"
            )
        return train(own)

    assert plan.trials is not None
    return select_best(plan.trials, space, run_trial)


@dataclass(frozen=True)
class TuningResult:
    """The best trial: its model, settings and score, and the guarantee of the whole search."""

    model: nn.Module
    guarantee: Guarantee
    plan: Plan
    parameters: Mapping[str, Any]
    score: float
    directory: Path | None


def tune(
    model: nn.Module,
    losses: Losses,
    data: Any,
    *,
    score: Callable[[nn.Module], float],
    epsilon: float,
    search: Mapping[str, Range | Choice | tuple[float, float] | list[Any]] | None = None,
    mean_trials: float = 10.0,
    shape: float = 1.0,
    delta: float = 1e-5,
    method: str = "dp-sgd",
    groups: Any = None,
    directory: str | Path | None = None,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    new_dataset: bool = False,
    **options: Any,
) -> TuningResult | None:
    """Train with the best of a secret number of settings, at an ε that covers the search, as `hush tune` does.

    Args:
        model, losses, data, groups: as for `hush.train`; every trial starts from a copy of ``model``.
        score: ``score(model)``, the larger the better. It must use only public data, which becomes a condition of
            the guarantee, and must not print or store anything: only the best trial may be released.
        search: the settings drawn for every trial: ``(low, high)``, uniform in the logarithm, or a list of values. Only
            settings that do not change the privacy event, such as lr and clip; by default ``{"lr": (0.05, 5.0)}``.
        mean_trials, shape: the mean number of trials, and the shape of its distribution (1 geometric, 0 logarithmic,
            inf Poisson).
        directory: the folder of the release; a search cannot be resumed.
        ledger, dataset: the whole search is charged as one entry before the first trial.
        options: further settings of `hush.train` and of the method, such as epochs and batch_size.

    Returns None if the search gave no model, which is a possible outcome; its cost is spent.
    """
    if ledger is not None and dataset is None:
        raise InvalidInputError("a ledger needs the name of the data: give dataset='…'")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DistributedError("every process would release its own search: call hush.tune in one process")
    space = {name: _as_space(name, values) for name, values in (search or {"lr": (0.05, 5.0)}).items()}
    for name in sorted(space.keys() & options.keys()):
        raise InvalidInputError(f"'{name}' is searched and set: leave one of them out")
    conditions = (SCORED_PUBLICLY, *options.pop("assumptions", ()))
    given = {**options, "groups": groups, "delta": delta, "epsilon": epsilon, "assumptions": conditions}

    def make(candidate: Candidate) -> Plan:
        return plan_for_data(data, method, calibrate=False, **given, **candidate)

    def start(plan: Plan) -> Run:
        return plan.start(copy.deepcopy(model), losses, data, unit=groups, rows_per_unit=options.get("rows_per_unit"))

    def train(plan: Plan) -> tuple[float, Run]:
        run = start(plan)
        train_in_memory(run)
        return float(score(run.model)), run

    out = None if directory is None else Path(directory)
    with open_search(out):
        plan = price_search(space, make, epsilon=epsilon, mean_trials=mean_trials, shape=shape)
        first = start(plan)  # errors that every trial would have are raised before anything is charged
        first.check_arithmetic()
        RunDirectory(out, False).check_release(first, dataset=dataset or "")
        if ledger is not None and dataset is not None:
            opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
            charge_search(opened, dataset, plan, new_dataset=new_dataset)
        winner = run_trials(plan, space, make, train)
        if winner is None:
            return None
        run = winner.made
        if out is not None:
            chosen = {"chosen": {"parameters": winner.candidate, "score": winner.score}}
            run.release(out / RELEASE, dataset=dataset or "", metrics=chosen)
    return TuningResult(run.model, run.guarantee, plan, winner.candidate, winner.score, out)


def _as_space(name: str, values: Any) -> Range | Choice:
    if isinstance(values, Range | Choice):
        return values
    if isinstance(values, tuple) and len(values) == 2:
        return Range(*map(float, values))
    if isinstance(values, list) and values:
        return Choice(tuple(values))
    raise InvalidInputError(f"search takes (low, high) or a list of values for '{name}', got {values!r}")


def select_best(
    trials: Trials, space: Space, run_trial: Callable[[Candidate], tuple[float, Model]], secret: Secret | None = None
) -> Winner[Model] | None:
    """The best of a secret number of trials, or None if there is none; ``run_trial`` returns a score (larger is
    better) and its model. The other trials are discarded."""
    source = generator(secret or Secret.fresh(), streams.TRIALS, 0)
    best: Winner[Model] | None = None
    for _ in range(trials.count(float(source.random()))):
        found = _try(run_trial, _draw_candidate(space, source))
        if found is not None and (best is None or found.score > best.score):
            best = found
    return best


def _try(run_trial: Callable[[Candidate], tuple[float, Model]], candidate: Candidate) -> Winner[Model] | None:
    """Run a trial; one that fails for any reason, or whose score is NaN, gets the worst score."""
    try:
        with _keep_silent():
            score, made = run_trial(candidate)
    except Exception:  # the error may quote the data, and whether it occurs may depend on the data
        return None
    return Winner(candidate, score, made) if math.isfinite(score) else None


@contextmanager
def _keep_silent() -> Iterator[None]:
    """Suppress warnings and log lines: once per trial, they would reveal the number of trials."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def read_space(texts: list[str]) -> dict[str, Range | Choice]:
    """``lr=0.1..2`` is a range, ``clip=0.5,1,2`` a choice."""
    found: dict[str, Range | Choice] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        low, dots, high = values.partition("..")
        try:
            found[name] = Range(float(low), float(high)) if dots else Choice(tuple(map(float, values.split(","))))
        except ValueError as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(f"--search takes name=low..high or name=a,b,c, got '{text}'") from error
        if not equals or not name:
            raise InvalidInputError(f"--search takes name=low..high or name=a,b,c, got '{text}'")
    return found
