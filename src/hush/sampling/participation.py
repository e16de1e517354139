"""How often, and how far apart, one example can take part: the public declaration of a sampler.

A participation is data, not code. The table of proofs (`hush.guarantees`) matches on its type to find the privacy
event, so a sampler is always accounted as what it declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hush._internal import validate


class ParticipationKind:
    """Properties that differ between the kinds; the defaults fit batches drawn by coins, and fixed groups."""

    resampled: ClassVar[bool] = False
    """Whether the batch of a step is independent of the batches of all other steps."""

    fixed_batches: ClassVar[bool] = False
    """Whether the order of the examples alone decides the batches: no coins are drawn at a step."""

    one_gaussian: ClassVar[bool] = False
    """Whether the whole run is accounted as one Gaussian event."""

    @property
    def poisson_rate(self) -> float | None:
        """The probability of an independent coin per example and step; None where steps are not independent coins."""
        return None

    @property
    def epoch_steps(self) -> int | None:
        """Steps per epoch, where an example takes part exactly once per epoch; else None."""
        return None


@dataclass(frozen=True)
class PoissonSampled(ParticipationKind):
    """An independent coin of probability ``rate`` for each example and step."""

    resampled = True
    rate: float
    steps: int

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)
        validate.positive_int(steps=self.steps)

    @property
    def poisson_rate(self) -> float:
        return self.rate


@dataclass(frozen=True)
class WithoutReplacement(ParticipationKind):
    """An independent uniform subset of ``size`` of ``examples`` examples at each step."""

    resampled = True
    examples: int
    size: int
    steps: int


@dataclass(frozen=True)
class OnePass(ParticipationKind):
    """Each example takes part at most once."""

    fixed_batches = one_gaussian = True
    steps: int


@dataclass(frozen=True)
class Epochs(ParticipationKind):
    """Base of the kinds that run in epochs of ``per_epoch`` steps."""

    fixed_batches = True
    per_epoch: int
    steps: int

    @property
    def times(self) -> int:
        """The number of epochs begun, and so of participations at most: ⌈steps / per_epoch⌉."""
        return -(-self.steps // self.per_epoch)

    @property
    def epoch_steps(self) -> int:
        return self.per_epoch


@dataclass(frozen=True)
class SameOrder(Epochs):
    """Fixed batches in the same order every epoch: step t and step t + ``per_epoch`` see the same examples."""

    one_gaussian = True


@dataclass(frozen=True)
class Separated(ParticipationKind):
    """Each example takes part at most ``times`` times, any two of them at least ``apart`` steps apart."""

    fixed_batches = one_gaussian = True
    times: int
    apart: int
    steps: int


@dataclass(frozen=True)
class Reshuffled(Epochs):
    """Each example takes part once per epoch of ``per_epoch`` steps, in a new random order every epoch."""


@dataclass(frozen=True)
class CyclicPoissonSampled(ParticipationKind):
    """Examples are in ``groups`` fixed groups; step t samples group t mod ``groups`` with coins of ``rate``."""

    groups: int
    rate: float
    steps: int

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)
        validate.positive_int(groups=self.groups, steps=self.steps)


Participation = (
    PoissonSampled | WithoutReplacement | OnePass | SameOrder | Separated | Reshuffled | CyclicPoissonSampled
)
"""The kinds in the table of proofs; any other kind is refused."""
