"""Where an audit plays: a small real problem, and one example in it, the canary, whose presence is the secret.

The canary's loss is S·a·h, with h an output that no other example moves, and its gradient S·a·∇h: a fixed direction,
orthogonal to everybody else's, and so long that every clipping cuts it to its bound. The amount a is 1 where the canary
is in. Where it is out the neighbouring relation says what takes its place: nobody (add-remove), an example that adds
nothing (a = 0, zero-out), or its opposite (a = −1, replace). Differential privacy holds for every loss, so an adversary
may choose this one; model, sampler, query, noise and rule are the plan's own.

`make_digits_stage` puts the canary into pixels that are blank in all of the digits: into every layer of the model, and
from there to every class.
`make_lonely_stage` is that with nobody else who adds to any sum, for a plan that also counts examples: the others' loss
has no finite gradient.
`make_mislabelled_stage` has an ordinary loss and a wrong label in place of all that: for a black box, which sees the
released model alone.
`extend` works for any model: it adds one number to be trained, which only the canary's loss looks at.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.data.embedded import load_digits
from hush.data.splits import as_arrays
from hush.errors import BadInput
from hush.named import Losses, Named
from hush.plan import Plan
from hush.privacy.accounting import Adjacency

LONG = 1e4  # the length of the canary's gradient: beyond any clip, far from overflow
ABSENT: dict[Adjacency, float] = {"zero-out": 0.0, "replace": -1.0}
BLANK = (0, 32)  # two pixels that are zero in all 8×8 digits, one in the upper half and one in the lower


@dataclass(frozen=True, eq=False)
class Stage:
    """A model, ordinary rows, the canary's row, and the vector along which the canary is to be seen.

    ``opposite`` is the row that takes the canary's place where only a half of it is private: the other half is alike in
    both. There is no canary more or less then, and no column of kinds and amounts. ``alone`` says that nobody but the
    canary adds to any sum."""

    model: nn.Module
    losses: Losses
    rows: tuple[Tensor, ...]
    canary: tuple[Tensor, ...]
    direction: Named
    opposite: tuple[Tensor, ...] | None = None
    alone: bool = False

    def fresh_model(self) -> nn.Module:
        """The model as it was before any step."""
        return copy.deepcopy(self.model)

    def data(self, plan: Plan, present: bool) -> tuple[Tensor, ...]:
        """The rows of a run with the canary, or of its neighbour: every row's kind and amount come last."""
        adjacency = plan.neighbours
        others = plan.sampler.examples - (0 if adjacency == "add-remove" and self.opposite is None else 1)
        if others > len(self.rows[0]):
            raise BadInput(f"the plan is for {others} rows beside the canary, and there are {len(self.rows[0])}")
        rows = [column[:others] for column in self.rows]
        if self.opposite is not None:
            chosen = self.canary if present else self.opposite
            return tuple(torch.cat([column, row]) for column, row in zip(rows, chosen, strict=True))
        kinds, amounts = torch.zeros(others, dtype=torch.bool), torch.zeros(others)
        if present or adjacency != "add-remove":
            rows = [torch.cat([column, row]) for column, row in zip(rows, self.canary, strict=True)]
            kinds = torch.cat([kinds, torch.ones(1, dtype=torch.bool)])
            amounts = torch.cat([amounts, torch.tensor([1.0 if present else ABSENT[adjacency]])])
        return (*rows, kinds, amounts)

    @cached_property
    def components(self) -> NDArray[np.float64]:
        """The direction's numbers that are not zero."""
        return np.concatenate([unit[unit != 0].numpy() for unit in self.direction.values()])

    def pick(self, values: Named) -> NDArray[np.float64]:
        """The numbers of a released vector where the direction is not zero."""
        picked = [values[name][unit != 0].double().cpu() for name, unit in self.direction.items()]
        return np.asarray(torch.cat(picked).numpy())


class Halves(nn.Module):
    """Ten logits from the upper and the lower half of an 8×8 image, each through a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = nn.Linear(32, 10, bias=False), nn.Linear(32, 10, bias=False)
        nn.init.zeros_(self.upper.weight)
        nn.init.zeros_(self.lower.weight)

    def forward(self, images: Tensor) -> Tensor:
        """The sum of both halves' logits."""
        upper: Tensor = self.upper(images[:, :32])
        lower: Tensor = self.lower(images[:, 32:])
        return upper + lower


def read_digits() -> tuple[Tensor, Tensor]:
    """Real 8×8 digits as rows of 64 numbers from 0 to 1, and their labels."""
    images, labels = as_arrays(load_digits().train)
    return images.reshape(len(images), -1) / 16, labels


def make_digits_stage() -> Stage:
    """Real digits, a linear model of two layers side by side, and a canary in two blank pixels."""
    images, labels = read_digits()
    blank = torch.zeros(1, 64)
    blank[0, list(BLANK)] = 1.0
    direction = {}
    for name, place in (("upper.weight", BLANK[0]), ("lower.weight", BLANK[1] - 32)):
        unit = torch.zeros(10, 32, dtype=torch.float64)
        unit[:, place] = math.sqrt(1 / 20)
        direction[name] = unit
    return Stage(Halves(), _digit_losses, (images, labels), (blank, torch.zeros(1, dtype=labels.dtype)), direction)


def make_lonely_stage() -> Stage:
    """The digits' stage, where only the canary has a finite gradient."""

    def losses(model: nn.Module, content: Any) -> Tensor:
        images, _, kinds, amounts = content
        seen: Tensor = model(images).sum(1)
        return torch.where(kinds, LONG * amounts, torch.full_like(amounts, math.nan)) * seen

    return replace(make_digits_stage(), losses=losses, alone=True)


def make_mislabelled_stage() -> Stage:
    """Real digits, and a canary that is one of them with a wrong label: what a black box can look for."""
    images, labels = read_digits()
    image, label = images[-1:], (labels[-1:] + 1) % 10
    pull = torch.full((10,), 0.1, dtype=torch.float64)  # of the loss at weights of zero
    pull[int(label)] -= 1.0
    gradient = pull.outer(image[0].double())
    gradient /= gradient.norm()
    direction = {"upper.weight": gradient[:, :32], "lower.weight": gradient[:, 32:]}
    return Stage(Halves(), _ordinary_losses, (images[:-1], labels[:-1]), (image, label), direction)


def _ordinary_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels, kinds, amounts = content
    ordinary = nn.functional.cross_entropy(model(images), labels, reduction="none")
    return torch.where(kinds, amounts * ordinary, ordinary)


def _digit_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels, kinds, amounts = content
    logits = model(images)
    ordinary = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.where(kinds, LONG * amounts * logits.sum(1), ordinary)


class Extended(nn.Module):
    """A model and, beside it, one number to be trained that only the canary's loss looks at."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.beside = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.beside.weight)

    def forward(self, inputs: Any) -> Any:
        """What the model itself says."""
        return self.inner(inputs)


def extend(model: nn.Module, losses: Losses, data: Tensor | tuple[Tensor, ...]) -> Stage:
    """Somebody's own model, losses and rows (a tensor or a tuple of them), with a canary beside the model."""
    columns = data if isinstance(data, tuple) else (data,)
    if not columns or not all(isinstance(column, Tensor) and len(column) for column in columns):
        raise BadInput("an audit needs its rows as a tensor or a tuple of tensors: take some hundred rows of the data")

    def watched(extended: nn.Module, content: Any) -> Tensor:
        if not isinstance(extended, Extended):
            raise BadInput("these losses belong to the model that the audit extended")
        *rows, kinds, amounts = content
        ordinary = losses(extended.inner, tuple(rows) if isinstance(data, tuple) else rows[0])
        seen = extended.beside(torch.ones_like(amounts).unsqueeze(1)).squeeze(1)
        return torch.where(kinds, LONG * amounts * seen, ordinary)

    direction = {"beside.weight": torch.ones(1, 1, dtype=torch.float64)}
    return Stage(Extended(model), watched, columns, tuple(column[:1] for column in columns), direction)
