"""The optimizer protocol, and learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hush._internal import validate
from hush._internal.tensors import Named, State
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient

Rate = float | Callable[[int], float]
"""A learning rate: a number, or a function of the step (never of anything private)."""


class Optimizer(Protocol):
    """Turns a noisy gradient into an update in place. It sees only noisy values, so it cannot weaken privacy.

    A run relies on these guarantees (privacy does not: everything here is post-processing):

    1. It reads the parameters, the noisy gradient and its own state, and no data.
    2. It does not modify the noisy gradient.
    3. It returns the update by name, new minus old, for exactly the given parameters (the update of the iterates, where
       an average replaces them after the last step).
    4. All that later steps depend on is in the state, which checkpoints store: restored, later steps have the same
       bits.
    5. ``release.std`` is the noise in the gradient; a wrapper passes the remaining noise to its inner optimizer.
    """

    def init(self, params: Named) -> State:
        """The state before the first step."""
        ...

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        """Update the parameters and the state in place; return the update, new minus old."""
        ...


def rate_at(rate: Rate, step: int) -> float:
    return rate(step) if callable(rate) else rate


def check_rate(rate: Rate) -> None:
    if not callable(rate):
        validate.positive(lr=rate)


def check_momentum(momentum: float) -> None:
    validate.finite(momentum=momentum)
    if not 0 <= momentum < 1:
        raise InvalidInputError(
            f"momentum must be at least 0 and below 1, got {momentum:g}: with 1 or more, updates only grow"
        )


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from ``peak`` to ``floor`` over ``steps``, after a linear warm-up of ``warmup`` steps."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.floor + (self.peak - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Linear:
    """Linear from ``start`` to ``end`` over ``steps``."""

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(1.0, step / max(1, self.steps))
