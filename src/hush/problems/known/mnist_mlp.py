"""MNIST, MLP 784-512-256-128-10 with dropout 0.2."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import mnist
from hush.problems.models import mlp
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images; 567 434 parameters."""
    return mnist(
        lambda: mlp([784, 512, 256, 128, 10], dropout=0.2), seed=seed, validation=validation, data_dir=data_dir
    )
