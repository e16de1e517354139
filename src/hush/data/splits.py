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

from hush.data.mapped import Picked
from hush.data.schema import Schema
from hush.errors import BadInput
from hush.randomness import Secret, generator

Arrays = tuple[Tensor, ...]
"""Tensors with the examples in their first dimension, usually (features, labels)."""
Rows = Arrays | Picked
"""Examples in memory, or those rows of mapped files that are meant."""

FOR_CHOOSING = 0.1
"""The share of the training rows set apart when something is to be chosen (a learning rate, a method)."""


@dataclass(frozen=True)
class Split:
    """The rows to train on and the rows to test on; of a table also what its columns are."""

    train: Rows
    test: Rows
    schema: Schema | None = None

    def change_features(self, change: Callable[[Tensor], Tensor]) -> Split:
        """The same rows and labels with other features; ``change`` must look at each row alone."""
        (train, train_labels), (test, test_labels) = as_arrays(self.train), as_arrays(self.test)
        return Split((change(train), train_labels), (change(test), test_labels), self.schema)


def permutation(rows: int, seed: int, stream: str = "validation") -> Tensor:
    """A permutation of ``rows`` numbers: a pure function of (rows, seed, stream)."""
    order = generator(Secret.from_seed(seed, "split", stream), stream, rows).permutation(rows)
    return torch.from_numpy(order.astype(np.int64))


def as_arrays(rows: Rows) -> Arrays:
    """The examples as tensors in memory."""
    return rows.take(torch.arange(len(rows))) if isinstance(rows, Picked) else rows


def count_examples(rows: Rows) -> int:
    """How many examples there are."""
    return len(rows) if isinstance(rows, Picked) else len(rows[0])


def find_shape(rows: Rows) -> tuple[int, ...]:
    """The shape of one example's features."""
    return tuple((rows.tensors if isinstance(rows, Picked) else rows)[0].shape[1:])


def hold_out(rows: Rows, fraction: float, *, seed: int, stream: str = "validation") -> tuple[Rows, Rows]:
    """(the rest, the held-out part): ⌊fraction·rows⌋ rows are held out. Both come in the permuted order, because
    files are often sorted by class and batches in file order would then hold one class each. Of mapped rows the
    numbers are permuted, and the rows stay where they are."""
    if not 0 <= fraction < 1:
        raise BadInput(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    examples = count_examples(rows)
    held = int(fraction * examples + 1e-9)
    order = permutation(examples, seed, stream)
    return pick(rows, order[held:]), pick(rows, order[:held])


def pick(rows: Rows, places: Tensor) -> Rows:
    """The examples at these places, in this order; of mapped rows none is copied."""
    return rows.pick(places) if isinstance(rows, Picked) else tuple(a[places] for a in rows)
