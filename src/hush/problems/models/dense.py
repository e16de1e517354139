"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


def mlp(widths: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Flatten, then linear layers of the given widths with ReLU (and dropout) between them.

    784-512-256-128-10 has 567 434 parameters; the two-layer network 784-128-10 has 101 770."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths[:-2], widths[1:-1], strict=True):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    layers.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*layers)


def logistic(features: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer, softmax in the loss."""
    return mlp([features, classes])


class Single(nn.Module):
    """In front of features that are kept in half precision, so that the model computes in single."""

    def forward(self, features: Tensor) -> Tensor:
        """The same numbers in single precision."""
        return features.float()
