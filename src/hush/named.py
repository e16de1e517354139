"""Tensors by parameter name, and the flat vector they are a view of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush.errors import BadInput

Named = dict[str, Tensor]
"""Tensors by parameter name."""

Sums = dict[str, Named]
"""Sums over examples, by channel and then by name."""

State = dict[str, Any]
"""A nested dict of tensors, numbers and objects with ``state_dict``; keys that start with ``_`` are scratch:
recomputable from the secret and the step alone, so a checkpoint leaves them out."""

Losses = Callable[[nn.Module, Any], Tensor]
"""``losses(model, content)``: one loss per example, shape (n,). ``content`` is what the data gives for n indices.

What is relied on:

1. The result has one loss for each of the n examples; any other shape is refused.
2. Loss i depends on example i, on the parameters and on the model randomness of its place, and on no other example. The
   engines are compared on the first batch and at secret steps; where examples mix, the
   reference computes every example alone, or the run is refused.
3. Every use of a trained parameter goes through the model, where its gradient can be followed; another use is refused.
4. Random numbers are drawn with torch; Python's and numpy's generators are refused.
5. Neither the model nor the loss writes into a buffer or a parameter; a run that sees such a write refuses to go on.
"""


def trainable(model: nn.Module) -> Named:
    """The parameters that training changes, by name, in the model's own order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class Layout:
    """How named tensors lie one after the other in one flat vector."""

    shapes: tuple[tuple[str, torch.Size], ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, in their order."""
        return Layout(tuple((name, t.shape) for name, t in tensors.items()))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def split(self, flat: Tensor) -> Named:
        """Views of a flat vector, by name."""
        sizes = [math.prod(shape) for _, shape in self.shapes]
        parts = torch.split(flat, sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One new flat vector that holds all of them."""
        return torch.cat([tensors[name].reshape(-1) for name, _ in self.shapes])


def add_sums(total: Sums | None, piece: Sums) -> Sums:
    """Add one piece to a running total in float64; ``None`` starts it with the piece as it is."""
    if total is None:
        return piece
    return {
        channel: {name: total[channel][name].double().add_(value) for name, value in named.items()}
        for channel, named in piece.items()
    }


def widen_sums(sums: Sums) -> Sums:
    """The sums in float64, in which whatever is still added to them loses nothing that matters."""
    return {channel: {name: value.double() for name, value in named.items()} for channel, named in sums.items()}


def list_tensors(state: Any) -> Iterator[Tensor]:
    """The tensors of a nested state, in its order, scratch left out."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            if not str(key).startswith("_"):
                yield from list_tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from list_tensors(value)


def copy_into(own: Named, saved: Named) -> None:
    """Write saved tensors over those of a model; refused where names, shapes or types differ."""
    shapes = [{name: (t.shape, t.dtype) for name, t in named.items()} for named in (own, saved)]
    if shapes[0] != shapes[1]:
        names = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        raise BadInput(f"the saved model is another one: it differs in {', '.join(names[:3])}")
    for name, value in own.items():
        value.copy_(saved[name])


def check_losses(losses: Any, n: int) -> None:
    """One loss per example, or a sentence that says so; how many examples a batch has is private."""
    if not isinstance(losses, Tensor) or losses.shape != (n,):
        got = f"{losses.dim()} dimensions" if isinstance(losses, Tensor) else repr(type(losses).__name__)
        got = "another number of them" if isinstance(losses, Tensor) and losses.dim() == 1 else got
        raise BadInput(f"losses must return one loss per example, shape (n,), got {got}: {_advise(losses)}")


def _advise(losses: Any) -> str:
    if not isinstance(losses, Tensor) or losses.dim() < 2:
        return "use reduction='none'"
    return "take the mean over the other dimensions" + (", or .squeeze(1)" if losses.shape[1:] == (1,) else "")
