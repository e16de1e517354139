"""A few examples at a time, a convolution's input unfolded into its windows, through buffers that stay in the cache."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

SHORT, WASTE = 10, 1.25  # rows of at most SHORT positions are copied as runs, if that lengthens them by at most WASTE
SMALL = 1 << 15  # numbers in the padded input of those examples whose windows are copied at once


class Geometry(Protocol):
    """What the windows depend on."""

    @property
    def stride(self) -> tuple[int, ...]: ...

    @property
    def padding(self) -> tuple[int, ...]: ...

    @property
    def dilation(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Filler:
    """Copies examples into their windows (m, channels, *kernel, *positions).

    With a stride, neighbouring windows lie that far apart in memory; so the padded input is first split into one plane
    per remainder, in which each tap of the kernel is an ordinary block. Where rows are short, a block is copied as one
    run from its first to its last entry, and the narrow side gets zeros at the entries in between.
    """

    rule: Geometry
    kernel: tuple[int, ...]
    grid: tuple[int, ...]
    buffer: Tensor
    planes: Tensor | None
    spaced: Tensor | None  # the narrow side on the planes' own rows, where windows are copied as runs

    @staticmethod
    def of(rule: Geometry, wide: Tensor, narrow: Tensor, kernel: tuple[int, ...], step: int) -> Filler:
        """The buffers for ``step`` examples."""
        channels, grid = wide.shape[1], tuple(narrow.shape[2:])
        sizes = zip(wide.shape[2:], rule.padding, rule.stride, strict=True)
        blocks = [-(-(size + 2 * pad) // s) for size, pad, s in sizes]
        one, even = math.prod(kernel) == 1, max(rule.stride) == 1
        planes = None
        if any(rule.padding) or not (one or even):
            planes = wide.new_zeros(*rule.stride, step, channels, *blocks)
        waste = math.prod(blocks[1:]) / max(1, math.prod(grid[1:]))
        if planes is None or one or grid[-1] > SHORT or waste > WASTE:
            return Filler(rule, kernel, grid, wide.new_empty(step, channels, *kernel, *grid), planes, None)
        spaced = wide.new_zeros(step, narrow.shape[1], grid[0], *blocks[1:])
        run = sum((g - 1) * math.prod(blocks[i + 1 :]) for i, g in enumerate(grid)) + 1
        return Filler(rule, kernel, grid, wide.new_empty(step, channels, *kernel, run), planes, spaced)

    def fill_narrow(self, narrow: Tensor) -> Tensor:
        """The narrow side of these examples, (m, channels, P)."""
        if self.spaced is None:
            return narrow.reshape(*narrow.shape[:2], -1)
        m = len(narrow)
        self.spaced[(slice(m), slice(None), *(slice(g) for g in self.grid))] = narrow
        return self.spaced[:m].flatten(2)[:, :, : self.buffer.shape[-1]]

    def fill_windows(self, wide: Tensor) -> Tensor:
        """The windows of these examples, (m, channels · kernel, P)."""
        m = len(wide)
        windows = self.buffer[:m]
        if self.planes is None:
            windows.copy_(self._view(wide, self.rule.stride))
        else:
            self._split(wide, self.planes)
            if max(self.rule.stride) == 1 and self.spaced is None:
                windows.copy_(self._view(self.planes[(0,) * len(self.grid)][:m], self.rule.stride))
            else:
                self._gather(windows, self.planes)
        return windows.view(m, math.prod(windows.shape[1 : 2 + len(self.kernel)]), -1)

    def _gather(self, windows: Tensor, planes: Tensor) -> None:
        """Tap by tap, the block (or run) of the plane that the tap meets."""
        m, stride = len(windows), self.rule.stride
        for tap in itertools.product(*map(range, self.kernel)):
            at = [t * d for t, d in zip(tap, self.rule.dilation, strict=True)]
            plane = planes[tuple(a % s for a, s in zip(at, stride, strict=True))][:m]
            first = [a // s for a, s in zip(at, stride, strict=True)]
            if self.spaced is None:
                block = [slice(f, f + g) for f, g in zip(first, self.grid, strict=True)]
                source = plane[(slice(None), slice(None), *block)]
            else:
                start = sum(f * s for f, s in zip(first, plane.stride()[2:], strict=True))
                source = plane.flatten(2)[:, :, start : start + windows.shape[-1]]
            place: tuple[Any, ...] = (slice(None), slice(None), *tap)
            windows[place] = source

    def _split(self, wide: Tensor, planes: Tensor) -> None:
        """Write the examples into the planes; the zeros around them stay."""
        for remainder in itertools.product(*map(range, self.rule.stride)):
            to, source = [slice(len(wide)), slice(None)], [slice(None), slice(None)]
            for r, pad, s, size in zip(remainder, self.rule.padding, self.rule.stride, wide.shape[2:], strict=True):
                first = (r - pad) % s
                row = (first + pad) // s
                source.append(slice(first, size, s))
                to.append(slice(row, row + len(range(first, size, s))))
            planes[remainder][tuple(to)] = wide[tuple(source)]

    def _view(self, wide: Tensor, stride: tuple[int, ...]) -> Tensor:
        inner = wide.stride()[2:]
        along = [s * d for s, d in zip(inner, self.rule.dilation, strict=True)]
        across = [s * d for s, d in zip(inner, stride, strict=True)]
        shape = (*wide.shape[:2], *self.kernel, *self.grid)
        return wide.as_strided(shape, (*wide.stride()[:2], *along, *across), wide.storage_offset())


@dataclass(frozen=True)
class Columns:
    """Copies examples into their windows, (groups, m · P, kernel · channels), in double precision unless told else.

    The channels of an entry lie together, so that a window's row is a few long runs of the padded input."""

    rule: Geometry
    kernel: tuple[int, ...]
    grid: tuple[int, ...]
    plane: Tensor  # (groups, a few examples, *padded, channels)
    buffer: Tensor

    @staticmethod
    def of(
        rule: Geometry,
        wide: Tensor,
        grid: tuple[int, ...],
        kernel: tuple[int, ...],
        m: int,
        groups: int,
        dtype: torch.dtype = torch.float64,
    ) -> Columns:
        """The buffers for up to m examples."""
        channels = wide.shape[1] // groups
        padded = [size + 2 * pad for size, pad in zip(wide.shape[2:], rule.padding, strict=True)]
        few = max(1, min(m, SMALL // (math.prod(padded) * wide.shape[1])))
        plane = wide.new_zeros(groups, few, *padded, channels, dtype=dtype)
        buffer = wide.new_empty(groups, m, *grid, *kernel, channels, dtype=dtype)
        return Columns(rule, kernel, grid, plane, buffer)

    def fill(self, wide: Tensor) -> Tensor:
        """The windows of so many examples."""
        groups, few = self.plane.shape[:2]
        each = wide.reshape(len(wide), groups, -1, *wide.shape[2:]).movedim(2, -1).movedim(1, 0)
        buffer = self.buffer[:, : len(wide)]
        if not any(self.rule.padding) and each.dtype == buffer.dtype and each.stride(-1) == 1:
            buffer.copy_(self._view(each, buffer))
        else:
            for low in range(0, len(wide), few):
                self._fill_padded(each[:, low : low + few], buffer[:, low : low + few])
        return buffer.reshape(groups, len(wide) * math.prod(self.grid), -1)

    def _fill_padded(self, part: Tensor, to: Tensor) -> None:
        """By way of the plane, whose zeros around the examples stay."""
        inside = [slice(p, p + size) for p, size in zip(self.rule.padding, part.shape[2:-1], strict=True)]
        self.plane[(slice(None), slice(part.shape[1]), *inside)] = part
        to.copy_(self._view(self.plane, to))

    def _view(self, plane: Tensor, to: Tensor) -> Tensor:
        """Windows that overlap in memory, of the shape that they are copied to."""
        strides = plane.stride()
        across = [s * d for s, d in zip(strides[2:-1], self.rule.stride, strict=True)]
        along = [s * d for s, d in zip(strides[2:-1], self.rule.dilation, strict=True)]
        return plane.as_strided(to.shape, (*strides[:2], *across, *along, 1), plane.storage_offset())
