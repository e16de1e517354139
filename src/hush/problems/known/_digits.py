"""The 8×8 digits, scaled by their public range: a pixel counts the dark dots of a 4×4 block, so it is 0 … 16."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from hush.data import embedded
from hush.data.splits import Arrays, Split
from hush.problems.problem import Problem, classification

SCALE = 16.0
ASSUMPTIONS = ("the number of training images and the ten classes are public",)


def digits(model: Callable[[], nn.Module], *, seed: int, validation: float) -> Problem:
    """A problem on the digits with this model."""
    raw = embedded.digits()
    split = Split(_scaled(raw.train), _scaled(raw.test))
    return classification(split, model, classes=10, seed=seed, validation=validation, assumptions=ASSUMPTIONS)


def _scaled(arrays: Arrays) -> Arrays:
    images, labels = arrays
    return images / SCALE, labels
