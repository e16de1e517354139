"""The draws of the chunk being computed: their places, and the contexts that provide them to a model."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hush.errors import UnsupportedModelError
from hush.per_example.model_rng.dispatch import Functions, Operations
from hush.per_example.model_rng.numbers import ONE, Numbers, Places, draw_rows
from hush.randomness import Counter, Secret, streams

# Which draws of a model belong to single examples, and which to all of them.
#
# The shape alone does not decide it: with a batch of 64, a shared table of 64 numbers looks like one number per
# example. So before a model is used, its draws are observed on two and on three copies of its first example. A
# dimension that grew from 2 to 3 holds the examples; a draw that did not grow is shared; one that grew otherwise (two
# rows per example, say) has no place for an example unless each is computed alone. The decision does not depend on
# the size of any batch.

SIZES = (2, 3)
Shape = tuple[int, ...]


class NotPerExample(Exception):
    """A draw whose numbers cannot be assigned to examples unless each example is computed alone."""


@dataclass(frozen=True)
class BatchShared:
    """A draw that all examples share: its shape was the same at both sizes."""

    shape: Shape


@dataclass(frozen=True)
class PerExample:
    """A draw with the examples in one dimension."""

    dim: int = 0


@dataclass(frozen=True)
class Irregular:
    """A draw that grows with the batch in another way."""


Kind = BatchShared | PerExample | Irregular
DrawLog = list[tuple[int, Shape]]
"""The number and shape of each draw, in order."""


@dataclass(frozen=True)
class DrawLayouts:
    """The layouts of a model's draws, by draw number."""

    by_number: dict[int, Kind] = field(default_factory=dict)

    @staticmethod
    def of(two: DrawLog, three: DrawLog, *, rows: int = 1) -> DrawLayouts:
        """Decide from the draws on two and on three copies of one example, of ``rows`` rows each."""
        if [number for number, _ in two] != [number for number, _ in three]:
            raise UnsupportedModelError(
                "the number of random draws in a forward depends on the batch size, so one more example would shift "
                "the draws of the others: draw tensors that have the examples in one dimension"
            )
        found: dict[int, Kind] = {}
        for (number, a), (_, b) in zip(two, three, strict=True):
            kind = _decide_kind(a, b, rows)
            if found.setdefault(number, kind) != kind:
                raise UnsupportedModelError(
                    "the model seeds torch's generator and draws different shapes from it: do not seed it"
                )
        return DrawLayouts(found)

    @cached_property
    def is_simple(self) -> bool:
        """Whether every draw has the examples first or is one shared number: then the order of draws is irrelevant."""
        return all(kind in (PerExample(0), BatchShared(())) for kind in self.by_number.values())

    def find(self, number: int, shape: Shape, n: int) -> Kind:
        """The layout of a draw of this shape when n rows are computed together; raises if it was not observed."""
        if shape == () and not isinstance(self.by_number.get(number), Irregular):
            return BatchShared(())
        kind = PerExample(0) if self.is_simple else self.by_number.get(number)
        fits = kind == BatchShared(shape) or isinstance(kind, Irregular)
        if isinstance(kind, PerExample):
            fits = kind.dim < len(shape) and shape[kind.dim] == n
        if kind is None or not fits:
            raise UnsupportedModelError(
                f"random draw {number} of a forward has a different shape than in the first trial: in every forward, "
                "draw tensors with the examples in their first dimension, or single numbers (shape ())"
            )
        return kind


def _guess_kind(shape: Shape, n: int) -> Kind:
    """For ordinary training, where nothing is proven: the examples are first if the size matches."""
    return PerExample(0) if shape and shape[0] == n else BatchShared(shape)


def _decide_kind(two: Shape, three: Shape, rows: int) -> Kind:
    if two == three:
        return BatchShared(two)
    if len(two) != len(three):
        return Irregular()
    grown = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    (dim, *more) = grown
    return (
        PerExample(dim) if not more and (two[dim], three[dim]) == tuple(rows * size for size in SIZES) else Irregular()
    )


@dataclass(frozen=True)
class RngScope:
    """The draws of one chunk of one step; ``kinds`` is None until the model was tried. If an example has several
    ``rows``, each has its own numbers among those of the example's place."""

    secret: Secret
    step: int
    places: Places
    counter: Counter
    kinds: DrawLayouts | None = None
    seen: DrawLog | None = field(default=None, repr=False)  # records the draws while a model is tried
    proven: bool = True  # False: decide by shape, in ordinary training
    again: bool = False  # the backward pass is under computing_again()
    rows: int = 1  # rows per example, consecutive in the batch

    def start(self, shape: Sequence[int], device: torch.device, mapped: bool) -> Numbers:
        """The numbers of the next draw."""
        number, single = self.counter.take(), mapped and self.rows > 1 and shape[0] == len(self.places) * self.rows
        n = 1 if single else self.rows * (1 if mapped else len(self.places))
        logical = tuple(shape[1:]) if mapped else tuple(shape)
        if self.seen is not None:
            self.seen.append((number, logical))
        self._mind_checkpoints()
        kind = self._decide_kind(number, logical, n)
        if isinstance(kind, Irregular) and (single or (not mapped and len(self.places) > 1)):
            raise NotPerExample("a random draw has no dimension that holds only the examples")
        shared = isinstance(kind, BatchShared)
        places = ONE if shared else self.places
        key = self.secret.derive(streams.model_draw(shared, number), self.step, size=32)
        total = int(np.prod(logical if isinstance(kind, BatchShared) else shape, dtype=np.int64))
        return Numbers(
            total // max(1, len(places)),
            device,
            lambda width, dtype: draw_rows(key, places, width, dtype),
            lambda rows: _arrange(rows, kind, tuple(shape), mapped, self.rows, single),
        )

    def shares(self, shape: Sequence[int]) -> bool:
        """Whether the next draw is shared by all examples."""
        return isinstance(self._decide_kind(self.counter.number, tuple(shape), self.rows), BatchShared)

    def check(self) -> None:
        """Raise if something was drawn from torch's own generators."""
        self.counter.check()

    def _mind_checkpoints(self) -> None:
        """Activation checkpointing draws again in the backward pass: raise unless that is expected."""
        if not _saved_tensors_are_hooked():
            return
        if not self.again:
            raise NotPerExample("activation checkpointing draws its random numbers again in the backward pass")
        self.counter.again = True

    def _decide_kind(self, number: int, shape: tuple[int, ...], n: int) -> Kind:
        if self.seen is not None or not self.proven:
            return _guess_kind(shape, n)
        assert self.kinds is not None, "a model's draws are looked at before they are used: settling_draws()"
        return self.kinds.find(number, shape, n)


def _arrange(numbers: Tensor, kind: Kind, shape: tuple[int, ...], mapped: bool, rows: int, single: bool) -> Tensor:
    """Rows of numbers in the requested shape; ``single`` if the rows of examples are mapped."""
    if isinstance(kind, BatchShared):
        return numbers.reshape(shape[1:]).expand(shape) if mapped else numbers.reshape(shape)
    if (mapped and not single) or not isinstance(kind, PerExample) or kind.dim == 0:
        return numbers.reshape(shape)
    logical = shape[1:] if mapped else shape
    own = numbers.reshape(-1, *logical[: kind.dim], rows, *logical[kind.dim + 1 :])  # the layout of a single example
    return own.movedim(kind.dim + 1, 1).reshape(shape) if single else own.movedim(0, kind.dim).reshape(shape)


_CURRENT: ContextVar[RngScope | None] = ContextVar("the draws of the piece", default=None)


@contextmanager
def _setting_current(draws: RngScope) -> Iterator[None]:
    token = _CURRENT.set(draws)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def model_randomness(secret: Secret, step: int, places: Tensor, device: torch.device, rows: int = 1) -> Iterator[None]:
    """Provide the random numbers of this step to the model; example r of the chunk uses those of place ``places[r]``,
    split over its ``rows`` if it has several.

    They are the same for every gradient engine, for both points of a two-point query, for every division of the batch,
    and after a resume. torch's own generators are restored; a model that drew from them raises an error.
    """
    with Counter.counting(device) as counter:
        with _setting_current(RngScope(secret, step, Places.of(places), counter, rows=rows)):
            yield
        counter.check()


def is_by_place() -> bool:
    """Whether draws belong to places: inside ``model_randomness``."""
    return _CURRENT.get() is not None


def draws_shared() -> bool:
    """Whether the model that is being computed draws numbers that all examples share, or that no example has."""
    draws = _CURRENT.get()
    kinds = () if draws is None or draws.kinds is None else draws.kinds.by_number.values()
    return not all(isinstance(kind, PerExample) for kind in kinds)


def drawing(*, proven: bool = True, again: bool = False) -> AbstractContextManager[Any]:
    """Around a forward: torch's random numbers come from the chunk's draws.

    ``proven=False`` is for ordinary training; ``again`` if the backward pass is under ``computing_again``. Outside
    ``model_randomness`` torch's own generator is used as usual."""
    draws = _CURRENT.get()
    return nullcontext() if draws is None else Functions(replace(draws, proven=proven, again=again))


def computing_again(*, proven: bool = True) -> AbstractContextManager[Any]:
    """Around a backward pass: recomputation by activation checkpointing draws the same numbers again."""
    draws = _CURRENT.get()
    if draws is None or not draws.counter.again:
        return nullcontext()
    return Operations(replace(draws, proven=proven, again=True))


def _saved_tensors_are_hooked() -> bool:
    """Whether tensors saved by autograd pass through hooks, as in activation checkpointing."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
            return False
    except RuntimeError:
        return True


@contextmanager
def drawing_only(rows: Tensor) -> Iterator[None]:
    """Compute some rows of the chunk, each with its own numbers."""
    draws = _CURRENT.get()
    if draws is None:
        yield
        return
    with _setting_current(replace(draws, places=draws.places.take(rows))):
        yield


@dataclass(frozen=True)
class _Trial:
    losses: Callable[[], Any]
    training: bool
    kinds: DrawLayouts


_TRIED: weakref.WeakKeyDictionary[nn.Module, _Trial] = weakref.WeakKeyDictionary()


@contextmanager
def probe_rng(model: nn.Module, losses: Any, forward: Callable[[Any], Any], content: Any, n: int) -> Iterator[None]:
    """Find out which draws of ``forward(content)`` belong to single examples, by two small forwards per model."""
    draws = _CURRENT.get()
    if draws is None:
        yield
        return
    if len(draws.places) != n:
        raise RuntimeError("the chunk has a different number of places than of examples")
    known = _TRIED.get(model)
    if known is None or known.losses() != losses or known.training != model.training:
        known = _Trial(_refer_weakly(losses), model.training, _try_model(draws, forward, content))
        _TRIED[model] = known
    with _setting_current(replace(draws, kinds=known.kinds)):
        yield


def _try_model(draws: RngScope, forward: Callable[[Any], Any], content: Any) -> DrawLayouts:
    found: list[DrawLog] = []
    for size in SIZES:
        first = torch.zeros(size, dtype=torch.int64)
        few = pytree.tree_map(lambda t, first=first: t[first.to(t.device)] if isinstance(t, Tensor) else t, content)
        found.append([])
        rewind = draws.counter.bookmark()
        trial = replace(draws, places=Places(np.arange(size)), seen=found[-1])
        others = _read_other_generators()
        with torch.no_grad(), _setting_current(trial), drawing(again=True):
            forward(few)
        rewind()
        if _read_other_generators() != others:
            raise UnsupportedModelError(
                "the model, its losses or an augmentation draws from Python's random or from numpy, which is not "
                "assigned to examples and not restored by a resume: draw with torch"
            )
        if not found[0]:
            return DrawLayouts()
    two, three = found
    return DrawLayouts.of(two, three, rows=draws.rows)


def bookmark_draws() -> Callable[[], None]:
    """A function that forgets the draws from here on, for a trial forward that stops and is repeated."""
    draws = _CURRENT.get()
    if draws is None:
        return lambda: None
    rewind, seen = draws.counter.bookmark(), draws.seen
    count = len(seen or ())

    def forget() -> None:
        rewind()
        if seen is not None:
            del seen[count:]

    return forget


def _read_other_generators() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


def _refer_weakly(value: Any) -> Callable[[], Any]:
    """A weak reference if possible, so that a loss (and its closure) is not kept alive."""
    try:
        return weakref.WeakMethod(value) if isinstance(value, type(_refer_weakly.__get__(0))) else weakref.ref(value)
    except TypeError:
        return lambda: value
