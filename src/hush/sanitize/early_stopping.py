"""Early stopping for method `sanitize`: two flags as pure functions of a series, and the ε that holds at a stop.

The series has one number per epoch, the mean standard deviation of the layer's noisy outputs. With a fixed C a flag is
raised where the line through the two end points of a window of ``length`` epochs is flat, |slope| ≤ threshold. With an
adaptive C the series keeps moving, and a flag is raised where it moves steadily: the least-squares slopes of two
consecutive windows, which overlap but for one epoch at either end, lie within ``tolerance`` of each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush._internal import validate
from hush.accounting.guarantee import Guarantee
from hush.errors import InvalidInputError
from hush.guarantees import account_steps
from hush.sanitize.privatised import PublishedLayer

if TYPE_CHECKING:
    from hush.plan import Plan
    from hush.run import Run

NONE = "none"  # no early stopping

STOPPED = "the run was stopped by what it had released, and how long it ran says something about the data too"
COUNTED = {True: "what is proven is the ε of all planned steps", False: "the ε of all planned steps is what is stated"}


@dataclass(frozen=True)
class Stop:
    """When a run of method `sanitize` stops: at the first epoch whose window of ``length`` epochs is flat to ``limit``,
    or with an ``adaptive`` C moves as steadily as that."""

    length: int
    limit: float
    adaptive: bool = False

    def flag(self, series: Sequence[float]) -> list[bool]:
        return (flag_steady if self.adaptive else flag_flat)(series, self.length, self.limit)

    def find(self, series: Sequence[float]) -> int | None:
        """The number of epochs after which the run stops, or None."""
        return find_stop(self.flag(series))


@dataclass
class EpochSpreads:
    """The series of mean spreads per epoch, updated with the metrics of each step."""

    per_epoch: int
    series: list[float] = field(default_factory=list)
    _steps: int = 0
    _total: float = 0.0
    _examples: float = 0.0

    def add(self, metrics: Mapping[str, float]) -> bool:
        """Add a step; returns whether it ended an epoch."""
        self._steps += 1
        self._total, self._examples = self._total + metrics["spread"], self._examples + metrics["examples"]
        if self._steps % self.per_epoch:
            return False
        self.series.append(self._total / max(self._examples, 1.0))
        self._total = self._examples = 0.0
        return True


@dataclass
class EarlyStopping:
    """Decides after every step of a run whether it ends, and after how many epochs.

    A resumed run passes the metrics of its earlier steps first."""

    optimizer: Stop
    spreads: EpochSpreads
    after: int | None = None

    def update(self, steps: Iterable[Mapping[str, float]]) -> bool:
        """Add these steps; return whether the run should stop."""
        for metrics in steps:
            if self.spreads.add(metrics) and self.after is None:
                self.after = self.optimizer.find(self.spreads.series)
        return self.after is not None

    def describe(self, plan: Plan, steps: int) -> dict[str, Any] | None:
        """The stop as fields of the answer and of the privacy card; None if there was none. ``steps`` were taken: a
        resumed run may have taken more than the epochs after which the rule stopped."""
        if self.after is None:
            return None
        early = state_stop(account_steps(plan)[0], account_steps(plan, steps)[0])[1]
        said = {"epsilon_there": early.epsilon, "status": early.status, "reason": early.reason}
        return {"after_epochs": self.after, "steps": steps, **said}


def watch_epochs(steps: Iterable[Mapping[str, float]], per_epoch: int) -> Iterator[float]:
    """The mean spread of every completed epoch, from the metrics of a run's steps."""
    spreads = EpochSpreads(per_epoch)
    return (spreads.series[-1] for metrics in steps if spreads.add(metrics))


def take_until(steps: Iterable[Mapping[str, float]], stop: Stop, per_epoch: int) -> int | None:
    """Take the steps of a run of method `sanitize`, ``(record.numbers() for record in hush.training.take_steps(run))``,
    until ``stop`` raises its flag. Returns the number of epochs, or None if all steps were taken. The guarantees of the
    stopped run are ``state_stop(plan.guarantee(), plan.guarantee(epochs * per_epoch))``."""
    stopping = EarlyStopping(stop, EpochSpreads(per_epoch))
    for metrics in steps:
        if stopping.update([metrics]):
            break
    return stopping.after


def find_chord_slope(window: Sequence[float]) -> float:
    """The slope of the line through a window's first and last value."""
    return (window[-1] - window[0]) / (len(window) - 1)


def fit_slope(window: Sequence[float]) -> float:
    """The slope of the least-squares line: Σ(x − x̄)y/Σ(x − x̄)², x = 0, 1, …."""
    middle = (len(window) - 1) / 2
    around = [x - middle for x in range(len(window))]
    return math.fsum(a * y for a, y in zip(around, window, strict=True)) / math.fsum(a * a for a in around)


def flag_flat(series: Sequence[float], length: int, threshold: float) -> list[bool]:
    """For each epoch, whether the window that ends there is flat; False before the first full window."""
    _check(series, length)
    validate.non_negative(threshold=threshold)
    slopes = _slide(series, length, find_chord_slope)
    return [slope is not None and abs(slope) <= threshold for slope in slopes]


def flag_steady(series: Sequence[float], length: int, tolerance: float) -> list[bool]:
    """For each epoch whether the windows that end there and one epoch before have slopes within ``tolerance``."""
    _check(series, length)
    validate.non_negative(tolerance=tolerance)
    slopes = _slide(series, length, fit_slope)
    return [
        now is not None and before is not None and abs(now - before) <= tolerance
        for before, now in zip([None, *slopes], slopes, strict=False)
    ]


def find_stop(flags: Sequence[bool]) -> int | None:
    """The number of epochs until the first flag; None without a flag."""
    return flags.index(True) + 1 if True in flags else None


def state_stop(planned: Guarantee, at_stop: Guarantee) -> tuple[Guarantee, ...]:
    """The guarantees of a run that stopped because of its own releases: the ε of the whole plan, and the smaller ε of
    the steps taken with status "claimed", because the time of the stop depends on the data."""
    if at_stop.epsilon > planned.epsilon:
        raise InvalidInputError("a stop cannot cost more than the plan: give the plan's guarantee first")
    reason = "; ".join(filter(None, (STOPPED, COUNTED[planned.status == "proven"], at_stop.reason)))
    status = "claimed" if at_stop.status == "proven" else at_stop.status
    return planned, replace(at_stop, status=status, reason=reason)


def _slide(series: Sequence[float], length: int, find: Callable[[Sequence[float]], float]) -> list[float | None]:
    """The slope of the window that ends at each epoch; None before the first full window."""
    ends = range(1, len(series) + 1)
    return [find(series[end - length : end]) if end >= length else None for end in ends]


def _check(series: Sequence[float], length: int) -> None:
    validate.positive_int(length=length)
    if length < 2:
        raise InvalidInputError("a window needs at least 2 epochs to have a slope, got length 1")
    validate.finite(**{f"value {epoch} of the series": value for epoch, value in enumerate(series)})


def read_stop(text: str | None, plan: Plan) -> Stop | None:
    """Parse WINDOW:LIMIT for the plan's kind of threshold; None for no stop."""
    if text is None or text == NONE:
        return None
    if not isinstance(plan.trains_on, PublishedLayer):
        raise InvalidInputError(f"--stop needs method sanitize, not {plan.method}: give fewer --epochs instead")
    window, _, limit = text.partition(":")
    try:
        stop = Stop(int(window), float(limit), adaptive=plan.trains_on.threshold is not None)
    except ValueError as error:
        raise InvalidInputError(f"--stop takes epochs and a slope such as 10:1.2e-4, or none; got '{text}'") from error
    stop.flag([])  # raises for an invalid window or limit
    return stop


def watch_run(stop: Stop, run: Run, batch_size: int, log: Path | None) -> EarlyStopping:
    """The early stopping of a run; a resumed run reads its first steps from the ``log`` of its steps."""
    watch = EarlyStopping(stop, EpochSpreads(-(-len(run.source) // batch_size)))
    if run.ranks.world > 1:
        raise InvalidInputError("--stop works with one process only: leave it out under torchrun")
    lines = log.read_text().splitlines() if log is not None and run.next and log.exists() else []
    if len(lines) < run.next:
        raise InvalidInputError("the log of this run's steps, which --stop needs, is missing: resume with --stop none")
    watch.update(json.loads(line) for line in lines[: run.next])
    return watch
