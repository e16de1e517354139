"""The live table of a sweep, on stderr, for people: done, running, failed, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hush.bench.sweep import Tally
from hush.printable import make_printable


@contextmanager
def live_table(*, quiet: bool = False, console: Console | None = None) -> Iterator[Callable[[Tally], None]]:
    """Something to hand to ``sweep(watch=…)``: a table on a terminal, now and then a line elsewhere."""
    console = console or Console(stderr=True, highlight=False)
    if quiet:
        yield lambda tally: None
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=4) as shown:
            yield lambda tally: shown.update(table(tally))
    else:
        yield _Teller(console)


class _Teller:
    """A line whenever another tenth is done."""

    def __init__(self, console: Console) -> None:
        self._console, self._told = console, -1

    def __call__(self, tally: Tally) -> None:
        tenth = 10 * len(tally.outcomes) // max(1, len(tally.trials))
        if tenth != self._told:
            self._told = tenth
            self._console.print(status(tally), soft_wrap=True)


def status(tally: Tally) -> str:
    """The sweep in one line."""
    found = tally.summary()
    done = found["done"] + found["skipped"]
    return f"{done} of {found['runs']} runs done, {found['failed']} failed, {left(tally.time_left())}"


def table(tally: Tally) -> Table:
    """The sweep as a table."""
    shown = Table("problem", "method", "runs", "done", "running", "failed", "diverged", title=status(tally))
    for row in tally.groups():
        cells = (row.runs, row.done, row.running, row.failed, row.diverged)
        names = (Text(make_printable(name)) for name in (row.problem, row.method))
        shown.add_row(*names, *(str(cell) if cell else "" for cell in cells))
    return shown


def left(seconds: float | None) -> str:
    """A duration for people."""
    return "time left not yet known" if seconds is None else f"{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, two figures."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return (
                f"about {seconds / size:.2g} {unit}" if seconds < 100 * size else f"about {seconds / size:.0f} {unit}"
            )
    return f"about {seconds:.0f} seconds"
