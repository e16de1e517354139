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
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.gradients.costs import ENTRY, GRAM, HOLD, ROOM, TEMPORARY, chunk_of
from hush.gradients.tape import squares
from hush.gradients.terms import Rows, Term, Weights, hidden_by_rounding
from hush.gradients.windows import Filler


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * dims if len(values) == 1 else values


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
    extra: tuple[int, ...] = ()  # zeros for F.pad, where the padding is not the same on both sides

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

    def padded(self, x: Tensor) -> Tensor:
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

    def weight_gradient(self, x: Tensor, gy: Tensor, weight: Tensor) -> Tensor:
        """The sum of the weight's gradients over all examples, as in ordinary training."""
        mask = [False, True, False]
        out: Tensor = torch.ops.aten.convolution_backward(gy, x, weight, None, *self._settings(), mask)[1]
        return out

    def term(self, x: Tensor, gy: Tensor, weight: Tensor) -> Term:
        """The gradients themselves where that is the cheaper way, else what they are made of."""
        kept = Windowed(self, x, gy.contiguous(), weight)
        small = weight.numel() <= ROOM * (x[0].numel() + gy[0].numel())
        return Rows(kept.rows(0, x.shape[0])) if small and kept.held_is_cheaper() else kept


@dataclass(frozen=True)
class Windowed:
    """The term of a convolution that keeps its input and its output's gradient."""

    rule: Convolution
    x: Tensor
    gy: Tensor
    weight: Tensor

    def hidden(self) -> Tensor:
        """Of the sum over windows; an entry lies in at most as many windows as the kernel has taps."""
        return hidden_by_rounding(self.x, self.gy, self.weight[0, 0].numel())

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
        """The cost model of :mod:`hush.gradients.costs` with the wide side's own Gram matrix."""
        pairs = math.prod(self.wide.shape[2:]) ** 2 * self.wide.shape[1] * GRAM
        pairs += self.positions**2 * (
            self.weight.shape[0] * GRAM + self.weight[0, 0].numel() * ENTRY * self.rule.groups
        )
        return self.weight.numel() * HOLD < pairs

    def factors(self, start: int, stop: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A few examples at a time: windows (m·groups, window, P) and the narrow side (m·groups, channels, P)."""
        groups, step = self.rule.groups, min(step, stop - start)
        filler = Filler.of(self.rule, self.wide, self.narrow, tuple(self.weight.shape[2:]), step)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            windows, narrow = filler.windows_of(self.wide[low:high]), filler.narrow_of(self.narrow[low:high])
            shape = ((high - low) * groups, -1, windows.shape[-1])
            yield windows.reshape(shape), narrow.reshape(shape)

    def _few(self, n: int) -> int:
        """How many examples' windows stay in the cache."""
        return chunk_of(self.wide.shape[1] * self.weight[0, 0].numel() * self.positions, n)

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ by one batched product over the windows, a few examples at a time."""
        n, groups = stop - start, self.rule.groups
        out, done = self.weight.new_empty(n * groups, self.weight.shape[0] // groups, self.window), 0
        for windows, narrow in self.factors(start, stop, self._few(n)):
            torch.bmm(narrow, windows.transpose(1, 2), out=out[done : done + len(windows)])
            done += len(windows)
        return out.view(n, *self.weight.shape)

    def squares(self) -> Tensor:
        """‖gᵢ‖² through the gradients of a few examples at a time, or as Σ_pq (a_p·a_q)(b_p·b_q) without any window."""
        if not self.held_is_cheaper():
            return self.gram_squares().add_(self.hidden())
        n = self.x.shape[0]
        parts = [squares(torch.bmm(b, a.transpose(1, 2))) for a, b in self.factors(0, n, self._few(n))]
        return torch.cat(parts).view(n, self.rule.groups).sum(1).add_(self.hidden())

    def gram_squares(self) -> Tensor:
        """The second way.

        The windows' Gram matrix sums entries of the wide side's own over the taps: (a_p·a_q) = Σ_k x_{p+k}·x_{q+k}."""
        n, groups = self.x.shape[0], self.rule.groups
        wide, narrow = (t.reshape(n * groups, -1, math.prod(t.shape[2:])) for t in (self.wide, self.narrow))
        step = chunk_of(max(wide.shape[2], self.positions) ** 2, n * groups)
        parts = [self._gram(a, b) for a, b in zip(torch.split(wide, step), torch.split(narrow, step), strict=True)]
        return torch.cat(parts).view(n, groups).sum(1)

    def _gram(self, wide: Tensor, narrow: Tensor) -> Tensor:
        m, side, grid = wide.shape[0], tuple(self.wide.shape[2:]), tuple(self.narrow.shape[2:])
        pairs = torch.bmm(wide.transpose(1, 2), wide).view(m, *side, *side)
        windows = pairs.new_zeros(m, *grid, *grid)
        for tap in itertools.product(*map(range, self.weight.shape[2:])):
            to, source = zip(*map(self._reach, range(self.rule.dims), tap, side, grid), strict=True)
            windows[(slice(None), *to, *to)] += pairs[(slice(None), *source, *source)]
        ends = torch.bmm(narrow.transpose(1, 2), narrow)
        return windows.view(m, -1).mul_(ends.view(m, -1)).sum(1).clamp_(min=0)

    def _reach(self, dim: int, tap: int, size: int, positions: int) -> tuple[slice, slice]:
        """The positions at which a tap falls inside the wide side along one dimension, and where it falls."""
        stride, offset = self.rule.stride[dim], tap * self.rule.dilation[dim] - self.rule.padding[dim]
        first = max(0, -(offset // stride))
        last = min(positions, (size - 1 - offset) // stride + 1)
        start = first * stride + offset
        return slice(first, max(first, last)), slice(start, start + max(0, last - first) * stride, stride)

    def weighted(self, weights: Weights) -> Tensor:
        """The ordinary weight gradient with the smaller side scaled by w, a part of the examples at a time."""
        x, gy = weights.rows(self.x), weights.rows(self.gy)
        step = max(32, TEMPORARY // (self.x[0].numel() + self.gy[0].numel()))
        total: Tensor | None = None
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            scale = weights.values[part].view(-1, *[1] * (x.dim() - 1))
            small = x[0].numel() < gy[0].numel()
            sides = (x[part] * scale, gy[part]) if small else (x[part], gy[part] * scale)
            found = self.rule.weight_gradient(*sides, self.weight)
            total = found if total is None else total.add_(found)
        return torch.zeros_like(self.weight) if total is None else total
