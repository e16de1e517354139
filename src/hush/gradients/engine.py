"""The book-keeping engine: one forward, one backward of the activations' gradients, then norms and one contraction.

Bu, Wang, Zha, Karypis 2022, "Differentially private optimization on large model at small cost".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hush.gradients.elementwise
import hush.gradients.lookup
import hush.gradients.normalisation  # noqa: F401  (these register their rules)
from hush.gradients.alone import Known, mapped
from hush.gradients.substitutes import forwards
from hush.gradients.swapped import gradients_of, recording, refuse_unseen
from hush.gradients.tape import Point, Tape, check_losses, rewinder, weights_of
from hush.gradients.terms import Rows, Term, Weights, chunked_squares, together
from hush.gradients.watched import Entry, Session, Watched
from hush.named import Losses, Named, trainable


@dataclass(frozen=True)
class BookTape:
    """A tape that holds terms, and per-example gradients only where they are the cheaper way."""

    losses: Tensor
    params: Named
    terms: dict[str, list[Term]]

    @torch.no_grad()
    def squared_norms(self) -> Named:
        """‖gᵢ[name]‖², with the cross terms of parameters that are used more than once."""
        return {name: self._squares(name) for name in self.params}

    def _squares(self, name: str) -> Tensor:
        terms, n = self.terms[name], self.losses.shape[0]
        if not terms:
            return self.params[name].new_zeros(n)
        return terms[0].squares() if len(terms) == 1 else chunked_squares(terms, n, self.params[name].numel())

    @torch.no_grad()
    def sum(self, weights: Tensor | Named) -> Named:
        """Σᵢ wᵢ gᵢ, one contraction per term."""
        dtype = next(iter(self.params.values())).dtype
        same = None if isinstance(weights, dict) else Weights.of(weights, dtype)
        out: Named = {}
        for name, param in self.params.items():
            w = same or Weights.of(weights_of(weights, name), param.dtype)
            parts = [term.weighted(w) for term in self.terms[name]]
            total = parts[0] if parts else torch.zeros_like(param)
            for part in parts[1:]:
                total = total + part
            out[name] = total
        return out


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
        values = losses(model, content if point.content is None else point.content)
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
