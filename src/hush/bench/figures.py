"""What a run shows while it trains: right answers counted as they pass, and figures kept beside its checkpoint.

The training accuracy of every step costs nothing: the model's scores are read on their way to the loss. What is counted
here is private. A run that was interrupted goes on from its checkpoint, with the figures gathered so far. They are
written first and the checkpoint second. A kill between the two leaves figures that reach further than the checkpoint;
they are cut back to its step. They are written twice, each copy with its digest. A run without figures still goes on
from its checkpoint, as its steps are spent: what is not known of them is NaN.
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
from torch import Tensor, nn

from hush.checkpoint import Checkpoints
from hush.errors import Refused
from hush.files import PRIVATE, write_atomic
from hush.named import Losses
from hush.run import Run
from hush.source import to_each

COPIES = ("figures.safetensors", "figures-copy.safetensors")
DIGEST = 32  # bytes at the start of a file of figures


class WatchedLosses:
    """The losses of a problem, which count right answers as they pass; the labels are the content's last part."""

    def __init__(self, losses: Losses, classes: int | None) -> None:
        self._losses, self._classes = losses, classes
        self._scores: Tensor | None = None
        self._seen: Any = None
        self._counted: list[tuple[Tensor, int]] = []  # right answers, examples; one entry a forward

    def watch(self, model: nn.Module) -> None:
        """Listen to the model's outputs from now on."""
        if self._classes is not None:
            model.register_forward_hook(lambda module, inputs, output: self._hear(output))

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The losses, unchanged."""
        values = self._losses(model, content)
        if self._classes is not None and model.training:
            self._count(content)
        return values

    def accuracy(self, examples: int) -> float:
        """The share of right answers in a step of so many examples; NaN where they could not be counted.

        Before its first step a run looks at made-up inputs, and an engine at some examples again: what counts comes
        last, and is as many as there are examples."""
        counted, self._counted, self._seen = self._counted, [], None
        right, left = 0, examples
        while counted and left > 0:
            found, size = counted.pop()
            right, left = right + int(found), left - size
        return right / examples if examples and left == 0 else math.nan

    def _hear(self, output: Any) -> None:
        self._scores = output.detach() if isinstance(output, Tensor) else None

    def _count(self, content: Any) -> None:
        """A second gradient at the same examples (DiSK's) is not counted again; inside torch.func nothing can be."""
        scores, self._scores = self._scores, None
        first = _first(content)
        if scores is None or first is self._seen or torch._C._functorch.is_functorch_wrapped_tensor(scores):
            return
        if scores.dim() == 2 and scores.shape[1] == self._classes:
            labels = content[-1]
            self._counted.append(((scores.argmax(1) == labels).sum(), len(labels)))
            self._seen = first


@dataclass
class Figures:
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

    def cut(self, step: int) -> Figures:
        """What was known after this step, NaN for what is not known of the steps before it."""
        known = {name: values[:step] for name, values in self.curves.items()}
        curves = {name: values + [math.nan] * (step - len(values)) for name, values in known.items()}
        epochs = [line for line in self.epochs if line["step"] <= step]
        unknown = self.unknown if curves else step
        return Figures(curves, epochs, self.seconds, self.evaluation_seconds, self.resumed, unknown)


class TrialCheckpoint:
    """The checkpoint of a trial's run in its working directory, written every so many seconds."""

    def __init__(self, directory: Path, every: float) -> None:
        self._checkpoints = Checkpoints(directory / "run")
        self.begun = bool(self._checkpoints.files())  # by an earlier try
        self.lost = False  # whether that try cannot be gone on with: what it spent is spent beside
        self._directory, self._every, self._last = directory, every, time.monotonic()

    def resume(self, start: Callable[[], Run]) -> tuple[Run, Figures]:
        """The run from its checkpoint, or from the start where there is none that can be used."""
        run = start()
        found = self._checkpoints.newest()
        if found.saved is None:
            return self._begin(run)
        try:
            self._checkpoints.restore(run, found.saved)
        except Refused:  # of another version of the data or of hush
            return self._begin(start())
        progress = read_figures(self._directory).cut(found.saved.step)
        progress.resumed += 1
        return run, progress

    def _begin(self, run: Run) -> tuple[Run, Figures]:
        self.lost = self.begun
        self._checkpoints.begin(run)
        return run, Figures()

    def keep(self, run: Run, progress: Figures) -> None:
        """Write a checkpoint if it is time to."""
        if time.monotonic() - self._last < self._every or run.next >= run.plan.steps:
            return
        write_figures(self._directory, progress)
        self._checkpoints.save(run)
        self._last = time.monotonic()

    def close(self) -> None:
        """Let go of the directory."""
        self._checkpoints.close()


def write_figures(directory: Path, progress: Figures) -> None:
    """All figures in one file, and again in another."""
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in progress.curves.items()}
    rest = {name: value for name, value in vars(progress).items() if name != "curves"}
    content = json.dumps(rest).encode() + b"\n" + save(tensors)
    for name in COPIES:
        write_atomic(directory / name, _digest(content) + content, mode=PRIVATE)


def read_figures(directory: Path) -> Figures:
    """The figures of the copy that is whole and reaches furthest; none where no copy is whole."""
    found = [progress for name in COPIES if (progress := _read(directory / name)) is not None]
    return max(found, key=lambda progress: max(map(len, progress.curves.values()), default=0), default=Figures())


def _read(path: Path) -> Figures | None:
    try:
        content = path.read_bytes()
        if content[:DIGEST] != _digest(content[DIGEST:]):
            return None
        rest, _, figures = content[DIGEST:].partition(b"\n")
        return Figures({name: values.tolist() for name, values in load(figures).items()}, **json.loads(rest))
    except (OSError, SafetensorError, ValueError, TypeError):
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def _first(content: Any) -> Any:
    found: list[Tensor] = []
    to_each(found.append, content)
    return found[0] if found else None
