"""Whether the examples of a batch influence each other: a few examples in their batch against the same ones alone.

The reference computes an example alone: torch.func runs it in a batch of one. Losses and whole gradients are compared.
In float32 they agree up to rounding, which a layer can magnify: another number of rows rounds differently, and a kink
amplifies it. A difference in float32 is accepted only if float64 does not show it, and if it is small or remains when
all other examples of the batch are replaced by empty rows. Float64 alone is not enough, because it does not overflow
where float32 does. A model that cannot run in float64 is judged in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, Named, trainable
from hush.data_source import list_parts, tensors_of, to_each
from hush.errors import HushError
from hush.per_example.augmentation import Point, make_rewinder
from hush.per_example.functional import (
    compute_losses_alone,
    computing_in_float64,
    record_functional,
    record_one_by_one,
    recording,
    widen,
)
from hush.per_example.model_rng import drawing, drawing_only, is_by_place
from hush.per_example.reads import is_read_error
from hush.per_example.result import PerExampleGradients

CLOSE = {torch.float64: 1e-6, torch.float32: 2e-3}  # relative to the largest; rounding is far below, mixing far above
SLIGHT = 0.05  # share of an example's gradient that float32 rounding may change, if float64 shows no difference
MIXED = (
    "the loss or the gradient of an example depends on the other examples of its batch (as with in-batch negatives, or "
    "statistics of a batch), so clipping one example bounds nothing: let the model and the loss treat every example "
    "separately, or train with the method 'sgd', which has no privacy and no ε"
)
MISSED = (
    "a part of its gradients goes past the book-keeping rules (through an autograd.Function, a weight that is used "
    "outside of its module, or examples in another dimension than the first): use operations of torch, a module's own "
    "weights, and put the examples first"
)

Book = Callable[[Any, int, Sequence[Point]], PerExampleGradients]
"""Book-keeping of one model and loss; takes content, number of examples, points."""


@dataclass(frozen=True)
class Alone:
    """Gradients of single examples: the engine that computed them, and whether torch.func stopped at a value read."""

    tape: PerExampleGradients
    engine: str
    read: bool = False


@dataclass(frozen=True)
class EngineComparison:
    """One model with one loss on one batch of n examples."""

    model: nn.Module
    losses: Losses
    content: Any
    n: int
    points: Sequence[Point]

    def take(self, which: Tensor) -> EngineComparison:
        """A batch of these examples only."""

        def rows(content: Any) -> Any:
            return to_each(lambda t: t[which.to(t.device)], content)

        points = [Point(p.coefficient, p.params, None if p.content is None else rows(p.content)) for p in self.points]
        return EngineComparison(self.model, self.losses, rows(self.content), len(which), points)

    def blank_others(self, which: Tensor) -> EngineComparison:
        """The same batch with empty rows in place of all other examples."""

        def blank(t: Tensor) -> Tensor:
            out, rows = torch.zeros_like(t), which.to(t.device)
            out[rows] = t[rows]
            return out

        def rows(content: Any) -> Any:
            return None if content is None else to_each(blank, content)

        points = [Point(p.coefficient, p.params, rows(p.content)) for p in self.points]
        return EngineComparison(self.model, self.losses, rows(self.content), self.n, points)

    def widen(self) -> EngineComparison:
        """The same case in float64, for a model in float64."""

        def double(content: Any) -> Any:
            return None if content is None else to_each(widen, content)

        points = [Point(p.coefficient, double(p.params), double(p.content)) for p in self.points]
        return EngineComparison(self.model, self.losses, double(self.content), self.n, points)

    def run_bookkeeping(self, book: Book) -> PerExampleGradients:
        """Record the whole batch by book-keeping."""
        return book(self.content, self.n, self.points)

    def record_alone(self, engine: str = "") -> Alone:
        """Record every example separately, by torch.func if it can map the model."""
        given, read = (self.model, self.losses, self.content, self.n, self.points), False
        rewind = make_rewinder(next(self.model.parameters()).device)
        if engine != "one by one":
            try:
                return Alone(record_functional(*given), "functional")
            except HushError:
                raise
            except Exception as error:  # torch.func cannot map every operation; an error of user code recurs below
                read = is_read_error(error)
                rewind()  # repeat what torch.func drew before it stopped
        return Alone(record_one_by_one(*given), "one by one", read)

    def compute_losses_alone(self) -> Tensor:
        """Every example's loss as if it were alone, with the model randomness of its place in the batch."""
        first = self.points[0]
        seen = self.content if first.content is None else first.content
        return compute_losses_alone(self.model, self.losses, seen, first.params)


@contextmanager
def keeping_generator(start: Tensor | None = None) -> Iterator[Callable[[], bool]]:
    """Restore torch's generator afterwards. Yields a function that says whether numbers were drawn since ``start`` (by
    default now), and rewinds to it."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # torch.func, for rare operations
        before = torch.get_rng_state() if start is None else start

        def rewind() -> bool:
            drew = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
            return drew

        yield rewind


def judge_in_float64(
    case: EngineComparison, judge: Callable[[EngineComparison], Any], otherwise: Callable[[], Any]
) -> Any:
    """``judge`` the case in float64; ``otherwise`` if the model does not run in float64."""
    try:
        with computing_in_float64(case.model):
            return judge(case.widen())
    except HushError:
        raise
    except Exception:  # for example a float32 dtype written in the forward
        return otherwise()


def is_mixed(
    case: EngineComparison,
    tape: PerExampleGradients,
    which: Tensor,
    book: Book,
    engine: str,
    random: bool,
    rewind: Callable[[], Any],
) -> bool:
    """Whether the gradients of a batch, recorded by ``book``, differ from those of the same examples alone."""
    given = (which, engine, random, rewind)
    if _is_unmixed(case, tape, *given):
        return False
    if not (_is_unmixed(case, tape, *given, close=SLIGHT) or _is_own(case, tape, which, book, rewind)):
        return True

    def is_different(case: EngineComparison) -> bool:
        rewind()
        return not _is_unmixed(case, case.run_bookkeeping(book), *given)

    return bool(judge_in_float64(case, is_different, lambda: True))


def _is_own(
    case: EngineComparison, tape: PerExampleGradients, which: Tensor, book: Book, rewind: Callable[[], Any]
) -> bool:
    """Whether these examples keep their losses and gradients in a batch of the same size whose other rows are empty:
    then the difference from the examples alone is rounding caused by another number of rows."""
    rewind()
    try:
        blank = case.blank_others(which).run_bookkeeping(book)
    except Exception:  # the model does not accept empty rows, so nothing is accepted
        return False
    return rows_agree(tape, which, blank, at=which)


def _is_unmixed(
    case: EngineComparison,
    tape: PerExampleGradients,
    which: Tensor,
    engine: str,
    random: bool,
    rewind: Callable[[], Any],
    close: float | None = None,
) -> bool:
    """Whether these examples have the same gradients in a batch as alone, up to ``close`` (rounding by default).

    With randomness by place, an example draws the same in every batch. Without it, draws belong to the rows of the
    batch: a model that draws is compared by the losses of all rows, and not at all if torch.func cannot map it."""
    if not random or is_by_place():
        rewind()
        with drawing_only(which):
            return rows_agree(tape, which, case.take(which).record_alone(engine).tape, close=close)
    if engine == "one by one":
        return True
    rewind()
    right = case.compute_losses_alone()
    return _are_near(tape.losses, right, float(right.nan_to_num(0, 0, 0).abs().max()) + 1e-12, close)


def rows_agree(
    tape: PerExampleGradients,
    which: Tensor,
    other: PerExampleGradients,
    *,
    at: Tensor | None = None,
    close: float | None = None,
) -> bool:
    """Whether these examples have the same losses and gradients in two recordings; in ``other`` they are all examples,
    or those ``at`` some rows."""
    rows = torch.arange(len(which)) if at is None else at
    found, right = _take_rows(tape, which), _take_rows(other, rows)
    scales = _find_scales(right)
    losses = other.losses.detach()[rows.to(other.losses.device)]
    here = tape.losses[which.to(losses.device)].detach()
    if not _are_near(here, losses, losses.new_tensor(scales, dtype=torch.float64), close):
        return False
    pairs = zip(found, right, scales, strict=True)
    return all(_is_same(a[name], b[name], scale, close) for a, b, scale in pairs for name in b)


def _find_scales(rows: Sequence[Named]) -> list[float]:
    """The scale for differences in each of a few examples, in addition to its own: the largest parameter gradient.

    A small gradient is compared with those of the others, up to 1: an extremely large example says nothing about the
    rounding of another."""
    sizes = [max((_measure(g) for g in row.values()), default=0.0) for row in rows]
    usual = min(max(sizes, default=0.0), 1.0)
    return [max(size, usual) + 1e-12 for size in sizes]


def _measure(gradient: Tensor) -> float:
    """The norm of the finite values, without overflow."""
    finite = gradient.double().nan_to_num(0, 0, 0)
    unit = _find_largest(finite)
    return min(unit * float((finite / unit).norm()), 1e300) if unit else 0.0


def _find_largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def norms_agree(tape: PerExampleGradients, which: Tensor, alone: PerExampleGradients) -> bool:
    """Whether recorded norms equal those of the examples alone.

    Examples with a norm that is not finite are in no sum and are skipped."""
    mine, right = tape.squared_norms(certain=False), alone.squared_norms(certain=False)
    pairs = [(mine[name][which.to(b.device)].sqrt(), b.sqrt()) for name, b in right.items()]
    largest = max((float(b.nan_to_num(0, 0, 0).max()) for _, b in pairs), default=0.0)
    pairs = [(a[torch.isfinite(a)], b[torch.isfinite(a)]) for a, b in pairs]
    # a norm is an upper bound, so that of a zero gradient is not zero
    return all(_are_near(a, b, largest + 1e-6) for a, b in pairs)


def measure_difference(one: Any, place: int, other: Any, at: int) -> float:
    """The share of values in which a row of one content differs from that of another beyond rounding; 1 if their
    structures differ or their values cannot be compared."""
    parts = list_parts(one)
    if parts != list_parts(other) or not all(parts.values()):
        return 1.0
    pairs = [(a[place], b[at]) for a, b in zip(tensors_of(one), tensors_of(other), strict=True)]
    shares = [_share_of_others(a, b) if a.shape == b.shape and a.dtype == b.dtype else 1.0 for a, b in pairs]
    return max(shares, default=0.0)


def _share_of_others(a: Tensor, b: Tensor) -> float:
    if not b.numel():
        return 0.0
    same = (a == b) | ((a != a) & (b != b))
    if b.is_floating_point():
        scale = float(b.detach().nan_to_num(0, 0, 0).abs().max())
        same |= (a - b).abs() <= CLOSE.get(b.dtype, 0.05) * (b.abs() + 1e-2 * scale)
    return 1.0 - float(same.double().mean())


def _are_near(a: Tensor, b: Tensor, scale: float | Tensor, close: float | None = None) -> bool:
    """Whether values agree, and are finite at the same positions; ``scale`` is one number, or one per value."""
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return False
    a, b = a[finite].detach(), b[finite].detach()
    scale = scale[finite] if isinstance(scale, Tensor) else scale
    return bool(((a - b).abs() <= (close or CLOSE.get(b.dtype, 0.05)) * (b.abs() + 1e-2 * scale)).all())


def _is_same(a: Tensor, b: Tensor, scale: float, close: float | None = None) -> bool:
    if not bool(torch.isfinite(b).all()):
        return not bool(torch.isfinite(a).all())
    unit, close = _find_largest(b) or 1.0, close or CLOSE.get(b.dtype, 0.05)
    a, b = a.double() / unit, b.double() / unit  # avoids overflow of squares
    return bool((a - b).norm() <= close * (b.norm() + 1e-2 * scale / unit))


def _take_rows(tape: PerExampleGradients, which: Tensor) -> list[Named]:
    """The complete gradients of a few examples."""
    every = torch.zeros(len(which), len(tape.losses), dtype=tape.losses.dtype, device=tape.losses.device)
    every[torch.arange(len(which)), which.to(every.device)] = 1
    return [tape.sum(one) for one in every]


def explain_difference(case: EngineComparison, alone: PerExampleGradients) -> str:
    """Why book-keeping and the reference differ on a few examples: mixed examples, or a missed part of the gradient.

    If examples are not mixed, the ordinary gradient of the whole loss is the sum of the gradients of single
    examples."""
    params = trainable(case.model)
    total: Named = {name: torch.zeros_like(p) for name, p in params.items()}
    for point in case.points:
        at = {id(p): (point.params or {}).get(name, p).detach().requires_grad_() for name, p in params.items()}
        with torch.enable_grad(), recording(case.model, at), drawing():
            values = case.losses(case.model, case.content if point.content is None else point.content)
            found = torch.autograd.grad(values.sum(), list(at.values()), allow_unused=True)
        for name, g in zip(params, found, strict=True):
            total[name] += 0 if g is None else point.coefficient * g
    right = alone.sum(torch.ones_like(alone.losses))
    scale = max(map(_measure, right.values())) + 1e-12
    return MISSED if all(_is_same(total[name], right[name], scale) for name in right) else MIXED
