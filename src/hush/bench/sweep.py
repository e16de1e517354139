"""A sweep: the trials of a spec that a store does not hold yet, carried out; and the tally that people watch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hush.bench.execute import Executor, Job
from hush.bench.run import Conditions
from hush.bench.spec import Spec
from hush.bench.store import Store
from hush.bench.trial import Trial


@dataclass(frozen=True)
class Group:
    """One line of the live table."""

    problem: str
    method: str
    runs: int
    done: int
    running: int
    failed: int
    diverged: int


@dataclass
class Tally:
    """How far a sweep is. ``skipped`` were in the store before; ``done`` and ``failed`` were finished since."""

    store: Store
    trials: tuple[Trial, ...]
    before: frozenset[str] = frozenset()
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def refresh(self) -> None:
        """Read the records that have appeared since."""
        wanted = {trial.key for trial in self.trials}
        for key in (self.store.keys() & wanted) - set(self.outcomes):
            record = self.store.record(key)
            self.outcomes[key] = record["outcome"]
            self.seconds[key] = record["seconds"]

    @property
    def skipped(self) -> int:
        """Runs of the spec that the store held at the start."""
        return len(self.before)

    def count(self, *outcomes: str) -> int:
        """Runs with one of these outcomes that were not there at the start."""
        return sum(1 for key, outcome in self.outcomes.items() if key not in self.before and outcome in outcomes)

    def summary(self) -> dict[str, int]:
        """The fields of `hush bench --json`; a diverged run is done, as it is a finding. runs = done+failed+skipped."""
        return {
            "runs": len(self.trials),
            "done": self.count("finished", "diverged"),
            "failed": self.count("failed"),
            "skipped": self.skipped,
            "diverged": self.count("diverged"),
        }

    def groups(self) -> list[Group]:
        """The table by problem and method."""
        running = set(self.store.claims.held()) - set(self.outcomes)
        found: dict[tuple[str, str], Counter[str]] = {}
        for trial in self.trials:
            counts = found.setdefault((trial.problem, trial.method), Counter())
            counts["runs"] += 1
            counts["running"] += trial.key in running
            counts[self.outcomes.get(trial.key, "left")] += 1
        return [
            Group(*names, c["runs"], c["finished"] + c["diverged"], c["running"], c["failed"], c["diverged"])
            for names, c in found.items()
        ]

    def time_left(self) -> float | None:
        """Seconds, from the mean time of the runs that finished since the start; None before the first."""
        new = [key for key in self.outcomes if key not in self.before]
        if not new:
            return None
        left = len(self.trials) - len(self.outcomes)
        return (time.monotonic() - self.started) / len(new) * left


def sweep(
    spec: Spec,
    store: Store,
    executor: Executor,
    *,
    settings: Conditions | None = None,
    retry_failed: bool = False,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Carry out what is left of a spec; a failed run is kept as it is unless ``retry_failed``."""
    store.tidy()
    if retry_failed:
        _forget_failed(store, spec.trials)
    before = frozenset(trial.key for trial in spec.trials if store.has(trial.key))
    tally = Tally(store, spec.trials, before=before)
    tally.refresh()
    left = tuple(trial for trial in spec.trials if trial.key not in before)

    def look() -> None:
        tally.refresh()
        watch(tally)

    if left:
        executor.carry_out(Job(store.root, left, settings or Conditions(weights=spec.weights)), look)
    look()
    store.tidy()
    return tally


def _forget_failed(store: Store, trials: Iterable[Trial]) -> None:
    for trial in trials:
        if store.has(trial.key) and store.record(trial.key)["outcome"] == "failed":
            store.forget(trial.key)
