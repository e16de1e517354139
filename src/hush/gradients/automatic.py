"""Which engine a model gets: book-keeping as far as its rules reach and agree with the reference, else torch.func.

Book-keeping is right only where examples do not meet, and a model can hide that they do (a reshape across the batch, a
loss that compares examples, sequences as long as the batch). So the first recording of a model with a loss compares
the two engines on a few of its examples, by themselves and in their batch; where they disagree, the reference computes
everything.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hush.draws import drawing_only, is_by_place
from hush.errors import HushError
from hush.gradients.book_keeping import record_book_keeping
from hush.gradients.comparison import (
    MIXED,
    Book,
    Case,
    explain_difference,
    is_unmixed,
    judge_in_float64,
    keeping_generator,
    norms_agree,
    rows_agree,
)
from hush.gradients.functional import record_functional, record_one_by_one
from hush.gradients.points import Point, make_rewinder
from hush.gradients.swaps import is_compiled
from hush.gradients.tape import GradientWarning, Tape
from hush.gradients.verdicts import Verdict, verdict_of
from hush.gradients.watched import Unhandled
from hush.named import Losses

PROBED = 3  # examples of the first comparison


_SLOW = {"functional": record_functional, "one by one": record_one_by_one}


def record_automatic(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> Tape:
    """The fastest engine that is right for this model; what is slow is said once."""
    verdict = verdict_of(model, losses)
    if not verdict.checked and n > 1:
        _compare_engines(Case(model, losses, content, n, [Point()]), verdict)
    if verdict.checked and verdict.engine == "book-keeping":
        try:
            return _keep_book(model, losses, verdict, content, n, points)
        except Unhandled as stop:
            _turn_slow(verdict, "functional", stop.why)
    if n == 1:  # no map over examples is needed, which some operations do not support
        return record_one_by_one(model, losses, content, n, points)
    return _SLOW.get(verdict.engine, record_functional)(model, losses, content, n, points)


def engine_of(model: nn.Module, losses: Losses) -> tuple[Book, str]:
    """How a tape of this model with this loss was made, to make it again, and the engine of its reference."""
    verdict = verdict_of(model, losses)
    if verdict.engine == "one by one":
        return partial(record_one_by_one, model, losses), verdict.engine
    return partial(_keep_book, model, losses, verdict), ""


def _keep_book(
    model: nn.Module, losses: Losses, verdict: Verdict, content: Any, n: int, points: Sequence[Point]
) -> Tape:
    """Book-keeping; a module whose parameters it cannot follow is left to torch.func, then the module around it."""
    rewind = make_rewinder(next(model.parameters()).device)
    known, why = verdict.alone, ""
    while True:
        try:
            tape = record_book_keeping(model, losses, content, n, points, verdict.alone, verdict.known)
        except Unhandled as stop:
            rewind()
            verdict.alone, why = _widen_alone(verdict.alone, stop), stop.why
            continue
        for name in sorted(verdict.alone - known):
            kind = type(model.get_submodule(name)).__name__
            _warn(f"torch.func computes the per-example gradients of '{name}' ({kind}), which is slow: {why}")
        return tape


def _widen_alone(alone: frozenset[str], stop: Unhandled) -> frozenset[str]:
    """The modules left to torch.func, and the owner of the parameter that stopped the recording or one around it."""
    owner = stop.names[0].rpartition(".")[0] if stop.names else ""
    while owner and any(f"{owner}.".startswith(f"{name}.") for name in alone):
        owner = owner.rpartition(".")[0]
    if not owner:
        raise stop
    return frozenset(name for name in alone if not name.startswith(f"{owner}.")) | {owner}


def _compare_engines(case: Case, verdict: Verdict) -> None:
    """Decide the engine on a few examples, by themselves and in their batch."""
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
    verdict.checked = True  # only now: where a comparison stops with an error, the next recording compares
    if found.why:
        _turn_slow(verdict, found.engine, found.why)


@dataclass(frozen=True)
class _Found:
    """The reference's engine, whether the model draws random numbers, and why book-keeping is not right ("": it is)."""

    engine: str
    random: bool
    why: str


def _judge_few(case: Case, book: Book, rewind: Any, *, last: bool = False) -> _Found:
    """Book-keeping against the reference on a few examples; where book-keeping crashes, only ``last`` says so."""
    rewind()
    ours, trouble = None, ""
    try:
        ours = case.keep_book(book)
    except Unhandled as stop:
        trouble = stop.why
    except HushError:
        raise
    except Exception as error:  # the user's own error comes back from the reference below
        if not last:
            raise
        trouble = f"book-keeping stopped with {type(error).__name__}"
    random = rewind()
    theirs, engine = case.record_alone()
    rewind()
    if ours is None:
        return _Found(engine, random, trouble)
    if engine == "one by one" and random and not is_by_place():
        _warn("this model draws random numbers and torch.func cannot map it, so its gradients could not be checked")
        return _Found(engine, random, "")
    every = torch.arange(case.n)
    agree = rows_agree(ours, every, theirs) and norms_agree(ours, every, theirs)
    return _Found(engine, random, "" if agree else explain_difference(case, theirs))


def _judge_batch(case: Case, which: Tensor, book: Book, found: _Found, rewind: Any) -> _Found:
    """The few in their batch against themselves alone; what only rounding tells apart in float32 is the same."""

    def is_different(case: Case) -> bool:
        rewind()
        tape = case.keep_book(book)
        return not is_unmixed(case, tape, which, found.engine, found.random, rewind)

    try:
        mixed = is_different(case) and judge_in_float64(case, is_different, lambda: True)
    except Unhandled as stop:  # a rule that three examples fitted
        return _Found(found.engine, found.random, stop.why)
    return _Found(found.engine, found.random, MIXED if mixed else "")


def _turn_slow(verdict: Verdict, engine: str, why: str) -> None:
    verdict.engine = engine
    road = "torch.func computes" if engine == "functional" else "one backward pass an example computes"
    _warn(f"{road} the per-example gradients of this model, which is slow: {why}")


def _warn(text: str) -> None:
    warnings.warn(text, GradientWarning, stacklevel=2)
