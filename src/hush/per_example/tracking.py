"""Parameters whose every use is seen, and what a book-keeping rule is.

During a recording each trainable parameter is replaced by a ``Watched`` stand-in without gradient, so autograd
propagates the activations' gradients alone. A function that takes a stand-in is either one of the known ones, which
leaves a term on the parameter's entry when the backward pass reaches it, or it is not, and the recording stops with
``NoLayerRule``: no use of a parameter can go unnoticed.

A rule is a function with the arguments of the torch function that it stands for, under :func:`handles`. It promises:

1. Its output is that of the torch function.
2. Its backward gives the input the gradient that it has in ordinary training.
3. Every parameter among its arguments gets one term a use (or a view for every example, of which autograd computes the
   gradient), and row i of the term is the gradient of example i alone, with what :class:`hush.per_example.terms.Term`
   promises about its rounding.
4. Where the examples are not in the first dimension of its input, or a setting is not covered, it raises
``NoLayerRule``
   and leaves nothing.

It may rely on this: the session's ``n`` is the number of examples (of rows, where an example is several:
:mod:`hush.per_example.units` puts their terms together); its anchor requires a gradient, so that the backward
is reached even where the input needs none; it runs once for every forward, and its backward once at most.

A new rule touches two files: the module of rules that it belongs to (:mod:`layers`, :mod:`lookup`,
:mod:`normalisation`), and ``tests/gradients/test_layer_rules.py``, where a row of its table tests all four promises. A
new module of rules is also imported by :mod:`hush.per_example.bookkeeping`.
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
    """One forward and backward: the number of examples and what autograd must reach."""

    n: int
    anchor: Tensor  # requires grad; ties every watched layer into the graph, even the first
    leaves: list[tuple[Entry, Tensor]] = field(default_factory=list)


@dataclass(eq=False)
class Entry:
    """One trainable parameter: its value and the terms that the backward left."""

    name: str
    value: Tensor
    session: Session
    terms: list[Term] = field(default_factory=list)

    def leave(self, term: Term) -> None:
        """Take the term of one use."""
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
    """The stand-in of one parameter."""

    entry: Entry

    @staticmethod
    def of(entry: Entry) -> TrackedParameter:
        """A stand-in that shares the parameter's memory."""
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
    """The tensor behind a stand-in; anything else as it is, unless it would need a gradient that no rule gives it."""
    if isinstance(value, TrackedParameter):
        return value.entry.value
    if isinstance(value, Tensor) and value.requires_grad:
        raise NoLayerRule([], "a layer's other weight is computed, or reached past its module")
    return value


def entry_of(value: Any) -> Entry | None:
    """The entry of a stand-in; None for frozen parameters and ordinary tensors."""
    return value.entry if isinstance(value, TrackedParameter) else None


def refuse(why: str, *values: Any) -> NoLayerRule:
    """The signal that these parameters are used in an unknown way."""
    return NoLayerRule(_collect_names(values), why)


def open_session(x: Any, *parameters: Any, least: int = 2) -> Session:
    """The session of these parameters, after checking that x holds the examples in its first dimension."""
    entries = [e for e in map(entry_of, parameters) if e is not None]
    session = entries[0].session
    if not isinstance(x, Tensor) or entry_of(x) is not None or x.dim() < least or x.shape[0] != session.n:
        raise refuse("the examples are not in the first dimension of the layer's input", *parameters)
    return session


def apply_layer(function: Any, x: Any, parameters: tuple[Any, ...], *settings: Any, least: int = 2) -> Tensor:
    """The output of a layer at x, tied into autograd's graph.

    ``function``, an autograd.Function, gets the session's anchor, x, the parameters' own tensors, the settings, and the
    parameters' entries, on which its backward leaves their terms."""
    session, entries = open_session(x, *parameters, least=least), tuple(map(entry_of, parameters))
    out: Tensor = function.apply(session.anchor, x, *map(unwrap, parameters), *settings, entries)
    return out


def expand_per_example(x: Any, parameter: Any) -> Tensor:
    """The parameter as a view per example, shaped to be broadcast against x; autograd computes its gradient."""
    session, entry = open_session(x, parameter, least=1), entry_of(parameter)
    assert entry is not None
    extra = x.dim() - entry.value.dim()
    if extra < 0 or (extra == 0 and entry.value.shape[0] != 1):
        raise refuse("a parameter meets the dimension of the examples", parameter)
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
    *VALUES,  # a parameter is public, and reading it leaves no gradient
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
