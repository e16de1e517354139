"""Book-keeping rules of linear layers, convolutions and bare parameters.

A rule runs the ordinary forward, computes the input's gradient, and adds a term for each parameter. A bare parameter
is added, multiplied, expanded over the examples, or the right factor of a product: each example gets its own view of
it, and autograd computes the gradients of these views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush.per_example.conv import Convolution
from hush.per_example.rounding import LINE, align, empty_aligned
from hush.per_example.rules import (
    Entry,
    TrackedParameter,
    apply_layer,
    entry_of,
    expand_per_example,
    handles,
    refuse,
)
from hush.per_example.terms import Materialized, OuterProduct


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
            _leave_linear(ctx.entries, x, gy)
            return None, multiply_rows(gy, weight) if ctx.needs_input_grad[1] else None, None, None, None


def _leave_linear(entries: tuple[Entry | None, Entry | None], x: Tensor, gy: Tensor) -> None:
    """The terms of y = x Wᵀ + b, for any number of dimensions between the examples and the features."""
    weight, bias = entries
    if weight is None and bias is None:
        return
    a, b = _split_examples(x, entries), _split_examples(gy, entries)
    if weight is not None:
        weight.leave(OuterProduct(a, b).choose_form())
    if bias is not None:
        bias.leave(Materialized(b.squeeze(1) if b.shape[1] == 1 else b.sum(1)))


def _split_examples(x: Tensor, entries: Sequence[Entry | None]) -> Tensor:
    """x as (n, positions, features); the positions of an example may be rows of a matrix."""
    n = next(entry.session.n for entry in entries if entry is not None)
    return x.detach().reshape(n, -1, x.shape[-1])


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
    return apply_layer(_Linear, input, (weight, bias), flat=True)


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


@handles(torch.where, Tensor.where)
def where(condition: Any, input: Any, other: Any) -> Tensor:
    """A choice between parameters and values by the condition of every example."""
    if isinstance(condition, TrackedParameter):  # Tensor.where has the tensor first
        condition, input = input, condition
    a, b = (expand_per_example(condition, t) if isinstance(t, TrackedParameter) else t for t in (input, other))
    return torch.where(condition, a, b)


@handles(Tensor.masked_fill, torch.masked_fill)
def masked_fill(parameter: Any, mask: Any, value: Any) -> Tensor:
    """A parameter with other values at the places of every example's mask."""
    return expand_per_example(mask, parameter).masked_fill(mask, value)


for _name in ("add", "sub", "mul", "div", "true_divide", "maximum", "minimum"):
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


@handles(Tensor.expand_as)
def expand_as(parameter: TrackedParameter, other: Tensor) -> Tensor:
    """A copy for every example of the other tensor."""
    out: Tensor = expand(parameter, *other.shape)
    return out


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Any, entries: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.entries = entries
        return multiply_rows(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        own, bias = ctx.entries
        a, b = (_split_examples(t, ctx.entries) for t in (gy, x))
        if own is not None:
            own.leave(OuterProduct(a, b).choose_form())
        if bias is not None:
            bias.leave(Materialized(a.sum(1)))
        return None, multiply_rows(gy, weight.t()) if ctx.needs_input_grad[1] else None, None, None, None


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(input: Any, other: Any) -> Tensor:
    """x W for a matrix W of parameters; other products with a copy of the parameter for every example."""
    if isinstance(input, TrackedParameter):
        return torch.matmul(expand_per_example(other, input, matrices=True), other)
    if other.dim() != 2:
        return torch.matmul(input, expand_per_example(input, other, matrices=True))
    return apply_layer(_Matmul, input, (other, None), flat=True)


@handles(torch.addmm, Tensor.addmm)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """x W + b, as in the Conv1D of GPT-2, with the positions of all examples as rows of x."""
    if beta != 1 or alpha != 1 or input.dim() != 1 or isinstance(mat1, TrackedParameter):
        raise refuse("'addmm' has a book-keeping rule for b + x W only, without factors", input, mat1, mat2)
    return apply_layer(_Matmul, mat1, (mat2, input), flat=True)


@handles(torch.baddbmm, Tensor.baddbmm)
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """A sum with products of matrices, one for each example."""
    for one, other in ((batch1, batch2), (batch2, batch1)):
        if isinstance(one, TrackedParameter) and isinstance(other, TrackedParameter):
            raise refuse("a product of parameters has no book-keeping rule", one, other)
    data = batch2 if isinstance(batch1, TrackedParameter) else batch1
    given = [expand_per_example(data, t) if isinstance(t, TrackedParameter) else t for t in (input, batch1, batch2)]
    return torch.baddbmm(*given, beta=beta, alpha=alpha)


@handles(torch.einsum)
def einsum(equation: Any, *operands: Any) -> Tensor:
    """A sum of products, with a copy of each parameter for every example; x W is a matrix product."""
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        raise refuse("'einsum' has a book-keeping rule for equations only: write it as one", *given)
    left, _, right = _spell_out(equation.replace(" ", ""), given).partition("->")
    parts = left.split(",")
    data = [(part, t) for part, t in zip(parts, given, strict=True) if not isinstance(t, TrackedParameter)]
    if not right or not data:
        raise refuse("'einsum' of parameters, or without a result, has no book-keeping rule", *given)
    first, x = data[0]
    if len(given) == 2 and parts[1] == first[-1:] + right[-1:] and right == first[:-1] + right[-1:] and given[0] is x:
        return apply_layer(_Matmul, x, (given[1], None))
    if len(given) == 2 and parts[1] == right[-1:] + first[-1:] and right == first[:-1] + right[-1:] and given[0] is x:
        return apply_layer(_Linear, x, (given[1], None))
    for i, value in enumerate(given):
        if isinstance(value, TrackedParameter):
            if first[0] in parts[i]:
                raise refuse("a parameter has the dimension of the examples", value)
            given[i], parts[i] = expand_per_example(x, value, whole=True), first[0] + parts[i]
    return torch.einsum(f"{','.join(parts)}->{right}", *given)


def _spell_out(equation: str, given: Sequence[Any]) -> str:
    """The equation with letters for the dimensions that "..." stands for in the data."""
    pairs = list(zip(equation.partition("->")[0].split(","), given, strict=True))
    counts = {t.dim() - len(part) + 3 for part, t in pairs if "..." in part}
    if len(counts) > 1 or any("..." in part and isinstance(t, TrackedParameter) for part, t in pairs):
        raise refuse("'einsum' has a book-keeping rule for '...' in the data only: use letters for it", *given)
    unused = [letter for letter in ascii_letters if letter not in equation]
    return equation.replace("...", "".join(unused[: max(counts, default=0)]))


@handles(torch.prelu, Tensor.prelu)
def prelu(input: Tensor, weight: Any) -> Tensor:
    """A slope for each channel where the input is negative."""
    own = expand_per_example(input, weight, whole=True)
    return torch.where(input > 0, input, input * own.reshape(len(own), *[-1, 1, 1, 1][: input.dim() - 1]))


@handles(F.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Tensor:
    """x₁ᵀ W x₂ + b, with a copy of the parameters for every example."""
    if any(isinstance(x, TrackedParameter) for x in (input1, input2)):
        raise refuse("'bilinear' of parameters has no book-keeping rule", input1, input2)
    given = (weight, bias) if bias is not None else (weight,)
    own = [expand_per_example(input1, p, whole=True) if isinstance(p, TrackedParameter) else p[None] for p in given]
    whole = own[0].expand(len(input1), *own[0].shape[1:])
    out = torch.einsum("n...i,noij,n...j->n...o", input1, whole, input2)
    return out if bias is None else out + own[1].view(len(own[1]), *[1] * (out.dim() - 2), -1)


@handles(F.scaled_dot_product_attention)
def attend_to(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any) -> Tensor:
    """Attention with a mask that is learned, such as a bias by relative position."""
    if any(isinstance(t, TrackedParameter) for t in (query, key, value)):
        raise refuse("attention to parameters has no book-keeping rule", query, key, value)
    return F.scaled_dot_product_attention(query, key, value, expand_per_example(query, attn_mask), *args, **options)


@handles(Tensor.repeat)
def repeat(parameter: TrackedParameter, *sizes: Any) -> Tensor:
    """A copy for every example, as by `expand`."""
    counts = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    entry = entry_of(parameter)
    assert entry is not None
    n, extra = entry.session.n, len(counts) - entry.value.dim()
    if counts[0] != n or extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter is repeated over a dimension other than the examples", parameter)
    like = entry.value.new_empty(0).expand(n, *[0] * (len(counts) - 1))
    return expand_per_example(like, parameter).repeat(1, *counts[1:])
