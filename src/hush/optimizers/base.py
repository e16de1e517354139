"""The protocol of a rule, and learning rates that may change over steps."""

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
    """Turns a release into an update in place. It sees only released values, so it cannot break privacy.

    It promises, and what a run does rests on it (privacy does not: all of it is post-processing):

    1. It reads parameters, release and its own state, and nothing of the data.
    2. The release is left as it is.
    3. What it returns is the update by name, new minus old, for exactly the parameters it was given (that of the
       iterates, where their average takes their place after the last step).
    4. All that later steps depend on is in the state, which a checkpoint keeps: restored, they are the same bits.
    5. Noise is counted as ``release.std`` says it; what a rule hands to an inner rule says what is left of it.
    """

    def init(self, params: Named) -> State:
        """The state before the first step."""
        ...

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        """Change the parameters and the state in place; return the update, new minus old."""
        ...


def rate_at(rate: Rate, step: int) -> float:
    """The learning rate of a step."""
    return rate(step) if callable(rate) else rate


def check_rate(rate: Rate) -> None:
    """A constant rate must be a positive number."""
    if not callable(rate):
        validate.positive(lr=rate)


def check_momentum(momentum: float) -> None:
    """What is left of the last update must be a part of it."""
    validate.finite(momentum=momentum)
    if not 0 <= momentum < 1:
        raise InvalidInputError(
            f"momentum must be at least 0 and below 1, got {momentum:g}: from 1 on updates only grow"
        )


@dataclass(frozen=True)
class Cosine:
    """From ``peak`` down to ``floor`` along half a cosine over ``steps``, after a linear warm-up."""

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
    """From ``start`` to ``end`` in a straight line over ``steps``."""

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(1.0, step / max(1, self.steps))
