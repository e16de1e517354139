"""The reference engine: torch.func computes each example's gradient as if it were alone in its batch.

gᵢ = ∇ lossᵢ by vmap(grad) over a batch of one. It holds n gradients at once and is slow, and it is right by
construction: nothing one example contains can reach another's gradient. Everything else is measured against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from hush.draws import computing_again, drawing, drawing_only, is_by_place
from hush.gradients.points import Point, make_rewinder
from hush.gradients.swaps import compute_gradients, recording, refuse_unseen
from hush.gradients.tape import HeldTape
from hush.named import Losses, Named, check_losses, trainable
from hush.source import tensors_of, to_each


def record_functional(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> HeldTape:
    """Per-example gradients by torch.func, one vmap per point, all points under the same model randomness."""
    own = {name: p.detach() for name, p in trainable(model).items()}
    total: Named = {}
    first: Tensor | None = None
    rewind = make_rewinder(next(iter(own.values())).device)
    for point in points:
        rewind()
        seen = content if point.content is None else point.content
        values, gradients = _record_point(model, losses, own | (point.params or {}), seen)
        first = values if first is None else first
        for name, g in gradients.items():
            term = g if point.coefficient == 1.0 else g * point.coefficient
            total[name] = total[name] + term if name in total else term
    assert first is not None
    return HeldTape(first, total)


def _record_point(model: nn.Module, losses: Losses, params: Named, content: Any) -> tuple[Tensor, Named]:
    originals = trainable(model)
    one_loss = _isolate_loss(model, losses, originals, content)
    batched = tensors_of(content)
    in_dims = (None, *[0] * len(batched))
    with torch.enable_grad(), drawing():
        gradients, values = vmap(grad_and_value(one_loss), in_dims=in_dims, randomness="different")(params, *batched)
    if values.requires_grad:  # nothing above does: there is a way to the originals
        refuse_unseen(originals, compute_gradients(values, list(originals.values()), torch.ones_like(values)))
    return values.detach(), {name: g.detach() for name, g in gradients.items()}


def _isolate_loss(model: nn.Module, losses: Losses, originals: Named, content: Any) -> Callable[..., Tensor]:
    """The loss of one example, in a batch of one, as a function of parameters and the example's own tensors."""

    def one_loss(current: Named, *example: Tensor) -> Tensor:
        rows = iter(example)
        alone = to_each(lambda _: next(rows).unsqueeze(0), content)
        with recording(model, {id(p): current[name] for name, p in originals.items()}):
            loss = losses(model, alone)
        check_losses(loss, 1)
        single: Tensor = loss.squeeze(0)
        return single

    return one_loss


@torch.no_grad()
def compute_losses_alone(model: nn.Module, losses: Losses, content: Any, params: Named | None = None) -> Tensor:
    """Each example's loss as if it were alone in its batch, under the model randomness that it has in the batch."""
    originals, batched = trainable(model), tensors_of(content)
    at = {name: p.detach() for name, p in originals.items()} | (params or {})
    one_loss, in_dims = _isolate_loss(model, losses, originals, content), (None, *[0] * len(batched))
    with drawing():
        values: Tensor = vmap(one_loss, in_dims=in_dims, randomness="different")(at, *batched)
    return values


def record_one_by_one(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> HeldTape:
    """Per-example gradients by one ordinary backward pass an example: for what torch.func cannot map.

    Each example has the model randomness of its own place; without places, what torch's generator draws for
    one after the other."""
    originals = trainable(model)
    own = {name: p.detach() for name, p in originals.items()}
    rewind = make_rewinder(next(iter(own.values())).device)
    rows: dict[str, list[Tensor]] = {name: [torch.zeros_like(p)] * n for name, p in own.items()}
    values: list[Tensor] = []
    for number, point in enumerate(points):
        rewind()
        leaves = {name: p.clone().requires_grad_() for name, p in (own | (point.params or {})).items()}
        places = {id(p): leaves[name] for name, p in originals.items()}
        seen = content if point.content is None else point.content
        for i in range(n):
            if is_by_place():
                rewind()
            single = to_each(lambda t, i=i: t[i : i + 1], seen)
            with torch.enable_grad(), recording(model, places), drawing_only(torch.tensor([i])):
                with drawing(again=True):
                    loss = losses(model, single)
                check_losses(loss, 1)
                with computing_again():
                    found = _name_gradients(loss, leaves, originals)
            values += [loss.detach()] if number == 0 else []
            for name, g in found.items():
                rows[name][i] = rows[name][i] + point.coefficient * g
    return HeldTape(torch.cat(values), {name: torch.stack(each) for name, each in rows.items()})


def _name_gradients(loss: Tensor, leaves: Named, originals: Named) -> Named:
    """The gradients that one loss has, by name."""
    if not loss.requires_grad:
        return {}
    found = compute_gradients(loss, [*leaves.values(), *originals.values()], torch.ones_like(loss))
    refuse_unseen(originals, found[len(leaves) :])
    return {name: g for name, g in zip(leaves, found, strict=False) if g is not None}
