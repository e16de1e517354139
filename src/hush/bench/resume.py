"""A run that was interrupted inside goes on from its checkpoint, with the figures gathered so far.

The figures are written first and the checkpoint second. A kill between the two leaves figures that reach further than
the checkpoint; they are cut back to its step. They are written twice, each copy with its digest. A run without figures
still goes on from its checkpoint, as its steps are spent: what is not known of them is NaN.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from hush.checkpoint import Checkpoints
from hush.errors import Refused
from hush.files import PRIVATE, write_atomic
from hush.run import Run

COPIES = ("figures.safetensors", "figures-copy.safetensors")
DIGEST = 32  # bytes at the start of a file of figures


@dataclass
class Progress:
    """What a run has shown so far: private figures a step (``curves``), public ones an evaluated epoch."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    resumed: int = 0
    unknown: int = 0  # steps before the first that is known

    def step(self, numbers: dict[str, float], accuracy: float) -> None:
        """Add one step: loss and accuracy per example, and whatever else the query tells."""
        examples = numbers.get("examples", 0.0)
        figures = {name: value for name, value in numbers.items() if name != "loss"}
        if "loss" in numbers:
            figures["loss"] = numbers["loss"] / examples if examples else float("nan")
        for name, value in (figures | {"accuracy": accuracy}).items():
            self.curves.setdefault(name, [math.nan] * self.unknown).append(value)

    def cut(self, step: int) -> Progress:
        """What was known after this step, NaN for what is not known of the steps before it."""
        known = {name: values[:step] for name, values in self.curves.items()}
        curves = {name: values + [math.nan] * (step - len(values)) for name, values in known.items()}
        epochs = [line for line in self.epochs if line["step"] <= step]
        unknown = self.unknown if curves else step
        return Progress(curves, epochs, self.seconds, self.evaluation_seconds, self.resumed, unknown)


class Saved:
    """The checkpoint of a run in its working directory, written every so many seconds."""

    def __init__(self, directory: Path, every: float) -> None:
        self._checkpoints = Checkpoints(directory / "run")
        self._directory, self._every, self._last = directory, every, time.monotonic()

    def resumed(self, start: Callable[[], Run]) -> tuple[Run, Progress]:
        """The run from its checkpoint, or from the start where there is none that can be used."""
        run = start()
        found = self._checkpoints.newest()
        if found.saved is None:
            self._checkpoints.begin(run)
            return run, Progress()
        try:
            self._checkpoints.restore(run, found.saved)
        except Refused:  # of another version of the data or of hush
            run = start()
            self._checkpoints.begin(run)
            return run, Progress()
        progress = read_progress(self._directory).cut(found.saved.step)
        progress.resumed += 1
        return run, progress

    def keep(self, run: Run, progress: Progress) -> None:
        """Write a checkpoint if it is time to."""
        if time.monotonic() - self._last < self._every or run.next >= run.plan.steps:
            return
        write_progress(self._directory, progress)
        self._checkpoints.save(run)
        self._last = time.monotonic()

    def close(self) -> None:
        """Let go of the directory."""
        self._checkpoints.close()


def write_progress(directory: Path, progress: Progress) -> None:
    """All figures in one file, and again in another."""
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in progress.curves.items()}
    rest = {name: value for name, value in vars(progress).items() if name != "curves"}
    content = json.dumps(rest).encode() + b"\n" + save(tensors)
    for name in COPIES:
        write_atomic(directory / name, _digest(content) + content, mode=PRIVATE)


def read_progress(directory: Path) -> Progress:
    """The figures of the copy that is whole and reaches furthest; none where no copy is whole."""
    found = [progress for name in COPIES if (progress := _read(directory / name)) is not None]
    return max(found, key=lambda progress: max(map(len, progress.curves.values()), default=0), default=Progress())


def _read(path: Path) -> Progress | None:
    try:
        content = path.read_bytes()
        if content[:DIGEST] != _digest(content[DIGEST:]):
            return None
        rest, _, figures = content[DIGEST:].partition(b"\n")
        return Progress({name: values.tolist() for name, values in load(figures).items()}, **json.loads(rest))
    except (OSError, SafetensorError, ValueError, TypeError):
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()
