"""Gaussian noise over steps, independent or correlated, and what it declares to the plan."""

from hush.noise.base import Noise, Rows, Stream
from hush.noise.correlated import DenseNoise, make_noise
from hush.noise.independent import Independent, Schedule, Stages

__all__ = ["DenseNoise", "Independent", "Noise", "Rows", "Schedule", "Stages", "Stream", "make_noise"]
