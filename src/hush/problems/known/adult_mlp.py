"""UCI Adult census rows, MLP 112-64-32-2."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._adult import adult
from hush.problems.models import mlp
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """32 561 training and 16 281 test rows; 9 378 parameters."""
    return adult(lambda inputs: mlp([inputs, 64, 32, 2]), seed=seed, validation=validation, data_dir=data_dir)
