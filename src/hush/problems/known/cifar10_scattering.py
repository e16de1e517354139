"""CIFAR-10, linear model on scattering features."""

from __future__ import annotations

from pathlib import Path

from hush.data import cifar
from hush.problems.known._scattering import scattering
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """50 000 training and 10 000 test images; 155 530 parameters."""
    return scattering(cifar.load(data_dir), seed=seed, validation=validation, class_names=cifar.CLASSES)
