"""Random integers by place: row r of a table holds the AES-256 counter-mode bytes of place ``places[r]``.

A place owns the blocks place·B … place·B + B − 1 of the stream of one key, B being the blocks that one row needs. So a
row is a pure function of (key, place, width), neighbouring places lie side by side and are written in one go, and which
other places are asked for changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.randomness.cipher import BLOCK_BYTES, Keystream, encrypt_counters

LONG = 4096  # blocks of a row, from which on the cipher is started anew for each


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the rows of a batch: distinct numbers that are not negative."""

    numbers: NDArray[np.int64]

    @staticmethod
    def of(places: Tensor) -> Places:
        """From a vector of integers."""
        numbers = places.detach().cpu().numpy().astype(np.int64, copy=False)
        assert numbers.ndim == 1, "one place for each row"
        assert not len(numbers) or numbers.min() >= 0, "a place is not negative"
        return Places(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Tensor) -> Places:
        """The places of some of the rows."""
        return Places(self.numbers[rows.cpu().numpy()])

    @cached_property
    def in_order(self) -> bool:
        """Whether each row's place follows the one before."""
        return bool((np.diff(self.numbers) == 1).all())


def table(key: bytes, places: Places, width: int, dtype: torch.dtype) -> Tensor:
    """Uniform integers (int32 or int64), one row of ``width`` for each place."""
    size, kind = (4, np.int32) if dtype == torch.int32 else (8, np.int64)
    blocks = max(1, -(-width * size // BLOCK_BYTES))
    columns = blocks * BLOCK_BYTES // size
    if not len(places) or not width:
        return torch.empty(len(places), width, dtype=dtype)
    if not places.in_order and blocks < LONG:
        starts = places.numbers.astype(np.uint64) * np.uint64(blocks)
        return torch.from_numpy(encrypt_counters(key, starts, blocks).view(kind))[:, :width]
    out = np.empty((len(places), columns), kind)  # numpy's: under torch.func a new tensor has no memory of its own
    first = [(out, int(places.numbers[0]))]
    for rows, place in first if places.in_order else zip(out, places.numbers.tolist(), strict=True):
        Keystream(key, place * blocks).fill(rows.reshape(-1).view(np.uint8))
    return torch.from_numpy(out)[:, :width]


ONE = Places(np.zeros(1, np.int64))
"""The one place of a draw that all examples share."""
