"""The reference engine: torch.func computes each example's gradient as if it were alone in its batch.

gᵢ = ∇ lossᵢ by vmap(grad) over a batch of one. It holds n gradients at once and is slow, and it is right by
construction: nothing one example contains can reach another's gradient. Everything else is measured against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils import _pytree as pytree

from hush.draws import by_place, computing_again, drawing, only
from hush.gradients.substitutes import substituted
from hush.gradients.tape import HeldTape, Point, check_losses, rewinder
from hush.named import Losses, Named, trainable


class Wrapped(nn.Module):
    """The model and its losses as one module, so that torch.func can call it with other parameters."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self.losses = losses

    def forward(self, content: Any) -> Tensor:
        """The losses of the content."""
        return self.losses(self.model, content)


def record_functional(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> HeldTape:
    """Per-example gradients by torch.func, one vmap per point, all points under the same model randomness."""
    own = {name: p.detach() for name, p in trainable(model).items()}
    total: Named = {}
    first: Tensor | None = None
    rewind = rewinder(next(iter(own.values())).device)
    for point in points:
        rewind()
        values, gradients = _one_point(
            Wrapped(model, losses), own | (point.params or {}), content if point.content is None else point.content
        )
        first = values if first is None else first
        for name, g in gradients.items():
            term = g if point.coefficient == 1.0 else g * point.coefficient
            total[name] = total[name] + term if name in total else term
    assert first is not None
    return HeldTape(first.detach(), total)


def _one_point(wrapped: Wrapped, params: Named, content: Any) -> tuple[Tensor, Named]:
    leaves, spec = pytree.tree_flatten(content)
    batched = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def one_loss(current: Named, *example: Tensor) -> Tensor:
        rows = iter(example)
        alone = [next(rows).unsqueeze(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        named = {f"model.{name}": value for name, value in current.items()}
        loss = functional_call(wrapped, named, (pytree.tree_unflatten(alone, spec),))
        check_losses(loss, 1)
        single: Tensor = loss.squeeze(0)
        return single

    in_dims = (None, *[0] * len(batched))
    with torch.enable_grad(), substituted(wrapped.modules()), drawing():
        gradients, values = vmap(grad_and_value(one_loss), in_dims=in_dims, randomness="different")(params, *batched)
    return values, gradients


def record_one_by_one(model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]) -> HeldTape:
    """Per-example gradients by one ordinary backward pass an example: for what torch.func cannot map.

    Each example has the model randomness of its own place; where nobody gave places, what torch's generator draws for
    one after the other."""
    own = {name: p.detach() for name, p in trainable(model).items()}
    wrapped, rewind = Wrapped(model, losses), rewinder(next(iter(own.values())).device)
    rows: dict[str, list[Tensor]] = {name: [torch.zeros_like(p)] * n for name, p in own.items()}
    values: list[Tensor] = []
    for number, point in enumerate(points):
        rewind()
        leaves = {name: p.clone().requires_grad_() for name, p in (own | (point.params or {})).items()}
        named = {f"model.{name}": leaf for name, leaf in leaves.items()}
        seen = content if point.content is None else point.content
        for i in range(n):
            if by_place():
                rewind()
            single = pytree.tree_map(lambda t, i=i: t[i : i + 1] if isinstance(t, Tensor) else t, seen)
            with torch.enable_grad(), substituted(model.modules()), only(torch.tensor([i])):
                with drawing(again=True):
                    loss = functional_call(wrapped, named, (single,))
                check_losses(loss, 1)
                with computing_again():
                    found = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
            values += [loss.detach()] if number == 0 else []
            for name, g in zip(leaves, found, strict=True):
                if g is not None:
                    rows[name][i] = rows[name][i] + point.coefficient * g
    return HeldTape(torch.cat(values), {name: torch.stack(each) for name, each in rows.items()})
