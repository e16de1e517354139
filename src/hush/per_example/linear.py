"""Book-keeping rules of linear layers, convolutions and bare parameters.

A rule runs the ordinary forward, computes the input's gradient, and adds a term for each parameter. A bare parameter
is added, multiplied, expanded over the examples, or the right factor of a product: each example gets its own view of
it, and autograd computes the gradients of these views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush.per_example.conv import Convolution
from hush.per_example.rounding import LINE, align, empty_aligned
from hush.per_example.terms import Materialized, OuterProduct
from hush.per_example.tracking import (
    Entry,
    TrackedParameter,
    apply_layer,
    entry_of,
    expand_per_example,
    handles,
    refuse,
)


def multiply_rows(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · matrix + bias for x of any number of dimensions, with aligned rows of the factor and of the result.

    The result lies in memory as torch's would, and is not a view: models reshape it, and act on it in place."""
    if not x.is_cpu or x.dim() < 2 or not x.numel():
        return x @ matrix if bias is None else x @ matrix + bias
    rows = align(x.flatten(0, -2))
    out = empty_aligned(x, (*x.shape[:-1], matrix.shape[1]), x.dim() - 1)
    into = out.flatten(0, -2)
    if bias is None:
        torch.mm(rows, matrix, out=into)
    else:
        torch.addmm(bias, rows, matrix, out=into)
    return out.contiguous()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Any, entries: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.entries = entries
        return multiply_rows(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            leave_linear(ctx.entries, x, gy)
            return None, multiply_rows(gy, weight) if ctx.needs_input_grad[1] else None, None, None, None


def leave_linear(entries: tuple[Entry | None, Entry | None], x: Tensor, gy: Tensor) -> None:
    """The terms of y = x Wᵀ + b, for any number of dimensions between the examples and the features."""
    weight, bias = entries
    a, b = [t.detach().reshape(t.shape[0], -1, t.shape[-1]) for t in (x, gy)]
    if weight is not None:
        weight.leave(OuterProduct(a, b).choose_form())
    if bias is not None:
        bias.leave(Materialized(b.squeeze(1) if b.shape[1] == 1 else b.sum(1)))


def align_frozen(model: nn.Module) -> dict[nn.Module, Callable[[Tensor], Tensor]]:
    """Forwards for frozen linear layers whose rows do not fill cache lines; torch's own depend on a row's position."""
    return {m: _make_aligned(m) for m in model.modules() if type(m) is nn.Linear and _is_uneven(m)}


def _is_uneven(layer: nn.Linear) -> bool:
    if "forward" in layer.__dict__ or any(p.requires_grad for p in layer.parameters()):
        return False
    return any(size * layer.weight.element_size() % LINE for size in layer.weight.shape)


def _make_aligned(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return F.linear(x, layer.weight, layer.bias)
        if not x.requires_grad:
            return multiply_rows(x, layer.weight.t(), layer.bias)
        out: Tensor = _Linear.apply(x.new_empty(0), x, layer.weight, layer.bias, (None, None))  # type: ignore[no-untyped-call]
        return out

    return forward


@handles(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x Wᵀ + b."""
    return apply_layer(_Linear, input, (weight, bias))


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
        with torch._C.DisableTorchFunction():
            if w is not None:
                w.leave(ctx.rule.term(x, gy, weight))
            if b is not None:
                b.leave(Materialized(gy.sum(tuple(range(2, gy.dim())))))
            gx = ctx.rule.input_gradient(x, gy, weight) if ctx.needs_input_grad[1] else None
        return None, gx, None, None, None, None


def _convolve(rule: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.dim() != rule.dims + 2:
        raise refuse("the convolution's input has no dimension of examples", weight, bias)
    return apply_layer(_Conv, rule.pad(x), (weight, bias), rule)


# The arguments of F.conv1d … F.conv3d and of F.conv_transpose1d … F.conv_transpose3d, in order, with the defaults.
_ORDINARY = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


def _make_convolution(dims: int, defaults: dict[str, int]) -> Any:
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **options: Any) -> Tensor:
        given = {**defaults, **dict(zip(defaults, args, strict=False)), **options}
        if defaults is _TRANSPOSED:
            rule = Convolution.transpose(dims, **given)
        else:
            rule = Convolution.of(dims, **given, kernel=weight.shape[2:])
        return _convolve(rule, input, weight, bias)

    return forward


for _dims in (1, 2, 3):
    handles(getattr(F, f"conv{_dims}d"))(_make_convolution(_dims, _ORDINARY))
    handles(getattr(F, f"conv_transpose{_dims}d"))(_make_convolution(_dims, _TRANSPOSED))


def _make_elementwise(function: Any) -> Any:
    def forward(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(left, TrackedParameter):
            return function(expand_per_example(right, left), right, *args, **kwargs)
        return function(left, expand_per_example(left, right), *args, **kwargs)

    return forward


for _name in ("add", "sub", "mul", "div", "true_divide"):
    _function = getattr(torch, _name)
    handles(_function, getattr(Tensor, _name))(_make_elementwise(_function))
for _name in ("add", "sub", "mul", "truediv"):
    _function = getattr(Tensor, f"__{_name}__")
    handles(_function)(_make_elementwise(_function))
for _name in ("add", "mul"):
    _function = getattr(Tensor, f"__{_name}__")
    handles(getattr(Tensor, f"__r{_name}__"))(_make_elementwise(lambda left, right, f=_function: f(right, left)))
for _name in ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__"):
    _function = getattr(Tensor, _name)
    handles(_function)(_make_elementwise(_function))


@handles(Tensor.expand)
def expand(parameter: TrackedParameter, *sizes: Any) -> Tensor:
    """A copy for every example, as for class tokens and learned queries."""
    shape = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    entry = entry_of(parameter)
    assert entry is not None
    n, extra = entry.session.n, len(shape) - entry.value.dim()
    if shape[0] != n or extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter is expanded over a dimension other than the examples", parameter)
    like = entry.value.new_empty(0).expand(n, *[0] * (len(shape) - 1))
    return expand_per_example(like, parameter).expand(shape)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, entries: tuple[Entry]) -> Tensor:
        ctx.save_for_backward(x, weight)
        (ctx.entry,) = entries
        return multiply_rows(x, weight)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        a, b = (t.detach().reshape(t.shape[0], -1, t.shape[-1]) for t in (gy, x))
        ctx.entry.leave(OuterProduct(a, b).choose_form())
        return None, multiply_rows(gy, weight.t()) if ctx.needs_input_grad[1] else None, None, None


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(input: Any, other: Any) -> Tensor:
    """x W for a parameter W of two dimensions."""
    if isinstance(input, TrackedParameter) or not isinstance(other, TrackedParameter) or other.dim() != 2:
        raise refuse("a product with a parameter that is not its right factor has no book-keeping rule", input, other)
    return apply_layer(_Matmul, input, (other,))
