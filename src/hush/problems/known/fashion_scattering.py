"""Fashion-MNIST, linear model on scattering features."""

from __future__ import annotations

from pathlib import Path

from hush.data import idx
from hush.problems.known._images import CLOTHES
from hush.problems.known._scattering import scattering
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images; 39 700 parameters."""
    return scattering(idx.load("fashion-mnist", data_dir), seed=seed, validation=validation, class_names=CLOTHES)
