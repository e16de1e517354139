"""Book-keeping rules of single layers: the ordinary forward, the input's gradient, and a term for each parameter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.gradients.convolution import Convolution
from hush.gradients.terms import Outer, Rows
from hush.gradients.watched import Entry, Session, entry_of, handles, plain, refuse


def opened(x: Any, *parameters: Any, least: int = 2) -> Session:
    """The session of these parameters, after checking that x holds the examples in its first dimension."""
    entries = [e for e in map(entry_of, parameters) if e is not None]
    session = entries[0].session
    if not isinstance(x, Tensor) or entry_of(x) is not None or x.dim() < least or x.shape[0] != session.n:
        raise refuse("the examples are not in the first dimension of the layer's input", *parameters)
    return session


def applied(function: Any, *args: Any) -> Tensor:
    """The output of one of the layers below, tied into autograd's graph."""
    out: Tensor = function.apply(*args)
    return out


def spread(x: Any, parameter: Any) -> Tensor:
    """The parameter as a view per example, shaped to be broadcast against x; autograd computes its gradient."""
    session, entry = opened(x, parameter, least=1), entry_of(parameter)
    assert entry is not None
    extra = x.dim() - entry.value.dim()
    if extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter meets the dimension of the examples", parameter)
    shape = (1,) * extra + tuple(entry.value.shape)
    leaf = entry.value.view(shape).expand(session.n, *shape[1:]).detach().requires_grad_()
    session.leaves.append((entry, leaf))
    return leaf


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Any, entries: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.entries = entries
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        leave_linear(ctx.entries, x, gy)
        return None, gy @ weight if ctx.needs_input_grad[1] else None, None, None, None


def leave_linear(entries: tuple[Entry | None, Entry | None], x: Tensor, gy: Tensor) -> None:
    """The terms of y = x Wᵀ + b, for any number of dimensions between the examples and the features."""
    weight, bias = entries
    b = gy.reshape(gy.shape[0], -1, gy.shape[-1])
    if weight is not None:
        weight.leave(Outer(x.reshape(x.shape[0], -1, x.shape[-1]), b).cheapest())
    if bias is not None:
        bias.leave(Rows(b.squeeze(1) if b.shape[1] == 1 else b.sum(1)))


@handles(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x Wᵀ + b."""
    session = opened(input, weight, bias)
    entries = (entry_of(weight), entry_of(bias))
    return applied(_Linear, session.anchor, input, plain(weight), plain(bias), entries)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Any, rule: Convolution, entries: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rule, ctx.entries = rule, entries
        return rule.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        w, b = ctx.entries
        if w is not None:
            w.leave(ctx.rule.term(x, gy, weight))
        if b is not None:
            b.leave(Rows(gy.flatten(2).sum(2)))
        gx = ctx.rule.input_gradient(x, gy, weight) if ctx.needs_input_grad[1] else None
        return None, gx, None, None, None, None


def _convolve(rule: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    session = opened(x, weight, bias)
    if x.dim() != rule.dims + 2:
        raise refuse("the convolution's input has no dimension of examples", weight, bias)
    entries = (entry_of(weight), entry_of(bias))
    return applied(_Conv, session.anchor, rule.padded(x), plain(weight), plain(bias), rule, entries)


def _convolution(dims: int) -> Any:
    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        rule = Convolution.of(dims, stride, padding, dilation, groups, weight.shape[2:])
        return _convolve(rule, input, weight, bias)

    return forward


def _transposed(dims: int) -> Any:
    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        rule = Convolution.transpose(dims, stride, padding, output_padding, groups, dilation)
        return _convolve(rule, input, weight, bias)

    return forward


for _dims in (1, 2, 3):
    handles(getattr(F, f"conv{_dims}d"))(_convolution(_dims))
    handles(getattr(F, f"conv_transpose{_dims}d"))(_transposed(_dims))
