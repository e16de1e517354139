"""Choice of engine: book-keeping where its rules apply and agree with the reference, otherwise torch.func.

Book-keeping is correct only if examples are independent, and a model can hide that they are not (a reshape across the
batch, a loss that compares examples, sequences as long as the batch). So the first recording of a model with a loss
compares the two engines on a few of its examples, alone and in their batch; if they disagree, the reference computes
everything.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses
from hush.data_source import to_each
from hush.errors import ExamplesNotIndependent, HushError
from hush.per_example.augmentation import Point, make_rewinder
from hush.per_example.bookkeeping import BookkeepingGradients, record_book_keeping
from hush.per_example.functional import is_compiled, parts_of, record_functional, record_one_by_one
from hush.per_example.isolation import (
    MIXED,
    Book,
    EngineComparison,
    explain_difference,
    is_mixed,
    judge_in_float64,
    keeping_generator,
    measure_difference,
    norms_agree,
    rows_agree,
)
from hush.per_example.model_rng import drawing_only, is_by_place
from hush.per_example.reads import logging_to
from hush.per_example.result import GradientWarning, PerExampleGradients
from hush.per_example.rules import Known, NoLayerRule
from hush.randomness import Secret, streams

# What is known about a model with a loss. Two losses are the same if they do the same, not if they are one object.
#
# A lambda written in a training loop is a new object at every step but the same loss each time. Two functions made by
# one factory share their code but have two closures, and may do different things. So a function is identified by its
# code and its closure: numbers and strings by value, everything else by object identity.

REMEMBERED = 8  # choices kept per model, and closures compared per function


@dataclass(eq=False)
class EngineChoice:
    """What is known about one model with one loss."""

    engine: str = "book-keeping"
    checked: bool = False
    read: bool = False  # torch.func could not map it, because it reads values of the examples into Python
    alone: frozenset[str] = frozenset()  # modules that torch.func maps separately
    known: Known = field(default_factory=dict)  # which of their inputs hold the examples
    reasons: dict[str, str] = field(default_factory=dict)  # why a module is slow, by its name; "" is the whole model


@dataclass(eq=False)
class EngineChoices:
    """The latest choices for one model, and how many closures of each function were compared."""

    by_loss: OrderedDict[Hashable, EngineChoice] = field(default_factory=OrderedDict)
    by_code: OrderedDict[Hashable, tuple[int, EngineChoice]] = field(default_factory=OrderedDict)

    def of(self, losses: Losses, modes: Hashable) -> EngineChoice:
        """The choice for this loss. If every step passes a new closure, only a limited number is compared; later ones
        get the choice of the last one, or of the first that was slow."""
        key, code = (identify_loss(losses), modes), (_code_of(losses), modes)
        if key not in self.by_loss:
            times, last = self.by_code.get(code, (0, EngineChoice()))
            known = times >= REMEMBERED or (last.checked and last.engine != "book-keeping")
            self.by_loss[key] = last if known else EngineChoice()
            self.by_code[code] = times + 1, self.by_loss[key]
        for table, used in ((self.by_loss, key), (self.by_code, code)):
            table.move_to_end(used)
            if len(table) > REMEMBERED:
                table.popitem(last=False)
        return self.by_loss[key]


_VERDICTS: WeakKeyDictionary[nn.Module, EngineChoices] = WeakKeyDictionary()


def verdict_of(model: nn.Module, losses: Losses) -> EngineChoice:
    """What is known about this model, in the current modes of its modules, with this loss.

    A run keeps the parts of its model and one loss object, whose choice is found once."""
    parts = parts_of(model)
    loss, choice = parts.memo.get("engine", (None, None))
    if loss is losses and choice is not None:
        return choice  # type: ignore[no-any-return]
    known = _VERDICTS.setdefault(model, EngineChoices()).of(losses, parts.modes)
    parts.memo["engine"] = losses, known
    return known


_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_EMPTY = object()  # replaces the content of a cell that is not set yet


class Same:
    """Identity of one object, by weak reference if possible, so that it is not kept alive."""

    def __init__(self, thing: Any) -> None:
        self._number = id(thing)
        try:
            self._find: Any = weakref.ref(thing)
        except TypeError:
            self._find = lambda: thing

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        thing = self._find()
        return isinstance(other, Same) and thing is not None and thing is other._find()


def identify_loss(thing: Any, depth: int = 6) -> Hashable:
    """A key that two things share only if they behave the same; below ``depth``, only identical objects match."""
    if isinstance(thing, _BY_VALUE):
        return type(thing), repr(thing)  # by repr, because 0.0 and -0.0, 1 and True differ
    if depth == 0:
        return Same(thing)
    if isinstance(thing, tuple):
        return type(thing), tuple(identify_loss(each, depth - 1) for each in thing)
    if isinstance(thing, types.FunctionType):
        inside = (_read_closure(thing), thing.__defaults__, _sort_items(thing.__kwdefaults__))
        return thing.__code__, identify_loss(inside, depth - 1)
    if isinstance(thing, types.MethodType):
        return identify_loss(thing.__func__, depth - 1), Same(thing.__self__)
    if isinstance(thing, functools.partial):
        return identify_loss((thing.func, thing.args, _sort_items(thing.keywords)), depth - 1)
    return Same(thing)


def _code_of(thing: Any) -> Hashable:
    """The key that all functions of one factory share."""
    while isinstance(thing, (types.MethodType, functools.partial)):
        thing = thing.__func__ if isinstance(thing, types.MethodType) else thing.func
    return thing.__code__ if isinstance(thing, types.FunctionType) else Same(thing)


def _read_closure(function: types.FunctionType) -> tuple[Any, ...]:
    """The contents of its cells."""
    cells = function.__closure__ or ()
    return tuple(_EMPTY if cell == types.CellType() else cell.cell_contents for cell in cells)


def _sort_items(named: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((named or {}).items(), key=lambda item: item[0]))


PROBED = 3  # number of examples in the first comparison


_SLOW = {"functional": record_functional, "one by one": record_one_by_one}


def record_automatic(
    model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]
) -> PerExampleGradients:
    """The fastest engine that is correct for this model; warns once if it is slow."""
    verdict = verdict_of(model, losses)
    if not verdict.checked and n > 1:
        with logging_to(None):
            _compare_engines(EngineComparison(model, losses, content, n, [Point()]), verdict)
    if verdict.checked and verdict.engine == "book-keeping":
        try:
            return _keep_book(model, losses, verdict, content, n, points)
        except NoLayerRule as stop:
            _turn_slow(verdict, "functional", stop.why)
    if n == 1:  # needs no map over examples, which some operations do not support
        return record_one_by_one(model, losses, content, n, points)
    return _SLOW.get(verdict.engine, record_functional)(model, losses, content, n, points)


def _engine_of(model: nn.Module, losses: Losses) -> tuple[Book, str]:
    """The function that reproduces a recording of this model with this loss, and the engine of its reference."""
    verdict = verdict_of(model, losses)
    if verdict.engine == "one by one":
        return partial(record_one_by_one, model, losses), verdict.engine
    return partial(_keep_book, model, losses, verdict), ""


def _keep_book(
    model: nn.Module, losses: Losses, verdict: EngineChoice, content: Any, n: int, points: Sequence[Point]
) -> PerExampleGradients:
    """Book-keeping; a module with parameters it cannot track is left to torch.func, then the module around it."""
    rewind, known, why = make_rewinder(next(iter(parts_of(model).params.values())).device), verdict.alone, ""
    while True:
        try:
            tape = record_book_keeping(model, losses, content, n, points, verdict.alone, verdict.known)
        except NoLayerRule as stop:
            rewind()
            verdict.alone, why = _widen_alone(verdict.alone, stop), stop.why
            for name in verdict.known.keys() - verdict.alone:  # its lookups may be fewer now
                del verdict.known[name]
            verdict.reasons.update(dict.fromkeys(verdict.alone - verdict.reasons.keys(), why))
            continue
        for name in sorted(verdict.alone - known):
            kind = type(model.get_submodule(name)).__name__
            _warn(f"torch.func computes the per-example gradients of '{name}' ({kind}), which is slow: {why}")
        return tape


def _widen_alone(alone: frozenset[str], stop: NoLayerRule) -> frozenset[str]:
    """The modules left to torch.func, plus the owner of the parameter that stopped the recording or its parent."""
    owner = stop.names[0].rpartition(".")[0] if stop.names else ""
    while owner and any(f"{owner}.".startswith(f"{name}.") for name in alone):
        owner = owner.rpartition(".")[0]
    if not owner:
        raise stop
    return frozenset(name for name in alone if not name.startswith(f"{owner}.")) | {owner}


def _compare_engines(case: EngineComparison, verdict: EngineChoice) -> None:
    """Choose the engine on a few examples, alone and in their batch; raises if these are not the same."""
    which = torch.linspace(0, case.n - 1, min(case.n, PROBED)).long()
    few, book = case.take(which), partial(_keep_book, case.model, case.losses, verdict)
    if is_compiled(case.model):
        _warn("torch.compile has no effect on per-example gradients: the model runs as it was written")
    with keeping_generator() as rewind:
        with drawing_only(which):
            found = judge_in_float64(
                few, lambda c: _judge_few(c, book, rewind), lambda: _judge_few(few, book, rewind, last=True)
            )
        if not found.why and case.n > len(which):
            found = _judge_batch(case, which, book, found, rewind)
    if found.why == MIXED:
        raise ExamplesNotIndependent(MIXED)
    verdict.read = found.read
    verdict.checked = True  # only now: if the comparison raises, the next recording compares again
    if found.why:
        _turn_slow(verdict, found.engine, found.why)


@dataclass(frozen=True)
class _Found:
    """The reference's engine, whether the model draws random numbers, and why book-keeping is wrong ("" if not)."""

    engine: str
    random: bool
    why: str
    read: bool = False  # as reported by torch.func


def _judge_few(case: EngineComparison, book: Book, rewind: Any, *, last: bool = False) -> _Found:
    """Book-keeping against the reference on a few examples; if book-keeping fails, only ``last`` reports it."""
    rewind()
    ours, trouble = None, ""
    try:
        ours = case.run_bookkeeping(book)
    except NoLayerRule as stop:
        trouble = stop.why
    except HushError:
        raise
    except Exception as error:  # an error of the user's code is raised again by the reference below
        if not last:
            raise
        first = str(error).partition("\n")[0][:200]
        trouble = (
            f"with tracked parameters it raises {type(error).__name__} ('{first}'): use layers of torch.nn, and pass "
            "parameters to operations of torch only"
        )
    random = rewind()
    alone = case.record_alone()
    theirs, engine = alone.tape, alone.engine
    rewind()
    if ours is None:
        return _Found(engine, random, trouble, alone.read)
    if engine == "one by one" and random and not is_by_place():
        _warn("this model draws random numbers and torch.func cannot map it, so its gradients could not be checked")
        return _Found(engine, random, "", alone.read)
    every = torch.arange(case.n)
    agree = rows_agree(ours, every, theirs) and norms_agree(ours, every, theirs)
    return _Found(engine, random, "" if agree else explain_difference(case, theirs), alone.read)


def _judge_batch(case: EngineComparison, which: Tensor, book: Book, found: _Found, rewind: Any) -> _Found:
    """The few examples in their batch against the same ones alone; rounding differences of float32 are ignored."""
    rewind()
    try:
        mixed = is_mixed(case, case.run_bookkeeping(book), which, book, found.engine, found.random, rewind)
    except NoLayerRule as stop:  # a rule that applied to three examples but not to the batch
        return replace(found, why=stop.why)
    return replace(found, why=MIXED if mixed else "")


def _turn_slow(verdict: EngineChoice, engine: str, why: str) -> None:
    verdict.engine = engine
    verdict.reasons[""] = why
    road = "torch.func computes" if engine == "functional" else "one backward pass an example computes"
    _warn(f"{road} the per-example gradients of this model, which is slow: {why}")


def compute_one_by_one(model: nn.Module, losses: Losses, why: str) -> None:
    """From now on, compute every example of this model with this loss separately."""
    _turn_slow(verdict_of(model, losses), "one by one", why)


def reads_by_torch_func(model: nn.Module, losses: Losses) -> bool:
    """Whether torch.func found that values of an example are read into Python, and examples are computed together."""
    verdict = verdict_of(model, losses)
    return verdict.read and verdict.engine == "book-keeping"


def _warn(text: str) -> None:
    warnings.warn(text, GradientWarning, stacklevel=2)


# Spot checks: at secret steps, a few examples of the batch are compared with the same examples alone.
#
# The comparison of the first batch cannot detect a model that begins to mix its examples later (a flag, a warm-up, a
# memory of features). A check takes the step's own gradients and recomputes `PICKED` of its examples alone: 0.1 to 1.7
# steps of time for the models of ``benchmarks/spot_checks.py``, so one check per `PERIOD` steps takes at most 1 % of a
# run. Which steps and examples are checked is a pure function of (secret, step): a resumed run repeats them.

PICKED = 2  # examples per check
PERIOD = 192  # one step per period is checked
FIRST = 2  # every step up to this one is checked as well


FEW = 0.05  # share of the values of a view that rounding may change


@dataclass(frozen=True)
class CheckedLosses:
    """Losses whose recording is checked: ``picks`` are relative positions in the batch, from 0 to 1."""

    losses: Losses
    step: int
    picks: tuple[float, ...]

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The losses themselves."""
        return self.losses(model, content)

    def check(self, case: EngineComparison, tape: PerExampleGradients, start: Tensor) -> None:
        """Raise if examples differ from the same examples alone; ``start`` is torch's generator state before it."""
        book, engine = _engine_of(case.model, case.losses)
        if case.n < 2 or not (isinstance(tape, BookkeepingGradients) or engine == "one by one"):
            return  # torch.func computes every example in its own batch
        which = torch.tensor(self._pick(case.n))
        with keeping_generator(start) as rewind:
            random = not torch.equal(start, torch.get_rng_state())
            if is_mixed(case, tape, which, book, engine, random, rewind):
                raise ExamplesNotIndependent(self._explain())

    def check_views(
        self, draw: Callable[[Any], Sequence[Point]], content: Any, n: int, views: Sequence[Point], start: Tensor
    ) -> None:
        """Raise if the views of an example depend on the other examples of the batch.

        ``draw`` makes the views of a content, and ``start`` is torch's generator state before those of the batch.
        Quantization can magnify a difference in the last bit caused by another number of rows: if few values differ,
        the example is compared again, in a batch of the same size that holds copies of it."""
        if n < 2 or not is_by_place():
            return
        with keeping_generator(start) as rewind:
            for place in self._pick(n):
                rewind()
                with drawing_only(torch.tensor([place])):
                    alone = draw(_copy_row(content, place, 1))
                share = _compare_views(views, place, alone, 0)
                rewind()
                if share > FEW or (share and _compare_views(views, place, draw(_copy_row(content, place, n)), place)):
                    raise ExamplesNotIndependent(self._explain("in the augmentation"))

    def _pick(self, n: int) -> list[int]:
        return sorted({int(pick * n) for pick in self.picks})

    def _explain(self, where: str = "in the model or its loss") -> str:
        return (
            f"at step {self.step} the examples of a batch influence each other {where}: the contribution of an example "
            "depends on the others, so clipping does not bound it. Nothing of this step was released, and this run "
            "releases nothing more: if this happened in earlier steps, its weights are not covered by the guarantee. "
            "Let forward and losses treat every example separately, and start a new run"
        )


def _copy_row(content: Any, place: int, times: int) -> Any:
    """A batch of ``times`` copies of one example."""
    return to_each(lambda t: t[torch.full((times,), place, device=t.device)], content)


def _compare_views(views: Sequence[Point], place: int, others: Sequence[Point], at: int) -> float:
    """The largest share of values in which a row of the views differs from a row of ``others``."""
    pairs = zip(views, others, strict=True)
    return max(measure_difference(ours.content, place, theirs.content, at) for ours, theirs in pairs)


def count_spot_checks(steps: int) -> int:
    """The smallest number of checks in ``steps`` steps, which is public. The last period has one more check, but only
    the secret decides whether it comes before the end."""
    first = min(steps, FIRST + 1)
    return first + max(0, steps // PERIOD - 1)


@dataclass(frozen=True)
class SpotChecks:
    """The spot checks of one run: one secret step per ``period``, and the first steps.

    Mixing that begins at some step and continues is found within two periods."""

    secret: Secret
    period: int = PERIOD
    first: int = FIRST

    def inspect(self, losses: Losses, step: int, piece: int = 0, pieces: int = 1) -> Losses:
        """The losses of one chunk of a step, inspected if the step is checked."""
        due, place, *picks = self._draw(step // self.period)
        if step > self.first and step % self.period != int(due * self.period):
            return losses
        return CheckedLosses(losses, step, tuple(picks)) if piece == int(place * pieces) else losses

    def _draw(self, block: int) -> list[float]:
        """Numbers in [0, 1) for one period."""
        drawn = self.secret.derive(streams.SPOT_CHECK, block, size=4 * (2 + PICKED))
        return [int.from_bytes(drawn[i : i + 4], "little") / 2**32 for i in range(0, len(drawn), 4)]
