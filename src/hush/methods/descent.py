"""Options of every method that descends by SGD, and what its model then sees of the noise."""

from __future__ import annotations

from dataclasses import dataclass

from hush.matrices import Workload
from hush.rules import SGD


@dataclass(frozen=True)
class Descent:
    """m ← μm + (g̃ + wθ); θ ← θ − ηm, with learning rate η, momentum μ and weight decay w."""

    lr: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _ = self.rule  # which checks them

    @property
    def rule(self) -> SGD:
        """SGD with these settings."""
        return SGD(self.lr, self.momentum, self.weight_decay)

    def workload(self, steps: int) -> Workload:
        """Which sums of the noise the model sees; the learning rate only scales them."""
        return Workload(steps, self.momentum, 1.0 - self.lr * self.weight_decay)
