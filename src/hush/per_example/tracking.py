"""Parameters whose uses are all tracked, and the contract of a book-keeping rule.

During a recording each trainable parameter is replaced by a `TrackedParameter` without gradient, so autograd only
propagates the activations' gradients. A function that takes a tracked parameter either has a rule, which adds a term to
the parameter's entry in the backward pass, or the recording stops with ``NoLayerRule``: no use of a parameter can go
unnoticed.

A rule is a function with the arguments of the torch function that it replaces, registered by :func:`handles`. It
guarantees:

1. Its output is that of the torch function.
2. Its backward gives the input the same gradient as in ordinary training.
3. Every parameter among its arguments gets one term per use (or a view per example, whose gradient autograd computes),
   and row i of the term is the gradient of example i alone, with the rounding guarantees of
   :class:`hush.per_example.terms.Term`.
4. If the examples are not in the first dimension of its input, or a setting is not covered, it raises ``NoLayerRule``
   and adds nothing.

It may rely on the following: the session's ``n`` is the number of examples (of rows, if an example has several:
:mod:`hush.per_example.units` combines their terms); its anchor requires a gradient, so that the backward is reached
even if the input needs none; it runs once for every forward, and its backward at most once.

A new rule touches two files: the module of rules it belongs to (:mod:`hush.per_example.linear`,
:mod:`hush.per_example.embedding`, :mod:`hush.per_example.norm`), and ``tests/per_example/test_tracking.py``, where a
row of the table tests all four guarantees. A new module of rules is also imported by
:mod:`hush.per_example.bookkeeping`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hush.per_example.reads import COMPARED, VALUES
from hush.per_example.terms import Term


class NoLayerRule(Exception):
    """A parameter is used in a way that the book-keeping rules do not cover."""

    def __init__(self, names: list[str], why: str) -> None:
        super().__init__(why)
        self.names = names
        self.why = why


@dataclass(eq=False)
class Session:
    """One forward and backward: the number of examples and the tensor that autograd must reach."""

    n: int
    anchor: Tensor  # requires grad; connects every tracked layer to the graph, including the first
    leaves: list[tuple[Entry, Tensor]] = field(default_factory=list)


@dataclass(eq=False)
class Entry:
    """One trainable parameter: its value and the terms added by the backward."""

    name: str
    value: Tensor
    session: Session
    terms: list[Term] = field(default_factory=list)

    def leave(self, term: Term) -> None:
        """Add the term of one use."""
        self.terms.append(term)


Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the rule of these torch functions."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


class TrackedParameter(Tensor):
    """Replaces one parameter during a recording."""

    entry: Entry

    @staticmethod
    def of(entry: Entry) -> TrackedParameter:
        """A tracked parameter that shares the original's memory."""
        stand_in: TrackedParameter = torch.Tensor._make_subclass(TrackedParameter, entry.value, False)
        stand_in.entry = entry
        return stand_in

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(func)
        with torch._C.DisableTorchFunctionSubclass():
            if handler is not None:
                return handler(*args, **(kwargs or {}))
            if func in _HARMLESS:
                return func(*args, **(kwargs or {}))
        label = getattr(func, "__name__", str(func))
        raise NoLayerRule(_collect_names(args), f"'{label}' has no book-keeping rule")


def unwrap(value: Any) -> Any:
    """The tensor of a tracked parameter; other values unchanged, unless they need a gradient that no rule provides."""
    if isinstance(value, TrackedParameter):
        return value.entry.value
    if isinstance(value, Tensor) and value.requires_grad:
        raise NoLayerRule([], "another weight of the layer is computed, or accessed outside its module")
    return value


def entry_of(value: Any) -> Entry | None:
    """The entry of a tracked parameter; None for frozen parameters and ordinary tensors."""
    return value.entry if isinstance(value, TrackedParameter) else None


def refuse(why: str, *values: Any) -> NoLayerRule:
    """The exception for parameters that are used in an unsupported way."""
    return NoLayerRule(_collect_names(values), why)


def open_session(x: Any, *parameters: Any, least: int = 2) -> Session:
    """The session of these parameters, after checking that x holds the examples in its first dimension."""
    session: Session = next(p.entry.session for p in parameters if isinstance(p, TrackedParameter))
    if not isinstance(x, Tensor) or isinstance(x, TrackedParameter) or x.dim() < least or x.shape[0] != session.n:
        raise refuse("the examples are not in the first dimension of the layer's input", *parameters)
    return session


def apply_layer(function: Any, x: Any, parameters: tuple[Any, ...], *settings: Any, least: int = 2) -> Tensor:
    """The output of a layer at x, connected to autograd's graph.

    ``function``, an autograd.Function, gets the session's anchor, x, the parameters' tensors, the settings, and the
    parameters' entries, to which its backward adds their terms."""
    entries = tuple([p.entry if isinstance(p, TrackedParameter) else None for p in parameters])
    values = [unwrap(p) if entry is None else entry.value for p, entry in zip(parameters, entries, strict=True)]
    session = open_session(x, *parameters, least=least)
    out: Tensor = function.apply(session.anchor, x, *values, *settings, entries)
    return out


def expand_per_example(x: Any, parameter: Any) -> Tensor:
    """The parameter as one view per example, shaped to broadcast against x; autograd computes its gradient."""
    session, entry = open_session(x, parameter, least=1), entry_of(parameter)
    assert entry is not None
    extra = x.dim() - entry.value.dim()
    if extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter is broadcast against the dimension of the examples", parameter)
    shape = (1,) * extra + tuple(entry.value.shape)
    leaf = entry.value.view(shape).expand(session.n, *shape[1:]).detach().requires_grad_()
    session.leaves.append((entry, leaf))
    return leaf


def _collect_names(values: Any) -> list[str]:
    found: list[str] = []
    for value in values:
        if isinstance(value, TrackedParameter):
            found.append(value.entry.name)
        elif isinstance(value, (list, tuple)):
            found.extend(_collect_names(value))
    return found


_HARMLESS: set[Any] = {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.stride,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.element_size,
    Tensor.get_device,
    Tensor.__len__,
    Tensor.__hash__,
    Tensor.__repr__,
    *VALUES,  # parameters are public, and reading one leaves no gradient
    *COMPARED,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_leaf", "is_nested")
        + ("is_sparse", "is_quantized", "is_mkldnn", "is_meta", "is_cpu", "grad")
    ),
}
