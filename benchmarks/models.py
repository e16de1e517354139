"""The models that the benchmarks time, each with a batch of random data and its loss per example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush.datasets.models import VAE, ResNet18, lenet5, mlp, p1, p2, vae_losses


@dataclass(frozen=True)
class Case:
    """A model, a batch of n examples for it, and its losses."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, ...]]
    losses: Callable[[nn.Module, Any], Tensor]


def cross_entropy(model: nn.Module, content: Any) -> Tensor:
    """Classification."""
    x, y = content
    return F.cross_entropy(model(x), y, reduction="none")


def images(channels: int, side: int, classes: int = 10) -> Callable[[int], tuple[Tensor, ...]]:
    """Random images with random labels."""
    return lambda n: (torch.randn(n, channels, side, side), torch.randint(0, classes, (n,)))


class Encoder(nn.Module):
    """A four-layer transformer encoder, width 128, on sequences of 128 tokens out of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 128)
        self.places = nn.Parameter(0.02 * torch.randn(128, 128))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores from the mean over positions."""
        hidden = self.tokens(x) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def sequences(n: int) -> tuple[Tensor, ...]:
    """Random token sequences with random labels."""
    return torch.randint(0, 1000, (n, 128)), torch.randint(0, 10, (n,))


CASES = {
    case.name: case
    for case in (
        Case("MLP", lambda: mlp([784, 512, 256, 128, 10], dropout=0.2), images(1, 28), cross_entropy),
        Case("LeNet-5", lenet5, images(1, 28), cross_entropy),
        Case("P1", p1, images(3, 32), cross_entropy),
        Case("P2", p2, images(1, 28), cross_entropy),
        Case("P3", VAE, lambda n: (torch.rand(n, 1, 28, 28),), vae_losses),
        Case("ResNet-18", ResNet18, images(3, 32), cross_entropy),
        Case("Transformer", Encoder, sequences, cross_entropy),
    )
}
