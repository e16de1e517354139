"""A progress bar without a thread.

`threading.Thread.start`, with which `rich` refreshes a bar, waits forever if the new thread runs out of memory before
its first line.
"""

from __future__ import annotations

import time

from rich.progress import Progress, TaskID

REFRESH = 0.1  # seconds between two states of a bar


class ProgressBar(Progress):
    """A bar that is refreshed when it advances; give ``auto_refresh=False``."""

    _shown = -1.0

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if time.monotonic() - self._shown > REFRESH:
            self._shown = time.monotonic()
            self.refresh()
