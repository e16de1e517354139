"""A run that was interrupted inside goes on from its checkpoint, with the figures gathered so far.

The figures are written first and the checkpoint second. A kill between the two leaves figures that reach further than
the checkpoint; they are cut back to its step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hush.checkpoint import Checkpoints
from hush.errors import Refused
from hush.files import PRIVATE, write_atomic
from hush.run import Run

FIGURES = "figures.safetensors"


@dataclass
class Progress:
    """What a run has shown so far: private figures a step (``curves``), public ones an evaluated epoch."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    resumed: int = 0

    def step(self, numbers: dict[str, float], accuracy: float) -> None:
        """Add one step: loss and accuracy per example, and whatever else the query tells."""
        examples = numbers.get("examples", 0.0)
        figures = {name: value for name, value in numbers.items() if name != "loss"}
        if "loss" in numbers:
            figures["loss"] = numbers["loss"] / examples if examples else float("nan")
        for name, value in (figures | {"accuracy": accuracy}).items():
            self.curves.setdefault(name, []).append(value)

    def cut(self, step: int) -> Progress:
        """What was known after this step."""
        curves = {name: values[:step] for name, values in self.curves.items()}
        epochs = [line for line in self.epochs if line["step"] <= step]
        return Progress(curves, epochs, self.seconds, self.evaluation_seconds, self.resumed)


class Saved:
    """The checkpoint of a run in its working directory, written every so many seconds."""

    def __init__(self, directory: Path, every: float) -> None:
        self._checkpoints = Checkpoints(directory / "run")
        self._figures, self._every, self._last = directory / FIGURES, every, time.monotonic()

    def resumed(self, start: Callable[[], Run]) -> tuple[Run, Progress]:
        """The run from its checkpoint, or from the start where there is none that can be used."""
        run = start()
        found = self._checkpoints.newest()
        if found.saved is None:
            self._checkpoints.begin(run)
            return run, Progress()
        try:
            progress = read_progress(self._figures).cut(found.saved.step)
            self._checkpoints.restore(run, found.saved)
        except (OSError, SafetensorError, Refused):  # of another version of the data or of hush
            run = start()
            self._checkpoints.begin(run)
            return run, Progress()
        progress.resumed += 1
        return run, progress

    def keep(self, run: Run, progress: Progress) -> None:
        """Write a checkpoint if it is time to."""
        if time.monotonic() - self._last < self._every or run.next >= run.plan.steps:
            return
        write_progress(self._figures, progress)
        self._checkpoints.save(run)
        self._last = time.monotonic()

    def close(self) -> None:
        """Let go of the directory."""
        self._checkpoints.close()


def write_progress(path: Path, progress: Progress) -> None:
    """All figures in one file."""
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in progress.curves.items()}
    rest = {"epochs": progress.epochs, "seconds": progress.seconds, "evaluation_seconds": progress.evaluation_seconds}
    write_atomic(path, save(tensors, {"rest": json.dumps(rest | {"resumed": progress.resumed})}), mode=PRIVATE)


def read_progress(path: Path) -> Progress:
    """The figures of a file."""
    with safe_open(path, framework="pt") as file:
        rest = json.loads(file.metadata()["rest"])
        return Progress({name: file.get_tensor(name).tolist() for name in file.keys()}, **rest)  # noqa: SIM118
