"""Convolutions and transposed convolutions: per-example weight gradients, their norms and their weighted sum.

With the wide side (a convolution's input, a transposed one's output gradient) unfolded into its windows a, and b the
narrow side at the same position, gᵢ = Σ_p b_ip a_ipᵀ (Rochette, Manoel, Tramel 2019, "Efficient per-example gradient
computations in convolutional neural networks"). Windows are copied a few examples at a time, so that they stay in the
cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.per_example.result import Weights
from hush.per_example.rounding import BLOCK, bound_columns, bound_squares, underflow_margin
from hush.per_example.terms import (
    ENTRY,
    GRAM,
    HOLD,
    Materialized,
    RoundingBound,
    Term,
    TurnedRows,
    add_allowance,
    bound_from_grams,
    chunk_of,
    compute_grams,
    depth_of,
)

# A convolution's input is unfolded into its windows a few examples at a time, in buffers that stay in the cache.

SHORT, WASTE = 10, 1.25  # rows of at most SHORT positions are copied as runs, if that lengthens them by at most WASTE
ROOM = 2.0  # a gradient is materialized only up to this many times the size of the input and its gradient
SMALL = 1 << 15  # size of the padded input of the examples whose windows are copied at once
CHANNELS = 6  # with fewer channels on a side the library's convolution of every example is no faster than windows


class Geometry(Protocol):
    """The settings that the windows depend on."""

    @property
    def stride(self) -> tuple[int, ...]: ...

    @property
    def padding(self) -> tuple[int, ...]: ...

    @property
    def dilation(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Filler:
    """Copies examples into their windows (m, channels, *kernel, *positions).

    With a stride, neighbouring windows are that far apart in memory; so the padded input is first split into one plane
    per remainder, in which each tap of the kernel is a plain block. If rows are short, a block is copied as one run
    from its first to its last entry, and the narrow side gets zeros at the entries in between.
    """

    rule: Geometry
    kernel: tuple[int, ...]
    grid: tuple[int, ...]
    buffer: Tensor
    planes: Tensor | None
    spaced: Tensor | None  # the narrow side laid out like the planes' rows, if windows are copied as runs

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
        """Copy, tap by tap, the block (or run) of the plane that the tap covers."""
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
    """Copies examples into their windows, (groups, m · P, kernel · channels), in double precision by default.

    The channels of an entry are contiguous, so a window's row is a few long runs of the padded input."""

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
        """The windows of these examples."""
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
        """Copy through the plane, whose padding of zeros is kept."""
        inside = [slice(p, p + size) for p, size in zip(self.rule.padding, part.shape[2:-1], strict=True)]
        self.plane[(slice(None), slice(part.shape[1]), *inside)] = part
        to.copy_(self._view(self.plane, to))

    def _view(self, plane: Tensor, to: Tensor) -> Tensor:
        """Windows that overlap in memory, in the shape they are copied to."""
        strides = plane.stride()
        across = [s * d for s, d in zip(strides[2:-1], self.rule.stride, strict=True)]
        along = [s * d for s, d in zip(strides[2:-1], self.rule.dilation, strict=True)]
        return plane.as_strided(to.shape, (*strides[:2], *across, *along, 1), plane.storage_offset())


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * dims if len(values) == 1 else values


def _lie_together(images: Tensor) -> bool:
    """Whether the channels of a pixel are contiguous in memory (torch's channels_last)."""
    return images.dim() == 4 and images.shape[1] > 1 and images.is_contiguous(memory_format=torch.channels_last)


def _multiply(narrow: Tensor, windows: Tensor, out: Tensor | None) -> Tensor:
    """The products (m, outputs, P) · (m, P, window), written to ``out`` if given.

    On a CPU, a product with few columns is up to ten times slower than its transpose, so the transpose is computed if
    the window is the shorter side."""
    if windows.shape[2] >= narrow.shape[1]:
        return torch.bmm(narrow, windows, out=out)
    turned = torch.bmm(windows.transpose(1, 2), narrow.transpose(1, 2)).transpose(1, 2)
    return turned.contiguous() if out is None else out.copy_(turned)


@dataclass(frozen=True)
class Convolution:
    """The settings of one convolution over ``dims`` dimensions."""

    dims: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()  # zeros for F.pad, if the padding differs between the two sides

    @staticmethod
    def of(dims: int, stride: Any, padding: Any, dilation: Any, groups: int, kernel: Sequence[int]) -> Convolution:
        """The settings as F.conv1d … F.conv3d take them."""
        dilated = _each(dilation, dims)
        extra: tuple[int, ...] = ()
        if padding == "valid":
            padding = 0
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(dilated, kernel, strict=True)]
            padding = tuple(t // 2 for t in total)
            extra = tuple(side for t in reversed(total) for side in (0, t % 2)) if any(t % 2 for t in total) else ()
        return Convolution(dims, _each(stride, dims), _each(padding, dims), dilated, groups, extra=extra)

    @staticmethod
    def transpose(dims: int, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any) -> Convolution:
        """The settings as F.conv_transpose1d … F.conv_transpose3d take them."""
        each = [_each(value, dims) for value in (stride, padding, dilation, output_padding)]
        return Convolution(dims, each[0], each[1], each[2], groups, True, each[3])

    def _settings(self) -> tuple[Any, ...]:
        added = list(self.output_padding) or [0] * self.dims
        return list(self.stride), list(self.padding), list(self.dilation), self.transposed, added, self.groups

    def pad(self, x: Tensor) -> Tensor:
        """x with the zeros that two-sided padding cannot express."""
        return F.pad(x, self.extra) if self.extra else x

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The ordinary convolution."""
        return torch.convolution(x, weight, bias, *self._settings())

    def input_gradient(self, x: Tensor, gy: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input, as in ordinary training."""
        mask = [True, False, False]
        out: Tensor = torch.ops.aten.convolution_backward(gy, x, weight, None, *self._settings(), mask)[0]
        return out

    def term(self, x: Tensor, gy: Tensor, weight: Tensor) -> Term:
        """Materialized gradients if that is cheaper, otherwise the factors they are computed from."""
        windowed = Windowed(self, x, gy if _lie_together(gy) else gy.contiguous(), weight)
        small = weight.numel() <= ROOM * (x[0].numel() + gy[0].numel())
        return windowed.materialize() if small and windowed.held_is_cheaper() else windowed


@dataclass(frozen=True)
class Windowed:
    """The term of a convolution that keeps its input and its output's gradient."""

    rule: Convolution
    x: Tensor
    gy: Tensor
    weight: Tensor

    @property
    def wide(self) -> Tensor:
        """The side that is unfolded."""
        return self.gy if self.rule.transposed else self.x

    @property
    def narrow(self) -> Tensor:
        """The side with one entry per window."""
        return self.x if self.rule.transposed else self.gy

    @property
    def positions(self) -> int:
        """The number of windows."""
        return math.prod(self.narrow.shape[2:])

    @property
    def window(self) -> int:
        """The numbers in one window of one group."""
        return self.weight[0].numel()

    def held_is_cheaper(self) -> bool:
        """The cost model of :func:`hush.per_example.terms.held_is_cheaper`, with the Gram matrix of the wide side."""
        pairs = math.prod(self.wide.shape[2:]) ** 2 * self.wide.shape[1] * GRAM
        pairs += self.positions**2 * (
            self.weight.shape[0] * GRAM + self.weight[0, 0].numel() * ENTRY * self.rule.groups
        )
        return self.weight.numel() * HOLD < pairs

    def unfold(self, start: int, stop: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A few examples at a time: windows (m·groups, window, P) and the narrow side (m·groups, channels, P)."""
        groups, step = self.rule.groups, min(step, stop - start)
        filler = Filler.of(self.rule, self.wide, self.narrow, tuple(self.weight.shape[2:]), step)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            windows, narrow = filler.fill_windows(self.wide[low:high]), filler.fill_narrow(self.narrow[low:high])
            shape = ((high - low) * groups, -1, windows.shape[-1])
            yield windows.reshape(shape), narrow.reshape(shape)

    def _fit_cache(self, n: int) -> int:
        """The number of examples whose windows fit the cache."""
        return chunk_of(self.wide.shape[1] * self.weight[0, 0].numel() * self.positions, n)

    @property
    def turned(self) -> bool:
        """Whether a window's channels are contiguous in memory, so that it is copied in long runs."""
        return self.rule.groups == 1 and _lie_together(self.wide)

    def _make_rows(self, out: Tensor | None = None) -> Iterator[Tensor]:
        """gᵢ by one batched product over windows, a few examples at a time: (m·groups, outputs, window), written to
        ``out`` if given. A window is ordered like the weight, or channels last if it is ``turned``."""
        done = 0
        for narrow, windows in self._pair_up():
            to = None if out is None else out[done : done + len(narrow)]
            done += len(narrow)
            yield _multiply(narrow, windows, to)

    def _pair_up(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The two factors of the product, a few examples at a time: (m·groups, outputs, P), (m·groups, P, window)."""
        n = self.x.shape[0]
        step = self._fit_cache(n)
        if not self.turned:
            yield from ((narrow, windows.transpose(1, 2)) for windows, narrow in self.unfold(0, n, step))
            return
        grid, kernel = tuple(self.narrow.shape[2:]), tuple(self.weight.shape[2:])
        columns = Columns.of(self.rule, self.wide, grid, kernel, step, 1, self.wide.dtype)
        for wide, narrow in zip(torch.split(self.wide, step), torch.split(self.narrow, step), strict=True):
            yield narrow.flatten(2), columns.fill(wide).view(len(wide), self.positions, self.window)

    def materialize(self) -> Term:
        """The gradients as they are clipped and summed, which need no bound on their own rounding: by the library's
        convolution, which copies no windows, where that is faster."""
        return Materialized(self._convolve()) if self._suits_library() else self.hold()

    def _suits_library(self) -> bool:
        if not self.x.is_cpu or self.x.dtype != torch.float32 or self.rule.dims != 2 or self.rule.groups != 1:
            return False
        if min(self.weight.shape[:2]) < CHANNELS or not (torch._C._has_mkldnn and torch._C._get_mkldnn_enabled()):
            return False
        return tuple(self.narrow.shape[2:]) == self._count_windows()

    def _count_windows(self) -> tuple[int, ...]:
        """The windows along each dimension that fit the wide side; a transposed convolution can have fewer."""
        sizes = zip(self.wide.shape[2:], self.weight.shape[2:], strict=True)
        rules = zip(self.rule.stride, self.rule.padding, self.rule.dilation, strict=True)
        return tuple((w + 2 * p - d * (k - 1) - 1) // s + 1 for (w, k), (s, p, d) in zip(sizes, rules, strict=True))

    def _convolve(self) -> Tensor:
        """The weight gradients of convolutions of a few examples at a time, each of which is a group."""
        n, shape, mask = len(self.x), self.weight.shape, [False, True, False]
        step = chunk_of(self.wide[0].numel() + self.narrow[0].numel(), n)
        out = self.weight.new_empty(n, *shape) if step < n else None
        for low in range(0, n, step):
            m = min(step, n - low)
            wide, narrow = (t[low : low + m].reshape(1, -1, *t.shape[2:]) for t in (self.wide, self.narrow))
            weight = self.weight.new_empty(1).expand(m * shape[0], *shape[1:])  # only its shape is used
            settings = replace(self.rule, groups=m, transposed=False, output_padding=())._settings()
            found: Tensor = torch.ops.aten.convolution_backward(narrow, wide, weight, None, *settings, mask)[1]
            if out is None:
                return found.view(n, *shape)
            out[low : low + m] = found.view(m, *shape)
        assert out is not None
        return out

    def hold(self) -> Term:
        """The gradients, in the memory layout in which they are computed."""
        n, groups, kernel = self.x.shape[0], self.rule.groups, self.weight.shape[2:]
        out = self.weight.new_empty(n * groups, len(self.weight) // groups, self.window)
        for _ in self._make_rows(out):
            pass
        if self.turned:
            return TurnedRows(Materialized(out.view(n, len(self.weight), *kernel, -1)))
        return Materialized(out.view(n, *self.weight.shape))

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ of these examples."""
        return replace(self, x=self.x[start:stop], gy=self.gy[start:stop]).hold().rows(0, stop - start)

    def reach(self) -> RoundingBound:
        """s = Σ_p ‖a_p‖‖b_p‖, with window norms from those of the wide side's entries; per group, then combined."""
        n, groups = self.x.shape[0], self.rule.groups
        wide, narrow = (self._bound_entries(t, underflow_margin(t.dtype)) for t in (self.wide, self.narrow))
        windows = wide.new_full((n * groups, *self.narrow.shape[2:]), underflow_margin(self.x.dtype))
        for to, source in self._taps():
            windows[(slice(None), *to)] += wide[(slice(None), *source)]
        s = windows.mul_(narrow).sqrt_().view(n, groups, -1).sum(2)
        return RoundingBound(self.positions, s.square_().sum(1).sqrt_())

    def _bound_entries(self, side: Tensor, more: float) -> Tensor:
        """‖entry‖² over the channels of one group, (n · groups, *positions)."""
        each = side.reshape(side.shape[0] * self.rule.groups, -1, math.prod(side.shape[2:]))
        return bound_columns(each, more).view(-1, *side.shape[2:])

    def bound_squares(self, certain: bool = True) -> Tensor:
        """‖gᵢ‖² from the gradients of a few examples at a time, or as Σ_pq (a_p·a_q)(b_p·b_q) without windows."""
        if not self.held_is_cheaper():
            return self.bound_by_grams(certain)
        n = self.x.shape[0]
        found = torch.cat([bound_squares(r, certain=certain) for r in self._make_rows()])
        found = found.view(n, self.rule.groups).sum(1)
        return add_allowance(found, [self.reach()], self.x.dtype) if certain else found

    def bound_by_grams(self, certain: bool = True) -> Tensor:
        """‖gᵢ‖² from Gram matrices, without windows.

        The windows' Gram matrix sums entries of the wide side's Gram matrix over the taps:
        (a_p·a_q) = Σ_k x_{p+k}·x_{q+k}."""
        n, groups = self.x.shape[0], self.rule.groups
        sides = [t.reshape(n * groups, -1, math.prod(t.shape[2:])).transpose(1, 2) for t in (self.wide, self.narrow)]
        step = chunk_of(max(sides[0].shape[1], self.positions) ** 2, n * groups)
        pairs = zip(torch.split(sides[0], step), torch.split(sides[1], step), strict=True)
        return torch.cat([self._gram(a, b, certain) for a, b in pairs]).view(n, groups).sum(1)

    def _gram(self, wide: Tensor, narrow: Tensor, certain: bool) -> Tensor:
        m, side, grid = wide.shape[0], tuple(self.wide.shape[2:]), tuple(self.narrow.shape[2:])
        pairs = compute_grams(wide).view(m, *side, *side)
        windows = pairs.new_zeros(m, *grid, *grid)
        for to, source in self._taps():
            windows[(slice(None), *to, *to)] += pairs[(slice(None), *source, *source)]
        inner = (min(BLOCK, wide.shape[2]) + self.weight[0, 0].numel(), min(BLOCK, narrow.shape[2]))
        size = (m, self.positions, self.positions)
        return bound_from_grams(windows.view(size), compute_grams(narrow), inner, wide.dtype, certain)

    def _taps(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap of the kernel: the positions at which it lies inside the wide side, and the entries there."""
        side, grid = self.wide.shape[2:], self.narrow.shape[2:]
        for tap in itertools.product(*map(range, self.weight.shape[2:])):
            to, source = zip(*map(self._overlap, range(self.rule.dims), tap, side, grid), strict=True)
            yield to, source

    def _overlap(self, dim: int, tap: int, size: int, positions: int) -> tuple[slice, slice]:
        """The positions at which a tap lies inside the wide side along one dimension, and the entries there."""
        stride, offset = self.rule.stride[dim], tap * self.rule.dilation[dim] - self.rule.padding[dim]
        first = max(0, -(offset // stride))
        last = min(positions, (size - 1 - offset) // stride + 1)
        start = first * stride + offset
        return slice(first, max(first, last)), slice(start, start + max(0, last - first) * stride, stride)

    def sum(self, weights: Weights) -> Tensor:
        """Windows can cancel, so they are summed in double precision and rounded once."""
        total = self.sum_in_double(weights)
        return total.new_empty(total.shape, dtype=self.weight.dtype).copy_(total)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same in double precision, added to a sum; the result is a view of one with the channels last."""
        return self._add_products(None if total is None else total.movedim(1, -1), weights)

    def sum_in_double(self, weights: Weights) -> Tensor:
        """One matrix product for a few examples at a time, in double precision."""
        return self._add_products(None, weights)

    def _add_products(self, given: Tensor | None, weights: Weights) -> Tensor:
        m, groups, kernel = weights.stop - weights.start, self.rule.groups, tuple(self.weight.shape[2:])
        outputs, step = self.weight.shape[0] // groups, max(1, min(m, depth_of(self.window) // self.positions))
        shape, double = (groups, outputs, self.window), torch.float64
        total = self.weight.new_zeros(shape, dtype=double) if given is None else given.to(double).reshape(shape)
        columns: Columns | None = None
        for low in range(0, m, step):
            part = weights.part(low, min(m, low + step))
            if columns is None or low + step > m:
                columns = Columns.of(
                    self.rule, self.wide, tuple(self.narrow.shape[2:]), kernel, part.stop - part.start, groups
                )
            narrow = part.rows(self.narrow).flatten(2).transpose(0, 1) * part.values.double()[:, None]
            total.baddbmm_(narrow.reshape(groups, outputs, -1), columns.fill(part.rows(self.wide)))
        return total.view(groups * outputs, *kernel, -1).movedim(-1, 1)
