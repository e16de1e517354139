"""8×8 handwritten digits (embedded), logistic regression."""

from __future__ import annotations

from hush.problems.known._digits import digits
from hush.problems.models import logistic
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """1 438 training and 359 test images; 650 parameters."""
    return digits(lambda: logistic(64, 10), seed=seed, validation=validation)
