"""Small convolutional networks: LeNet-5, the two of the optimizer comparisons (P1, P2), and one for any image size."""

from __future__ import annotations

from torch import nn

from hush.errors import BadInput
from hush.problems.models.dense import mlp


def lenet5(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, the first convolution padded: 61 706 parameters."""
    channels, height, width = shape
    flat = 16 * _after(height, width, [(0, 2), (-4, 2)], "lenet")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *mlp([flat, 120, 84, classes]),
    )


def p1() -> nn.Sequential:
    """CIFAR-10: three unpadded 3×3 convolutions 32-64-128, each then max-pool and ReLU, 512-256-128-10: 258 762."""
    return nn.Sequential(*_pooled(3, 32), *_pooled(32, 64), *_pooled(64, 128), *mlp([512, 256, 128, 10]))


def p2() -> nn.Sequential:
    """Fashion-MNIST: two unpadded 3×3 convolutions 32-64, each then max-pool and ReLU, 1600-128-10: 225 034."""
    return nn.Sequential(*_pooled(1, 32), *_pooled(32, 64), *mlp([1600, 128, 10]))


def small_cnn(shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    """For images of one's own of any size from 4×4: two padded 3×3 convolutions 32-64, max-pool and ReLU, 128, out."""
    channels, height, width = shape
    flat = 64 * _after(height, width, [(0, 2), (0, 2)], "cnn")
    return nn.Sequential(*_pooled(channels, 32, 1), *_pooled(32, 64, 1), *mlp([flat, 128, classes]))


def _pooled(inputs: int, outputs: int, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _after(height: int, width: int, stages: list[tuple[int, int]], model: str) -> int:
    """Height × width after stages that change both by (added, divided)."""
    sides = [height, width]
    for added, divided in stages:
        sides = [(side + added) // divided for side in sides]
    if min(sides) < 1:
        raise BadInput(f"images of {height}×{width} are too small for the model '{model}'")
    return sides[0] * sides[1]
