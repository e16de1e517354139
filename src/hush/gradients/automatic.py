"""Which engine a model gets: book-keeping as far as its rules reach and agree with the reference, else torch.func.

Book-keeping is right only where examples do not meet, and a model can hide that they do (a reshape across the batch, a
loss that compares examples, sequences as long as the batch). So the first recording of a model with a loss compares
the two engines on a few of its examples, by themselves and in their batch; where they disagree, the reference computes
everything.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hush.draws import by_place, only
from hush.errors import HushError
from hush.gradients.alone import Known
from hush.gradients.comparison import MIXED, Book, Case, in_float64, norms_agree, reason, rows_agree, unmixed, unnoticed
from hush.gradients.engine import record_book_keeping
from hush.gradients.functional import record_functional, record_one_by_one
from hush.gradients.identity import code_of, identity
from hush.gradients.swapped import is_compiled
from hush.gradients.tape import GradientWarning, Point, Tape, rewinder
from hush.gradients.watched import Unhandled
from hush.named import Losses

PROBED = 3  # examples of the first comparison
REMEMBERED = 8  # losses of one model whose verdicts are kept, and closures of one function that are compared


@dataclass(eq=False)
class Verdict:
    """What is known about one model with one loss."""

    engine: str = "book-keeping"
    checked: bool = False
    alone: frozenset[str] = frozenset()  # modules that torch.func maps by themselves
    known: Known = field(default_factory=dict)  # which of their inputs hold the examples


@dataclass(eq=False)
class Verdicts:
    """The verdicts of one model: the last few, and how many closures of each function were compared."""

    by_loss: OrderedDict[Hashable, Verdict] = field(default_factory=OrderedDict)
    by_code: OrderedDict[Hashable, tuple[int, Verdict]] = field(default_factory=OrderedDict)

    def of(self, losses: Losses, modes: Hashable) -> Verdict:
        """The verdict of this loss. A function made anew at every step with something else in its closure is compared
        only so often; from then on it has the verdict of the last one, or of the first that was slow."""
        key, code = (identity(losses), modes), (code_of(losses), modes)
        if key not in self.by_loss:
            times, last = self.by_code.get(code, (0, Verdict()))
            known = times >= REMEMBERED or (last.checked and last.engine != "book-keeping")
            self.by_loss[key] = last if known else Verdict()
            self.by_code[code] = times + 1, self.by_loss[key]
        for table, used in ((self.by_loss, key), (self.by_code, code)):
            table.move_to_end(used)
            if len(table) > REMEMBERED:
                table.popitem(last=False)
        return self.by_loss[key]


_VERDICTS: WeakKeyDictionary[nn.Module, Verdicts] = WeakKeyDictionary()
_SLOW = {"functional": record_functional, "one by one": record_one_by_one}


def record_automatic(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> Tape:
    """The fastest engine that is right for this model; what is slow is said once."""
    verdict = verdict_of(model, losses)
    if not verdict.checked and n > 1:
        _compare(Case(model, losses, content, n, [Point()]), verdict)
    if verdict.checked and verdict.engine == "book-keeping":
        try:
            return _booked(model, losses, verdict, content, n, points)
        except Unhandled as stop:
            _slow(verdict, "functional", stop.why)
    if n == 1:  # alone by itself: no map is needed, which some operations do not have
        return record_one_by_one(model, losses, content, n, points)
    return _SLOW.get(verdict.engine, record_functional)(model, losses, content, n, points)


def verdict_of(model: nn.Module, losses: Losses) -> Verdict:
    """What is known about this model, in the modes that its modules are in, with this loss."""
    modes = tuple(module.training for module in model.modules())
    return _VERDICTS.setdefault(model, Verdicts()).of(losses, modes)


def engine_of(model: nn.Module, losses: Losses) -> tuple[Book, str]:
    """How a tape of this model with this loss was made, to make it again, and the engine of its reference."""
    verdict = verdict_of(model, losses)
    if verdict.engine == "one by one":
        return partial(record_one_by_one, model, losses), verdict.engine
    return partial(_booked, model, losses, verdict), ""


def _booked(model: nn.Module, losses: Losses, verdict: Verdict, content: Any, n: int, points: Sequence[Point]) -> Tape:
    """Book-keeping; a module whose parameters it cannot follow is left to torch.func, then the module around it."""
    rewind = rewinder(next(model.parameters()).device)
    known, why = verdict.alone, ""
    while True:
        try:
            tape = record_book_keeping(model, losses, content, n, points, verdict.alone, verdict.known)
        except Unhandled as stop:
            rewind()
            verdict.alone, why = _wider(verdict.alone, stop), stop.why
            continue
        for name in sorted(verdict.alone - known):
            kind = type(model.get_submodule(name)).__name__
            _say(f"torch.func computes the per-example gradients of '{name}' ({kind}), which is slow: {why}")
        return tape


def _wider(alone: frozenset[str], stop: Unhandled) -> frozenset[str]:
    """The modules left to torch.func, and the owner of the parameter that stopped the recording, or who contains it."""
    owner = stop.names[0].rpartition(".")[0] if stop.names else ""
    while owner and any(f"{owner}.".startswith(f"{name}.") for name in alone):
        owner = owner.rpartition(".")[0]
    if not owner:
        raise stop
    return frozenset(name for name in alone if not name.startswith(f"{owner}.")) | {owner}


def _compare(case: Case, verdict: Verdict) -> None:
    """Decide the engine on a few examples, by themselves and in their batch."""
    which = torch.linspace(0, case.n - 1, min(case.n, PROBED)).long()
    few, book = case.some(which), partial(_booked, case.model, case.losses, verdict)
    if is_compiled(case.model):
        _say("torch.compile has no effect on per-example gradients: the model runs as it was written")
    with unnoticed() as drawn:
        with only(which):
            found = in_float64(few, lambda c: _few(c, book, drawn), lambda: _few(few, book, drawn, last=True))
        if not found.why and case.n > len(which):
            found = _whole(case, which, book, found, drawn)
    verdict.checked = True  # only now: where a comparison stops with an error, the next recording compares
    if found.why:
        _slow(verdict, found.engine, found.why)


@dataclass(frozen=True)
class _Found:
    """The reference's engine, whether the model draws random numbers, and why book-keeping is not right ("": it is)."""

    engine: str
    random: bool
    why: str


def _few(case: Case, book: Book, drawn: Any, *, last: bool = False) -> _Found:
    """Book-keeping against the reference on a few examples; where book-keeping crashes, only the last word counts."""
    drawn()
    ours, trouble = None, ""
    try:
        ours = case.booked(book)
    except Unhandled as stop:
        trouble = stop.why
    except HushError:
        raise
    except Exception as error:  # the user's own error comes back from the reference below
        if not last:
            raise
        trouble = f"book-keeping stopped with {type(error).__name__}"
    random = drawn()
    theirs, engine = case.alone()
    drawn()
    if ours is None:
        return _Found(engine, random, trouble)
    if engine == "one by one" and random and not by_place():
        _say("this model draws random numbers and torch.func cannot map it, so its gradients could not be checked")
        return _Found(engine, random, "")
    every = torch.arange(case.n)
    agree = rows_agree(ours, every, theirs) and norms_agree(ours, every, theirs)
    return _Found(engine, random, "" if agree else reason(case, theirs))


def _whole(case: Case, which: Tensor, book: Book, found: _Found, drawn: Any) -> _Found:
    """The few in their batch against themselves alone; what only rounding tells apart in float32 is the same."""

    def different(case: Case) -> bool:
        drawn()
        tape = case.booked(book)
        return not unmixed(case, tape, which, found.engine, found.random, drawn)

    try:
        mixed = different(case) and in_float64(case, different, lambda: True)
    except Unhandled as stop:  # a rule that three examples fitted
        return _Found(found.engine, found.random, stop.why)
    return _Found(found.engine, found.random, MIXED if mixed else "")


def _slow(verdict: Verdict, engine: str, why: str) -> None:
    verdict.engine = engine
    road = "torch.func computes" if engine == "functional" else "one backward pass an example computes"
    _say(f"{road} the per-example gradients of this model, which is slow: {why}")


def _say(text: str) -> None:
    warnings.warn(text, GradientWarning, stacklevel=2)
