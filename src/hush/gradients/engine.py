"""The book-keeping engine: one forward, one backward of the activations' gradients, then norms and one contraction.

Bu, Wang, Zha, Karypis 2022, "Differentially private optimization on large model at small cost".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import hush.gradients.elementwise
import hush.gradients.lookup
import hush.gradients.normalisation  # noqa: F401  (these register their rules)
from hush.draws import Unplaced, drawing
from hush.gradients.alone import Known, mapped
from hush.gradients.exact import exact_products
from hush.gradients.substitutes import forwards
from hush.gradients.swapped import gradients_of, recording, refuse_unseen
from hush.gradients.tape import Point, Suspects, Tape, Weights, check_losses, rewinder, weights_of
from hush.gradients.terms import Rows, Term, chunked_squares, together
from hush.gradients.watched import Entry, Session, Unhandled, Watched
from hush.named import Losses, Named, trainable


@dataclass(frozen=True)
class BookTape:
    """A tape that holds terms, and per-example gradients only where they are the cheaper way."""

    losses: Tensor
    params: Named
    terms: dict[str, list[Term]]
    suspects: Suspects = field(default_factory=Suspects, repr=False)

    @torch.no_grad()
    def squared_norms(self, certain: bool = True) -> Named:
        """Bounds of ‖gᵢ[name]‖², with the cross terms of parameters that are used more than once."""
        with exact_products():
            found = {name: self._squares(name, certain) for name in self.params}
        return self.suspects.noted(found) if certain else found

    def _squares(self, name: str, certain: bool) -> Tensor:
        terms, n, param = self.terms[name], self.losses.shape[0], self.params[name]
        if not terms:
            return param.new_zeros(n, dtype=torch.float64)
        return terms[0].squares(certain) if len(terms) == 1 else chunked_squares(terms, n, param.numel(), certain)

    @torch.no_grad()
    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ, one contraction per term."""
        given: dict[tuple[int, torch.dtype], Weights] = {}
        out: Named = {}
        with exact_products():
            for name, param in self.params.items():
                own = weights_of(weights, name)
                key = id(own), param.dtype
                if key not in given:
                    given[key] = Weights.of(own, param.dtype, start, stop, self.suspects.rows)
                out[name] = self._sum(name, given[key])
        return out

    def _sum(self, name: str, weights: Weights) -> Tensor:
        """One addend an example, or double precision: also where several terms of one parameter can cancel."""
        terms, param = self.terms[name], self.params[name]
        if len(terms) == 1:
            return terms[0].weighted(weights)
        total = torch.zeros_like(param, dtype=torch.float64)
        for term in terms:
            total += term.summed(weights)
        return total.to(param.dtype)


def record_book_keeping(
    model: nn.Module,
    losses: Losses,
    content: Any,
    n: int,
    points: Sequence[Point],
    alone: Iterable[str] = (),
    known: Known | None = None,
) -> Tape:
    """One forward and one backward per point; the modules in ``alone`` are left to torch.func;
    ``known`` is what earlier recordings saw of their inputs.

    Raises Unhandled where a rule is missing."""
    params = trainable(model)
    terms: dict[str, list[Term]] = {name: [] for name in params}
    first: Tensor | None = None
    rewind = rewinder(next(iter(params.values())).device)
    for point in points:
        rewind()
        values, entries = _one_point(model, losses, content, n, params, point, alone, {} if known is None else known)
        first = values if first is None else first
        for entry in entries:
            terms[entry.name] += entry.terms
    assert first is not None
    return BookTape(
        first, {name: p.detach() for name, p in params.items()}, {name: together(t) for name, t in terms.items()}
    )


def _one_point(
    model: nn.Module,
    losses: Losses,
    content: Any,
    n: int,
    params: Named,
    point: Point,
    alone: Iterable[str],
    known: Known,
) -> tuple[Tensor, list[Entry]]:
    like = next(iter(params.values()))
    session = Session(n, torch.zeros(0, dtype=like.dtype, device=like.device, requires_grad=True))
    at = point.params or {}
    entries = [Entry(name, at.get(name, p).detach(), session) for name, p in params.items()]
    stand_ins = {id(p): Watched.of(entry) for p, entry in zip(params.values(), entries, strict=True)}
    with torch.enable_grad(), recording(model, stand_ins), forwards(mapped(model, alone, session, known)):
        try:
            with drawing():
                values = losses(model, content if point.content is None else point.content)
        except Unplaced as stop:
            raise Unhandled([], str(stop)) from stop
        check_losses(values, n)
        _backward(session, values, point.coefficient, params)  # in here: checkpointing runs parts of the model again
    return values.detach(), entries


def _backward(session: Session, values: Tensor, coefficient: float, params: Named) -> None:
    """Have every use leave its term; the originals are asked for too, since no way should lead to them."""
    if not values.requires_grad:
        return
    leaves, originals = list(session.leaves), list(params.values())
    inputs = [session.anchor, *(leaf for _, leaf in leaves), *originals]
    _, *found = gradients_of(values, inputs, torch.full_like(values, coefficient))
    refuse_unseen(params, found[len(leaves) :])
    for (entry, _), gradient in zip(leaves, found, strict=False):
        if gradient is not None:
            entry.leave(Rows(gradient.reshape(session.n, *entry.value.shape)))
