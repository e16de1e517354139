"""What goes into a step and comes out of it, and who shares it or stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from hush.errors import HushError
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
        """The sums over all processes, the same bits on each."""
        ...

    def hear(self, value: Any) -> Any:
        """What process 0 says, on every process: plain data, as JSON has it."""
        ...

    def hear_bytes(self, said: bytes) -> bytes:
        """The same for bytes."""
        ...

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The parts of all processes one after the other; that of process r has ``sizes[r]`` numbers."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def total(self, sums: Sums) -> Sums:
        """The sums as they are."""
        return sums

    def hear(self, value: Any) -> Any:
        """What this process says."""
        return value

    def hear_bytes(self, said: bytes) -> bytes:
        """What this process says."""
        return said

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The only part."""
        return part


class Stopped(HushError):
    """Process 0 has stopped the run; why is what process 0 says."""


def ask_first(ranks: Ranks, action: Callable[[], Any]) -> Any:
    """What ``action`` gives on process 0, which alone does it, as JSON has it; where it fails there, all stop."""
    if ranks.world == 1:
        return action()
    if ranks.rank:
        told = ranks.hear(None)
        if told["failed"]:
            raise Stopped("process 0 has stopped this run, and says why")
        return told["value"]
    try:
        value = action()
    except BaseException:
        ranks.hear({"failed": True})
        raise
    ranks.hear({"failed": False, "value": value})
    return value


class SumsGuard(Protocol):
    """Sees to it that the noise of a step never meets two different sums (`hush.checkpoint`)."""

    def meets(self, sums: Sums) -> bool:
        """Called with the next step's channels before their noise is drawn. False where the run has a fresh secret
        now, so that the sums are to be made anew."""
        ...

    def releasing(self) -> None:
        """Called before weights are released."""
        ...
