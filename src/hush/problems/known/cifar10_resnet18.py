"""CIFAR-10, ResNet-18 with GroupNorm in place of BatchNorm, which mixes examples."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import cifar10
from hush.problems.models import ResNet18
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """50 000 training and 10 000 test images; 11 173 962 parameters."""
    return cifar10(ResNet18, seed=seed, validation=validation, data_dir=data_dir)
