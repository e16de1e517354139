"""Scattering features: fixed wavelets and moduli, no training, computed from each image alone.

Oyallon and Mallat, "Deep Roto-Translation Scattering for Object Classification", 2015; with a linear model they are the
strongest cheap baseline of private learning (Tramèr and Boneh, "Differentially Private Learning Needs Better Features",
2021). Second order, J = 2, 8 angles: 81 maps a channel at a quarter of the side. Each example's maps are normalised in
groups of 27 by their own mean and deviation, so no statistic of other rows enters and the step costs no privacy.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hush._internal.storage import find_cache, recall
from hush.datasets.splits import Split
from hush.errors import MissingDependencyError

SCALE = 2
ANGLES = 8
MAPS = 81
GROUP = 27
FOLDER = "scattering"


def scatter(raw: Split) -> Split:
    """The features of images of bytes, in place of them."""
    return raw.change_features(find_features)


def find_features(images: Tensor) -> Tensor:
    """(n, 81·channels, side/4, side/4) in half precision; kept in the cache, since it takes milliseconds an image."""
    shape = (len(images), MAPS * images.shape[1], images.shape[2] >> SCALE, images.shape[3] >> SCALE)

    def compute() -> Tensor:
        print(f"computing {FOLDER} of {len(images)} examples, once", file=sys.stderr)  # noqa: T201
        return compute_features(images)

    place = _find_place(f"J{SCALE} L{ANGLES} group {GROUP}", images)
    return recall(place, partial(_parse, shape), compute, _pack)


def compute_features(images: Tensor, batch: int = 250) -> Tensor:
    """The features, computed some images at a time."""
    transform = _make_transform(images.shape[2], images.shape[3])
    groups = MAPS * images.shape[1] // GROUP
    done = []
    for piece in torch.split(images, batch):
        maps = transform(piece.float() / 255).flatten(1, 2)
        done.append(functional.group_norm(maps, groups).half())
    return torch.cat(done)


def _make_transform(height: int, width: int) -> Callable[[Tensor], Tensor]:
    try:
        # kymatio 0.3.0's torch package also loads its 3-D part, which current SciPy cannot; the 2-D one loads alone.
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise MissingDependencyError("scattering features need kymatio: pip install 'hush-dp[scattering]'") from error
    transform: Callable[[Tensor], Tensor] = ScatteringTorch2D(J=SCALE, shape=(height, width), L=ANGLES)
    return transform


def _find_place(settings: str, inputs: Tensor) -> Path:
    """A file of the cache, named by a digest of all that the features depend on."""
    digest = hashlib.sha256(f"{settings}|{tuple(inputs.shape)}|".encode() + inputs.contiguous().numpy().tobytes())
    return find_cache() / FOLDER / f"{digest.hexdigest()[:32]}.npy"


def _parse(shape: tuple[int, ...], file: IO[bytes]) -> Tensor:
    found = np.load(file, allow_pickle=False)
    if found.shape != shape or found.dtype != np.float16:
        raise ValueError
    return torch.from_numpy(found)


def _pack(features: Tensor) -> bytes:
    content = io.BytesIO()
    np.save(content, features.numpy(), allow_pickle=False)
    return content.getvalue()
