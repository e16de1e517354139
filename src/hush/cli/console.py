"""How commands speak: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hush.validate import escaped

_errors = Console(stderr=True, highlight=False, soft_wrap=True)
_output = Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for the person at the keyboard, on stderr."""
    _errors.print(safe(text), markup=False)


def show(text: str = "") -> None:
    """One line of result, on stdout."""
    _output.print(safe(text), markup=False)


def show_json(value: Any) -> None:
    """The result as JSON, on stdout; infinity and NaN become null, as JSON has neither."""
    _output.out(
        _ascii_controls(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)), highlight=False
    )


def show_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table of results, on stdout."""
    table = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(safe(str(cell))) for cell in row))
    _output.print(table)


def safe(text: str) -> str:
    """What a terminal may be given: lines of printable characters, anything else written out."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def _ascii_controls(text: str) -> str:
    """JSON in which what is not printable is escaped as JSON does."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def progress(quiet: bool = False) -> Progress:
    """A progress bar on stderr; nothing where stderr is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_errors, transient=True, disable=quiet or not _errors.is_terminal)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
