"""CIFAR-10, small CNN (P1)."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import cifar10
from hush.problems.models import p1
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """50 000 training and 10 000 test images; 258 762 parameters."""
    return cifar10(p1, seed=seed, validation=validation, data_dir=data_dir)
