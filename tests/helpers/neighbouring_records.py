"""Data sets that differ in one record, and models in which that record could reach other rows."""

from __future__ import annotations

import torch
from torch import nn

from hush.sanitize.layer import Sanitize
from sanitized_models import CLASSES, CLIP, FEATURES, WIDTH, N, data

REPLACED = 7
OTHERS = torch.arange(N) != REPLACED


class Model(nn.Module):
    """A front, the layer and a head; the front does not look at the first feature."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.front, self.layer, self.head = nn.Linear(FEATURES, WIDTH), Sanitize(CLIP, 1.0), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
            self.front.weight[:, 0] = 0.0
        self.front.requires_grad_(not frozen)

    def forward(self, x):
        return self.head(self.layer(self.front(x)))


class Branching(Model):
    """Bytes, or numbers up to 1."""

    def forward(self, x):
        return super().forward(x / 255 if x.max() > 100 else x)


class Calibrating(Model):
    """Sets the clip by what it meets."""

    def forward(self, x):
        self.layer.clip = max(CLIP, float(x.max()) / 1000)
        return super().forward(x)


def neighbours(value: float = 500.0):
    """The data, and the same with one record replaced in its first feature."""
    features, labels = data()
    other = features.clone()
    other[REPLACED, 0] = value
    return (features, labels), (other, labels)
