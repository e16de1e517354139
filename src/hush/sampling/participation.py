"""What a sampler says publicly about how often, and how far apart, one example can take part.

A participation is data, not code: the plan matches on it to name the privacy event, so a sampler cannot be accounted
as anything but what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush._internal import validate


@dataclass(frozen=True)
class PoissonSampled:
    """Each example takes part in each step by its own coin of probability ``rate``."""

    rate: float
    steps: int

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)
        validate.positive_int(steps=self.steps)


@dataclass(frozen=True)
class WithoutReplacement:
    """Each step takes ``size`` of ``examples`` examples, uniformly and anew."""

    examples: int
    size: int
    steps: int


@dataclass(frozen=True)
class OnePass:
    """Each example takes part at most once."""

    steps: int


@dataclass(frozen=True)
class Epochs:
    """What participations that go by epochs of ``per_epoch`` steps have in common."""

    per_epoch: int
    steps: int

    @property
    def times(self) -> int:
        """How many epochs are at least begun, and how often an example takes part at most: ⌈steps / per_epoch⌉."""
        return -(-self.steps // self.per_epoch)


@dataclass(frozen=True)
class SameOrder(Epochs):
    """Fixed batches in the same order every epoch: step t and step t + ``per_epoch`` see the same examples."""


@dataclass(frozen=True)
class Separated:
    """Each example takes part at most ``times`` times, any two of them at least ``apart`` steps from each other."""

    times: int
    apart: int
    steps: int


@dataclass(frozen=True)
class Reshuffled(Epochs):
    """Each example takes part once an epoch of ``per_epoch`` steps, in a new random order every epoch."""


@dataclass(frozen=True)
class CyclicPoisson:
    """Examples lie in ``groups`` fixed groups; step t samples group t mod ``groups`` by coins of ``rate``."""

    groups: int
    rate: float
    steps: int

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)
        validate.positive_int(groups=self.groups, steps=self.steps)


Participation = PoissonSampled | WithoutReplacement | OnePass | SameOrder | Separated | Reshuffled | CyclicPoisson
"""Everything the plan's table knows; anything else is refused."""
