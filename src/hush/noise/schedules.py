"""How the noise multiplier changes over steps: public, fixed in the plan, relative to σ.

σ_t = σ · schedule(t). Few different values keep the accounting exact and quick, so schedules go in stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hush import validate

Schedule = Callable[[int], float]
"""The noise of a step relative to σ: a function of the step alone, never of anything private."""


@dataclass(frozen=True)
class Stages:
    """From 1 to ``end`` times σ in ``stages`` equal parts of the run, each the same factor from the last.

    Less noise late (``end`` below 1) is the dynamic DP-SGD of Du et al. 2021.
    """

    steps: int
    end: float
    stages: int = 10

    def __post_init__(self) -> None:
        validate.whole(steps=self.steps, noise_stages=self.stages)
        validate.positive(noise_end=self.end)

    def __call__(self, step: int) -> float:
        if self.stages == 1:
            return 1.0
        stage = min(step * self.stages // self.steps, self.stages - 1)
        return float(self.end ** (stage / (self.stages - 1)))
