"""What a spot check costs, in steps of its run, and so which share of the time one in a period takes.

    python benchmarks/spot_checks.py

CPU time of a whole step of a run on one thread, without and with a check, interleaved, best of five.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hush.aggregation
from hush import make_plan
from hush.per_example.engine import PERIOD, SpotChecks

Content = tuple[Tensor, Tensor]


def cross_entropy(model: nn.Module, content: Content) -> Tensor:
    """One loss per example."""
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def mlp(dropout: float) -> nn.Module:
    """784 × 256 × 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(dropout), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """The small network of Papernot et al. 2021."""
    first = [nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh()]
    return nn.Sequential(*first, nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


class Encoder(nn.Module):
    """Two transformer layers over tokens."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True) for _ in range(2)]
        self.table, self.layers, self.head = nn.Embedding(1000, 64), nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.layers(self.table(tokens)).mean(1))
        return scores


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(16, outputs), nn.ReLU()]
        second = [nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(16, outputs)]
        self.layers, self.short = nn.Sequential(*first, *second), nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        return F.relu(self.layers(x) + self.short(x))


def res_net(width: int) -> nn.Module:
    """ResNet-18 with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(16, width), nn.ReLU()]
    sizes = [width, width, 2 * width, 4 * width, 8 * width]
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [Residual(inputs, outputs, 1 + (inputs != outputs)), Residual(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


def images(n: int, channels: int, size: int) -> Content:
    """Noise in the shape of pictures."""
    return torch.randn(n, channels, size, size), torch.arange(n) % 10


def tokens(n: int) -> Content:
    """Random text."""
    return torch.randint(0, 1000, (n, 32)), torch.arange(n) % 10


CASES: dict[str, tuple[Callable[[], nn.Module], Content]] = {
    "linear, 20 columns, batch 64": (lambda: nn.Linear(20, 10), (torch.randn(64, 20), torch.arange(64) % 10)),
    "MLP, batch 256": (lambda: mlp(0.0), images(256, 1, 28)),
    "MLP with dropout, batch 256": (lambda: mlp(0.2), images(256, 1, 28)),
    "CNN, batch 32": (cnn, images(32, 1, 28)),
    "CNN, batch 256": (cnn, images(256, 1, 28)),
    "transformer, batch 64": (lambda: Encoder(0.0), tokens(64)),
    "transformer with dropout, batch 64": (lambda: Encoder(0.1), tokens(64)),
    "ResNet-18, 16 wide, batch 64": (lambda: res_net(16), images(64, 3, 32)),
    "ResNet-18, 64 wide, batch 32": (lambda: res_net(64), images(32, 3, 32)),
}


def one_step(run: Any, every: int) -> float:
    """CPU seconds of the next step, with a check where every step has one."""
    hush.aggregation.SpotChecks = lambda secret: SpotChecks(secret, period=every, first=-1)  # type: ignore[assignment,misc]
    batch = next(run.batches())
    start = time.process_time()
    run.step(batch)
    return time.process_time() - start


def main() -> None:
    """A line for each model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, (make, content) in CASES.items():
        n = len(content[1])
        plan = make_plan("dp-sgd", examples=n, batch_size=n, steps=20, noise_multiplier=1.0, delta=1e-3)
        run = plan.start(make(), cross_entropy, content, secret=1)
        first = one_step(run, 10**9)
        pairs = [(one_step(run, 10**9), one_step(run, 1)) for _ in range(5)]
        plain, checked = min(p for p, _ in pairs), min(c for _, c in pairs)
        cost = (checked - plain) / plain
        share = 100 * cost / PERIOD
        print(f"{name:36} {1e3 * plain:8.2f} ms a step, a check {cost:5.2f} steps, {share:.2f} %", end="; ")
        print(f"the first step {first / plain:.1f} steps")


if __name__ == "__main__":
    main()
