"""MNIST, CNN with a funnel of fully connected layers of width 50 at the end."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import mnist
from hush.problems.models import Funnel
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images; 659 732 parameters."""
    return mnist(lambda: Funnel(1, 28), seed=seed, validation=validation, data_dir=data_dir)
