"""Sweeps over learning rates: cells of a spec, the rate that held-out rows choose in each, and that rate's seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hush.bench.spec import read_spec
from hush.bench.trial import Trial
from published import records
from published.records import Record, tell_values


@dataclass(frozen=True)
class Merit:
    """What is compared: ``sign`` is −1 where less is better. With one seed, less than ``margin`` is no difference."""

    figure: str
    scale: float
    sign: float
    margin: float
    relative: bool  # whether the margin is a share of the figure

    def of(self, run: Record, part: str = "test") -> float:
        """The figure of a run."""
        return self.scale * run[f"{part}_{self.figure}"]


ACCURACY = Merit("accuracy", 100.0, 1.0, 1.0, relative=False)
LOSS = Merit("loss", 1.0, -1.0, 0.01, relative=True)


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
    runs: tuple[Record, ...]
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
    def seeds(self) -> list[Record]:
        """All finished runs at the chosen rate."""
        if self.best is None:
            return []
        own = {"problem", "method", "epsilon", "batch_size", "epochs", "options"}
        same = [r for r in self.more if all(r["config"].get(k) == self.best["config"].get(k) for k in own)]
        return [self.best, *(r for r in same if r["key"] != self.best["key"] and r["outcome"] == "finished")]

    @property
    def values(self) -> list[float]:
        """The test figure of every seed."""
        return [find_merit(self.seeds).of(run) for run in self.seeds]

    def tell(self) -> str:
        """Mean and deviation of the seeds with the rate, or what is missing."""
        if not self.complete:
            return f"{len(self.runs)} of {len(self.trials)} rates are in"
        if self.best is None:
            return "diverged at every rate"
        return f"{tell_values(self.values)}, lr {find_rate(self.best):g}{self.tell_edge()}"

    def tell_edge(self) -> str:
        """A mark where the chosen rate is the smallest or largest of those tried, so that a better may lie beyond."""
        rates = sorted(float(trial.options["lr"]) for trial in self.trials)
        at = None if self.best is None else find_rate(self.best)
        return "" if at not in (rates[0], rates[-1]) else " ▾" if at == rates[0] else " ▴"


def find_rate(run: Record) -> float:
    """The learning rate of a run."""
    return float(run["config"]["options"]["lr"])


def read_cells(name: str, *finer: str) -> list[Cell]:
    """The cells of a sweep in the order of its spec, with the rates that finer specs add; the seeds of its winners
    where they have been run."""
    names = (name, *finer)
    found = {record["key"]: record for each in names for record in records.read(each)}
    more = tuple(records.read(name.replace("-reduced", "-winners"))) if name.endswith("-reduced") else ()
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
    """Two lists of figures: by how much the first is better, and whether that is more than chance or the margin."""

    first: Sequence[float]
    second: Sequence[float]
    merit: Merit = ACCURACY

    @property
    def lead(self) -> float:
        """Positive where the first is better."""
        return self.merit.sign * (statistics.mean(self.first) - statistics.mean(self.second))

    @property
    def bar(self) -> float:
        """Two standard errors of the difference; the margin where either has one seed."""
        if min(len(self.first), len(self.second)) < 2:
            return self.merit.margin * (abs(statistics.mean(self.second)) if self.merit.relative else 1.0)
        errors = [statistics.variance(values) / len(values) for values in (self.first, self.second)]
        return float(2 * sum(errors) ** 0.5)

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind`` or ``level``."""
        if abs(self.lead) <= self.bar:
            return "level"
        return "ahead" if self.lead > 0 else "behind"


def compare(first: Cell, second: Cell) -> Comparison:
    """Two cells at their chosen rates."""
    return Comparison(first.values, second.values, find_merit([*first.seeds, *second.seeds]))
