"""What crosses the privacy boundary: noisy values, and how much noise is in them.

A floating-point sum shows which numbers it was made of: where a value and its noise nearly cancel, the result is finer
than the noise, and its last bits are those of the value (Mironov 2012, "On significance of the least significant bits
for differential privacy"). So noise is drawn and added in float64, and the noisy value is rounded to a public grid of
at most 1/1024 of its noise. Every point of the grid then has the probability that the Gaussian gives it, to about
the twelfth digit within 5.7 standard deviations of the value, and to fewer from there to 9.4, where the draws end; what
that end costs in δ is derived in `hush.privacy.scale`. What comes after the grid is post-processing. The rounding adds
less than a ten-millionth to the noise's variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from hush.named import Named, Sums
from hush.privacy.scale import grid

__all__ = ["Release", "add_noise", "grid"]

CACHED = 1 << 15  # coordinates at a time, so that five passes over them stay near the processor


@dataclass(frozen=True)
class Release:
    """One step's noisy values, divided by the plan's public divisor; everything after it is post-processing."""

    step: int
    values: Sums
    std: Mapping[str, float]

    @property
    def gradient(self) -> Named:
        """The private gradient by parameter name."""
        return self.values["gradient"]

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in one coordinate of :attr:`gradient`."""
        return self.std["gradient"]


def add_noise(sums: Iterable[Tensor], noise: Iterable[Tensor], scale: float, spacing: float, divisor: float) -> None:
    """total ← [total + scale · noise] / divisor in place, where [·] rounds to a multiple of ``spacing``.

    ``noise`` comes in pieces of one flat vector over all sums. It is left as it is: a noise may keep what it hands out.
    """
    pieces = iter(noise)
    piece: Tensor | None = None
    for total in sums:
        flat = total.reshape(-1)
        rest = flat
        while len(rest):
            if piece is None or not len(piece):
                piece = next(pieces, None)
                if piece is None:
                    raise RuntimeError("the noise is shorter than what it is for")
            count = min(len(rest), len(piece), CACHED)
            value, z = rest[:count], piece[:count].double() * (scale / spacing)
            z.add_(value.to(z.device), alpha=1.0 / spacing)
            value.copy_(z.round_().mul_(spacing / divisor))
            rest, piece = rest[count:], piece[count:]
        if not total.is_contiguous():
            total.copy_(flat.view(total.shape))
    if (piece is not None and len(piece)) or next(pieces, None) is not None:
        raise RuntimeError("the noise is longer than what it is for")
