"""569 tumours, 30 measurements (embedded), logistic regression."""

from __future__ import annotations

from hush.problems.known._breast_cancer import breast_cancer
from hush.problems.models import logistic
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """456 training and 113 test rows; 62 parameters."""
    return breast_cancer(lambda: logistic(30, 2), seed=seed, validation=validation)
