"""Stages for methods that protect one half of a row: its features, or its label. The other half is public, and the
same for the canary and for what takes its place.

`make_features_stage`: before the sanitisation layer stands one linear layer, which takes the canary's pixel to ±C in
every one of the n numbers of its row; behind it a linear head, with an eleventh output that only the canary's label
asks for. Its loss L·(w·y) has the gradient L·y in w, the row itself, and L·x·w before the layer, which is as long as
any clip. So a gradient that is said to be covered shows the row as it was released, ±C + noise.

`make_labels_stage`: the canary has a pixel to itself, and two labels are possible. The gradient there has the sign of
the answer that was given for its label.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hush.audit.stage import BLANK, LONG, Stage, read_digits
from hush.plan import Plan
from hush.sanitize import Sanitize

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


def make_features_stage(plan: Plan) -> Stage:
    """Digits whose features are private, for a method with a sanitisation layer: published, frozen or hybrid."""
    images, labels = read_digits()
    canary = torch.zeros(1, 64)
    canary[0, PIXEL] = 1.0
    label = torch.full((1,), CLASSES, dtype=labels.dtype)
    hybrid = "head" in plan.query.channels
    published = not any(claim.status == "proven" for claim in plan.claims())
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
    return Stage(model, _feature_losses, (images, labels), (canary, label), direction, (opposite, label))


def _feature_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels = content
    logits = model(images)
    ordinary = nn.functional.cross_entropy(logits[:, :CLASSES], labels.clamp(max=CLASSES - 1), reduction="none")
    return torch.where(labels == CLASSES, LONG * logits[:, CLASSES], ordinary)


def make_labels_stage() -> Stage:
    """Digits whose label is private, odd or even."""
    images, labels = read_digits()
    model = nn.Linear(64, 2, bias=False)
    nn.init.zeros_(model.weight)
    canary = torch.zeros(1, 64)
    canary[0, PIXEL] = 1.0
    direction = torch.zeros(2, 64, dtype=torch.float64)
    direction[:, PIXEL] = torch.tensor([1.0, -1.0]) / math.sqrt(2)
    odd, even = torch.ones(1, dtype=labels.dtype), torch.zeros(1, dtype=labels.dtype)
    return Stage(
        model, _label_losses, (images, labels % 2), (canary, odd), {"weight": direction}, opposite=(canary, even)
    )


def _label_losses(model: nn.Module, content: Any) -> Tensor:
    images, labels = content
    return nn.functional.cross_entropy(model(images), labels, reduction="none")
