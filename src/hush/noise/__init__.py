"""Gaussian noise over steps, independent or correlated, and what it declares to the plan."""

from hush.noise.dense import DenseNoise
from hush.noise.independent import Independent
from hush.noise.noise import Noise, Rows
from hush.noise.schedules import Schedule, Stages
from hush.noise.streams import BandedNoise, BLTNoise, TreeNoise, WindowNoise, streamed
from hush.noise.structure import Diagonal, Identity, Structure, blocks, sensitivity

__all__ = [
    "BLTNoise",
    "BandedNoise",
    "DenseNoise",
    "Diagonal",
    "Identity",
    "Independent",
    "Noise",
    "Rows",
    "Schedule",
    "Stages",
    "Structure",
    "TreeNoise",
    "WindowNoise",
    "blocks",
    "sensitivity",
    "streamed",
]
