"""Which engine a model gets: book-keeping as far as its rules reach and agree with the reference, else torch.func.

Book-keeping is right only where examples do not meet, and a model can hide that they do (a reshape across the batch, a
loss that compares examples, sequences as long as the batch). So the first recording of a model compares the two engines
on a few of its examples, by themselves and (where nothing is random) in their batch; where they disagree, the reference
computes everything.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hush.errors import HushError
from hush.gradients.alone import Known
from hush.gradients.engine import record_book_keeping
from hush.gradients.functional import record_functional, record_one_by_one
from hush.gradients.tape import GradientWarning, Point, Tape, rewinder
from hush.gradients.watched import Unhandled
from hush.named import Losses, Named

PROBED = 3  # examples of the first comparison
CLOSE = {torch.float64: 1e-7, torch.float32: 2e-3}  # relative to the largest; rounding is far below, mixing far above


@dataclass(eq=False)
class Verdict:
    """What is known about one model with one loss."""

    engine: str = "book-keeping"
    checked: bool = False
    alone: frozenset[str] = frozenset()  # modules that torch.func maps by themselves
    known: Known = field(default_factory=dict)  # which of their inputs hold the examples


_VERDICTS: WeakKeyDictionary[nn.Module, dict[Hashable, Verdict]] = WeakKeyDictionary()
_SLOW = {"functional": record_functional, "one by one": record_one_by_one}


def record_automatic(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> Tape:
    """The fastest engine that is right for this model; what is slow is said once."""
    verdict = _verdict(model, losses)
    if not verdict.checked and n > 1:
        _compare(model, losses, content, n, verdict)
    if verdict.checked and verdict.engine == "book-keeping":
        try:
            return _booked(model, losses, content, n, points, verdict)
        except Unhandled as stop:
            _slow(verdict, "functional", stop.why)
    return _SLOW.get(verdict.engine, record_functional)(model, losses, content, n, points)


def _verdict(model: nn.Module, losses: Losses) -> Verdict:
    source = getattr(losses, "__code__", losses)
    kind = (source if isinstance(source, Hashable) else type(source), model.training)
    return _VERDICTS.setdefault(model, {}).setdefault(kind, Verdict())


def _booked(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point], verdict: Verdict) -> Tape:
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


def _compare(model: nn.Module, losses: Losses, content: Any, n: int, verdict: Verdict) -> None:
    """Decide the engine on a few examples; torch's generator is left as it was found."""
    some = torch.linspace(0, n - 1, min(n, PROBED)).long()
    few = pytree.tree_map(lambda t: t[some.to(t.device)] if isinstance(t, Tensor) else t, content)
    m, point = len(some), [Point()]
    verdict.checked = True
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # torch.func on rare operations
        before = torch.get_rng_state()
        ours, trouble = None, None
        try:
            ours = _booked(model, losses, few, m, point, verdict)
        except HushError:
            raise
        except Exception as error:  # the user's own error comes back from the reference below
            trouble = error
        random = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        try:
            engine, theirs = "functional", record_functional(model, losses, few, m, point)
        except HushError:
            raise
        except Exception:  # torch.func cannot map every operation
            engine, theirs = "one by one", record_one_by_one(model, losses, few, m, point)
        mixed = False
        if ours is not None and not random and n > m:
            whole = _booked(model, losses, content, n, point, verdict)
            mixed = not _agree(_Some(whole, some.to(whole.losses.device)), theirs)
    if ours is None:
        _slow(verdict, engine, getattr(trouble, "why", "") or f"book-keeping stopped with {type(trouble).__name__}")
    elif engine == "one by one" and random:
        _say("this model draws random numbers and torch.func cannot map it, so its gradients could not be checked")
    elif mixed or not _agree(ours, theirs):
        _slow(verdict, engine, "examples are not independent of each other in this model or its loss")


@dataclass(frozen=True)
class _Some:
    """A few examples of a tape."""

    tape: Tape
    which: Tensor

    @property
    def losses(self) -> Tensor:
        return self.tape.losses[self.which]

    def squared_norms(self) -> Named:
        return {name: squares[self.which] for name, squares in self.tape.squared_norms().items()}


def _agree(ours: Tape | _Some, theirs: Tape) -> bool:
    mine, right = ours.squared_norms(), theirs.squared_norms()
    pairs = [(ours.losses, theirs.losses), *((mine[name].sqrt(), right[name].sqrt()) for name in right)]
    scale = max(float(b.nan_to_num(0, 0, 0).abs().max()) for _, b in pairs[1:]) + 1e-12
    return all(_near(a, b, CLOSE.get(b.dtype, 0.05), scale) for a, b in pairs)


def _near(a: Tensor, b: Tensor, tolerance: float, scale: float) -> bool:
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return False
    a, b = a[finite].detach(), b[finite].detach()
    return bool(((a - b).abs() <= tolerance * (b.abs() + 1e-2 * scale)).all())


def _slow(verdict: Verdict, engine: str, why: str) -> None:
    verdict.engine = engine
    road = "torch.func computes" if engine == "functional" else "one backward pass an example computes"
    _say(f"{road} the per-example gradients of this model, which is slow: {why}")


def _say(text: str) -> None:
    warnings.warn(text, GradientWarning, stacklevel=2)
