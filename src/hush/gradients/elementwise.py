"""Book-keeping rules of bare parameters: added, multiplied, expanded over the examples, or right factor of a product.

Each example gets a view of the parameter of its own, of which autograd computes the gradient as of any tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hush.gradients.layers import applied, opened, spread
from hush.gradients.terms import Outer
from hush.gradients.watched import Entry, Watched, entry_of, handles, plain, refuse


def _own(function: Any) -> Any:
    def forward(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(left, Watched):
            return function(spread(right, left), right, *args, **kwargs)
        return function(left, spread(left, right), *args, **kwargs)

    return forward


for _name in ("add", "sub", "mul", "div", "true_divide"):
    _function = getattr(torch, _name)
    handles(_function, getattr(Tensor, _name))(_own(_function))
for _name in ("add", "sub", "mul", "truediv"):
    _function = getattr(Tensor, f"__{_name}__")
    handles(_function)(_own(_function))
for _name in ("add", "mul"):
    _function = getattr(Tensor, f"__{_name}__")
    handles(getattr(Tensor, f"__r{_name}__"))(_own(lambda left, right, f=_function: f(right, left)))
for _name in ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__"):
    _function = getattr(Tensor, _name)
    handles(_function)(_own(_function))


@handles(Tensor.expand)
def expand(parameter: Watched, *sizes: Any) -> Tensor:
    """A copy for every example, as class tokens and learned queries are used."""
    shape = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    entry = entry_of(parameter)
    assert entry is not None
    n, extra = entry.session.n, len(shape) - entry.value.dim()
    if shape[0] != n or extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter is expanded over something else than the examples", parameter)
    like = entry.value.new_empty(0).expand(n, *[0] * (len(shape) - 1))
    return spread(like, parameter).expand(shape)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, entry: Entry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.entry = entry
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        a, b = (t.reshape(t.shape[0], -1, t.shape[-1]) for t in (gy, x))
        ctx.entry.leave(Outer(a, b).cheapest())
        return None, gy @ weight.t() if ctx.needs_input_grad[1] else None, None, None


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(input: Any, other: Any) -> Tensor:
    """x W for a parameter W of two dimensions."""
    if isinstance(input, Watched) or not isinstance(other, Watched) or other.dim() != 2:
        raise refuse("a product with a parameter that is not its right factor has no book-keeping rule", input, other)
    session = opened(input, other)
    return applied(_Matmul, session.anchor, input, plain(other), entry_of(other))
