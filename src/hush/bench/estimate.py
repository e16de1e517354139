"""How long a sweep will take, from a few timed steps.

Every (problem, method) is timed at its smallest batch, and once a problem at the largest, which tells how the time of
a step grows with the batch; the rest is interpolated. Timing stops when its own budget is spent, and what was not
timed is taken from the same problem's other methods.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hush.bench.run import load
from hush.bench.trial import Trial
from hush.errors import HushError
from hush.methods import make_plan
from hush.problems import Problem
from hush.problems.evaluate import evaluate
from hush.randomness import seeded

STEPS = 3  # timed, after one that is not
ROWS = 1000  # test rows evaluated
BUDGET = 60.0  # seconds of timing
TIMED_PLAN = 64  # steps of the plan whose first few are timed


@dataclass(frozen=True)
class Estimate:
    """Seconds for all trials on one worker, and from how many timed settings; or why there is none."""

    seconds: float | None
    timed: int = 0
    reason: str = ""


def estimate(trials: Sequence[Trial], *, budget: float = BUDGET) -> Estimate:
    """Time some steps of some trials and add up; a problem whose data is missing gives a reason instead."""
    times = _Times(budget)
    try:
        seconds = sum(times.of(trial) for trial in _smallest_first(trials))
    except Exception as error:
        reason = str(error) if isinstance(error, HushError) else f"{type(error).__name__} while its steps were timed"
        return Estimate(None, len(times.known), reason)
    return Estimate(seconds, len(times.known))


def _smallest_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda t: (t.problem, t.settings["batch_size"]))


class _Times:
    def __init__(self, budget: float) -> None:
        self.ends = time.perf_counter() + budget
        self.known: dict[tuple[str, str], tuple[int, float]] = {}
        self.growth: dict[str, float] = {}  # seconds a step per further example
        self.evaluation: dict[str, float] = {}

    def of(self, trial: Trial) -> float:
        """Seconds of one trial: its steps and its evaluations."""
        problem = load(trial.problem, trial.split_seed, trial.validation)
        if trial.problem not in self.evaluation:
            self.evaluation[trial.problem] = _evaluation(problem)
        steps, evaluations = _length(trial, problem)
        return steps * self._step(trial, problem) + evaluations * self.evaluation[trial.problem]

    def _step(self, trial: Trial, problem: Problem) -> float:
        name, batch = (trial.problem, trial.method), int(trial.settings["batch_size"])
        if name not in self.known:
            others = [found for (p, _), found in self.known.items() if p == trial.problem]
            if others and time.perf_counter() > self.ends:
                return max(seconds for _, seconds in others)
            self.known[name] = (batch, _timed(trial, problem))
        smallest, seconds = self.known[name]
        if batch == smallest:
            return seconds
        if trial.problem not in self.growth:
            in_time = time.perf_counter() < self.ends
            grown = (_timed(trial, problem) - seconds) / (batch - smallest) if in_time else seconds / smallest
            self.growth[trial.problem] = max(grown, 0.0)
        return seconds + self.growth[trial.problem] * (batch - smallest)


def _length(trial: Trial, problem: Problem) -> tuple[int, int]:
    """(steps, evaluations) of a trial, without making its plan."""
    per_epoch = -(-len(problem.train) // int(trial.settings["batch_size"]))
    steps = trial.settings.get("steps") or max(1, round(trial.settings.get("epochs", 30) * per_epoch))
    return int(steps), -(-int(steps) // max(1, round(trial.evaluate_every * per_epoch)))


def _timed(trial: Trial, problem: Problem) -> float:
    """Seconds of one step: the best of a few, in a short plan with some noise."""
    settings: dict[str, Any] = {name: value for name, value in trial.settings.items() if name != "epochs"}
    settings["steps"] = min(TIMED_PLAN, settings.get("steps", TIMED_PLAN))
    plan = make_plan(trial.method, examples=len(problem.train), calibrate=False, **settings, **trial.options)
    with seeded(trial.seed):
        model = problem.model()
    run = plan.start(model, problem.losses, problem.train)
    model.train()
    best = float("inf")
    for batch in run.batches():
        clock = time.perf_counter()
        run.step(batch)
        best = min(best, time.perf_counter() - clock) if batch.step else best
        if batch.step >= min(STEPS, plan.steps - 1):
            break
    return best if best < float("inf") else 0.0


def _evaluation(problem: Problem) -> float:
    """Seconds to evaluate the test and the validation part, from some test rows."""
    with seeded(0):
        model = problem.model()
    test, held = problem.test, problem.validation
    some = test.take(torch.arange(min(ROWS, len(test))))
    rows = some if isinstance(some, torch.Tensor) else tuple(some)
    clock = time.perf_counter()
    evaluate(model, rows, problem.losses, classes=problem.classes)
    seconds = time.perf_counter() - clock
    return seconds * (len(test) + (0 if held is None else len(held))) / min(ROWS, len(test))
