"""Random numbers by place: uniform integers, and the distributions that are made from them.

Row r of a table of integers holds the AES-256 counter-mode bytes of place ``places[r]``. A place owns the blocks
place·B … place·B + B − 1 of the stream of one key, where B is the number of blocks per row. So a row is a pure function
of (key, place, width), neighbouring places are contiguous and written together, and the result does not depend on which
other places are requested.

Every number uses the same count of bits, whatever the parameters of its distribution. A probability is compared with
32 uniform bits (24 or 53 if it is a tensor), so a mask has the probability p rounded to 2⁻³². This changes the model by
as little, and does not affect the guarantee, which holds for any mask that is a function of the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import UnsupportedModelError
from hush.randomness.cipher import BLOCK_BYTES, Keystream, encrypt_counters

LONG = 4096  # rows with at least this many blocks are encrypted one by one


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the rows of a batch: distinct integers, not negative."""

    numbers: NDArray[np.int64]

    @staticmethod
    def of(places: Tensor) -> Places:
        """Build from a vector of integers."""
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
        """Whether places are consecutive."""
        return bool((np.diff(self.numbers) == 1).all())


def draw_rows(key: bytes, places: Places, width: int, dtype: torch.dtype) -> Tensor:
    """Uniform integers (int32 or int64), one row of ``width`` for each place."""
    size, kind = (4, np.int32) if dtype == torch.int32 else (8, np.int64)
    blocks = max(1, -(-width * size // BLOCK_BYTES))
    columns = blocks * BLOCK_BYTES // size
    if not len(places) or not width:
        return torch.empty(len(places), width, dtype=dtype)
    if not places.in_order and blocks < LONG:
        starts = places.numbers.astype(np.uint64) * np.uint64(blocks)
        return torch.from_numpy(encrypt_counters(key, starts, blocks).view(kind))[:, :width]
    out = np.empty((len(places), columns), kind)  # numpy, because a new tensor under torch.func has no memory
    first = [(out, int(places.numbers[0]))]
    for rows, place in first if places.in_order else zip(out, places.numbers.tolist(), strict=True):
        Keystream(key, place * blocks).fill(rows.reshape(-1).view(np.uint8))
    return torch.from_numpy(out)[:, :width]


ONE = Places(np.zeros(1, np.int64))
"""The place of a draw that all examples share."""


_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_INTEGERS = {torch.uint8: 8, torch.int8: 7, torch.int16: 15, torch.int32: 31, torch.int64: 63, torch.bool: 1}


@dataclass(frozen=True)
class Numbers:
    """The numbers of one draw: ``draw_rows(width, dtype)`` gives rows of integers, ``arrange`` shapes them."""

    width: int
    device: torch.device
    draw_rows: Callable[[int, torch.dtype], Tensor]
    arrange: Callable[[Tensor], Tensor]

    def draw_integers(self, dtype: torch.dtype) -> Tensor:
        """Uniform over all values of int32 or int64."""
        return self._bring_into_shape(self.draw_rows(self.width, dtype))

    def draw_range(self, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """Uniform over low … high − 1, by the remainder of 62 bits: the bias is below (high − low)/2⁶²."""
        found = self.draw_integers(torch.int64).bitwise_and((1 << 62) - 1).remainder(high - low)
        return found.add_(low).to(dtype)

    def _count_digits(self, dtype: torch.dtype) -> int:
        if dtype not in _DIGITS:
            raise UnsupportedModelError(
                f"the model draws {str(dtype).removeprefix('torch.')} random numbers: draw real ones instead"
            )
        return _DIGITS[dtype]

    def draw_uniform(self, dtype: torch.dtype) -> Tensor:
        """k/2^d on [0, 1), where d is the number of binary digits of the type."""
        digits = self._count_digits(dtype)
        wide = torch.int64 if dtype == torch.float64 else torch.int32
        return self.draw_integers(wide).bitwise_and((1 << digits) - 1).to(dtype).mul_(2.0**-digits)

    def draw_open_uniform(self, dtype: torch.dtype) -> Tensor:
        """(2k + 1)/2^d, strictly between 0 and 1, so that its logarithm is finite."""
        digits = self._count_digits(dtype)
        wide = torch.int64 if dtype == torch.float64 else torch.int32
        odd = self.draw_integers(wide).bitwise_and((1 << digits) - 1).bitwise_or(1)
        return odd.to(dtype).mul_(2.0**-digits)

    def draw_normal(self, dtype: torch.dtype) -> Tensor:
        """Standard normal by the Box-Muller transform, with the pairs of a row from its own integers."""
        self._count_digits(dtype)
        precise = torch.float64 if dtype == torch.float64 else torch.float32
        wide, bits = (torch.int64, 63) if precise == torch.float64 else (torch.int32, 31)
        pairs = -(-self.width // 2)
        both = self.draw_rows(2 * pairs, wide).to(precise)
        k, angle = both[:, :pairs], both[:, pairs:]
        quarter = both.new_full((), 0.25 / 4.0**bits)
        radius = torch.addcmul(quarter, k, k, value=1 / 4.0**bits).log_().neg_().sqrt_()
        angle = angle * (math.pi / 2.0**bits)
        rows = torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)], 1)[:, : self.width]
        return self._bring_into_shape(rows).to(dtype)

    def draw_mask(self, p: float, out: Tensor) -> Tensor:
        """Ones with probability p, to 2⁻³², written into ``out``."""
        threshold = round(p * 2.0**32) - 2**31
        if threshold >= 2**31:
            return out.fill_(1)
        integers = self.draw_integers(torch.int32)
        return torch.lt(integers, threshold, out=out) if out.dtype != torch.bool else out.copy_(integers < threshold)

    def draw_masks(self, p: Tensor, out: Tensor) -> Tensor:
        """Ones with the probabilities p, to the digits of its type."""
        dtype = p.dtype if p.dtype in _DIGITS else torch.float32
        return out.copy_(self.draw_uniform(torch.float64 if dtype == torch.float64 else torch.float32) < p)

    def _bring_into_shape(self, rows: Tensor) -> Tensor:
        return self.arrange(rows).to(self.device)


def find_full_range(dtype: torch.dtype) -> int:
    """The exclusive upper bound of ``random_`` without arguments: what the type holds exactly."""
    return 1 << (_DIGITS[dtype] if dtype in _DIGITS else min(62, _INTEGERS[dtype]))
