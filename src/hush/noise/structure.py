"""What a noise says publicly about how it correlates steps, as far as privacy is concerned.

The noise of all steps is C⁻¹Z with Z standard normal, so releasing G + C⁻¹Z tells no more than CG + Z: one Gaussian
release whose sensitivity is that of C. How large that is depends on how an example takes part.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hush.errors import Refused
from hush.sampling import (
    CyclicPoisson,
    OnePass,
    Participation,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)


class Structure(Protocol):
    """The sensitivities of a strategy matrix C for unit contributions."""

    @property
    def steps(self) -> int:
        """The number of steps that C covers."""
        ...

    @property
    def bands(self) -> int | None:
        """How many steps share a row of Z: 1 is independent noise, None is all of them."""
        ...

    @property
    def restarts(self) -> int | None:
        """The length of the blocks after which the noise starts anew, or None."""
        ...

    def single(self) -> float:
        """One participation: the largest column norm."""
        ...

    def same_order(self, per_epoch: int) -> float:
        """Participations at t, t + b, t + 2b … for some t."""
        ...

    def separated(self, times: int, apart: int) -> float:
        """At most ``times`` participations, at least ``apart`` steps from each other."""
        ...

    def first(self, steps: int) -> Structure:
        """The same noise over its first steps only."""
        ...


@dataclass(frozen=True)
class Identity:
    """Independent noise: C = I."""

    steps: int

    @property
    def bands(self) -> int:
        """No row of Z is shared."""
        return 1

    @property
    def restarts(self) -> int:
        """The noise starts anew at every step."""
        return 1

    def single(self) -> float:
        """Every column is a unit vector."""
        return 1.0

    def same_order(self, per_epoch: int) -> float:
        """k orthogonal unit columns: √k."""
        return math.sqrt(-(-self.steps // per_epoch))

    def separated(self, times: int, apart: int) -> float:
        """As many orthogonal unit columns as fit."""
        return math.sqrt(min(times, -(-self.steps // apart)))

    def first(self, steps: int) -> Identity:
        """A smaller identity."""
        return Identity(steps)


@dataclass(frozen=True)
class Diagonal:
    """Independent noise whose size follows a public schedule: ``scales[t]`` at step t, so C = diag(1/scales)."""

    scales: tuple[float, ...]

    @property
    def steps(self) -> int:
        """One scale a step."""
        return len(self.scales)

    @property
    def bands(self) -> int:
        """No row of Z is shared."""
        return 1

    @property
    def restarts(self) -> int:
        """The noise starts anew at every step."""
        return 1

    def single(self) -> float:
        """The column of the step with the least noise."""
        return self.within(0, self.steps)

    def within(self, start: int, stop: int) -> float:
        """The largest column norm among the steps from ``start`` to ``stop``."""
        return 1.0 / min(self.scales[start:stop])

    def same_order(self, per_epoch: int) -> float:
        """Orthogonal columns: the worst batch's Σ 1/s²."""
        weights = self._weights()
        return math.sqrt(max(weights[place::per_epoch].sum() for place in range(min(per_epoch, self.steps))))

    def separated(self, times: int, apart: int) -> float:
        """The best choice of columns, by dynamic programming over how many are taken."""
        weights = self._weights()
        best = np.zeros(self.steps)  # the most that can be had up to each step
        for _ in range(min(times, -(-self.steps // apart))):
            before = np.concatenate([np.zeros(min(apart, self.steps)), best[: max(0, self.steps - apart)]])
            best = np.maximum.accumulate(weights + before)
        return math.sqrt(best[-1])

    def first(self, steps: int) -> Diagonal:
        """The first scales."""
        return Diagonal(self.scales[:steps])

    def _weights(self) -> np.ndarray:
        return np.array(self.scales) ** -2.0


def blocks(structure: Structure, length: int) -> dict[float, int]:
    """The largest column norm within each run of ``length`` steps, and how many of the runs have it."""
    starts = range(0, structure.steps, length)
    if isinstance(structure, Diagonal):
        return dict(Counter(structure.within(start, start + length) for start in starts))
    return {structure.single(): len(starts)}


def sensitivity(structure: Structure, participation: Participation) -> float:
    """The largest ‖C Δ‖ over what one example of unit norm can contribute in one unit of the event.

    The unit is the whole run where the event is one Gaussian, an epoch where it composes epochs, and one step (or
    one visit to a group) where it composes sampled steps.
    """
    match participation:
        case PoissonSampled() | WithoutReplacement():
            return 1.0
        case OnePass() | CyclicPoisson():
            return structure.single()
        case Reshuffled():
            return structure.single()  # restarted every epoch (or independent), so an epoch is one participation
        case SameOrder(per_epoch=per_epoch):
            return structure.same_order(per_epoch)
        case Separated(times=times, apart=apart):
            return structure.separated(times, apart)
    raise Refused(f"no sensitivity is known for {type(participation).__name__} batches")
