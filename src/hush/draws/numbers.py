"""Distributions from uniform integers; every number takes the same count of bits, whatever the parameters are.

A probability is compared with 32 uniform bits (24 or 53 where it is a tensor), so a mask has the probability p rounded
to 2⁻³². That changes the model by as little and the guarantee not at all: any mask that is a function of the place is
as good as any other there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.errors import Refused

_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_INTEGERS = {torch.uint8: 8, torch.int8: 7, torch.int16: 15, torch.int32: 31, torch.int64: 63, torch.bool: 1}


@dataclass(frozen=True)
class Numbers:
    """The numbers of one draw. ``table(width, dtype)`` gives rows of integers, ``arranged`` brings them into shape."""

    width: int
    device: torch.device
    table: Callable[[int, torch.dtype], Tensor]
    arranged: Callable[[Tensor], Tensor]

    def integers(self, dtype: torch.dtype) -> Tensor:
        """Uniform over all values of int32 or int64."""
        return self._shaped(self.table(self.width, dtype))

    def whole(self, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """Uniform over low … high − 1, by the remainder of 62 bits: the bias is below (high − low)/2⁶²."""
        found = self.integers(torch.int64).bitwise_and((1 << 62) - 1).remainder(high - low)
        return found.add_(low).to(dtype)

    def _digits(self, dtype: torch.dtype) -> int:
        if dtype not in _DIGITS:
            raise Refused(f"random numbers of type {str(dtype).removeprefix('torch.')} have no place: draw real ones")
        return _DIGITS[dtype]

    def uniform(self, dtype: torch.dtype) -> Tensor:
        """k/2^d on [0, 1), with d the digits of the type."""
        digits = self._digits(dtype)
        wide = torch.int64 if dtype == torch.float64 else torch.int32
        return self.integers(wide).bitwise_and((1 << digits) - 1).to(dtype).mul_(2.0**-digits)

    def open_uniform(self, dtype: torch.dtype) -> Tensor:
        """(2k + 1)/2^d, strictly between 0 and 1: for what has a logarithm taken of it."""
        digits = self._digits(dtype)
        wide = torch.int64 if dtype == torch.float64 else torch.int32
        odd = self.integers(wide).bitwise_and((1 << digits) - 1).bitwise_or(1)
        return odd.to(dtype).mul_(2.0**-digits)

    def normal(self, dtype: torch.dtype) -> Tensor:
        """Standard normal by Box and Muller's transform, the pairs of a row from its own integers (hush.randomness)."""
        self._digits(dtype)
        precise = torch.float64 if dtype == torch.float64 else torch.float32
        wide, bits = (torch.int64, 63) if precise == torch.float64 else (torch.int32, 31)
        pairs = -(-self.width // 2)
        both = self.table(2 * pairs, wide).to(precise)
        k, angle = both[:, :pairs], both[:, pairs:]
        quarter = both.new_full((), 0.25 / 4.0**bits)
        radius = torch.addcmul(quarter, k, k, value=1 / 4.0**bits).log_().neg_().sqrt_()
        angle = angle * (math.pi / 2.0**bits)
        rows = torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)], 1)[:, : self.width]
        return self._shaped(rows).to(dtype)

    def chance(self, p: float, out: Tensor) -> Tensor:
        """Ones with probability p, to 2⁻³², written into ``out``."""
        threshold = round(p * 2.0**32) - 2**31
        if threshold >= 2**31:
            return out.fill_(1)
        integers = self.integers(torch.int32)
        return torch.lt(integers, threshold, out=out) if out.dtype != torch.bool else out.copy_(integers < threshold)

    def chances(self, p: Tensor, out: Tensor) -> Tensor:
        """Ones with the probabilities p, to the digits of its type."""
        dtype = p.dtype if p.dtype in _DIGITS else torch.float32
        return out.copy_(self.uniform(torch.float64 if dtype == torch.float64 else torch.float32) < p)

    def _shaped(self, rows: Tensor) -> Tensor:
        return self.arranged(rows).to(self.device)


def full_range(dtype: torch.dtype) -> int:
    """Below which integer ``random_`` without bounds draws: what the type holds exactly."""
    return 1 << (_DIGITS[dtype] if dtype in _DIGITS else min(62, _INTEGERS[dtype]))
