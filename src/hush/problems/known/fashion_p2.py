"""Fashion-MNIST, small CNN (P2)."""

from __future__ import annotations

from pathlib import Path

from hush.problems.known._images import fashion
from hush.problems.models import p2
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images; 225 034 parameters."""
    return fashion(p2, seed=seed, validation=validation, data_dir=data_dir)
