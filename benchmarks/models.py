"""The models that the benchmarks time, each with a batch of random data and its loss per example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


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


def mlp() -> nn.Module:
    """784-512-256-128-10 with dropout: 567 434 parameters."""
    widths = [784, 512, 256, 128]
    hidden = [
        m for a, b in zip(widths, widths[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.2))
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


def lenet() -> nn.Module:
    """LeNet-5 on 28×28: 61 706 parameters."""
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, *head)


def _pooled(*channels: int) -> list[nn.Module]:
    pairs = zip(channels, channels[1:], strict=False)
    return [m for a, b in pairs for m in (nn.Conv2d(a, b, 3), nn.MaxPool2d(2), nn.ReLU())]


def p1() -> nn.Module:
    """Three convolutions and three linear layers on CIFAR-10: 258 762 parameters."""
    head = [nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*_pooled(3, 32, 64, 128), nn.Flatten(), *head)


def p2() -> nn.Module:
    """Two convolutions and two linear layers on Fashion-MNIST: 225 034 parameters."""
    return nn.Sequential(*_pooled(1, 32, 64), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10))


class P3(nn.Module):
    """A variational autoencoder on Fashion-MNIST: 1 875 265 parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 32, 64, 128, 256]
        pairs = zip(widths, widths[1:], strict=False)
        layers = [m for a, b in pairs for m in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU())]
        self.encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(512, 32), nn.Linear(512, 32)
        up = [nn.ConvTranspose2d(256, 128, 3, 2, 1, output_padding=1), nn.ReLU()]
        up += [nn.ConvTranspose2d(128, 64, 3, 2, 1, output_padding=0), nn.ReLU()]
        up += [nn.ConvTranspose2d(64, 32, 3, 2, 1, output_padding=1), nn.ReLU()]
        up += [nn.ConvTranspose2d(32, 1, 3, 2, 1, output_padding=1), nn.Sigmoid()]
        dense = [nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU()]
        self.decoder = nn.Sequential(*dense, nn.Unflatten(1, (256, 2, 2)), *up)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction, mean and log variance."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def evidence(model: nn.Module, content: Any) -> Tensor:
    """Squared error and Kullback–Leibler divergence of each image."""
    (x,) = content
    out, mean, log_variance = model(x)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return (out - x).square().flatten(1).sum(1) + divergence


class Residual(nn.Module):
    """The basic block of ResNet-18 with GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(32, outputs), nn.GroupNorm(32, outputs)])
        same = stride == 1 and inputs == outputs
        down = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)]
        self.shortcut = nn.Identity() if same else nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        """x plus two convolutions."""
        hidden = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with a 3×3 stem and GroupNorm on CIFAR-10: 11 173 962 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


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
        Case("MLP", mlp, images(1, 28), cross_entropy),
        Case("LeNet-5", lenet, images(1, 28), cross_entropy),
        Case("P1", p1, images(3, 32), cross_entropy),
        Case("P2", p2, images(1, 28), cross_entropy),
        Case("P3", P3, lambda n: (torch.rand(n, 1, 28, 28),), evidence),
        Case("ResNet-18", resnet18, images(3, 32), cross_entropy),
        Case("Transformer", Encoder, sequences, cross_entropy),
    )
}
