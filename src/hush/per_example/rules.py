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

What is computed from parameters only (a transposed or normalised weight, the embeddings of positions that all examples
share) is a tracked parameter too: rules add their terms to it, and autograd passes its per-example gradients on to the
parameters (:class:`Computed`).

It may rely on the following: the session's ``n`` is the number of examples (of rows, if an example has several:
:mod:`hush.per_example.units` combines their terms); its anchor requires a gradient, so that the backward is reached
even if the input needs none; it runs once for every forward, and its backward at most once.

A new rule touches two files: the module of rules it belongs to (:mod:`hush.per_example.linear`,
:mod:`hush.per_example.embedding`, :mod:`hush.per_example.norm`), and ``tests/per_example/test_rules.py``, where a
row of the table tests all four guarantees. A new module of rules is also imported by
:mod:`hush.per_example.bookkeeping`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hush.per_example.reads import COMPARED, VALUES
from hush.per_example.terms import Materialized, OuterProduct, Term


class NoLayerRule(Exception):
    """A parameter is used in a way that the book-keeping rules do not cover."""

    def __init__(self, names: list[str], why: str) -> None:
        super().__init__(why)
        self.names = names
        self.why = why


NO_RULE = (
    "'{}' of a parameter has no book-keeping rule: write it with products of matrices, sums or layers of torch.nn, or "
    "move it to a small module, so that only that module is slow"
)
NOT_FIRST = (
    "the examples are not in the first dimension of {}: put them there (batch_first=True, no transpose before, no "
    "selection of positions across examples)"
)

Known = dict[str, list[list[bool]]]
"""By module or parameter, for each of its calls: which inputs hold the examples."""


@dataclass(eq=False)
class Session:
    """One forward and backward: the number of examples and the tensor that autograd must reach."""

    n: int
    anchor: Tensor  # requires grad; connects every tracked layer to the graph, including the first
    known: Known = field(default_factory=dict)  # what earlier recordings found out about their inputs
    leaves: list[tuple[Entry, Tensor]] = field(default_factory=list)
    roots: list[Entry] = field(default_factory=list)  # whose values are inputs of computed ones
    computed: list[Computed] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)

    def holds_examples(self, name: str, x: Tensor) -> bool:
        """Whether the first dimension of x holds the examples, where it need not: decided at the first recording by
        its size, and the same in every later one."""
        call = self.calls[name] = self.calls.get(name, -1) + 1
        decided = self.known.setdefault(name, [])
        if call == len(decided):
            decided.append([x.shape[:1] == (self.n,)])
        return decided[call][0]

    def settle(self) -> None:
        """Pass the gradients of computed values on to their parameters, after the backward."""
        for value in reversed(self.computed):  # what is computed from a computed table comes after it
            value.settle()


@dataclass(eq=False)
class Entry:
    """One trainable parameter: its value and the terms added by the backward."""

    name: str
    value: Tensor
    session: Session
    terms: list[Term] = field(default_factory=list)

    @functools.cached_property
    def source(self) -> Tensor:
        """The value as autograd's input for what is computed from it."""
        self.session.roots.append(self)
        return self.value.detach().requires_grad_()

    def leave(self, term: Term) -> None:
        """Add the term of one use."""
        self.terms.append(term)


@dataclass(eq=False)
class Computed(Entry):
    """A value computed from parameters only; ``source`` is connected to them by autograd."""

    transposed: Entry | None = None  # the matrix of which this is the transpose
    stop: NoLayerRule | None = None  # the rule that was refused for a tensor that may hold the examples after all

    @staticmethod
    def of(source: Tensor, entries: list[Entry], transposed: Entry | None, stop: NoLayerRule | None) -> Computed:
        """Build from autograd's result; the first parameter names it."""
        first = entries[0]
        found = Computed(first.name, source.detach(), first.session, transposed=transposed, stop=stop)
        found.__dict__["source"] = source
        first.session.computed.append(found)
        return found

    def leave(self, term: Term) -> None:
        """Add the term of one use."""
        if self.transposed is not None and isinstance(term, OuterProduct):
            self.transposed.leave(OuterProduct(term.b, term.a))
        else:
            self.terms.append(term)

    def settle(self) -> None:
        """One vector-Jacobian product per example."""
        if not self.terms:
            return
        n, roots = self.session.n, list(self.session.roots)
        with torch.no_grad():  # terms may hold inputs that require a gradient
            rows = self.terms[0].rows(0, n)
            for term in self.terms[1:]:
                rows = rows + term.rows(0, n)
        inputs = [root.source for root in roots]
        grad: Any = torch.autograd.grad
        try:
            found = grad(
                self.source,
                inputs,
                rows.view(n, *self.value.shape),
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
            )
        except RuntimeError as error:
            raise NoLayerRule(
                [self.name], f"a weight is computed in a way that torch.func cannot map ({error})"
            ) from error
        for root, gradient in zip(roots, found, strict=True):
            if gradient is not None:
                root.leave(Materialized(gradient.detach()))


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
        handler, kwargs = HANDLERS.get(func), kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _HARMLESS:
                return func(*args, **kwargs)
            if handler is None:
                return compute(func, args, kwargs, None)
            try:
                return handler(*args, **kwargs)
            except NoLayerRule as stop:
                return compute(func, args, kwargs, stop)


_TRANSPOSES = (torch.t, Tensor.t, *(getattr(Tensor, name).__get__ for name in ("T", "mT")))


def compute(func: Any, args: Any, kwargs: Any, stop: NoLayerRule | None) -> Any:
    """What a function computes from parameters only; raises if it takes other values, for which there is no rule."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    entries = [v.entry for v in flat if isinstance(v, TrackedParameter)]
    name = getattr(func, "__name__", str(func))
    label = func.__self__.__name__ if name == "__get__" else name
    earlier = next((e.stop for e in entries if isinstance(e, Computed) and e.stop), None)
    if not entries or not all(_is_public(v, entries[0].session.n) for v in flat) or _writes(name):
        raise earlier or stop or NoLayerRule(_collect_names(flat), NO_RULE.format(label))
    given = [v.entry.source if isinstance(v, TrackedParameter) else v for v in flat]
    own_args, own_kwargs = pytree.tree_unflatten(given, spec)
    with torch.autograd.graph.saved_tensors_hooks(_keep, _keep):  # checkpointing must not recompute these
        out = func(*own_args, **own_kwargs)
    same = {id(v.entry.source): v for v in flat if isinstance(v, TrackedParameter)}
    doubtful = any(isinstance(v, Tensor) and entries[0].session.n in v.shape[1:] for v in flat)
    earlier = earlier or (stop if doubtful else None)
    whole = entries[0] if func in _TRANSPOSES and type(entries[0]) is Entry and entries[0].value.dim() == 2 else None

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        return (
            same[id(value)] if id(value) in same else TrackedParameter.of(Computed.of(value, entries, whole, earlier))
        )

    return pytree.tree_map(wrap, out)


def _keep(tensor: Tensor) -> Tensor:
    return tensor


def _writes(name: str) -> bool:
    """Whether a function changes its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"


def _is_public(value: Any, n: int) -> bool:
    """Whether a value is a parameter or certainly does not hold the examples."""
    if not isinstance(value, Tensor) or isinstance(value, TrackedParameter):
        return True
    return not value.requires_grad and (value.dim() == 0 or value.shape[0] % n != 0)


def _unwrap(value: Any) -> Any:
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


def _open_session(x: Any, *parameters: Any, least: int = 2, flat: bool = False) -> Session:
    """The session of these parameters, after checking that x holds the examples in its first dimension; with ``flat``,
    also the positions of each example, one after the other, if x is a matrix."""
    entries = [e for e in map(entry_of, parameters) if e is not None]
    session = entries[0].session
    fits = isinstance(x, Tensor) and entry_of(x) is None and x.dim() >= least
    if not fits or (x.shape[0] % session.n if flat and x.dim() == 2 else x.shape[0] != session.n):
        raise refuse(NOT_FIRST.format("the layer's input"), *parameters)
    return session


def apply_layer(
    function: Any, x: Any, parameters: tuple[Any, ...], *settings: Any, least: int = 2, flat: bool = False
) -> Tensor:
    """The output of a layer at x, connected to autograd's graph.

    ``function``, an autograd.Function, gets the session's anchor, x, the parameters' tensors, the settings, and the
    parameters' entries, to which its backward adds their terms."""
    session, entries = _open_session(x, *parameters, least=least, flat=flat), tuple(map(entry_of, parameters))
    out: Tensor = function.apply(session.anchor, x, *map(_unwrap, parameters), *settings, entries)
    return out


def expand_per_example(x: Any, parameter: Any, *, matrices: bool = False, whole: bool = False) -> Tensor:
    """The parameter as one view per example; autograd computes its gradient.

    It is shaped to broadcast against x, or, for products of ``matrices``, all of it but the last two dimensions; as a
    ``whole`` it keeps its own dimensions behind the examples."""
    session, entry = _open_session(x, parameter, least=1), entry_of(parameter)
    assert entry is not None
    size = entry.value.dim()
    extra = 1 if whole else x.dim() - size
    if extra < 0 or (extra == 0 and entry.value.shape[0] != 1) or (matrices and (x.dim() < 3 or size < 2)):
        raise refuse("a parameter is broadcast against the dimension of the examples", parameter)
    shape = (1,) * extra + tuple(entry.value.shape)
    leaf = entry.value.reshape(shape).expand(session.n, *shape[1:]).detach().requires_grad_()
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
