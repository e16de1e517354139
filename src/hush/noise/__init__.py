"""Gaussian noise over steps, independent or correlated, and what it declares to the plan."""

from hush.noise.independent import Independent
from hush.noise.noise import Noise, Rows
from hush.noise.structure import Identity, Structure, sensitivity

__all__ = ["Identity", "Independent", "Noise", "Rows", "Structure", "sensitivity"]
