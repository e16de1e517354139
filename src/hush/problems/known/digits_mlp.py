"""8×8 handwritten digits (embedded), MLP 64-128-64-10; the default."""

from __future__ import annotations

from hush.problems.known._digits import digits
from hush.problems.models import mlp
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """1 438 training and 359 test images; 17 226 parameters."""
    return digits(lambda: mlp([64, 128, 64, 10]), seed=seed, validation=validation)
