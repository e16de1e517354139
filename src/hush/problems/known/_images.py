"""The image datasets, scaled by public constants that are written down here.

MNIST by the mean and deviation that the literature publishes for it, (0.1307, 0.3081); the others by (0.5, 0.5), which
maps a pixel's range to [−1, 1] and is no statistic of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from hush.data import cifar, embedded, idx
from hush.data.splits import Split
from hush.problems.problem import Problem, classification

PIXEL = 255.0
MNIST = (0.1307, 0.3081)
CENTRED = (0.5, 0.5)
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
COUNT = "the number of training images and the ten classes are public"
CONSTANTS = "the pixels' published mean and deviation (0.1307, 0.3081) are public constants"


def mnist(model: Callable[[], nn.Module], *, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """A problem on MNIST with this model."""
    split = scaled(idx.load("mnist", data_dir), *MNIST)
    return classification(split, model, classes=10, seed=seed, validation=validation, assumptions=(COUNT, CONSTANTS))


def mnist5k(model: Callable[[], nn.Module], *, seed: int, validation: float) -> Problem:
    """A problem on the 5 000 embedded images of MNIST with this model."""
    split = scaled(embedded.mnist5k(), *MNIST)
    return classification(split, model, classes=10, seed=seed, validation=validation, assumptions=(COUNT, CONSTANTS))


def fashion(model: Callable[[], nn.Module], *, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """A problem on Fashion-MNIST with this model."""
    split = scaled(idx.load("fashion-mnist", data_dir), *CENTRED)
    return classification(
        split, model, classes=10, seed=seed, validation=validation, assumptions=(COUNT,), class_names=CLOTHES
    )


def cifar10(model: Callable[[], nn.Module], *, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """A problem on CIFAR-10 with this model."""
    split = scaled(cifar.load(data_dir), *CENTRED)
    return classification(
        split, model, classes=10, seed=seed, validation=validation, assumptions=(COUNT,), class_names=cifar.CLASSES
    )


def scaled(split: Split, mean: float, deviation: float) -> Split:
    """(pixel/255 − mean)/deviation, in single precision, for both parts."""
    return Split(*((_scaled(images, mean, deviation), labels) for images, labels in (split.train, split.test)))


def _scaled(images: Tensor, mean: float, deviation: float) -> Tensor:
    return images.float().div_(PIXEL).sub_(mean).div_(deviation)
