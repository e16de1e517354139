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

from hush._internal.tensors import Losses, Named
from hush.accounting.accountant import Adjacency
from hush.datasets.digits import load_digits
from hush.datasets.splits import as_arrays
from hush.errors import InvalidInputError
from hush.guarantees import has_proof
from hush.plan import Plan
from hush.sanitize.layer import Sanitize

LONG = 1e4  # the length of the canary's gradient: beyond any clip, far from overflow
ABSENT: dict[Adjacency, float] = {"zero-out": 0.0, "replace": -1.0}
BLANK = (0, 32)  # two pixels that are zero in all 8×8 digits, one in the upper half and one in the lower


@dataclass(frozen=True, eq=False)
class CanarySetup:
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
            raise InvalidInputError(
                f"the plan is for {others} rows beside the canary, and there are {len(self.rows[0])}"
            )
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


def make_digits_stage() -> CanarySetup:
    """Real digits, a linear model of two layers side by side, and a canary in two blank pixels."""
    images, labels = read_digits()
    blank = torch.zeros(1, 64)
    blank[0, list(BLANK)] = 1.0
    direction = {}
    for name, place in (("upper.weight", BLANK[0]), ("lower.weight", BLANK[1] - 32)):
        unit = torch.zeros(10, 32, dtype=torch.float64)
        unit[:, place] = math.sqrt(1 / 20)
        direction[name] = unit
    return CanarySetup(
        Halves(), _digit_losses, (images, labels), (blank, torch.zeros(1, dtype=labels.dtype)), direction
    )


def make_lonely_stage() -> CanarySetup:
    """The digits' stage, where only the canary has a finite gradient."""

    def losses(model: nn.Module, content: Any) -> Tensor:
        images, _, kinds, amounts = content
        seen: Tensor = model(images).sum(1)
        return torch.where(kinds, LONG * amounts, torch.full_like(amounts, math.nan)) * seen

    return replace(make_digits_stage(), losses=losses, alone=True)


def make_mislabelled_stage() -> CanarySetup:
    """Real digits, and a canary that is one of them with a wrong label: what a black box can look for."""
    images, labels = read_digits()
    image, label = images[-1:], (labels[-1:] + 1) % 10
    pull = torch.full((10,), 0.1, dtype=torch.float64)  # of the loss at weights of zero
    pull[int(label)] -= 1.0
    gradient = pull.outer(image[0].double())
    gradient /= gradient.norm()
    direction = {"upper.weight": gradient[:, :32], "lower.weight": gradient[:, 32:]}
    return CanarySetup(Halves(), _ordinary_losses, (images[:-1], labels[:-1]), (image, label), direction)


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


def extend(model: nn.Module, losses: Losses, data: Tensor | tuple[Tensor, ...]) -> CanarySetup:
    """Somebody's own model, losses and rows (a tensor or a tuple of them), with a canary beside the model."""
    columns = data if isinstance(data, tuple) else (data,)
    if not columns or not all(isinstance(column, Tensor) and len(column) for column in columns):
        raise InvalidInputError(
            "an audit needs its rows as a tensor or a tuple of tensors: take some hundred rows of the data"
        )

    def watched(extended: nn.Module, content: Any) -> Tensor:
        if not isinstance(extended, Extended):
            raise InvalidInputError("these losses belong to the model that the audit extended")
        *rows, kinds, amounts = content
        ordinary = losses(extended.inner, tuple(rows) if isinstance(data, tuple) else rows[0])
        seen = extended.beside(torch.ones_like(amounts).unsqueeze(1)).squeeze(1)
        return torch.where(kinds, LONG * amounts * seen, ordinary)

    direction = {"beside.weight": torch.ones(1, 1, dtype=torch.float64)}
    return CanarySetup(Extended(model), watched, columns, tuple(column[:1] for column in columns), direction)


# Stages for methods that protect one half of a row: its features, or its label. The other half is public, and the same
# for the canary and for what takes its place.
#
# `make_features_stage`: before the sanitisation layer stands one linear layer, which takes the canary's pixel to ±C in
# every one of the n numbers of its row; behind it a linear head, with an eleventh output that only the canary's label
# asks for. Its loss L·(w·y) has the gradient L·y in w, the row itself, and L·x·w before the layer, which is as long as
# any clip. So a gradient that is said to be covered shows the row as it was released, ±C + noise.
#
# `make_labels_stage`: the canary has a pixel to itself, and two labels are possible. The gradient there has the sign of
# the answer that was given for its label.

WIDTH, CLIP, CLASSES = 8, 0.5, 10
PIXEL = BLANK[0]


class Layered(nn.Module):
    """Logits of ten classes and the canary's own, through a sanitisation layer."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.front = nn.Linear(64, WIDTH, bias=False)
        self.layer = Sanitize(CLIP, 1.0, width=WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES + 1, bias=False)
        with torch.no_grad():
            self.front.weight.copy_(torch.linspace(-0.2, 0.2, 64 * WIDTH).view(WIDTH, 64))
            self.front.weight[:, PIXEL] = CLIP
            self.head.weight.fill_(1 / math.sqrt(WIDTH))
        self.front.requires_grad_(not frozen)

    def forward(self, images: Tensor) -> Tensor:
        """The eleven logits."""
        logits: Tensor = self.head(self.layer(self.front(images)))
        return logits


def make_features_stage(plan: Plan) -> CanarySetup:
    """Digits whose features are private, for a method with a sanitisation layer: published, frozen or hybrid."""
    images, labels = read_digits()
    canary = torch.zeros(1, 64)
    canary[0, PIXEL] = 1.0
    label = torch.full((1,), CLASSES, dtype=labels.dtype)
    hybrid = "head" in plan.query.channels
    published = not has_proof(plan)
    direction: dict[str, Tensor] = {}
    if hybrid or published:
        front = torch.zeros(WIDTH, 64, dtype=torch.float64)
        front[:, PIXEL] = 1 / math.sqrt(WIDTH)  # in clips
        direction["front.weight"] = front
    if not published:
        head = torch.zeros(CLASSES + 1, WIDTH, dtype=torch.float64)
        head[CLASSES] = 1 / (LONG * CLIP * WIDTH)  # in units of C√n, as the noise of a row is
        direction["head.weight"] = head
    opposite = torch.zeros_like(canary) if published else -canary
    model = Layered(frozen=not (hybrid or published))
    return CanarySetup(model, _feature_losses, (images, labels), (canary, label), direction, (opposite, label))


def _feature_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels = content
    logits = model(images)
    ordinary = nn.functional.cross_entropy(logits[:, :CLASSES], labels.clamp(max=CLASSES - 1), reduction="none")
    return torch.where(labels == CLASSES, LONG * logits[:, CLASSES], ordinary)


def make_labels_stage() -> CanarySetup:
    """Digits whose label is private, odd or even."""
    images, labels = read_digits()
    model = nn.Linear(64, 2, bias=False)
    nn.init.zeros_(model.weight)
    canary = torch.zeros(1, 64)
    canary[0, PIXEL] = 1.0
    direction = torch.zeros(2, 64, dtype=torch.float64)
    direction[:, PIXEL] = torch.tensor([1.0, -1.0]) / math.sqrt(2)
    odd, even = torch.ones(1, dtype=labels.dtype), torch.zeros(1, dtype=labels.dtype)
    return CanarySetup(
        model, _label_losses, (images, labels % 2), (canary, odd), {"weight": direction}, opposite=(canary, even)
    )


def _label_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels = content
    return nn.functional.cross_entropy(model(images), labels, reduction="none")
