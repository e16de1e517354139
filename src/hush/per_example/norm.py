"""Book-keeping rules of LayerNorm, GroupNorm, InstanceNorm and RMSNorm.

Scale and shift act on the normalized input x̂ at every position p: gᵢ[scale] = Σ_p b_ip ⊙ x̂_ip, gᵢ[shift] = Σ_p b_ip.
Both are small, so the per-example gradients are materialized.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.per_example.rules import Entry, apply_layer, expand_per_example, handles, refuse
from hush.per_example.terms import Materialized

Entries = tuple[Entry | None, Entry | None]
_INPUT_ONLY = [True, False, False]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, scale: Any, shift: Any, shape: list[int], eps: float, entries: Entries
    ) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x, shape, scale, shift, eps)
        ctx.save_for_backward(x, mean, rstd, scale, shift)
        ctx.shape, ctx.entries = shape, entries
        return out

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, mean, rstd, scale, shift = ctx.saved_tensors
        weight, bias = ctx.entries
        each = (next(e.session.n for e in ctx.entries if e is not None), -1, *ctx.shape)
        if weight is not None:
            weight.leave(Materialized(((x - mean).mul_(rstd).mul_(gy)).reshape(each).sum(1)))
        if bias is not None:
            bias.leave(Materialized(gy.reshape(each).sum(1)))
        gx = None
        if ctx.needs_input_grad[1]:
            rule = torch.ops.aten.native_layer_norm_backward
            gx = rule(gy, x, ctx.shape, mean, rstd, scale, shift, _INPUT_ONLY)[0]
        return None, gx, None, None, None, None, None


@handles(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """y = x̂ · scale + shift over the last dimensions; the positions of all examples may be rows of a matrix."""
    if input.dim() <= len(normalized_shape):
        raise refuse("the normalised dimensions include the examples", weight, bias)
    return apply_layer(_LayerNorm, input, (weight, bias), list(normalized_shape), eps, flat=True)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, scale: Any, shift: Any, groups: int, eps: float, entries: Entries
    ) -> Tensor:
        x = x.contiguous()
        n, channels = x.shape[:2]
        size = math.prod(x.shape[2:])
        out, mean, rstd = torch.native_group_norm(x, scale, shift, n, channels, size, groups, eps)
        ctx.save_for_backward(x, mean, rstd, scale)
        ctx.groups, ctx.entries = groups, entries
        return out

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, mean, rstd, scale = ctx.saved_tensors
        weight, bias = ctx.entries
        gy = gy.contiguous()
        n, channels = x.shape[:2]
        size = math.prod(x.shape[2:])
        total = gy.view(n, channels, size).sum(2)
        if weight is not None:
            product = torch.mul(gy, x).view(n, ctx.groups, -1, size).sum(3)
            centred = product - total.view_as(product) * mean.view(n, ctx.groups, 1)
            weight.leave(Materialized((centred * rstd.view(n, ctx.groups, 1)).reshape(n, channels)))
        if bias is not None:
            bias.leave(Materialized(total))
        gx = None
        if ctx.needs_input_grad[1]:
            rule = torch.ops.aten.native_group_norm_backward
            gx = rule(gy, x, mean, rstd, scale, n, channels, size, ctx.groups, _INPUT_ONLY)[0]
        return None, gx, None, None, None, None, None


@handles(F.group_norm, torch.group_norm)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """y = x̂ · scale + shift per channel."""
    return apply_layer(_GroupNorm, input, (weight, bias), num_groups, eps)


@handles(F.instance_norm)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """GroupNorm with one channel per group."""
    if not use_input_stats or running_mean is not None:
        raise refuse("InstanceNorm with running statistics has no book-keeping rule", weight, bias)
    out: Tensor = group_norm(input, input.shape[1], weight, bias, eps)
    return out


@handles(F.rms_norm, torch.rms_norm)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor, eps: float | None = None) -> Tensor:
    """y = x / rms(x) · scale over the last dimensions."""
    if input.dim() <= len(normalized_shape):
        raise refuse("the normalised dimensions include the examples", weight)
    return F.rms_norm(input, list(normalized_shape), None, eps) * expand_per_example(input, weight)
