"""Per-example gradients: their exact norms and weighted sums, at close to the price of one ordinary gradient.

``record`` runs the model once forward and once backward and returns a tape. The engine that computes it is a matter of
speed alone: "functional" (torch.func, the reference) and "book-keeping" (Bu et al. 2022, "Differentially private
optimization on large model at small cost") give the same tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from hush._internal.tensors import Losses, trainable
from hush._internal.validate import choice
from hush.errors import Refused
from hush.per_example.augmentation import Augmented, Point, average_rows, read_batch_size
from hush.per_example.bookkeeping import record_book_keeping
from hush.per_example.engine import CheckedLosses, SpotChecks, record_automatic
from hush.per_example.functional import record_functional, record_one_by_one, recording
from hush.per_example.isolation import EngineComparison
from hush.per_example.model_checks import ModelStateGuard, check_model, to_group_norm
from hush.per_example.model_rng import NotPerExample, drawing, probe_rng
from hush.per_example.result import EmptyGradients, GradientWarning, PerExampleGradients, fit_to_piece, microbatch_scope
from hush.per_example.rounding import exact_products
from hush.per_example.tracking import NoLayerRule

__all__ = [
    "Augmented",
    "GradientWarning",
    "Point",
    "PerExampleGradients",
    "ModelStateGuard",
    "SpotChecks",
    "average_rows",
    "check_model",
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
        raise Refused(f"book-keeping cannot follow this model by itself: {stop.why}; use engine='auto'") from stop


_ENGINES = {
    "auto": record_automatic,
    "book-keeping": _record_strictly,
    "functional": record_functional,
    "one by one": record_one_by_one,
}


def per_example_gradients(
    model: nn.Module, losses: Losses, content: Any, *, engine: str = "auto", points: Sequence[Point] | None = None
) -> PerExampleGradients:
    """The per-example gradients of one batch as a tape.

    ``losses(model, content)`` gives one loss per example. With ``points``, gᵢ = Σ_p coefficient_p ∇lossᵢ(params_p), and
    every point sees the same model randomness (dropout): inside ``hush.per_example.model_rng.model_randomness`` that
    of each example's
    place, else torch's generator as the caller seeded it. ``engine`` changes the speed and nothing else.
    """
    choice(_ENGINES, engine=engine)
    spot = losses if isinstance(losses, CheckedLosses) else None
    losses = losses.losses if isinstance(losses, CheckedLosses) else losses
    n = read_batch_size(content)
    if n == 0:
        params = trainable(model)
        like = next(iter(params.values()))
        return EmptyGradients(like.new_zeros(0), {name: p.detach() for name, p in params.items()})
    chosen = list(points or [Point()])
    with probe_rng(model, losses, lambda few: _draw_all(model, losses, few), content, n):
        if isinstance(losses, Augmented):
            before = torch.get_rng_state() if spot else None
            chosen = _draw_views(losses, content, chosen)
            if spot and before is not None:
                draw = partial(_draw_views, losses, points=[Point()])
                spot.check_views(draw, content, n, chosen[: losses.views], before)
            losses = losses.losses
        start = torch.get_rng_state() if spot else None
        with exact_products():
            tape = _ENGINES[engine](model, losses, content, n, chosen)
        if spot and start is not None:
            spot.check(EngineComparison(model, losses, content, n, chosen), tape, start)
        return fit_to_piece(tape)


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
        raise Refused(f"{stop}: augment one copy of the batch at a time, its examples in their own dimension") from stop
