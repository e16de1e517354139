"""UCI Adult, encoded by its public description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from hush.data import adult as census
from hush.problems.models import Encoder
from hush.problems.problem import Problem, classification

ASSUMPTIONS = (
    "the number of training rows, the two classes, the categories listed in adult.names and the numbers' ranges "
    "(written down in advance) are public",
)


def adult(model: Callable[[int], nn.Module], *, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """A problem on Adult with this model of so many inputs, behind the encoder."""
    split, schema = census.load(data_dir)
    base = classification(
        split,
        lambda: nn.Sequential(encoder := Encoder(schema.features), model(encoder.width)),
        classes=2,
        seed=seed,
        validation=validation,
        assumptions=ASSUMPTIONS,
        class_names=census.CLASSES,
    )
    return replace(base, schema=schema)
