"""Splits into train, validation and test, deterministic by seed.

A split depends on the number of rows and the seed alone, never on the content of the rows, so it is reproducible and
public. The guarantee of a run covers the rows of the training part.

Rows with a unit are split by unit: a keyed hash of the unit's identity decides whether it is held out. All rows of a
unit are therefore on one side, and adding or removing a unit changes no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import InvalidInputError
from hush.randomness import Secret, generator, streams
from hush.randomness.cipher import encrypt_counters
from hush.tabular.rows import RowSubset
from hush.tabular.schema import Schema

Arrays = tuple[Tensor, ...]
"""Tensors with the examples in their first dimension, usually (features, labels)."""
Rows = Arrays | RowSubset
"""Examples in memory, or selected rows of memory-mapped files."""

Identities = NDArray[np.int64]
"""One number per row, equal for all rows of a unit."""


@dataclass(frozen=True, eq=False)
class Owners:
    """The unit of each row in the training and test parts; ``unit`` is its name, such as "patient"."""

    unit: str
    train: Identities
    test: Identities

    @property
    def count(self) -> int:
        """How many units there are to train on."""
        return len(np.unique(self.train))


@dataclass(frozen=True)
class Split:
    """The rows to train on and the rows to test on; of a table also what its columns are."""

    train: Rows
    test: Rows
    schema: Schema | None = None
    owners: Owners | None = None

    def change_features(self, change: Callable[[Tensor], Tensor]) -> Split:
        """The same labels with transformed features; ``change`` must process each row independently."""
        (train, train_labels), (test, test_labels) = as_arrays(self.train), as_arrays(self.test)
        return Split((change(train), train_labels), (change(test), test_labels), self.schema, self.owners)


def permutation(rows: int, seed: int, stream: str = streams.VALIDATION) -> Tensor:
    """A permutation of ``rows`` numbers: a pure function of (rows, seed, stream)."""
    order = generator(Secret.from_seed(seed, streams.SPLIT, stream), stream, rows).permutation(rows)
    return torch.from_numpy(order.astype(np.int64))


def as_arrays(rows: Rows) -> Arrays:
    """The examples as tensors in memory."""
    return rows.take(torch.arange(len(rows))) if isinstance(rows, RowSubset) else rows


def count_examples(rows: Rows) -> int:
    """How many examples there are."""
    return len(rows) if isinstance(rows, RowSubset) else len(rows[0])


def find_shape(rows: Rows) -> tuple[int, ...]:
    """The shape of one example's features."""
    return tuple((rows.tensors if isinstance(rows, RowSubset) else rows)[0].shape[1:])


def hold_out(rows: Rows, fraction: float, *, seed: int, stream: str = streams.VALIDATION) -> tuple[Rows, Rows]:
    """(the rest, the held-out part): ⌊fraction·rows⌋ rows are held out. Both are in permuted order, because files are
    often sorted by class and batches in file order would then contain one class each. For memory-mapped rows only the
    indices are permuted."""
    if not 0 <= fraction < 1:
        raise InvalidInputError(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    examples = count_examples(rows)
    held = int(fraction * examples + 1e-9)
    order = permutation(examples, seed, stream)
    return pick(rows, order[held:]), pick(rows, order[:held])


def hold_out_units(
    rows: Rows, units: Identities, fraction: float, *, seed: int, stream: str = streams.VALIDATION
) -> tuple[tuple[Rows, Identities], tuple[Rows, Identities]]:
    """(the rest and its units, the held-out part and its units): each unit is held out with probability ``fraction``
    over the public keys, by its identity alone. The order of both parts is decided by the same hash."""
    if not 0 <= fraction < 1:
        raise InvalidInputError(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    coins, places = _hash_units(units, seed, stream)
    held = coins < fraction
    order = np.argsort(places, kind="stable")
    parts = [torch.from_numpy(order[held[order] == side]) for side in (False, True)]
    rest, out = ((pick(rows, part), units[part.numpy()]) for part in parts)
    return rest, out


def _hash_units(units: Identities, seed: int, stream: str) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """For each row a number in [0, 1) and one to sort by, from its unit's identity: AES under a public key."""
    key = Secret.from_seed(seed, streams.SPLIT, streams.split_units(stream)).derive(streams.UNITS, 0, size=32)
    different, where = np.unique(units, return_inverse=True)
    words = encrypt_counters(key, different.view(np.uint64), 1).view("<u8").reshape(-1, 2)[where.reshape(-1)]
    return (words[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53, words[:, 1].astype(np.uint64)


def pick(rows: Rows, places: Tensor) -> Rows:
    """The examples at these places, in this order; memory-mapped rows are not copied."""
    return rows.pick(places) if isinstance(rows, RowSubset) else tuple(a[places] for a in rows)
