"""Samplers: the batch of a step is a pure function of (secret, step), so a resume needs no replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hush._internal import validate
from hush.errors import InvalidInputError
from hush.randomness import Secret, generator, streams
from hush.sampling.participation import (
    CyclicPoissonSampled,
    OnePass,
    Participation,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    WithoutReplacement,
)


class Sampler(Protocol):
    """Draws batches and publicly declares how one example takes part.

    The proofs rely on these guarantees:

    1. A batch depends on secret, step and population alone: never on the data, an earlier batch or a release.
    2. No example occurs twice in a batch, and every index is below the population.
    3. No example takes part more often, or closer together, than ``participation`` says; a probability named there
       holds for every example, independently of the others.
    4. ``participation`` covers at least the plan's steps and does not change.
    5. No batch has more than ``largest_batch`` examples, a public number.
    6. A population that the guarantee does not cover raises an error and is not sampled.
    """

    @property
    def examples(self) -> int:
        """The public number of examples that the plan was made for."""
        ...

    @property
    def participation(self) -> Participation:
        """How often and how far apart one example can take part."""
        ...

    @property
    def largest_batch(self) -> int:
        """The largest number of examples that a step can hold, for any data and any secret."""
        ...

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        """The examples of one step among ``population``, as int64; pure in its arguments."""
        ...


@dataclass(frozen=True)
class Poisson:
    """An independent coin for every example and step (Abadi et al. 2016).

    ``rate`` is a public number and is not recomputed from the data. The population may differ from ``examples``: adding
    or removing an example must not change the coins of the others, so example i's coin depends on i alone.
    """

    examples: int
    rate: float
    steps: int

    def __post_init__(self) -> None:
        validate.positive_int(examples=self.examples, steps=self.steps)
        validate.rate(sample_rate=self.rate)

    @property
    def expected_batch(self) -> float:
        """The expected number of examples per step."""
        return self.rate * self.examples

    @property
    def participation(self) -> PoissonSampled:
        """Poisson at ``rate``."""
        return PoissonSampled(self.rate, self.steps)

    @property
    def largest_batch(self) -> int:
        """All examples of the larger of two neighbouring datasets."""
        return self.examples + 1

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        """The examples whose coin shows heads."""
        if population > self.examples + 1:
            raise InvalidInputError(
                f"the data has more than the {self.examples} examples of the plan, so a step could hold more than was "
                "accounted for: make the plan for the actual number"
            )
        return _coins(secret, step, np.arange(population), population, self.rate)


@dataclass(frozen=True)
class Sized(ABC):
    """Base of the samplers with batches of one public size."""

    examples: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        _check_batch(self.examples, self.batch_size, self.steps)

    @property
    def per_epoch(self) -> int:
        """Steps per epoch: ⌈examples / batch_size⌉."""
        return -(-self.examples // self.batch_size)

    @property
    def expected_batch(self) -> float:
        """The number of examples per step."""
        return float(self.batch_size)

    @property
    def largest_batch(self) -> int:
        """The size of every batch but the last of an epoch."""
        return self.batch_size

    @abstractmethod
    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        """The examples of one step."""


@dataclass(frozen=True)
class FixedSize(Sized):
    """An independent, uniformly random subset of fixed size at every step."""

    @property
    def participation(self) -> WithoutReplacement:
        return WithoutReplacement(self.examples, self.batch_size, self.steps)

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        """A subset of ``batch_size`` examples."""
        _same_population(self.examples, population)
        chosen = generator(secret, streams.SAMPLING, step).choice(
            population, self.batch_size, replace=False, shuffle=False
        )
        return torch.from_numpy(chosen)


@dataclass(frozen=True)
class Shuffled(Sized):
    """A new random order every epoch, cut into batches: what a DataLoader with ``shuffle=True`` does."""

    @property
    def participation(self) -> Reshuffled:
        """Once per epoch. The random order gives no amplification: none is proven."""
        return Reshuffled(self.per_epoch, self.steps)

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        return _slice(self, _order(secret, epoch, population), place, population)


@dataclass(frozen=True)
class Partitioned(Sized):
    """Fixed batches in the same order every epoch; over at most one epoch this is one pass."""

    @property
    def participation(self) -> SameOrder | OnePass:
        once = self.steps <= self.per_epoch
        return OnePass(self.steps) if once else SameOrder(self.per_epoch, self.steps)

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        return _slice(self, _order(secret, 0, population), step % self.per_epoch, population)


@dataclass(frozen=True, init=False)
class CyclicPoisson:
    """Fixed groups, visited in turn, each Poisson-sampled at ``rate``: required by amplified banded noise.

    Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization". An example takes part at most once in
    ``groups`` consecutive steps.
    """

    examples: int
    groups: int
    rate: float
    steps: int

    def __init__(
        self,
        examples: int,
        groups: int,
        rate: float | None = None,
        steps: int = 1,
        *,
        batch_size: float | None = None,
    ) -> None:
        """``rate`` is the probability within a group; or give ``batch_size``, the expected number of examples per step:
        rate = batch_size · groups / examples."""
        validate.positive_int(examples=examples, groups=groups, steps=steps)
        if (rate is None) == (batch_size is None):
            raise InvalidInputError("give either rate or batch_size")
        if rate is None and batch_size is not None:
            validate.positive(batch_size=batch_size)
            rate = batch_size * groups / examples
            if rate > 1:
                raise InvalidInputError(
                    f"batch size {batch_size:g} is larger than a group: {examples} examples in {groups} groups"
                )
        assert rate is not None
        validate.rate(sample_rate=rate)
        if groups > examples:
            raise InvalidInputError(f"{groups} groups need at least as many examples, got {examples}")
        for name, value in (("examples", examples), ("groups", groups), ("rate", rate), ("steps", steps)):
            object.__setattr__(self, name, value)

    @property
    def expected_batch(self) -> float:
        """The expected number of examples per step."""
        return self.rate * self.examples / self.groups

    @property
    def participation(self) -> CyclicPoissonSampled:
        return CyclicPoissonSampled(self.groups, self.rate, self.steps)

    @property
    def largest_batch(self) -> int:
        """The largest group."""
        return -(-self.examples // self.groups)

    def indices(self, secret: Secret, step: int, population: int) -> Tensor:
        """The members of this step's group whose coin shows heads."""
        _same_population(self.examples, population)
        members = np.sort(_order(secret, 0, population)[step % self.groups :: self.groups])
        return _coins(secret, step, members, population, self.rate)


def one_pass(examples: int, batch_size: int) -> Partitioned:
    """Every example once, in one random order."""
    _check_batch(examples, batch_size, 1)
    return Partitioned(examples, batch_size, -(-examples // batch_size))


def _coins(secret: Secret, step: int, members: np.ndarray, population: int, rate: float) -> Tensor:
    coins = generator(secret, streams.SAMPLING, step).random(population)
    return torch.from_numpy(members[coins[members] < rate])


@lru_cache(maxsize=4)
def _order(secret: Secret, epoch: int, population: int) -> np.ndarray:
    return generator(secret, streams.ORDER, epoch).permutation(population)


def _slice(sampler: Sized, order: np.ndarray, place: int, population: int) -> Tensor:
    _same_population(sampler.examples, population)
    start = place * sampler.batch_size
    return torch.from_numpy(order[start : start + sampler.batch_size].copy())


def _check_batch(examples: int, batch_size: int, steps: int) -> None:
    validate.positive_int(examples=examples, batch_size=batch_size, steps=steps)
    if batch_size > examples:
        raise InvalidInputError(f"batch size {batch_size} is larger than the data: {examples} examples")


def _same_population(planned: int, population: int) -> None:
    if planned != population:
        raise InvalidInputError(
            f"the plan was made for exactly {planned} examples and the data has {population}: make the plan for "
            f"{population}, because with these batches the number of examples is part of the guarantee"
        )
