"""Scattering features: fixed wavelets and moduli, no training, computed from each image alone.

Oyallon and Mallat, "Deep Roto-Translation Scattering for Object Classification", 2015; with a linear model they are the
strongest cheap baseline of private learning (Tramèr and Boneh, "Differentially Private Learning Needs Better Features",
2021). Second order, J = 2, 8 angles: 81 maps a channel at a quarter of the side. Each example's maps are normalised in
groups of 27 by their own mean and deviation, so no statistic of other rows enters and the step costs no privacy.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hush.data import pinned
from hush.data.splits import Split
from hush.errors import BadInput

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
    return _recall(f"J{SCALE} L{ANGLES} group {GROUP}", images, shape, lambda: compute_features(images))


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
        raise BadInput("scattering features need kymatio: pip install 'hush[scattering]'") from error
    transform: Callable[[Tensor], Tensor] = ScatteringTorch2D(J=SCALE, shape=(height, width), L=ANGLES)
    return transform


def _recall(settings: str, inputs: Tensor, shape: tuple[int, ...], compute: Callable[[], Tensor]) -> Tensor:
    """The result of ``compute``, from the cache if it is there, in a file named by a digest of all it depends on.

    A file that is not whole or of another shape is computed again; one that cannot be written is left out."""
    digest = hashlib.sha256(f"{settings}|{tuple(inputs.shape)}|".encode() + inputs.contiguous().numpy().tobytes())
    place = pinned.cache_dir() / FOLDER / f"{digest.hexdigest()[:32]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.load(place, allow_pickle=False)
        if found.shape == shape and found.dtype == np.float16:
            return torch.from_numpy(found)
    print(f"computing {FOLDER} of {len(inputs)} examples, once", file=sys.stderr)  # noqa: T201
    computed = compute()
    content = io.BytesIO()
    np.save(content, computed.numpy(), allow_pickle=False)
    with contextlib.suppress(OSError):
        pinned.store(content.getvalue(), place)
    return computed
