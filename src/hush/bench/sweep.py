"""A sweep: the trials of a spec that a store does not hold yet, carried out; and the table that people watch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hush._internal import validate
from hush._internal.text import make_printable
from hush.bench.executors import RETRIES, Executor, Inline, Job, Local, count_cores
from hush.bench.ray_cluster import OnRay
from hush.bench.selection_cost import ChoicePrice, PricedChoice, Pricing, price_choices, price_store, read_number
from hush.bench.spec import Spec, check_spec, read_spec
from hush.bench.store import Store, open_store
from hush.bench.trial import RunOptions, Trial
from hush.errors import InvalidInputError


@dataclass(frozen=True)
class RunGroup:
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
            self.seconds[key] = read_number(record.get("seconds")) or 0.0

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

    def groups(self) -> list[RunGroup]:
        """The table by problem and method."""
        running = self.store.locks.held() - set(self.outcomes)
        found: dict[tuple[str, str], Counter[str]] = {}
        for trial in self.trials:
            counts = found.setdefault((trial.problem, trial.method), Counter())
            counts["runs"] += 1
            counts["running"] += trial.key in running
            counts[self.outcomes.get(trial.key, "left")] += 1
        return [
            RunGroup(*names, c["runs"], c["finished"] + c["diverged"], c["running"], c["failed"], c["diverged"])
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
    settings: RunOptions | None = None,
    retry_failed: bool = False,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run the remaining trials of a spec; failed runs are not repeated unless ``retry_failed``."""
    store.check_unfinished(trial.key for trial in spec.trials if retry_failed or not store.has(trial.key))
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
        executor.run_all(Job(store.root, left, settings or RunOptions(weights=spec.weights)), look)
    look()
    store.tidy()
    return tally


@dataclass(frozen=True)
class BenchResult:
    """What `run_bench` did. ``counts`` has the runs of the spec and how they ended, ``choices`` the best run of every
    group with the ε of choosing it, and ``total`` the price of all private runs of the store together."""

    store: Store
    counts: Mapping[str, int]
    choices: tuple[PricedChoice, ...]
    total: ChoicePrice

    def to_json(self) -> dict[str, Any]:
        """The fields of `hush bench --json`."""
        return {**self.counts, "choices": [choice.to_json() for choice in self.choices], "total": vars(self.total)}


def run_bench(
    spec: str | Path | Spec,
    store: str | Path,
    *,
    executor: str = "inline",
    workers: int | None = None,
    retries: int | None = None,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    retry_failed: bool = False,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> BenchResult:
    """Run every run of a spec that the store does not hold yet, as `hush bench` does.

    >>> result = hush.run_bench("specs/setup-1-small.toml", "runs/setup-1")  # doctest: +SKIP
    >>> result.counts["done"], result.total.epsilon  # doctest: +SKIP

    Args:
        spec: a TOML file (docs/bench.md), or what `hush.bench.spec.read_spec` gives.
        store: the directory that collects the runs; made if it does not exist. Interrupted, the same call continues.
        executor: ``inline`` (this process), ``local`` (processes on this machine, as the command does; a script then
            needs ``if __name__ == "__main__":``) or ``ray`` (a cluster).
        workers: runs at a time; ``retries``: how often a run is tried again whose process died. Not for ``inline``.
        address, cpus, gpus: for ``ray``, the cluster and what one run takes.
        retry_failed: continue failed runs as well.
        watch: called with a `Tally` whenever runs have finished.
    """
    chosen = make_executor(executor, ExecutorOptions(workers, retries, address, cpus, gpus))
    read = spec if isinstance(spec, Spec) else read_spec(spec)
    check_spec(read)
    opened = open_store(store)
    tally = sweep(read, opened, chosen, retry_failed=retry_failed, watch=watch)
    records, pricing = list(opened.records()), Pricing()  # of the whole store: runs of other specs were seen too
    choices = tuple(price_choices(records, pricing))
    return BenchResult(opened, tally.summary(), choices, price_store(records, pricing))


def _forget_failed(store: Store, trials: Iterable[Trial]) -> None:
    for trial in trials:
        if store.has(trial.key) and store.record(trial.key)["outcome"] == "failed":
            store.forget(trial.key)


@contextmanager
def show_live(*, console: Console | None = None) -> Iterator[Callable[[Tally], None]]:
    """Something to hand to ``sweep(watch=…)``: a table on a terminal, now and then a line elsewhere."""
    console = console or Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as shown:  # without a thread: see `hush._internal.progress`
            yield lambda tally: shown.update(make_table(tally), refresh=True)
    else:
        yield ProgressPrinter(console)


class ProgressPrinter:
    """A line whenever another tenth is done."""

    def __init__(self, console: Console) -> None:
        self._console, self._told = console, -1

    def __call__(self, tally: Tally) -> None:
        tenth = 10 * len(tally.outcomes) // max(1, len(tally.trials))
        if tenth != self._told:
            self._told = tenth
            self._console.print(_describe_progress(tally), soft_wrap=True)


def _describe_progress(tally: Tally) -> str:
    """The sweep in one line."""
    found = tally.summary()
    done = found["done"] + found["skipped"]
    return f"{done} of {found['runs']} runs done, {found['failed']} failed, {_describe_time_left(tally.time_left())}"


def make_table(tally: Tally) -> Table:
    """The sweep as a table."""
    shown = Table("problem", "method", "runs", "done", "running", "failed", "diverged", title=_describe_progress(tally))
    for row in tally.groups():
        cells = (row.runs, row.done, row.running, row.failed, row.diverged)
        names = (Text(make_printable(name)) for name in (row.problem, row.method))
        shown.add_row(*names, *(str(cell) if cell else "" for cell in cells))
    return shown


def _describe_time_left(seconds: float | None) -> str:
    """A duration for people."""
    return "time left not yet known" if seconds is None else f"{format_duration(seconds)} left"


def format_duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, two figures."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return (
                f"about {seconds / size:.2g} {unit}" if seconds < 100 * size else f"about {seconds / size:.0f} {unit}"
            )
    return f"about {seconds:.0f} seconds"


# The executors by name.


@dataclass(frozen=True)
class ExecutorOptions:
    """Options for running a sweep; None means not given."""

    workers: int | None = None
    retries: int | None = None
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None


def make_executor(name: str, wishes: ExecutorOptions = ExecutorOptions()) -> Executor:
    """The executor of that name; raises for options that it does not use."""
    validate.choice(tuple(EXECUTORS), executor=name)
    if wishes.workers is not None:
        validate.positive_int(workers=wishes.workers)
    if wishes.retries is not None:
        validate.non_negative(retries=wishes.retries)
    return EXECUTORS[name](wishes)


def _make_inline(wishes: ExecutorOptions) -> Inline:
    _refuse(wishes, "retries", "address", "cpus", "gpus", executor="inline")
    return Inline()


def _make_local(wishes: ExecutorOptions) -> Local:
    _refuse(wishes, "address", "cpus", "gpus", executor="local")
    return Local(wishes.workers or count_cores(), RETRIES if wishes.retries is None else wishes.retries)


def _make_ray(wishes: ExecutorOptions) -> OnRay:
    cpus, gpus = 1.0 if wishes.cpus is None else wishes.cpus, wishes.gpus or 0.0
    validate.positive(cpus=cpus)
    validate.non_negative(gpus=gpus)
    retries = RETRIES if wishes.retries is None else wishes.retries
    return OnRay(wishes.address, cpus, gpus, wishes.workers, retries)


def _refuse(wishes: ExecutorOptions, *names: str, executor: str) -> None:
    for name in names:
        if getattr(wishes, name) is not None:
            raise InvalidInputError(
                f"--{name} means nothing to the executor '{executor}': leave it out, or name another executor"
            )


EXECUTORS: Mapping[str, Callable[[ExecutorOptions], Executor]] = {
    "local": _make_local,
    "inline": _make_inline,
    "ray": _make_ray,
}
