"""The protocol of a noise: Gaussian rows in, correlated rows out, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from torch import Tensor

from hush.matrices import Structure
from hush.matrices.series import Array
from hush.named import State

Rows = Callable[[int], Tensor]
"""``z(j)``: the j-th row of Z, a flat standard normal vector; a pure function, so any row can be had again. Every call
makes a new tensor, which the noise may change."""


class Noise(Protocol):
    """Turns independent rows Z into the noise of every step. What is promised, and relied on:

    - pure: `draw` is a function of the step, of Z and of the state alone; what it gives never changes afterwards;
    - map: the noise of steps 0, 1, … from the state of `init` is MZ, for the M of its `structure`;
    - columns: a coordinate of the noise depends on this coordinate of Z alone;
    - spread: ``std(t)`` is ‖row t of M‖;
    - memory: the state does not grow with the steps;
    - resume: what the state holds under names without a leading underscore is all that the next step needs;
    - late start: from the state of `init` at step t, as under a fresh secret, rows of Z that earlier steps have drawn
      count in full or not at all, and the others as ever;
    - pieces: where `pieces` holds, there is no state, and coordinates drawn some at a time are those drawn together.
    """

    @property
    def structure(self) -> Structure:
        """C and M, as far as the plan needs to know of them."""
        ...

    @property
    def pieces(self) -> bool:
        """Whether a step may be drawn some coordinates at a time."""
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


class Stream:
    """What every noise here shares: its spread is its structure's, and it is drawn whole."""

    structure: Structure

    @property
    def pieces(self) -> bool:
        """One state serves all coordinates."""
        return False

    def std(self, step: int) -> float:
        """‖row t of M‖."""
        return float(self._norms[step])

    @cached_property
    def _norms(self) -> Array:
        return self.structure.inverse_norms()
