"""The funnel network of the sanitisation experiments: convolutions, then ever narrower layers down to a public width.

Three 3×3 convolutions with max-pooling, fully connected layers 8n, 4n, 2n, n, and a linear head. ``body`` ends at the
penultimate layer of width n, where activations are sanitised; ``head`` sees nothing but what ``body`` gives.
"""

from __future__ import annotations

from torch import Tensor, nn


class Funnel(nn.Module):
    """Images (c, s, s) through convolutions 32-64-128 and a funnel of width n; the penultimate layer ends in a ReLU."""

    def __init__(self, channels: int, side: int, *, width: int = 50, classes: int = 10) -> None:
        super().__init__()
        flat = 128 * (side // 8) ** 2
        widths = [flat, 8 * width, 4 * width, 2 * width, width]
        funnel = [layer for i, o in zip(widths[:-1], widths[1:], strict=True) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.body = nn.Sequential(*_stage(channels, 32), *_stage(32, 64), *_stage(64, 128), nn.Flatten(), *funnel)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """One score per class."""
        scores: Tensor = self.head(self.body(images))
        return scores


def _stage(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
