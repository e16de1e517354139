"""A search for good settings whose result is proven: the best of a random, secret number of independent trials.

Papernot and Steinke 2022 (*Hyperparameter tuning with Rényi differential privacy*): draw a number K from a truncated
negative binomial or Poisson distribution, run the same randomised mechanism K times, each time on its own, and release
the best. The Rényi divergence of what is released is bounded by that of one trial, K's mean and shape
(`hush.accounting.selection.Trials`). What the proof needs, and what is done for it here:

- *trials are independent and alike*: every trial draws its candidate anew from one public distribution (`Range`,
  `Choice`), its own secret from the operating system, and looks at nothing that another trial gave. A search that
  learns from earlier scores is not this mechanism.
- *one event bounds every trial*: candidates may change what is done after the noise and the clip, which scales the
  noise with it, and nothing that changes the event. A candidate with another event is not run.
- *the score is public or part of the trial*: on rows declared public, or by counts with noise that the event holds.
- *nothing else is released*: K, losing trials and their scores stay in this process's memory. A trial that fails has
  the worst score. Where there is no trial (Poisson) or every one failed, the outcome is that there is no model.

How long a search takes says something about K to whoever can time it: keep that to yourself too.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from hush.accounting import events
from hush.accounting.selection import Trials
from hush.errors import InvalidInputError, Refused
from hush.plan import Plan
from hush.randomness import Secret, generator, streams

Model = TypeVar("Model")
Candidate = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """Numbers between two positive ones, evenly in their logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise InvalidInputError(
                f"a range to search goes from a positive number to a larger one, got {self.low}..{self.high}"
            )

    def pick(self, uniform: float) -> Any:
        """The number that belongs to a uniform one in [0, 1)."""
        return self.low * (self.high / self.low) ** uniform

    def ends(self) -> list[Any]:
        """Its smallest and largest."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Choice:
    """One of these, each as likely."""

    values: tuple[Any, ...]

    def pick(self, uniform: float) -> Any:
        """The value that belongs to a uniform number in [0, 1)."""
        return self.values[int(uniform * len(self.values))]

    def ends(self) -> list[Any]:
        """All of them."""
        return list(self.values)


Space = Mapping[str, Range | Choice]


@dataclass(frozen=True)
class Winner(Generic[Model]):
    """The best trial: its settings, its score and what it made."""

    candidate: Candidate
    score: float
    made: Model


def draw_candidate(space: Space, source: Generator) -> Candidate:
    """Settings drawn anew from the space."""
    return {name: kind.pick(float(source.random())) for name, kind in space.items()}


def check_space(space: Space, make: Callable[[Candidate], Plan]) -> Plan:
    """The plan that every trial is accounted by; refused where an end of the space has another privacy event."""
    middle = {name: kind.pick(0.5) for name, kind in space.items()}
    plan = make(middle)
    for name, kind in space.items():
        for value in kind.ends():
            if not costs_the_same(plan, make({**middle, name: value})):
                raise Refused(
                    f"'{name}' changes the privacy event, and the price of the choice is that of its costliest trial: "
                    "search over what leaves the event as it is, such as lr and clip"
                )
    return plan


def costs_the_same(plan: Plan, other: Plan) -> bool:
    """Whether two plans have the same event, δ and losses of it, so that one price holds for both."""
    return _list_price(plan) == _list_price(other)


def _list_price(plan: Plan) -> tuple[Any, ...]:
    return events.to_json(plan.event()), plan.delta, plan.delta_left(), plan.neighbours, plan.beside, plan.trials


def select_best(
    trials: Trials, space: Space, run_trial: Callable[[Candidate], tuple[float, Model]], secret: Secret | None = None
) -> Winner[Model] | None:
    """The best of a secret number of trials, or None where there is none; ``run_trial`` gives a score, the larger the
    better, and what it made. Nothing of the others is kept."""
    source = generator(secret or Secret.fresh(), streams.TRIALS, 0)
    best: Winner[Model] | None = None
    for _ in range(trials.count(float(source.random()))):
        found = _try(run_trial, draw_candidate(space, source))
        if found is not None and (best is None or found.score > best.score):
            best = found
    return best


def _try(run_trial: Callable[[Candidate], tuple[float, Model]], candidate: Candidate) -> Winner[Model] | None:
    """A trial that fails, or whose score is no number, is the worst there is, whatever the reason."""
    try:
        with _keep_silent():
            score, made = run_trial(candidate)
    except Exception:  # what it says may quote the data, and that it failed may depend on them
        return None
    return Winner(candidate, score, made) if math.isfinite(score) else None


@contextmanager
def _keep_silent() -> Iterator[None]:
    """Without warnings and log lines: said once a trial, they would count the trials."""
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
