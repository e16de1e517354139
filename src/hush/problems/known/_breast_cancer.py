"""Breast cancer Wisconsin (Diagnostic), scaled by ranges written down here.

Each of ten measurements of cell nuclei comes as mean, standard error and worst value. The limits below are round
numbers, set by hand with the dataset's published description in view; they are constants and taken to be public, as
that description is. A value is mapped so that its range becomes [−1, 1], and is not clamped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hush.data import embedded
from hush.data.splits import Arrays, Split
from hush.errors import BadInput
from hush.problems.problem import Problem, classification

MEASUREMENTS = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "mean": (
        (5, 25),
        (5, 35),
        (30, 160),
        (0, 1600),
        (0.05, 0.15),
        (0, 0.3),
        (0, 0.4),
        (0, 0.2),
        (0.1, 0.3),
        (0.05, 0.1),
    ),
    "error": ((0, 1), (0, 3), (0, 8), (0, 120), (0, 0.02), (0, 0.1), (0, 0.1), (0, 0.04), (0, 0.05), (0, 0.01)),
    "worst": ((5, 35), (5, 50), (30, 220), (0, 2500), (0.05, 0.25), (0, 1), (0, 1), (0, 0.3), (0.1, 0.6), (0.05, 0.2)),
}
ASSUMPTIONS = (
    "the number of training rows, the two classes and the measurements' ranges (round numbers after the dataset's "
    "published description) are public",
)


def breast_cancer(model: Callable[[], nn.Module], *, seed: int, validation: float) -> Problem:
    """A problem on the tumours with this model."""
    raw, features = embedded.breast_cancer()
    low, high = limits(features)
    split = Split(_scaled(raw.train, low, high), _scaled(raw.test, low, high))
    return classification(
        split,
        model,
        classes=2,
        seed=seed,
        validation=validation,
        assumptions=ASSUMPTIONS,
        class_names=("malignant", "benign"),
    )


def limits(features: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The public (low, high) of every feature, by its name ("mean radius", "radius error", "worst radius")."""
    table = {}
    for kind, ranges in RANGES.items():
        for measurement, limit in zip(MEASUREMENTS, ranges, strict=True):
            table[f"{measurement} error" if kind == "error" else f"{kind} {measurement}"] = limit
    unknown = [name for name in features if name not in table]
    if unknown:
        raise BadInput(f"the installed scikit-learn has breast-cancer features without a known range: {unknown}")
    both = torch.tensor([table[name] for name in features])
    return both[:, 0], both[:, 1]


def _scaled(arrays: Arrays, low: Tensor, high: Tensor) -> Arrays:
    features, labels = arrays
    return (2 * (features - low) / (high - low) - 1, labels)
