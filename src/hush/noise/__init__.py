"""Gaussian noise over steps, independent or correlated, and the strategy it declares to the plan.

>>> from hush import noise
>>> noise.Independent(steps=1000).structure.bands
1
>>> noise.Banded(bands=8).build(100).structure.bands  # Plan.calibrated builds it for the plan's steps
8

In scope: turning standard normal rows into the noise of each step. The matrices are in `hush.matrix_factorization`, the
secret bits in `hush.randomness`, adding noise to a run's sums in `hush.noise_addition`.
"""

from hush.noise.base import Noise, NoiseFactory, NoisyGradient, Rows, Stream
from hush.noise.correlated import Banded, DenseNoise, make_noise
from hush.noise.independent import Independent, Schedule, Stages

__all__ = [
    "Banded",
    "DenseNoise",
    "Independent",
    "Noise",
    "NoiseFactory",
    "NoisyGradient",
    "Rows",
    "Schedule",
    "Stages",
    "Stream",
    "make_noise",
]
