"""MNIST, LeNet-5."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import mnist
from hush.problems.models import lenet5
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images; 61 706 parameters."""
    return mnist(lenet5, seed=seed, validation=validation, data_dir=data_dir)
