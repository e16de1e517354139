"""Public views of one image: shifted and mirrored copies, for training on the average of K of them.

De et al., "Unlocking High-Accuracy Differentially Private Image Classification", 2022: the gradients of K views of one
example are averaged before clipping, so that an example still has one clipped contribution and the privacy cost is that
of no augmentation at all. A view looks at its own image alone, and draws one number for each image, in the first
dimension: in a run these come from the secret, the step and the image's place (hush.draws).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hush.validate import whole

View = Callable[[Tensor], Tensor]
"""Images (n, channels, height, width) to as many images of the same size, each from its own."""


def shifted(pixels: int = 4) -> View:
    """Each image moved by up to ``pixels`` in both directions, its edge reflected into the gap."""
    whole(pixels=pixels)

    def view(images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        down = torch.randint(-pixels, pixels + 1, (n, 1), device=images.device)
        right = torch.randint(-pixels, pixels + 1, (n, 1), device=images.device)
        rows = _reflected(torch.arange(height, device=images.device) - down, height)
        columns = _reflected(torch.arange(width, device=images.device) - right, width)
        moved = images.gather(2, rows[:, None, :, None].expand_as(images))
        return moved.gather(3, columns[:, None, None, :].expand_as(images))

    return view


def mirrored(images: Tensor) -> Tensor:
    """Each image flipped left to right with probability ½."""
    flip = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(flip[:, None, None, None], images.flip(3), images)


def make_views(images: Tensor, number: int, *kinds: View) -> Tensor:
    """(n, K, channels, height, width): K views of every image, the kinds applied one after the other."""
    whole(number=number)
    return torch.stack([_view(images, kinds) for _ in range(number)], 1)


def _view(images: Tensor, kinds: tuple[View, ...]) -> Tensor:
    for kind in kinds:
        images = kind(images)
    return images


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places outside 0 … size − 1 folded back at the ends, without repeating the end itself."""
    period = max(2 * (size - 1), 1)
    folded = places.remainder(period)
    return torch.where(folded < size, folded, period - folded)
