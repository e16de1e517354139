"""What is said while a long table is read: nothing for two seconds, then how far it is, then how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable

Tell = Callable[[str], None]
PATIENCE = 2.0  # seconds of silence
PAUSE = 10.0  # seconds from one line to the next


def keep_silent(text: str) -> None:
    """Say nothing."""


class Watch:
    """Counts rows as they are read, in one pass or several, and tells of it where that takes long."""

    def __init__(self, name: str, expected: int, tell: Tell, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._expected, self._tell, self._now = name, expected, tell, now
        self._began = now()
        self._due = self._began + PATIENCE
        self._doing, self._rows = "", 0

    def begin(self, doing: str) -> None:
        """A pass begins: what is being done."""
        self._doing, self._rows = doing, 0

    def count(self, rows: int) -> None:
        """So many rows more were read."""
        self._rows += rows
        if self._now() >= self._due:
            self._due = self._now() + PAUSE
            total = max(self._expected, self._rows)
            self._tell(f"{self._doing} '{self._name}': {_group(self._rows)} of about {_group(total)} rows …")

    def finish(self, rows: int, columns: int) -> None:
        """All is read; said if it took long."""
        seconds = self._now() - self._began
        if seconds >= PATIENCE:
            self._tell(f"read {_group(rows)} rows of {columns} columns in {seconds:.0f} s")


def _group(number: int) -> str:
    return f"{number:,}".replace(",", " ")
