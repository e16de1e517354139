"""What goes into a step and comes out of it, and who shares it or stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from hush.named import Named, Sums

MICROBATCH = 400  # places of a piece, a third of them empty at batch 256: more activations fall out of the cache


@dataclass(frozen=True)
class Batch:
    """The examples of one step of one run. Which they are, and how many, is private."""

    step: int
    indices: Tensor = field(repr=False)
    run: object = field(repr=False)


@dataclass(frozen=True)
class Record:
    """What happened in a step. ``private`` (loss, batch size, clipped examples) must never be released."""

    step: int
    private: Named

    def numbers(self) -> dict[str, float]:
        """The private figures as plain numbers, for a file marked private."""
        return {name: float(value) for name, value in self.private.items()}


class Ranks(Protocol):
    """How several processes share the examples of a step; each of them adds the same noise and takes the same step."""

    @property
    def rank(self) -> int:
        """This process."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    def total(self, sums: Sums) -> Sums:
        """The sums over all processes."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def total(self, sums: Sums) -> Sums:
        """The sums as they are."""
        return sums


class SumsGuard(Protocol):
    """Sees to it that the noise of a step never meets two different sums (`hush.checkpoint`)."""

    def meets(self, sums: Sums) -> bool:
        """Called with the next step's channels before their noise is drawn. False where the run has a fresh secret
        now, so that the sums are to be made anew."""
        ...

    def releasing(self) -> None:
        """Called before weights are released."""
        ...
