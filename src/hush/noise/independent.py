"""Independent Gaussian noise at every step: C = I, the noise of DP-SGD (Abadi et al. 2016).

With a schedule s the noise of step t is s(t)·z: C is diagonal with 1/s(t).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from hush import validate
from hush.identity import Scope, per_step
from hush.named import State
from hush.noise.noise import Rows
from hush.noise.schedules import Schedule
from hush.noise.structure import Diagonal, Identity


@dataclass(frozen=True)
class Independent:
    """Fresh noise for each of ``steps`` steps, the same at each or by a public schedule."""

    steps: int
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        validate.whole(steps=self.steps)
        if isinstance(self.structure, Diagonal):
            for scale in self.structure.scales:
                validate.positive(noise_schedule=scale)

    @cached_property
    def structure(self) -> Identity | Diagonal:
        """C = I, or diagonal."""
        if self.schedule is None:
            return Identity(self.steps)
        return Diagonal(tuple(self.schedule(step) for step in range(self.steps)))

    def declared(self, scope: Scope) -> dict[str, Any]:
        """The scales that were accounted, whatever function they came from."""
        scales = self.structure.scales if isinstance(self.structure, Diagonal) else None
        return {"steps": self.steps, "scales": None if scales is None else per_step(scales.__getitem__, self.steps)}

    def init(self, like: Tensor) -> State:
        """No state."""
        return {}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """The step's own row of Z, scaled by the schedule."""
        return z(step) if self.schedule is None else z(step) * self.std(step), state

    def std(self, step: int) -> float:
        """One, or what the schedule said when it was accounted: it is asked once."""
        return self.structure.scales[step] if isinstance(self.structure, Diagonal) else 1.0
