"""569 tumours, 30 measurements (embedded), MLP 30-32-16-2."""

from __future__ import annotations

from hush.problems.known._breast_cancer import breast_cancer
from hush.problems.models import mlp
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """456 training and 113 test rows; 1 554 parameters."""
    return breast_cancer(lambda: mlp([30, 32, 16, 2]), seed=seed, validation=validation)
