"""`--method auto` in the shell: the candidates compared, with progress on stderr once it takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hush.cli.console import say, show_table
from hush.methods import Candidate, Descent, Gradients, Setting, recommend
from hush.methods.auto import Tell

PATIENCE = 2.0  # seconds of silence


class Patience:
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
def patient(doing: str) -> Iterator[Tell]:
    """Gives a function to report progress to; the reports reach stderr only if the whole takes long."""
    patience = Patience(doing)
    timer = threading.Timer(PATIENCE, patience.remind)
    timer.daemon = True
    timer.start()
    try:
        yield patience.tell
    finally:
        timer.cancel()


def compared(method: str, chosen: dict[str, Any], **public: Any) -> tuple[Candidate, ...]:
    """The candidates of `--method auto`, the best first; none for any other method."""
    if method != "auto":
        return ()
    descent = Descent(**{key: chosen[key] for key in vars(Descent()) if key in chosen})
    gradients = Gradients(**{key: chosen[key] for key in vars(Gradients()) if key in chosen})
    with patient("comparing methods") as tell:
        return recommend(Setting(**public), descent, gradients, tell)


def listed(candidates: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    """The candidates as JSON."""
    return [
        {
            "method": c.method,
            "options": c.options,
            "sampling": c.sampling,
            "noise_multiplier": c.sigma,
            "sensitivity": c.sensitivity,
            "rmse": c.rmse,
            "expected_error": c.error,
        }
        for c in candidates
    ]


def show_candidates(candidates: tuple[Candidate, ...]) -> None:
    """The candidates as a table, the best first."""
    rows = ((c.name, c.sampling, f"{c.sigma:.4g}", f"{c.sensitivity:.4g}", f"{c.error:.4g}") for c in candidates)
    columns = ("method", "sampling", "σ", "sensitivity", "expected error")
    show_table(
        "noise that each candidate leaves in a weight, root mean square over steps, in units of lr × clip / batch size",
        columns,
        rows,
    )
