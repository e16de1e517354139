"""Tables and figures of the publications: what is there, at what cost, and how the rest is run (`hush reproduce`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hush.bench.spec import read_spec
from hush.bench.store import Store
from hush.bench.sweep import format_duration, run_bench, show_live
from hush.bench.timing import estimate
from hush.bench.trial import Trial
from hush.errors import InvalidInputError, nearest
from published import records
from published.records import Record, collect, read, restore, table
from published.winners import write_winners

MAP = Path(__file__).with_suffix(".toml")
STATES = COMPLETE, REDUCED, MISSING = "complete", "reduced", "missing"
ESTIMATES = "estimates.json"
CORES = {1: "one core", 2: "two", 64: "a Ray cluster of 64"}  # for which the published size is estimated
MAKERS = {  # of files in results/ that no spec gives
    "sanitize-figures.json": ("sanitize_figures.py", "results/sanitize-figures.json", "--store", "{store}/figures"),
    "building-blocks-norms.json": ("building_blocks.py", "measure"),
    "inference.json": ("inference.py", "results/inference.json"),
}
DATA_SECONDS = {"sanitize-figures.json": 1800.0, "building-blocks-norms.json": 300.0}  # of a maker on one core, about


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a publication, and what we have of it."""

    name: str
    item: str
    shows: str
    specs: tuple[str, ...] = ()
    full: str = ""
    data: tuple[str, ...] = ()
    on: str = ""
    picture: str = ""
    computed: bool = False
    reduced: str = ""
    missing: str = ""

    @property
    def publication(self) -> str:
        """Its number."""
        return self.name.partition("-")[0]

    @property
    def command(self) -> str:
        """What runs the rest of it: the published size, where all else is in."""
        done, planned = self.count()
        if self.full and done == planned and self._misses_full():
            return f"hush reproduce {self.name} --full"
        return f"hush reproduce {self.name}" if self.specs or self.data or self.computed else ""

    def count(self) -> tuple[int, int]:
        """How many runs are in, and how many there are to be."""
        trials, found = list_trials(self.specs), self._read()
        return sum(trial.key in found for trial in trials), len(trials)

    def _read(self) -> dict[str, Record]:
        return {record["key"]: record for name in self.specs for record in read(name)}

    @property
    def lacks(self) -> list[str]:
        """Files that are not there."""
        results = [name for name in self.data if not (records.RESULTS / name).exists()]
        shown = records.ROOT / "docs" / "pictures" / self.picture
        return results + ([self.picture] if self.picture and not shown.exists() else [])

    @property
    def state(self) -> str:
        """Complete: every run of the published size; reduced: fewer or smaller ones; else missing."""
        done, planned = self.count()
        shown = self.specs or self.data or self.computed
        if self.missing or self.lacks or (self.specs and not done) or not shown:
            return MISSING
        return REDUCED if self.reduced or done < planned or self._misses_full() else COMPLETE

    def _misses_full(self) -> bool:
        kept = {record["key"] for record in read(self.full)} if self.full else set()
        return bool(self.full) and not all(trial.key in kept for trial in list_trials((self.full,)))

    @property
    def reason(self) -> str:
        """Why it is not complete."""
        done, planned = self.count()
        told = [self.missing or self.reduced]
        told += [f"not there: {', '.join(self.lacks)}"] if self.lacks and not self.missing else []
        told += [f"{done} of {planned} runs are in"] if done < planned else []
        if self.full and self._misses_full():
            kept, whole = len(read(self.full)), len(list_trials((self.full,)))
            told.append(f"{kept} of the {whole} runs of `{self.full}`, the published size")
        return "; ".join(filter(None, told))

    @property
    def seconds(self) -> float | None:
        """Seconds of all its runs on one core by the clock, from those that are in; None if that is not known."""
        found = [record["train_seconds"] for record in self._read().values() if record.get("train_seconds")]
        made = sum(DATA_SECONDS.get(name, 0.0) for name in self.data)
        return made + sum(found) / len(found) * self.count()[1] if found else made or None

    @property
    def full_seconds(self) -> float | None:
        """CPU seconds of the published size by a dry run, while it is not run."""
        return read_estimates()[self.full][1] if self._misses_full() and self.full in read_estimates() else None

    def to_json(self) -> dict[str, Any]:
        """As `hush reproduce --json` has it."""
        done, planned = self.count()
        named = {"name": self.name, "publication": self.publication, "item": self.item, "shows": self.shows}
        found = {"state": self.state, "reason": self.reason, "runs": done, "planned": planned, "seconds": self.seconds}
        return {
            **named,
            **found,
            "full_seconds": self.full_seconds,
            "command": self.command,
            "page": f"docs/{self.on}" if self.on else "",
        }

    def tell_time(self) -> str:
        """The time of all its runs, and of those of the published size."""
        own = [] if self.seconds is None else [format_duration(self.seconds)]
        whole = [] if self.full_seconds is None else [f"published size {self._tell_full()}"]
        return "; ".join(own + whole) or ("seconds" if self.computed else "–")

    def _tell_full(self) -> str:
        times = read_estimates()[self.full]
        return ", ".join(
            f"{format_duration(times[cores])} on {name}" for cores, name in CORES.items() if cores in times
        )


def read_estimates() -> dict[str, dict[int, float]]:
    """Seconds of whole specs by the number of cores, by dry runs."""
    path = records.RESULTS / ESTIMATES
    found = json.loads(path.read_text()) if path.exists() else {}
    return {spec: {int(cores): seconds for cores, seconds in times.items()} for spec, times in found.items()}


@cache
def _trials(path: Path, changed: int) -> tuple[Trial, ...]:
    return read_spec(path).trials


def list_trials(names: Sequence[str]) -> list[Trial]:
    """The trials of specs, each once; none of a spec that is still to be written."""
    paths = [records.SPECS / f"{name}.toml" for name in names]
    found = {t.key: t for path in paths if path.exists() for t in _trials(path, path.stat().st_mtime_ns)}
    return list(found.values())


def read_map() -> tuple[dict[str, str], list[Experiment]]:
    """The publications, and every table and figure of them."""
    found = tomllib.loads(MAP.read_text())
    entries = [{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()} for entry in found["entry"]]
    return found["publications"], [Experiment(**entry) for entry in entries]


def name_section(number: str) -> str:
    """The heading of a publication's part of the page."""
    return f"{number}: {read_map()[0][number]}"


def choose(name: str) -> list[Experiment]:
    """One entry by its name, or all of a publication."""
    publications, known = read_map()
    found = [one for one in known if name in (one.name, one.publication)]
    if not found:
        raise InvalidInputError(f"unknown experiment '{name}': {nearest(name, [one.name for one in known])}")
    return found


def render_map() -> list[str]:
    """The map as a part of the page."""
    publications, known = read_map()
    lines = []
    for number in publications:
        rows = [
            (
                f"[{one.item}]({one.on.removeprefix('reproduction.md')})" if one.on else one.item,
                *(one.shows, one.state, one.reason, one.tell_time(), f"`{one.command}`" if one.command else ""),
            )
            for one in known
            if one.publication == number
        ]
        head = ("", "shows", "state", "why not complete", "time", "command")
        lines += [f"### Tables and figures of {number}", "", *table(head, rows)]
    return lines


def run(
    name: str, store: Path, *, workers: int | None, full: bool, dry: bool, notify: Callable[[str], None]
) -> Mapping[str, float | None]:
    """Run what is missing of an entry or a publication, its expected time first, and collect the records; the estimate
    of every spec in seconds. ``full`` takes the published size, and ``dry`` runs nothing; both together keep the
    estimate."""
    chosen, times = choose(name), {}
    specs = dict.fromkeys(s for one in chosen for s in ((one.full,) if full and one.full else one.specs))
    for spec in specs:
        if spec.endswith("-winners") and not dry:
            write_winners(spec.removesuffix("-winners"))
        kept = {record["key"] for record in read(spec)} | (Store(store).keys() if store.exists() else set())
        left = [trial for trial in list_trials((spec,)) if trial.key not in kept]
        found = estimate(left)
        times[spec] = found.seconds(workers or 1)
        told = found.reason if times[spec] is None else format_duration(times[spec] or 0.0)
        notify(f"{spec}: {len(left)} runs to do, {told if left else 'nothing'}")
        if dry and full and found.seconds(1) is not None and len(left) == len(list_trials((spec,))):
            kept_estimates = read_estimates() | {spec: {cores: round(found.seconds(cores) or 0.0) for cores in CORES}}
            (records.RESULTS / ESTIMATES).write_text(json.dumps(kept_estimates, indent=1) + "\n")
        if not dry and (left or kept - {record["key"] for record in read(spec)}):
            _run_spec(records.SPECS / f"{spec}.toml", store, workers)
    for data in dict.fromkeys(file for one in chosen for file in one.data):
        if not (records.RESULTS / data).exists():
            script, *arguments = (part.format(store=store) for part in MAKERS[data])
            notify(f"{data}: made by {script}")
            if not dry:
                made = [sys.executable, str(records.ROOT / "benchmarks" / script), *arguments]
                subprocess.run(made, cwd=records.ROOT, check=True)
    return times


def _run_spec(path: Path, store: Path, workers: int | None) -> None:
    """What a spec lacks, in a store that holds what was collected before; collected when it is interrupted too."""
    restore(store, path)
    alone = {"executor": "inline"} if workers == 1 else {"executor": "local", "workers": workers}
    try:
        with show_live() as watch:
            run_bench(path, store, watch=watch, **alone)  # type: ignore[arg-type]
    finally:
        collect(store, path)
