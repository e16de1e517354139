"""Independent Gaussian noise at every step: C = I, the noise of DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush import validate
from hush.named import State
from hush.noise.noise import Rows
from hush.noise.structure import Identity


@dataclass(frozen=True)
class Independent:
    """Fresh noise for each of ``steps`` steps."""

    steps: int

    def __post_init__(self) -> None:
        validate.whole(steps=self.steps)

    @property
    def structure(self) -> Identity:
        """C = I."""
        return Identity(self.steps)

    def init(self, like: Tensor) -> State:
        """No state."""
        return {}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """The step's own row of Z."""
        return z(step), state

    def std(self, step: int) -> float:
        """One."""
        return 1.0
