"""Scattering features: fixed wavelets and moduli, no training, computed from each image alone.

Oyallon and Mallat, "Deep Roto-Translation Scattering for Object Classification", 2015; with a linear model they are the
strongest cheap baseline of private learning (Tramèr and Boneh, "Differentially Private Learning Needs Better Features",
2021). Second order, J = 2, 8 angles: 81 maps a channel at a quarter of the side, equal in single precision to those of
kymatio 0.3.0, which these papers' code uses. Each example's maps are normalised in groups of 27 by their own mean and
deviation, so no statistic of other rows enters and the step costs no privacy.

With the Morlet wavelets ψ of scale j and angle θ and the Gaussian φ of scale J, an image x has the maps x∗φ,
|x∗ψ₁|∗φ and ||x∗ψ₁|∗ψ₂|∗φ for j₂ > j₁, computed by FFT; a result of scale j is kept at every 2ʲ-th pixel.
"""

from __future__ import annotations

import hashlib
import io
import sys
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import IO

import numpy as np
import scipy.fft
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fft import fft2, ifft2
from torch.nn import functional

from hush._internal.storage import find_cache, recall
from hush.datasets.splits import Split

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
    groups = MAPS * images.shape[1] // GROUP
    done = []
    for piece in torch.split(images, batch):
        maps = transform(piece.float() / 255).flatten(1, 2)
        done.append(functional.group_norm(maps, groups).half())
    return torch.cat(done)


def transform(images: Tensor) -> Tensor:
    """The maps of images (…, height, width): (…, 81, height/4, width/4)."""
    height, width = images.shape[-2:]
    low, band = _make_filters(*(((side >> SCALE) + 2) << SCALE for side in (height, width)))
    spectrum = fft2(_pad(images.reshape(-1, 1, height, width), *low[0].shape))
    maps, second = [_smooth(spectrum, low, 0)], []
    for j in range(SCALE):
        first = _modulus(spectrum * band[j][0], j)
        maps.append(_smooth(first, low, j))
        for angle in range(ANGLES):
            for k in range(j + 1, SCALE):
                second.append(_smooth(_modulus(first[:, angle : angle + 1] * band[k][j], k - j), low, k))
    found = torch.cat([*maps, *second], 1)
    return found.reshape(*images.shape[:-2], *found.shape[1:])


def _pad(images: Tensor, height: int, width: int) -> Tensor:
    """Reflected at the edges, as evenly as it goes."""
    down, right = height - images.shape[-2], width - images.shape[-1]
    return functional.pad(images, (right // 2, (right + 1) // 2, down // 2, (down + 1) // 2), mode="reflect")


def _modulus(spectrum: Tensor, halvings: int) -> Tensor:
    """The spectrum of the modulus of a band, at a lower resolution."""
    found: Tensor = fft2(ifft2(_subsample(spectrum, halvings)).abs())
    return found


def _smooth(spectrum: Tensor, low: tuple[Tensor, ...], level: int) -> Tensor:
    """A map at the last resolution, without its border."""
    found: Tensor = ifft2(_subsample(spectrum * low[level], SCALE - level)).real
    return found[..., 1:-1, 1:-1]


def _subsample(spectrum: Tensor, halvings: int) -> Tensor:
    """Every 2ʰ-th pixel, which is a mean over blocks of the spectrum."""
    parts = 1 << halvings
    for axis in (-2, -1):
        spectrum = reduce(torch.add, spectrum.chunk(parts, axis))
    return spectrum / parts**2


@lru_cache(maxsize=4)
def _make_filters(height: int, width: int) -> tuple[tuple[Tensor, ...], tuple[tuple[Tensor, ...], ...]]:
    """Spectra of φ by resolution, and of ψ by scale and resolution (angles first), for padded images."""
    phi = _periodise(_gabor(height, width, 0.8 * 2 ** (SCALE - 1), 0.0, 0.0, 1.0), SCALE)
    bands = []
    for j in range(SCALE):
        sigma, frequency, slant = 0.8 * 2**j, 0.75 * np.pi / 2**j, 4 / ANGLES
        found = []
        for angle in range(ANGLES):
            theta = (ANGLES // 2 - 1 - angle) * np.pi / ANGLES
            wave, envelope = (_gabor(height, width, sigma, theta, xi, slant) for xi in (frequency, 0.0))
            found.append(_periodise(wave - wave.sum() / envelope.sum() * envelope, j + 1))  # a mean of zero
        bands.append(tuple(torch.stack(level) for level in zip(*found, strict=True)))
    return phi, tuple(bands)


def _gabor(height: int, width: int, sigma: float, theta: float, xi: float, slant: float) -> NDArray[np.complex64]:
    """A plane wave of frequency ``xi`` under a Gaussian, periodic over the image."""
    cos, sin = np.cos(theta), np.sin(theta)
    found = np.zeros((height, width), np.complex64)
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = np.mgrid[down * height : (down + 1) * height, right * width : (right + 1) * width]
            along, across = y * cos + x * sin, x * cos - y * sin
            found += np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * xi * along)
    return found / np.float32(2 * 3.1415 * sigma**2 / slant)  # π as kymatio has it


def _periodise(filter: NDArray[np.complex64], levels: int) -> tuple[Tensor, ...]:
    """The real spectrum at each resolution: what is above its highest frequency is cut off, the rest is added up."""
    whole, found = np.real(scipy.fft.fft2(filter)), []
    height, width = whole.shape
    for level in range(levels):
        parts, kept = 1 << level, whole.copy()
        for axis, side in enumerate((height, width)):
            start, length = side // (2 * parts), int(side * (1 - 1 / parts))
            kept[(slice(None),) * axis + (slice(start, start + length),)] = 0
        blocks = kept.reshape(parts, height // parts, parts, width // parts)
        found.append(torch.from_numpy(np.ascontiguousarray(blocks.sum((0, 2)), np.float32)))
    return tuple(found)


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
