"""The book-keeping engine: one forward, one backward for the activations' gradients, then norms and one contraction.

Bu, Wang, Zha, Karypis 2022, "Differentially private optimization on large model at small cost".

Modules without a rule are left to torch.func, which maps each of them over the examples within an otherwise ordinary
forward. Every example gets its own view of the module's parameters; autograd computes the gradients of these views,
which are the per-example gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

import hush.per_example.embedding
import hush.per_example.linear
import hush.per_example.norm  # noqa: F401  (registers its rules)
from hush._internal.tensors import Losses, Named, check_losses
from hush.errors import HushError
from hush.per_example.augmentation import Point, make_rewinder
from hush.per_example.decompositions import PaddedRows, replacing_forwards
from hush.per_example.functional import ModelParts, compute_gradients, parts_of, recording, refuse_unseen
from hush.per_example.linear import align_frozen
from hush.per_example.model_rng import NotPerExample, drawing
from hush.per_example.reads import start_again, watching_reads
from hush.per_example.result import NonFiniteRows, PerExampleGradients, Weights, weights_of
from hush.per_example.rounding import exact_products
from hush.per_example.rules import NOT_FIRST, Entry, Known, NoLayerRule, Session, TrackedParameter
from hush.per_example.terms import Materialized, Term, bound_in_chunks, merge_terms, sum_terms
from hush.per_example.units import gather_rows
from hush.privacy_unit import count_rows


@dataclass(frozen=True)
class BookkeepingGradients:
    """Per-example gradients kept as terms, and materialized only where that is cheaper."""

    losses: Tensor
    params: Named
    terms: dict[str, list[Term]]
    suspects: NonFiniteRows = field(default_factory=NonFiniteRows, repr=False)

    @torch.no_grad()
    def squared_norms(self, certain: bool = True) -> Named:
        """Upper bounds of ‖gᵢ[name]‖², with the cross terms of parameters that are used more than once."""
        with exact_products():
            found = {name: self._squares(name, certain) for name in self.params}
        return self.suspects.note(found) if certain else found

    def _squares(self, name: str, certain: bool) -> Tensor:
        terms, n, param = self.terms[name], self.losses.shape[0], self.params[name]
        if not terms:
            return param.new_zeros(n, dtype=torch.float64)
        return terms[0].bound_squares(certain) if len(terms) == 1 else bound_in_chunks(terms, n, param.numel(), certain)

    @torch.no_grad()
    def sum(self, weights: Tensor | Named, start: int = 0, stop: int | None = None) -> Named:
        """Σᵢ wᵢ gᵢ, one contraction per term."""
        return _sum_tapes([(self, weights)], start, stop)

    @torch.no_grad()
    def sum_block(
        self, weights: Tensor | Named, before: Sequence[tuple[BookkeepingGradients, Tensor | Named]]
    ) -> Named:
        """The same over the examples of several results."""
        return _sum_tapes([*before, (self, weights)])


def _sum_tapes(
    tapes: Sequence[tuple[BookkeepingGradients, Tensor | Named]], start: int = 0, stop: int | None = None
) -> Named:
    given: dict[tuple[int, int, torch.dtype], Weights] = {}
    out: Named = {}
    with exact_products():
        for name, param in tapes[0][0].params.items():
            parts: list[tuple[list[Term], Weights]] = []
            for tape, weights in tapes:
                own = weights_of(weights, name)
                key = id(tape), id(own), param.dtype
                if key not in given:
                    given[key] = Weights.of(own, param.dtype, start, stop, tape.suspects.rows)
                parts.append((tape.terms[name], given[key]))
            out[name] = _sum_parts(param, parts)
    return out


def _sum_parts(param: Tensor, parts: Sequence[tuple[list[Term], Weights]]) -> Tensor:
    """Use double precision unless there is one addend per example, and where terms of a parameter can cancel."""
    if all(len(terms) == 1 for terms, _ in parts):
        return sum_terms([(terms[0], weights) for terms, weights in parts])
    total = torch.zeros_like(param, dtype=torch.float64)
    for terms, weights in parts:
        for term in terms:
            total += term.sum_in_double(weights)
    return total.to(param.dtype)


def record_book_keeping(
    model: nn.Module,
    losses: Losses,
    content: Any,
    n: int,
    points: Sequence[Point],
    alone: Iterable[str] = (),
    known: Known | None = None,
) -> PerExampleGradients:
    """One forward and one backward per point; torch.func computes the modules in ``alone``.

    ``known`` is what earlier recordings found out about their inputs. Raises Unhandled if a rule is missing."""
    params = parts_of(model).params
    terms: dict[str, list[Term]] = {name: [] for name in params}
    first: Tensor | None = None
    rewind = make_rewinder(next(iter(params.values())).device)
    start_again()
    for point in points:
        rewind()
        values, entries = _record_point(model, losses, content, n, params, point, alone, {} if known is None else known)
        first = values if first is None else first
        for entry in entries:
            terms[entry.name] += _gather_terms(entry, n, count_rows(losses))
    assert first is not None
    return BookkeepingGradients(
        first,
        {name: p.detach() for name, p in params.items()},
        {name: t if len(t) < 2 else merge_terms(t) for name, t in terms.items()},
    )


def _gather_terms(entry: Entry, n: int, m: int) -> list[Term]:
    return entry.terms if m == 1 else [gather_rows(term, n, m, entry.value) for term in entry.terms]


def _record_point(
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
    anchor = torch.zeros(0, dtype=like.dtype, device=like.device, requires_grad=True)
    session = Session(n * count_rows(losses), anchor, known)
    at = point.params or {}
    entries = [Entry(name, at.get(name, p).detach(), session) for name, p in params.items()]
    stand_ins = {id(p): TrackedParameter.of(entry) for p, entry in zip(params.values(), entries, strict=True)}
    replaced = _find_frozen(parts_of(model))
    if alone:
        replaced = replaced | _map_over_examples(model, alone, session, known)
    with torch.enable_grad(), recording(model, stand_ins), replacing_forwards(replaced):
        try:
            with watching_reads(drawing()):
                values = losses(model, content if point.content is None else point.content)
        except NotPerExample as stop:
            raise NoLayerRule([], str(stop)) from stop
        check_losses(values, n)
        _backward(session, values, point.coefficient, params)  # in this scope: checkpointing reruns parts of the model
    return values.detach(), entries


def _find_frozen(parts: ModelParts) -> dict[nn.Module, Callable[..., Any]]:
    """The forwards of frozen linear layers, found once."""
    if "frozen" not in parts.memo:
        parts.memo["frozen"] = align_frozen(parts.model)
    return parts.memo["frozen"]  # type: ignore[no-any-return]


def _backward(session: Session, values: Tensor, coefficient: float, params: Named) -> None:
    """Run the backward in which every use adds its term. The original parameters must get no gradient."""
    if not values.requires_grad:
        return
    leaves, originals = list(session.leaves), list(params.values())
    inputs = [session.anchor, *(leaf for _, leaf in leaves), *originals]
    _, *found = compute_gradients(values, inputs, torch.full_like(values, coefficient), watched=True)
    refuse_unseen(params, found[len(leaves) :])
    for (entry, _), gradient in zip(leaves, found, strict=False):
        if gradient is not None:
            entry.leave(Materialized(gradient.reshape(session.n, *entry.value.shape)))
    session.settle()


def _map_over_examples(
    model: nn.Module, names: Iterable[str], session: Session, known: Known
) -> dict[nn.Module, Callable[..., Any]]:
    """The forwards of these modules, mapped over single examples."""
    modules = dict(model.named_modules())
    return {modules[name]: _map_module(modules[name], session, known.setdefault(name, [])) for name in names}


def _map_module(module: nn.Module, session: Session, known: list[list[bool]]) -> Callable[..., Any]:
    calls, own = itertools.count(), module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with replacing_forwards({module: own}):
            return _call_mapped(module, session, args, kwargs, known, next(calls))

    return forward


def _make_leaf(entry: Entry) -> Tensor:
    session = entry.session
    leaf = entry.value.expand(session.n, *entry.value.shape).detach().requires_grad_()
    session.leaves.append((entry, leaf))
    return leaf


def _call_mapped(
    module: nn.Module, session: Session, args: Any, kwargs: Any, known: list[list[bool]], call: int
) -> Any:
    stand_ins = {name: p for name, p in module.named_parameters() if isinstance(p, TrackedParameter)}
    watched = {name: p.entry for name, p in stand_ins.items()}
    leaves = {name: _make_leaf(entry) for name, entry in watched.items()}
    flat, spec = pytree.tree_flatten((args, kwargs))
    batched = [isinstance(v, Tensor) and v.dim() > 0 and v.shape[0] == session.n for v in flat]
    if not any(batched) or any(isinstance(v, (PaddedRows, PackedSequence)) for v in flat):
        raise NoLayerRule([entry.name for entry in watched.values()], NOT_FIRST.format("any input of the module"))
    if call == len(known):
        known.append(batched)
    if known[call] != batched:  # for example a table that happens to have as many rows as this batch has examples
        raise NoLayerRule(
            [entry.name for entry in watched.values()],
            "which inputs of the module hold examples changes between batches",
        )

    def one(params: dict[str, Tensor], *values: Any) -> Any:
        single = [v.unsqueeze(0) if b else v for v, b in zip(values, batched, strict=True)]
        inner_args, inner_kwargs = pytree.tree_unflatten(single, spec)
        with recording(module, {id(p): params[name] for name, p in stand_ins.items()}):
            out = module(*inner_args, **inner_kwargs)
        return pytree.tree_map(lambda t: t.squeeze(0) if isinstance(t, Tensor) else t, out)

    dims = tuple(0 if b else None for b in batched)
    try:
        return vmap(one, in_dims=(0, *dims), randomness="different")(leaves, *flat)
    except (HushError, NoLayerRule, NotPerExample):
        raise
    except Exception as error:  # an error of the user's code is raised again by the reference
        names = [entry.name for entry in watched.values()]
        why = f"torch.func cannot map this module ({type(error).__name__}: {str(error).partition(chr(10))[0][:200]})"
        raise NoLayerRule(names, why) from error
