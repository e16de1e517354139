"""Estimates how long a sweep will take from a few timed steps: no downloads, and no third-party code is called.

Every (problem, method) is timed at its smallest batch, and once per problem at the largest, which shows how the time
per step grows with the batch; the rest is interpolated. The fixed cost of every run and every privacy event is timed
too. CPU time is measured, so that other work on the machine does not count. Timing stops when its own budget is spent,
and what was not timed is taken from the same problem's other methods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hush.bench.trial import POINTS, Trial, configure_problem, load_problem
from hush.datasets.download import without_downloads
from hush.datasets.evaluation import evaluate
from hush.datasets.problem import Problem
from hush.errors import HushError, InvalidInputError
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import seeded

WARM, STEPS = 2, 7  # steps that are not timed, and steps of which the median is taken
ROWS = 1000  # test rows evaluated
BUDGET = 60.0  # seconds of timing
TIMED_PLAN = 64  # steps of the plan whose first few are timed
START = 4.0  # seconds until a worker has imported everything
SEARCH = 12  # accounts of a plan that a calibration takes, about


@dataclass(frozen=True)
class Estimate:
    """Seconds of every trial on one thread, and from how many timed settings; or why there is no estimate."""

    each: tuple[float, ...] | None
    timed: int = 0
    reason: str = ""

    def seconds(self, workers: int) -> float | None:
        """Seconds with this number of workers, each of which has to start; None if there is no estimate."""
        if self.each is None:
            return None
        busy = max(1, min(workers, len(self.each)))
        return max(sum(self.each) / busy, max(self.each)) + START if self.each else 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one (problem, method): a step at this batch, and an account of its privacy."""

    batch: int
    step: float
    first: float  # additional time of the first steps, in which the gradient engine checks itself
    account: float


def estimate(trials: Sequence[Trial], *, budget: float = BUDGET) -> Estimate:
    """Time some steps of some trials; a problem whose data is missing, or which is others' code, gives a reason."""
    times = _Times(budget)
    try:
        with without_downloads(), one_thread():
            each = tuple(times.of(trial) for trial in _smallest_first(trials))
    except Exception as error:
        reason = str(error) if isinstance(error, HushError) else f"{type(error).__name__} while its steps were timed"
        return Estimate(None, len(times.known), reason)
    return Estimate(each, len(times.known))


def _smallest_first(trials: Sequence[Trial]) -> list[Trial]:
    """By problem and batch; others' methods last, as they are not called and their time is taken from the rest."""
    return sorted(trials, key=lambda t: (t.problem, ":" in t.method, t.settings["batch_size"]))


class _Times:
    def __init__(self, budget: float) -> None:
        self.ends = time.perf_counter() + budget
        self.known: dict[tuple[str, str], Timing] = {}
        self.growth: dict[str, float] = {}  # seconds a step per further example
        self.evaluation: dict[str, float] = {}
        self.events: set[str] = set()

    def of(self, trial: Trial) -> float:
        """Seconds of one trial: its steps, its evaluations and its accounts."""
        if ":" in trial.problem:
            raise InvalidInputError(f"the problem '{trial.problem}' is code of others, which is not called to estimate")
        problem = load_problem(trial.problem, trial.split_seed, trial.validation)
        if trial.problem not in self.evaluation:
            self.evaluation[trial.problem] = _evaluation(problem)
        steps, evaluations = _length(trial, problem)
        cost = self._cost(trial, problem)
        step = cost.step + self._grown(trial, problem, cost)
        accounts = cost.account * self._accounts(trial, evaluations)
        return cost.first + steps * step + evaluations * self.evaluation[trial.problem] + accounts

    def _accounts(self, trial: Trial, evaluations: int) -> int:
        """How many ε are computed: three a run, and for a new event those of its curve and of its calibration."""
        event = repr((trial.problem, trial.method, sorted(trial.settings.items())))
        new = event not in self.events
        self.events.add(event)
        return 3 + new * (min(POINTS, evaluations) + SEARCH * ("epsilon" in trial.settings))

    def _cost(self, trial: Trial, problem: Problem) -> Timing:
        name = (trial.problem, trial.method)
        if name not in self.known:
            others = [found for (p, _), found in self.known.items() if p == trial.problem]
            if ":" in trial.method and not others:
                raise InvalidInputError(
                    f"the method '{trial.method}' is code of others, which is not called to estimate"
                )
            if others and (":" in trial.method or time.perf_counter() > self.ends):
                return max(others, key=lambda cost: cost.step)
            self.known[name] = _timed(trial, problem)
        return self.known[name]

    def _grown(self, trial: Trial, problem: Problem, cost: Timing) -> float:
        """Seconds by which a step takes longer than the timed one, for its larger batch."""
        more = int(trial.settings["batch_size"]) - cost.batch
        if more <= 0:
            return 0.0
        if trial.problem not in self.growth:
            in_time = time.perf_counter() < self.ends and ":" not in trial.method
            grown = (_timed(trial, problem).step - cost.step) / more if in_time else cost.step / cost.batch
            self.growth[trial.problem] = max(grown, 0.0)
        return self.growth[trial.problem] * more


def _length(trial: Trial, problem: Problem) -> tuple[int, int]:
    """(steps, evaluations) of a trial, without making its plan."""
    per_epoch = -(-problem.examples // int(trial.settings["batch_size"]))
    steps = trial.settings.get("steps") or max(1, round(trial.settings.get("epochs", 30) * per_epoch))
    return int(steps), -(-int(steps) // max(1, round(trial.evaluate_every * per_epoch)))


def _timed(trial: Trial, problem: Problem) -> Timing:
    """The cost of a short plan with some noise, its first steps taken."""
    settings: dict[str, Any] = {name: value for name, value in trial.of_plan.items() if name != "epochs"}
    settings["steps"] = min(TIMED_PLAN, settings.get("steps", TIMED_PLAN))
    settings |= {"examples": problem.examples, "unit": problem.unit, "calibrate": False}
    plan = make_plan(trial.method, **settings, **trial.options)
    return time_steps(plan, configure_problem(trial, problem, plan), seed=trial.seed)


def time_steps(plan: Plan, problem: Problem, *, seed: int = 0) -> Timing:
    """Seconds of the processor that the first few steps of a plan take on a problem; nothing of them is kept."""
    with seeded(seed):
        model = problem.model()
    run = plan.start(model, problem.training_losses, problem.train, unit=problem.whose)
    model.train()
    batches = run.batches()
    taken = [_clock(lambda: run.step(next(batches))) for _ in range(min(WARM + STEPS, plan.steps))]
    step = statistics.median(taken[WARM:] or taken)
    account = _clock(plan.guarantee) if plan.has_guarantee else 0.0
    return Timing(int(plan.divisor), step, max(0.0, sum(taken[:WARM]) - WARM * step), account)


def _evaluation(problem: Problem) -> float:
    """Seconds to evaluate the test and the validation part, from some test rows; the first time does not count."""
    with seeded(0):
        model = problem.model()
    test, held = problem.test, problem.validation
    some = test.take(torch.arange(min(ROWS, len(test))))
    rows = some if isinstance(some, torch.Tensor) else tuple(some)

    def once() -> None:
        evaluate(model, rows, problem.losses, classes=problem.classes)

    once()
    seconds = min(_clock(once) for _ in range(2))
    return seconds * (len(test) + (0 if held is None else len(held))) / min(ROWS, len(test))


def _clock(action: Callable[[], object]) -> float:
    """Seconds of the processor."""
    before = time.process_time()
    action()
    return time.process_time() - before


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: workers share out the cores, usually one for each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
