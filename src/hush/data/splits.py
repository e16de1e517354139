"""Train, validation and test, deterministic by seed.

A split depends on the number of rows and the seed alone, never on what the rows say, so it can be repeated and it is
public. The guarantee of a run is about the rows of the training part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hush.data.schema import Schema
from hush.errors import BadInput
from hush.randomness import Secret, generator

Arrays = tuple[Tensor, ...]
"""Tensors with the examples in their first dimension, usually (features, labels)."""

FOR_CHOOSING = 0.1
"""The share of the training rows set apart when something is to be chosen (a learning rate, a method)."""


@dataclass(frozen=True)
class Split:
    """The rows to train on and the rows to test on; of a table also what its columns are."""

    train: Arrays
    test: Arrays
    schema: Schema | None = None

    def change_features(self, change: Callable[[Tensor], Tensor]) -> Split:
        """The same rows and labels with other features; ``change`` must look at each row alone."""
        (train, train_labels), (test, test_labels) = self.train, self.test
        return Split((change(train), train_labels), (change(test), test_labels), self.schema)


def permutation(rows: int, seed: int, stream: str = "validation") -> Tensor:
    """A permutation of ``rows`` numbers: a pure function of (rows, seed, stream)."""
    order = generator(Secret.from_seed(seed, "split", stream), stream, rows).permutation(rows)
    return torch.from_numpy(order.astype(np.int64))


def hold_out(arrays: Arrays, fraction: float, *, seed: int, stream: str = "validation") -> tuple[Arrays, Arrays]:
    """(the rest, the held-out part): ⌊fraction·rows⌋ rows are held out. Both come in the permuted order, because
    files are often sorted by class and batches in file order would then hold one class each."""
    if not 0 <= fraction < 1:
        raise BadInput(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    rows = len(arrays[0])
    held = int(fraction * rows + 1e-9)
    order = permutation(rows, seed, stream)
    return tuple(a[order[held:]] for a in arrays), tuple(a[order[:held]] for a in arrays)
