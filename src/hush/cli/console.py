"""How commands speak: results on stdout, everything else on stderr, progress only where it takes long."""

from __future__ import annotations

import errno
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hush._internal.text import as_json_data, dump_json, make_printable

PATIENCE = 2.0  # seconds of silence
_errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
_output = Console(highlight=False, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """One line for the person at the keyboard, on stderr."""
    _errors.print(make_printable(text), markup=False)


def show(text: str = "") -> None:
    """One line of result, on stdout."""
    _output.print(make_printable(text), markup=False)


def show_lines(lines: Iterable[str]) -> None:
    """Many lines of result at once, on stdout, as they are: tens of thousands take no longer than writing them."""
    if text := "\n".join(line if line.isprintable() else make_printable(line) for line in lines):
        _output.out(text, highlight=False)


def show_block(text: str, *, indent: int = 0) -> None:
    """A paragraph of result, on stdout, wrapped to the width of the terminal."""
    _output.print(Padding(Text(make_printable(text)), (0, 0, 0, indent)), soft_wrap=False)


def show_json(value: Any) -> None:
    """The result as JSON, on stdout; infinity and NaN become null, as JSON has neither."""
    ascii_only = not _output.encoding.startswith("utf")
    _output.out(dump_json(as_json_data(value), indent=2, ascii_only=ascii_only), highlight=False)


def show_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table of results, on stdout."""
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in row))
    _output.print(table)


def show_progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr; nothing where stderr is not a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_errors, transient=True, disable=quiet or not _errors.is_terminal)


def accept_any_encoding() -> None:
    """Have both streams spell out what their encoding has no character for, instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def be_silent() -> None:
    """Say and show nothing from now on: another process of the same run speaks."""
    _errors.quiet = _output.quiet = True


class DelayedStatus:
    """Silent for two seconds; then it says what is being done, and every next thing."""

    def __init__(self, doing: str) -> None:
        self.doing, self.now, self.late = doing, "", False
        self._lock = threading.Lock()

    def tell(self, now: str) -> None:
        """From here on, this is being done."""
        with self._lock:
            self.now = now
            if self.late:
                say(f"{self.doing}: {now} …")

    def remind(self) -> None:
        """Time is up: speak from now on."""
        with self._lock:
            self.late = True
            say(f"{self.doing}{': ' if self.now else ''}{self.now} …")


@contextmanager
def delayed_status(doing: str) -> Iterator[Callable[[str], None]]:
    """Gives a function to report progress to; the reports reach stderr only if the whole takes long."""
    patience = DelayedStatus(doing)
    timer = threading.Timer(PATIENCE, patience.remind)
    timer.daemon = True
    timer.start()
    try:
        yield patience.tell
    finally:
        timer.cancel()


# How a command is stopped from outside: by a signal between two steps, or by the operating system.


class Interruption(Exception):
    """Somebody ended a command, which has a sentence of its own for it: what is kept, and how to go on."""


@contextmanager
def say_when_interrupted(sentence: str) -> Iterator[None]:
    """Within it, Ctrl-C ends the command with this sentence."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interruption(sentence) from error


@contextmanager
def note_interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a question to be asked between steps; a second one ends at once."""
    asked = False

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain_os_error(error: OSError) -> str:
    """What the operating system refused, in a few words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on the disk (free some first)"
    return f"{error.strerror or error}" + (f" ('{error.filename}')" if error.filename else "")
