"""The protocol of a noise: Gaussian rows in, correlated rows out, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from hush.named import State
from hush.noise.structure import Structure

Rows = Callable[[int], Tensor]
"""``z(j)``: the j-th row of Z, a flat standard normal vector; a pure function, so any row can be had again. Every call
makes a new tensor, which the noise may change."""


class Noise(Protocol):
    """Correlates Gaussian noise over steps: the noise of step t is (C⁻¹Z)ₜ, or the increment of (BZ)ₜ."""

    @property
    def structure(self) -> Structure:
        """What the plan needs to know of C."""
        ...

    def init(self, like: Tensor) -> State:
        """The state before the first step, for flat vectors like this one."""
        ...

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """The noise of one step before scaling, and the next state."""
        ...

    def std(self, step: int) -> float:
        """The standard deviation of one coordinate of ``draw(step)``."""
        ...
