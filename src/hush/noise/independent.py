"""Independent Gaussian noise at every step: C = I, the noise of DP-SGD (Abadi et al. 2016).

With a schedule s the noise of step t is s(t)·z, and σ_t = σ · s(t): C is diagonal with 1/s(t). A schedule is public and
fixed in the plan. `Stages` has few distinct values, which keeps the accounting exact and fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from hush._internal import validate
from hush._internal.identity import IdentityScope, per_step
from hush._internal.tensors import State
from hush.matrix_factorization import Diagonal
from hush.noise.base import Rows, Stream

Schedule = Callable[[int], float]
"""The noise of a step relative to σ: a function of the step alone, never of anything private."""


@dataclass(frozen=True)
class Independent(Stream):
    """Independent noise for each of ``steps`` steps, constant or by a public schedule, which is evaluated once."""

    steps: int
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        validate.positive_int(steps=self.steps)
        validate.positive(noise_schedule=self.structure.least_scale)  # evaluates the schedule

    @cached_property
    def structure(self) -> Diagonal:  # type: ignore[override]
        scales = None if self.schedule is None else tuple(self.schedule(step) for step in range(self.steps))
        return Diagonal(self.steps, scales)

    @property
    def pieces(self) -> bool:
        return True

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """The scales that were accounted, independent of the function they came from."""
        scales = self.structure.scales
        return {"steps": self.steps, "scales": None if scales is None else per_step(scales.__getitem__, self.steps)}

    def init(self, like: Tensor) -> State:
        return {}

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        return z(step) if self.schedule is None else z(step) * self.std(step), state


@dataclass(frozen=True)
class Stages:
    """A schedule from 1 to ``end`` times σ in ``stages`` equal parts of the run, with a constant factor between parts.

    Less noise late (``end`` below 1) is the dynamic DP-SGD of Du et al. 2021.
    """

    steps: int
    end: float
    stages: int = 10

    def __post_init__(self) -> None:
        validate.positive_int(steps=self.steps, noise_stages=self.stages)
        validate.positive(noise_end=self.end)

    def __call__(self, step: int) -> float:
        if self.stages == 1:
            return 1.0
        stage = min(step * self.stages // self.steps, self.stages - 1)
        return float(self.end ** (stage / (self.stages - 1)))
