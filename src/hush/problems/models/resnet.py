"""ResNet-18 for 32×32 images with GroupNorm.

He et al., "Deep Residual Learning", 2016; Wu and He, "Group Normalization", 2018. The usual BatchNorm computes with
the statistics of the whole batch, so one example would change the gradients of all the others and no clipping could
bound its effect; GroupNorm normalises every example by itself and has as many parameters: 11 173 962 with the 3×3 stem.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

GROUPS = 16


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(GROUPS, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(convolutions + shortcut)."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """A 3×3 stem, eight blocks 64-128-256-512, global average pooling (``body`` ends here, width 512), linear head."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        blocks = [b for i, o, stride in stages for b in (Block(i, o, stride), Block(o, o, 1))]
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(GROUPS, 64), nn.ReLU()]
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        """One score per class for images (n, 3, 32, 32)."""
        scores: Tensor = self.head(self.body(images))
        return scores
