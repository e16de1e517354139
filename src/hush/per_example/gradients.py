"""Per-example gradients: exact norms and weighted sums, at nearly the cost of one ordinary gradient.

``per_example_gradients`` runs the model once forward and once backward. The engine only changes the speed:
"functional" (torch.func, the reference) and "book-keeping" (Bu et al. 2022, "Differentially private optimization on
large model at small cost") give the same result.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, trainable
from hush._internal.validate import choice
from hush.data_source import to_each
from hush.errors import ExamplesNotIndependent, InvalidInputError, UnsupportedModelError
from hush.per_example.augmentation import Augmented, Point, average_rows, read_batch_size
from hush.per_example.bookkeeping import record_book_keeping
from hush.per_example.engine import (
    CheckedLosses,
    EngineChoice,
    SpotChecks,
    compute_one_by_one,
    reads_by_torch_func,
    record_automatic,
    verdict_of,
)
from hush.per_example.functional import record_functional, record_one_by_one, recording
from hush.per_example.isolation import EngineComparison, keeping_generator
from hush.per_example.model_checks import ModelStateGuard, check_model, to_group_norm
from hush.per_example.model_rng import NotPerExample, drawing, draws_shared, probe_rng
from hush.per_example.reads import Read, ReadChecks, ReadLog, current_checks, logging_to, watching_reads
from hush.per_example.result import EmptyGradients, GradientWarning, PerExampleGradients, fit_to_piece, microbatch_scope
from hush.per_example.rounding import exact_products
from hush.per_example.tracking import NoLayerRule

__all__ = [
    "Augmented",
    "GradientPath",
    "GradientWarning",
    "Point",
    "PerExampleGradients",
    "ModelStateGuard",
    "SpotChecks",
    "average_rows",
    "check_model",
    "explain",
    "microbatch_scope",
    "per_example_gradients",
    "to_group_norm",
]


def _record_strictly(
    model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]
) -> PerExampleGradients:
    try:
        return record_book_keeping(model, losses, content, n, points)
    except NoLayerRule as stop:
        raise UnsupportedModelError(
            f"book-keeping cannot handle this model on its own: {stop.why}; use engine='auto'"
        ) from stop


_ENGINES = {
    "auto": record_automatic,
    "book-keeping": _record_strictly,
    "functional": record_functional,
    "one by one": record_one_by_one,
}


def per_example_gradients(
    model: nn.Module, losses: Losses, content: Any, *, engine: str = "auto", points: Sequence[Point] | None = None
) -> PerExampleGradients:
    """Compute the per-example gradients of one batch.

    ``losses(model, content)`` gives one loss per example. With ``points``, gᵢ = Σ_p coefficient_p ∇lossᵢ(params_p), and
    every point uses the same model randomness (dropout): that of each example's place inside
    ``hush.per_example.model_rng.model_randomness``, otherwise torch's generator as seeded by the caller. ``engine``
    only changes the speed.
    """
    choice(_ENGINES, engine=engine)
    spot = losses if isinstance(losses, CheckedLosses) else None
    losses = losses.losses if isinstance(losses, CheckedLosses) else losses
    n = read_batch_size(content)
    if n == 0:
        params = trainable(model)
        like = next(iter(params.values()))
        return EmptyGradients(like.new_zeros(0), {name: p.detach() for name, p in params.items()})
    own = _Recording(model, losses, list(points or [Point()]), engine)
    with probe_rng(model, losses, lambda few: _draw_all(model, losses, few), content, n):
        return fit_to_piece(own.record(content, n, spot))


@dataclass(frozen=True)
class _Recording:
    """Records batches of a model with a loss, points and an engine; in a run it also logs what a batch reads."""

    model: nn.Module
    losses: Losses
    points: Sequence[Point]
    engine: str

    @property
    def inner(self) -> Losses:
        """The losses of one view."""
        return self.losses.losses if isinstance(self.losses, Augmented) else self.losses

    def record(self, content: Any, n: int, spot: CheckedLosses | None) -> PerExampleGradients:
        """The gradients of a batch; raises if the batch's values decide what is computed."""
        checks, before = current_checks(), torch.get_rng_state()
        logs = (None, None) if checks is None else (checks.start_log(), checks.start_log())
        points = self._draw(content, logs[0])
        if isinstance(self.losses, Augmented) and (spot or (checks is not None and checks.deciding)):
            draw = partial(_draw_views, self.losses, points=[Point()])
            whose = spot or CheckedLosses(self.losses, 0, (0.0, 0.5))  # before the first step, of synthetic rows
            whose.check_views(draw, content, n, points[: self.losses.views], before)
        start = torch.get_rng_state()
        tape = self._compute(content, n, points, logs[1])
        if checks is not None and self._is_alone(content, n, checks, logs, before):
            torch.set_rng_state(start)
            tape = self._compute(content, n, points, None)
        if spot:
            spot.check(EngineComparison(self.model, self.inner, content, n, points), tape, start)
        return tape

    def _draw(self, content: Any, log: ReadLog | None) -> list[Point]:
        if not isinstance(self.losses, Augmented):
            return list(self.points)
        with logging_to(log), watching_reads():
            return _draw_views(self.losses, content, self.points)

    def _compute(self, content: Any, n: int, points: Sequence[Point], log: ReadLog | None) -> PerExampleGradients:
        with logging_to(log), exact_products():
            return _ENGINES[self.engine](self.model, self.inner, content, n, points)

    def _is_alone(
        self, content: Any, n: int, checks: ReadChecks, logs: tuple[ReadLog | None, ...], before: Tensor
    ) -> bool:
        """Whether this batch read other values than empty rows do, so that its examples are computed separately.

        Only synthetic inputs may decide this: with real data, values would decide how examples are computed, so a
        batch that reads other values stops the run. The first synthetic batch has no empty row yet, and only decides
        that there are reads."""
        view_log, model_log = logs
        assert view_log is not None
        assert model_log is not None
        if not (view_log.reads or model_log.reads):
            hidden = checks.deciding and reads_by_torch_func(self.model, self.inner)
            if hidden:
                compute_one_by_one(self.model, self.inner, READ.format("values of its examples"))
            return hidden
        known, checks.found = checks.found, True
        if checks.deciding and not known:
            return False
        empty = checks.usual.get(n) if checks.constant else None
        empty_views, empty_model = empty or self._list_empty_reads(content, n, checks, before)
        if view_log.find_difference(empty_views):
            raise ExamplesNotIndependent(_explain_read(view_log.find_difference(empty_views), "augmentation"))
        name = model_log.find_difference(empty_model)
        if name and not (checks.deciding and self.engine == "auto"):
            raise ExamplesNotIndependent(_explain_read(name, "model or its loss"))
        if name:
            compute_one_by_one(self.model, self.inner, READ.format(f"values of its batch ('{name}')"))
        return bool(name)

    def _list_empty_reads(
        self, content: Any, n: int, checks: ReadChecks, before: Tensor
    ) -> tuple[list[Read], list[Read]]:
        """The reads of a batch of empty rows with the same size, weights and random numbers."""

        def blank(content: Any) -> Any:
            return None if content is None else to_each(torch.zeros_like, content)

        points = [replace(point, content=blank(point.content)) for point in self.points]
        own, empty, logs = replace(self, points=points), blank(content), (ReadLog(True), ReadLog(True))
        with keeping_generator(before) as rewind:
            rewind()
            own._compute(empty, n, own._draw(empty, logs[0]), logs[1])
        found = logs[0].reads, logs[1].reads
        checks.hidden |= any(log.hidden for log in logs)
        if checks.deciding:
            checks.tried.append(([], []) if draws_shared() else found)
        elif checks.constant:
            checks.usual[n] = found
        return found


READ = "it reads {} into Python, where they can decide what is computed for other examples"


def _explain_read(name: str, where: str) -> str:
    return (
        f"the {where} read a value of a batch into Python ('{name}') that a batch of empty rows does not have, so the "
        "values of one example can decide what is computed for the others, and clipping does not bound that. Nothing "
        "of this step was released, and this run releases nothing more: compute with tensors (torch.where) instead of "
        "Python's if, item and masks, and start a new run"
    )


def _draw_all(model: nn.Module, losses: Losses, content: Any) -> None:
    """Everything that is drawn for a batch, in the order in which an engine draws it."""
    if isinstance(losses, Augmented):
        content = losses.points(content, [Point()])[0].content
        losses = losses.losses
    with recording(model, {}):
        losses(model, content)


def _draw_views(losses: Augmented, content: Any, points: Sequence[Point]) -> list[Point]:
    try:
        with drawing():
            return losses.points(content, points)
    except NotPerExample as stop:
        raise UnsupportedModelError(
            f"{stop}: augment one copy of the batch at a time, its examples in their own dimension"
        ) from stop


@dataclass(frozen=True)
class GradientPath:
    """How the per-example gradients of one module's own parameters are computed: ``path`` is ``book-keeping`` (fast),
    ``torch.func`` or ``one by one`` (slow, and ``reason`` says why), or ``frozen`` (nothing to train)."""

    module: str
    kind: str
    path: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.module or 'the model'} ({self.kind}): {self.path}"
        return f"{text}, because {self.reason}" if self.reason else text


def explain(model: nn.Module, losses: Losses, batch: Any) -> tuple[GradientPath, ...]:
    """Which gradient path every module with parameters takes, and why.

    >>> for path in hush.explain(model, losses, (x[:8], y[:8])):  # doctest: +SKIP
    ...     print(path)
    0 (Linear): book-keeping

    The path is a matter of speed: the gradients are the same. A copy of the model is recorded on ``batch`` (two
    examples or more; made-up ones are enough), so nothing is trained and no run is influenced.
    """
    copied = copy.deepcopy(model)
    check_model(copied)
    if read_batch_size(batch) < 2:
        raise InvalidInputError("a batch of two examples or more is needed to compare the gradient paths")
    with keeping_generator(), warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        per_example_gradients(copied, losses, batch)
    verdict = verdict_of(copied, losses)
    return tuple(
        _find_path(name, module, verdict)
        for name, module in copied.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    )


def _find_path(name: str, module: nn.Module, verdict: EngineChoice) -> GradientPath:
    kind = type(module).__name__
    if not any(p.requires_grad for p in module.parameters(recurse=False)):
        return GradientPath(name, kind, "frozen")
    if verdict.engine != "book-keeping":
        path = "torch.func" if verdict.engine == "functional" else verdict.engine
        return GradientPath(name, kind, path, verdict.reasons.get("", ""))
    for owner in sorted(verdict.alone):
        if f"{name}.".startswith(f"{owner}."):
            return GradientPath(name, kind, "torch.func", verdict.reasons.get(owner, ""))
    return GradientPath(name, kind, "book-keeping")
