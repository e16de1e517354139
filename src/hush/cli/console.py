"""How commands speak: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hush.printable import dump_json, make_printable

_errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
_output = Console(highlight=False, soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """One line for the person at the keyboard, on stderr."""
    _errors.print(make_printable(text), markup=False)


def show(text: str = "") -> None:
    """One line of result, on stdout."""
    _output.print(make_printable(text), markup=False)


def show_json(value: Any) -> None:
    """The result as JSON, on stdout; infinity and NaN become null, as JSON has neither."""
    ascii_only = not _output.encoding.startswith("utf")
    _output.out(dump_json(_plain(value), indent=2, ascii_only=ascii_only), highlight=False)


def show_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table of results, on stdout."""
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in row))
    _output.print(table)


def progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr; nothing where stderr is not a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_errors, transient=True, disable=quiet or not _errors.is_terminal)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def any_encoding() -> None:
    """Have both streams spell out what their encoding has no character for, instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
