"""Gaussian noise over steps, independent or correlated, and what it declares to the plan."""

from hush.noise.dense import DenseNoise
from hush.noise.independent import Independent, Schedule, Stages
from hush.noise.noise import Noise, Rows, Stream
from hush.noise.streams import make_noise

__all__ = ["DenseNoise", "Independent", "Noise", "Rows", "Schedule", "Stages", "Stream", "make_noise"]
