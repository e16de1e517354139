"""Problems for audits: a small real problem with one special example, the canary, whose presence is to be detected.

The canary's loss is S·a·h, where h is an output that no other example influences. Its gradient S·a·∇h has a fixed
direction, orthogonal to all other gradients, and is so long that every clipping scales it to its bound. The amount a is
1 if the canary takes part. Otherwise the adjacency decides: no example (add-remove), an example that adds nothing
(a = 0, zero-out), or its opposite (a = −1, replace). Differential privacy holds for every loss, so an adversary may
choose this one; model, sampler, query, noise and optimizer are those of the plan.

- `make_digits_setup`: the canary is in pixels that are blank in all digits, and reaches every layer and every class.
- `make_lonely_setup`: the same, and no other example adds to any sum, because their losses have no finite gradient. For
  plans that also count examples.
- `make_mislabelled_setup`: an ordinary loss and a wrong label, for a black box that sees only the released model.
- `extend`: for any model; adds one trained number that only the canary's loss uses.
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
    """A model, ordinary rows, the canary's row, and the direction in which the canary is visible.

    ``opposite`` is the row that replaces the canary where only features or only labels are private; the public half is
    the same in both. The number of rows is then constant, and there are no columns of kinds and amounts. ``alone``:
    only the canary adds to any sum."""

    model: nn.Module
    losses: Losses
    rows: tuple[Tensor, ...]
    canary: tuple[Tensor, ...]
    direction: Named
    opposite: tuple[Tensor, ...] | None = None
    alone: bool = False

    def fresh_model(self) -> nn.Module:
        """A copy of the untrained model."""
        return copy.deepcopy(self.model)

    def data(self, plan: Plan, present: bool) -> tuple[Tensor, ...]:
        """The rows of a run with or without the canary; the last two columns are the kind and amount of each row."""
        adjacency = plan.neighbours
        others = plan.sampler.examples - (0 if adjacency == "add-remove" and self.opposite is None else 1)
        if others > len(self.rows[0]):
            raise InvalidInputError(f"the plan needs {others} rows in addition to the canary, got {len(self.rows[0])}")
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


class TwoHalvesModel(nn.Module):
    """Ten logits from the upper and the lower half of an 8×8 image, each with its own linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = nn.Linear(32, 10, bias=False), nn.Linear(32, 10, bias=False)
        nn.init.zeros_(self.upper.weight)
        nn.init.zeros_(self.lower.weight)

    def forward(self, images: Tensor) -> Tensor:
        upper: Tensor = self.upper(images[:, :32])
        lower: Tensor = self.lower(images[:, 32:])
        return upper + lower


def _read_digits() -> tuple[Tensor, Tensor]:
    """Real 8×8 digits as rows of 64 numbers from 0 to 1, and their labels."""
    images, labels = as_arrays(load_digits().train)
    return images.reshape(len(images), -1) / 16, labels


def make_digits_setup() -> CanarySetup:
    """Real digits, a linear model of two parallel layers, and a canary in two blank pixels."""
    images, labels = _read_digits()
    blank = torch.zeros(1, 64)
    blank[0, list(BLANK)] = 1.0
    direction = {}
    for name, place in (("upper.weight", BLANK[0]), ("lower.weight", BLANK[1] - 32)):
        unit = torch.zeros(10, 32, dtype=torch.float64)
        unit[:, place] = math.sqrt(1 / 20)
        direction[name] = unit
    return CanarySetup(
        TwoHalvesModel(), _digit_losses, (images, labels), (blank, torch.zeros(1, dtype=labels.dtype)), direction
    )


def make_lonely_setup() -> CanarySetup:
    """The digits' setup, where only the canary has a finite gradient."""

    def losses(model: nn.Module, content: Any) -> Tensor:
        images, _, kinds, amounts = content
        seen: Tensor = model(images).sum(1)
        return torch.where(kinds, LONG * amounts, torch.full_like(amounts, math.nan)) * seen

    return replace(make_digits_setup(), losses=losses, alone=True)


def make_mislabelled_setup() -> CanarySetup:
    """Real digits, and a canary that is one of them with a wrong label, for black-box adversaries."""
    images, labels = _read_digits()
    image, label = images[-1:], (labels[-1:] + 1) % 10
    pull = torch.full((10,), 0.1, dtype=torch.float64)  # of the loss at weights of zero
    pull[int(label)] -= 1.0
    gradient = pull.outer(image[0].double())
    gradient /= gradient.norm()
    direction = {"upper.weight": gradient[:, :32], "lower.weight": gradient[:, 32:]}
    return CanarySetup(TwoHalvesModel(), _ordinary_losses, (images[:-1], labels[:-1]), (image, label), direction)


def _ordinary_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels, kinds, amounts = content
    ordinary = nn.functional.cross_entropy(model(images), labels, reduction="none")
    return torch.where(kinds, amounts * ordinary, ordinary)


def _digit_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels, kinds, amounts = content
    logits = model(images)
    ordinary = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.where(kinds, LONG * amounts * logits.sum(1), ordinary)


class CanaryModel(nn.Module):
    """A model with one additional trained number that only the canary's loss uses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.canary = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.canary.weight)

    def forward(self, inputs: Any) -> Any:
        return self.inner(inputs)


def extend(model: nn.Module, losses: Losses, data: Tensor | tuple[Tensor, ...]) -> CanarySetup:
    """The setup for a user's model, losses and rows (a tensor or a tuple of tensors), with a canary added."""
    columns = data if isinstance(data, tuple) else (data,)
    if not columns or not all(isinstance(column, Tensor) and len(column) for column in columns):
        raise InvalidInputError(
            "an audit needs rows as a tensor or a tuple of tensors: give a few hundred rows of the data"
        )

    def watched(extended: nn.Module, content: Any) -> Tensor:
        if not isinstance(extended, CanaryModel):
            raise InvalidInputError("these losses belong to the model that the audit extended")
        *rows, kinds, amounts = content
        ordinary = losses(extended.inner, tuple(rows) if isinstance(data, tuple) else rows[0])
        seen = extended.canary(torch.ones_like(amounts).unsqueeze(1)).squeeze(1)
        return torch.where(kinds, LONG * amounts * seen, ordinary)

    direction = {"canary.weight": torch.ones(1, 1, dtype=torch.float64)}
    return CanarySetup(CanaryModel(model), watched, columns, tuple(column[:1] for column in columns), direction)


# Setups for methods that protect only the features or only the label of a row. The other half is public, and the same
# for the canary and its replacement.
#
# `make_features_setup`: a linear layer before the sanitisation layer maps the canary's pixel to ±C in each of the n
# numbers of its row; after it a linear head has an eleventh output that only the canary's label uses. The loss L·(w·y)
# has the gradient L·y in w, the row itself, and L·x·w before the layer, which is longer than any clip. A gradient that
# is claimed to be protected therefore reveals the released row, ±C + noise.
#
# `make_labels_setup`: the canary has its own pixel and two possible labels. The gradient at this pixel has the sign of
# the randomised answer for its label.

WIDTH, CLIP, CLASSES = 8, 0.5, 10
PIXEL = BLANK[0]


class SanitizedModel(nn.Module):
    """Logits of ten classes and of the canary, through a sanitisation layer."""

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
        logits: Tensor = self.head(self.layer(self.front(images)))
        return logits


def make_features_setup(plan: Plan) -> CanarySetup:
    """Digits whose features are private, for a method with a sanitisation layer."""
    images, labels = _read_digits()
    canary = torch.zeros(1, 64)
    canary[0, PIXEL] = 1.0
    label = torch.full((1,), CLASSES, dtype=labels.dtype)
    published = not has_proof(plan)
    if published:
        name, unit = "front.weight", torch.zeros(WIDTH, 64, dtype=torch.float64)
        unit[:, PIXEL] = 1 / math.sqrt(WIDTH)  # in clips
    else:
        name, unit = "head.weight", torch.zeros(CLASSES + 1, WIDTH, dtype=torch.float64)
        unit[CLASSES] = 1 / (LONG * CLIP * WIDTH)  # in units of C√n, as the noise of a row is
    direction = {name: unit}
    opposite = torch.zeros_like(canary) if published else -canary
    model = SanitizedModel(frozen=not published)
    return CanarySetup(model, _feature_losses, (images, labels), (canary, label), direction, (opposite, label))


def _feature_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels = content
    logits = model(images)
    ordinary = nn.functional.cross_entropy(logits[:, :CLASSES], labels.clamp(max=CLASSES - 1), reduction="none")
    return torch.where(labels == CLASSES, LONG * logits[:, CLASSES], ordinary)


def make_labels_setup() -> CanarySetup:
    """Digits whose label is private, odd or even."""
    images, labels = _read_digits()
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
