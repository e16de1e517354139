"""Convolutions: per-example weight gradients, their norms and their weighted sum.

With x unfolded into its windows, a convolution is linear at every output position: gᵢ = Σ_p b_ip a_ipᵀ, where a is a
window and b the output's gradient there (Rochette, Manoel, Tramel 2019, "Efficient per-example gradient computations in
convolutional neural networks").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.gradients.tape import squares
from hush.gradients.terms import Rows, Term


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
    before: tuple[int, ...]  # explicit zeros for F.pad, where the padding is not the same on both sides

    @staticmethod
    def of(dims: int, stride: Any, padding: Any, dilation: Any, groups: int, kernel: Sequence[int]) -> Convolution:
        """The settings as F.conv1d … F.conv3d take them."""
        dilated = _each(dilation, dims)
        before: tuple[int, ...] = ()
        if padding == "valid":
            padding = 0
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(dilated, kernel, strict=True)]
            padding = tuple(t // 2 for t in total)
            if any(t % 2 for t in total):
                before = tuple(side for t in reversed(total) for side in (0, t % 2))
        return Convolution(dims, _each(stride, dims), _each(padding, dims), dilated, groups, before)

    def padded(self, x: Tensor) -> Tensor:
        """x with the zeros that the two-sided padding cannot express."""
        return F.pad(x, self.before) if self.before else x

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The ordinary convolution."""
        zero = [0] * self.dims
        return torch.convolution(
            x, weight, bias, list(self.stride), list(self.padding), list(self.dilation), False, zero, self.groups
        )

    def _backward(self, x: Tensor, gy: Tensor, weight: Tensor, mask: list[bool]) -> Any:
        settings = (
            None,
            list(self.stride),
            list(self.padding),
            list(self.dilation),
            False,
            [0] * self.dims,
            self.groups,
        )
        return torch.ops.aten.convolution_backward(gy, x, weight, *settings, mask)

    def input_gradient(self, x: Tensor, gy: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input, as in ordinary training."""
        out: Tensor = self._backward(x, gy, weight, [True, False, False])[0]
        return out

    def weight_gradient(self, x: Tensor, gy: Tensor, weight: Tensor) -> Tensor:
        """The sum of the weight's gradients over all examples, as in ordinary training."""
        out: Tensor = self._backward(x, gy, weight, [False, True, False])[1]
        return out

    def windows(self, x: Tensor, weight: Tensor, out: Sequence[int]) -> Tensor:
        """x unfolded: (n, groups, in/groups · kernel, positions)."""
        if any(self.padding):
            x = F.pad(x, [p for p in reversed(self.padding) for _ in (0, 1)])
        n, channels = x.shape[:2]
        inner = x.stride()[2:]
        shape = (n, channels, *weight.shape[2:], *out)
        strides = [s * d for s, d in zip(inner, self.dilation, strict=True)]
        strides += [s * d for s, d in zip(inner, self.stride, strict=True)]
        view = x.as_strided(shape, (*x.stride()[:2], *strides), x.storage_offset())
        return view.reshape(n, self.groups, -1, view[0, 0].numel() // weight[0, 0].numel())

    def term(self, x: Tensor, gy: Tensor, weight: Tensor, alone: bool) -> Term:
        """The term of one use."""
        return Rows(Windowed(self, x, gy, weight).rows(0, x.shape[0]))


@dataclass(frozen=True)
class Windowed:
    """The term of a convolution that keeps its input and its output's gradient."""

    rule: Convolution
    x: Tensor
    gy: Tensor
    weight: Tensor

    def rows(self, start: int, stop: int) -> Tensor:
        """gᵢ by one batched product over the windows."""
        gy = self.gy[start:stop]
        a = self.rule.windows(self.x[start:stop], self.weight, gy.shape[2:])
        b = gy.reshape(gy.shape[0], self.rule.groups, -1, a.shape[3])
        return (b @ a.transpose(2, 3)).reshape(gy.shape[0], *self.weight.shape)

    def squares(self) -> Tensor:
        """‖gᵢ‖² through the gradients."""
        return squares(self.rows(0, self.x.shape[0]))

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """The ordinary weight gradient with the output's gradient scaled by w."""
        x, gy = self.x, self.gy
        if keep is not None:
            x, gy, weights = x.index_select(0, keep), gy.index_select(0, keep), weights.index_select(0, keep)
        scaled = gy * weights.to(gy.dtype).view(-1, *[1] * (gy.dim() - 1))
        return self.rule.weight_gradient(x, scaled, self.weight)
