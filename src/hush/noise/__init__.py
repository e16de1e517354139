"""Gaussian noise over steps, independent or correlated, and what it declares to the plan."""

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
