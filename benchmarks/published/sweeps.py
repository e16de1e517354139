"""Sweeps over learning rates: cells of a spec, the rate that held-out rows choose in each, and that rate's seeds.

Two cells are compared by the 95 % interval of the difference of their means (Welch 1947),
± t_{0.975,ν}·√(s₁²/n₁ + s₂²/n₂).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import ttest_ind

from hush.bench.spec import read_spec
from hush.bench.trial import Trial
from published import records
from published.records import Record, list_moves, tell_values

SETUPS = {  # the specs that hold a setup's rates; NAME-winners has the seeds of those that were chosen
    "setup-1": ("setup-1-reduced",),
    "setup-2": ("setup-2", "setup-2-finer"),
    "setup-3": ("setup-3-reduced",),
}
AHEAD, BEHIND, OPEN, ALONE = "ahead", "behind", "not distinguishable", "single runs"
LOST = "not judged, a seed diverged"
LAST = 2  # epochs at the end of a run over which a loss is looked at for how far it still moves


@dataclass(frozen=True)
class Merit:
    """What is compared: ``sign`` is −1 where less is better."""

    figure: str
    scale: float
    sign: float

    def of(self, run: Record, part: str = "test") -> float:
        """The figure of a run."""
        return self.scale * run[f"{part}_{self.figure}"]


ACCURACY = Merit("accuracy", 100.0, 1.0)
LOSS = Merit("loss", 1.0, -1.0)


def find_merit(runs: Sequence[Record]) -> Merit:
    """Accuracy where the runs have one."""
    return ACCURACY if all(run.get("test_accuracy") is not None for run in runs) else LOSS


@dataclass(frozen=True)
class Cell:
    """One problem, method, ε and batch size: its trials, one a learning rate, and the runs of them that are in."""

    problem: str
    method: str
    epsilon: float
    batch: int
    trials: tuple[Trial, ...]
    runs: tuple[Record, ...]  # a run that failed for another reason than its rate is not one
    more: tuple[Record, ...] = ()  # other seeds of the rate that was chosen

    @property
    def complete(self) -> bool:
        """Whether every rate has been run, so that one may be chosen."""
        return len(self.runs) == len(self.trials)

    @property
    def finished(self) -> list[Record]:
        """The runs that did not diverge or fail."""
        return [run for run in self.runs if run["outcome"] == "finished"]

    @property
    def best(self) -> Record | None:
        """The run that held-out rows choose; the smaller rate where two are level. None while rates are missing."""
        if not self.complete or not self.finished:
            return None
        merit = find_merit(self.finished)
        return max(self.finished, key=lambda run: (merit.sign * merit.of(run, "validation"), -find_rate(run)))

    @property
    def diverged(self) -> bool:
        """Whether every rate has been run, and none to its end."""
        return self.complete and not self.finished

    def _list_more(self) -> list[Record]:
        if self.best is None:
            return []
        own = {"problem", "method", "epsilon", "batch_size", "epochs", "options"}
        same = [r for r in self.more if all(r["config"].get(k) == self.best["config"].get(k) for k in own)]
        return [r for r in same if r["key"] != self.best["key"]]

    @property
    def seeds(self) -> list[Record]:
        """All finished runs at the chosen rate, that which was chosen first."""
        more = [r for r in self._list_more() if r["outcome"] == "finished"]
        return [] if self.best is None else [self.best, *more]

    @property
    def lost(self) -> int:
        """Seeds of the chosen rate that diverged."""
        return sum(r["outcome"] == "diverged" for r in self._list_more())

    @property
    def values(self) -> list[float]:
        """The test figure of every seed."""
        return [find_merit(self.seeds).of(run) for run in self.seeds]

    def tell_values(self) -> str:
        """Mean and deviation of the seeds, with a mark where the rate is at an end of those tried."""
        return f"{tell_values(self.values)}{self._tell_lost()}{self.tell_edge()}"

    def notify(self) -> str:
        """Mean and deviation of the seeds with the rate, or what is missing."""
        if not self.complete:
            return f"{len(self.runs)} of {len(self.trials)} rates are in"
        if self.best is None:
            return "diverged at every rate"
        rate = f"lr {find_rate(self.best):g}{self.tell_edge()}{self.tell_diverged()}"
        return f"{tell_values(self.values)}{self._tell_lost()}, {rate}"

    def _tell_lost(self) -> str:
        return f", {self.lost} more diverged" if self.lost else ""

    def tell_diverged(self) -> str:
        """The rates that have no figure, in brackets."""
        rates = ", ".join(f"{find_rate(run):g}" for run in self.runs if run["outcome"] == "diverged")
        return f" (diverged at {rates})" if rates else ""

    def tell_edge(self) -> str:
        """A mark where the chosen rate is the smallest or largest of those tried, so that a better may lie beyond."""
        rates = sorted(float(trial.options["lr"]) for trial in self.trials)
        at = None if self.best is None else find_rate(self.best)
        return "" if at not in (rates[0], rates[-1]) else " ▾" if at == rates[0] else " ▴"


def find_rate(run: Record) -> float:
    """The learning rate of a run."""
    return float(run["config"]["options"]["lr"])


def read_setup(setup: str) -> list[Cell]:
    """The cells of a setup with all rates that were tried, and with the seeds of its winners."""
    return read_cells(*SETUPS[setup], winners=f"{setup}-winners")


def read_cells(*names: str, winners: str = "") -> list[Cell]:
    """The cells of specs in their order, with the rates of all of them; the seeds of the winners where they are run."""
    found = {r["key"]: r for each in names for r in records.read(each) if r["outcome"] in {"finished", "diverged"}}
    more = tuple(records.read(winners)) if winners else ()
    groups: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in (trial for each in names for trial in read_spec(records.SPECS / f"{each}.toml").trials):
        told = trial.problem, trial.method, trial.settings["epsilon"], trial.settings["batch_size"]
        groups.setdefault(told, []).append(trial)
    return [
        Cell(*told, tuple(trials), tuple(found[t.key] for t in trials if t.key in found), more)
        for told, trials in groups.items()
    ]


def find_cell(cells: Sequence[Cell], **wanted: Any) -> Cell | None:
    """The one cell with these attributes."""
    found = [cell for cell in cells if all(getattr(cell, k) == v for k, v in wanted.items())]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Comparison:
    """Two lists of figures: by how much the first is better, and whether that is more than chance.

    A lead of less than ``least`` does not count, however sure it is."""

    first: Sequence[float]
    second: Sequence[float]
    merit: Merit = ACCURACY
    least: float = 0.0
    whole: bool = True  # whether no seed of either diverged

    @property
    def lead(self) -> float:
        """Positive where the first is better."""
        return self.merit.sign * (statistics.mean(self.first) - statistics.mean(self.second))

    @property
    def reach(self) -> float | None:
        """Half of the 95 % interval of the lead (Welch); None where either has one seed."""
        if min(len(self.first), len(self.second)) < 2:
            return None
        if not any(statistics.variance(values) for values in (self.first, self.second)):
            return 0.0
        found = ttest_ind(self.first, self.second, equal_var=False).confidence_interval(0.95)
        return float(found.high - found.low) / 2

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind`` or ``not distinguishable``; of single runs, or where a seed diverged, none."""
        if not self.whole:
            return LOST
        if self.reach is None:
            return ALONE
        if abs(self.lead) <= max(self.reach, self.least):
            return OPEN
        return AHEAD if self.lead > 0 else BEHIND

    def cells(self) -> tuple[str, str, str]:
        """Lead, its interval, and the verdict."""
        if self.reach is None:
            return _sign(self.lead), "–", self.verdict
        return _sign(self.lead), self._tell_interval(), self._tell_verdict()

    def _tell_interval(self) -> str:
        assert self.reach is not None
        return f"{_sign(self.lead - self.reach)} to {_sign(self.lead + self.reach)}"

    def _tell_verdict(self) -> str:
        small = self.verdict == OPEN and self.reach is not None and abs(self.lead) > self.reach
        return self.verdict + (f", less than the {self.least:.1f} by which it still moves" if small else "")

    def notify(self) -> str:
        """The verdict, with the interval where there is one."""
        if self.reach is None:
            return f"{_sign(self.lead)}, {self.verdict}"
        verdict, _, why = self._tell_verdict().partition(",")
        return f"{verdict}: {_sign(self.lead)}, {self._tell_interval()}{f',{why}' if why else ''}"


def _sign(value: float) -> str:
    return "0.00" if value == 0 else f"{value:+.2f}".replace("-", "−")


def compare(first: Cell, second: Cell) -> Comparison:
    """Two cells at their chosen rates. A loss has to lead by more than it moves from one epoch to the next."""
    seeds = [*first.seeds, *second.seeds]
    merit = find_merit(seeds)
    moves = list_moves(seeds, "test_loss", LAST) if merit is LOSS else []
    least = statistics.mean(moves) if moves else 0.0
    return Comparison(first.values, second.values, merit, least, whole=not (first.lost or second.lost))
