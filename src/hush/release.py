"""What crosses the privacy boundary: noisy values, and how much noise is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hush.named import Named, Sums


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
