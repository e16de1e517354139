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

from hush.ciphers import keystream

BLOCK_BYTES = 16
START = 16384  # bytes that are written in the time it takes to start the cipher at another place


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the rows of a batch: distinct numbers that are not negative."""

    numbers: NDArray[np.int64]

    @staticmethod
    def of(places: Tensor) -> Places:
        """From a vector of integers."""
        return Places(places.detach().cpu().numpy().astype(np.int64).reshape(-1))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Tensor) -> Places:
        """The places of some of the rows."""
        return Places(self.numbers[rows.cpu().numpy()])

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """(first row, first place, length) of every stretch of rows whose places follow each other."""
        cuts = np.flatnonzero(np.diff(self.numbers) != 1) + 1
        starts = [0, *cuts.tolist()]
        return [(a, int(self.numbers[a]), b - a) for a, b in zip(starts, [*starts[1:], len(self)], strict=True)]

    @cached_property
    def hull(self) -> tuple[int, int]:
        """The lowest place, and how many lie from it to the highest."""
        lowest = int(self.numbers.min())
        return lowest, int(self.numbers.max()) - lowest + 1

    @cached_property
    def inside(self) -> Tensor:
        """The rows' positions within the hull."""
        return torch.from_numpy(self.numbers - self.hull[0])


def table(key: bytes, places: Places, width: int, dtype: torch.dtype) -> Tensor:
    """Uniform integers (int32 or int64), one row of ``width`` for each place."""
    size, kind = (4, np.int32) if dtype == torch.int32 else (8, np.int64)
    blocks = max(1, -(-width * size // BLOCK_BYTES))
    columns, row_bytes = blocks * BLOCK_BYTES // size, blocks * BLOCK_BYTES
    if not len(places) or not width:
        return torch.empty(len(places), width, dtype=dtype)
    lowest, span = places.hull
    if len(places.runs) > 1 and (span - len(places)) * row_bytes <= len(places.runs) * START:
        whole = np.empty((span, columns), kind)
        keystream(key, lowest * blocks)(whole.ctypes.data, span * row_bytes)
        return torch.from_numpy(whole).index_select(0, places.inside)[:, :width]
    out = np.empty((len(places), columns), kind)  # numpy's: under torch.func a new tensor has no memory of its own
    address = out.ctypes.data
    for row, place, length in places.runs:
        keystream(key, place * blocks)(address + row * row_bytes, length * row_bytes)
    return torch.from_numpy(out)[:, :width]


ONE = Places(np.zeros(1, np.int64))
"""The one place of a draw that all examples share."""
