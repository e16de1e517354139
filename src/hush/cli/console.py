"""Output of commands: results on stdout, everything else on stderr, progress only if it takes long."""

from __future__ import annotations

import _thread
import errno
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hush._internal.progress import ProgressBar
from hush._internal.text import as_json_data, dump_json, make_printable

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]

PATIENCE = 2.0  # seconds before a status line is shown
_errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
_output = Console(highlight=False, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """Print one line for the user on stderr."""
    _errors.print(make_printable(text), markup=False)


def show(text: str = "") -> None:
    """Print one line of results on stdout."""
    _output.print(make_printable(text), markup=False)


def show_text(text: str) -> None:
    """Print lines of results on stdout."""
    for line in text.splitlines():
        show(line)


def show_lines(lines: Iterable[str]) -> None:
    """Print many lines of results on stdout without formatting, which is fast for tens of thousands of lines."""
    if text := "\n".join(line if line.isprintable() else make_printable(line) for line in lines):
        _write(text)


def _write(text: str) -> None:
    """Write to stdout without rich, which would take a second for every megabyte."""
    if not _output.quiet:
        _output.file.write(text + "\n")
        _output.file.flush()


def show_block(text: str, *, indent: int = 0) -> None:
    """Print a paragraph of results on stdout, wrapped to the width of the terminal."""
    _output.print(Padding(Text(make_printable(text)), (0, 0, 0, indent)), soft_wrap=False)


def show_json(value: Any) -> None:
    """Print the result as JSON on stdout; infinity and NaN become null, because JSON has neither."""
    ascii_only = not _output.encoding.startswith("utf")
    _write(dump_json(as_json_data(value), indent=2, ascii_only=ascii_only))


def show_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table of results on stdout."""
    table = Table(title=title or None, title_justify="left")
    for name in columns:
        table.add_column(Text(make_printable(name)))
    for row in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in row))
    _output.print(table)


def show_progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr; nothing if stderr is not a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return ProgressBar(
        *columns, console=_errors, transient=True, auto_refresh=False, disable=quiet or not _errors.is_terminal
    )


def accept_any_encoding() -> None:
    """Escape characters that the streams' encoding lacks, instead of failing on them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def be_silent() -> None:
    """Print nothing from now on: another process of the same run prints."""
    _errors.quiet = _output.quiet = True


class DelayedStatus:
    """Prints nothing for two seconds; then prints the current task, and every later one."""

    def __init__(self, doing: str) -> None:
        self.doing, self.now, self.late = doing, "", False
        self._lock = threading.Lock()

    def update(self, now: str) -> None:
        """Set the current task."""
        with self._lock:
            self.now = now
            if self.late:
                say(f"{self.doing}: {now} …")

    def remind(self) -> None:
        """Start printing, because the delay is over."""
        with self._lock:
            self.late = True
            say(f"{self.doing}{': ' if self.now else ''}{self.now} …")


@contextmanager
def delayed_status(doing: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that reports progress; the reports appear on stderr only if the task takes long.

    `threading.Thread.start` waits forever if the new thread runs out of memory before its first line, so the thread is
    started without it; without memory for one, nothing is reported."""
    patience, ended = DelayedStatus(doing), threading.Event()

    def remind() -> None:
        with suppress(MemoryError, RuntimeError):
            if not ended.wait(PATIENCE):
                patience.remind()

    with suppress(MemoryError, RuntimeError):
        _thread.start_new_thread(remind, ())
    try:
        yield patience.update
    finally:
        ended.set()


# Interruption of a command: by a signal between two steps, or by the operating system.


class Interruption(Exception):
    """A command was interrupted; the message says what was saved, and how to continue."""


@contextmanager
def say_when_interrupted(sentence: str) -> Iterator[None]:
    """Within it, Ctrl-C ends the command with this message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interruption(sentence) from error


@contextmanager
def note_interrupts() -> Iterator[Callable[[], bool]]:
    """Record the first Ctrl-C or SIGTERM, to be checked between steps; a second one ends the command at once."""
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
    """A short description of the error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on the disk (free some first)"
    return f"{error.strerror or error}" + (f" ('{error.filename}')" if error.filename else "")
