"""Scattering features: fixed wavelets and moduli, no training, computed from each image alone.

Oyallon and Mallat, "Deep Roto-Translation Scattering for Object Classification", 2015; with a linear model they are the
strongest cheap baseline of private learning (Tramèr and Boneh, "Differentially Private Learning Needs Better Features",
2021). Second order, J = 2, 8 angles: 81 maps a channel at a quarter of the side. Each example's maps are normalised in
groups of 27 by their own mean and deviation, so no statistic of other rows enters and the step costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.data.kept import kept
from hush.data.splits import Split
from hush.errors import BadInput
from hush.problems.models import logistic
from hush.problems.problem import Problem, classification

SCALE = 2
ANGLES = 8
MAPS = 81
GROUP = 27
ASSUMPTIONS = ("the number of training images and the ten classes are public",)


class Single(nn.Module):
    """Features are kept in half precision; the model computes in single."""

    def forward(self, features: Tensor) -> Tensor:
        """The same numbers in single precision."""
        return features.float()


def scattering(raw: Split, *, seed: int, validation: float, class_names: tuple[str, ...] | None = None) -> Problem:
    """A linear model on the scattering features of images of bytes."""
    parts = [(features(images), labels) for images, labels in (raw.train, raw.test)]
    width = parts[0][0][0].numel()
    return classification(
        Split(*parts),
        lambda: nn.Sequential(Single(), logistic(width, 10)),
        classes=10,
        seed=seed,
        validation=validation,
        assumptions=ASSUMPTIONS,
        class_names=class_names,
    )


def features(images: Tensor) -> Tensor:
    """(n, 81·channels, side/4, side/4) in half precision; kept in the cache, since it takes milliseconds an image."""
    shape = (len(images), MAPS * images.shape[1], images.shape[2] >> SCALE, images.shape[3] >> SCALE)
    return kept("scattering", f"J{SCALE} L{ANGLES} group {GROUP}", images, shape, lambda: compute(images))


def compute(images: Tensor, batch: int = 250) -> Tensor:
    """The features, computed some images at a time."""
    transform = _transform(images.shape[2], images.shape[3])
    groups = MAPS * images.shape[1] // GROUP
    done = []
    for piece in torch.split(images, batch):
        maps = transform(piece.float() / 255).flatten(1, 2)
        done.append(functional.group_norm(maps, groups).half())
    return torch.cat(done)


def _transform(height: int, width: int) -> Callable[[Tensor], Tensor]:
    try:
        # kymatio 0.3.0's torch package also loads its 3-D part, which current SciPy cannot; the 2-D one loads alone.
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise BadInput("scattering features need kymatio: pip install 'hush[scattering]'") from error
    transform: Callable[[Tensor], Tensor] = ScatteringTorch2D(J=SCALE, shape=(height, width), L=ANGLES)
    return transform
