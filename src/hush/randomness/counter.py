"""The number of a random draw inside a model's forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.errors import UnsupportedModelError


@dataclass(eq=False)
class Counter:
    """The number of the next random draw of a forward, kept as the seed of torch's own generator.

    Nothing is drawn from that generator: the number is what a draw is keyed by. But whatever brings torch's generator
    back to an earlier moment (a second point, activation checkpointing, ``torch.random.fork_rng``) brings the number
    back with it, and a draw that was made without us shows, because the generator no longer stands at its seed.
    """

    device: torch.device
    before: tuple[Tensor, ...]
    clean: dict[int, Tensor]
    again: bool = False  # whether something was drawn that the backward pass draws again

    @staticmethod
    @contextmanager
    def counting(device: torch.device) -> Iterator[Counter]:
        """Count from 0; the caller's generators come back after."""
        others = (torch.cuda.default_generators[device.index or 0],) if device.type == "cuda" else ()
        states = [each.get_state() for each in (torch.default_generator, *others)]
        counter = Counter(device, tuple(states[1:]), {})
        try:
            counter.stand_at(0)
            yield counter
        finally:
            for each, state in zip((torch.default_generator, *others), states, strict=True):
                each.set_state(state)

    def take(self) -> int:
        """The number of this draw; the next one has the next."""
        self.check()
        number = self.number
        self.stand_at(number + 1)
        return number

    @property
    def number(self) -> int:
        """Of the next draw."""
        return torch.default_generator.initial_seed()

    def check(self) -> None:
        """Refuse where torch's generators were drawn from."""
        seed = torch.default_generator.initial_seed()
        state = torch.default_generator.get_state()
        same = torch.equal(state, self.clean[seed] if seed in self.clean else self.stand_at(seed))
        if self.device.type == "cuda":
            now = torch.cuda.default_generators[self.device.index or 0].get_state()
            same = same and torch.equal(now, self.before[0])
        if not same:
            raise UnsupportedModelError(
                "the model drew random numbers that hush did not see, from torch's own generator, so they do not "
                "follow the examples: draw them with torch.rand, torch.randn or dropout called from Python, in the "
                "model's forward or its losses"
            )

    def remembered(self) -> Callable[[], None]:
        """Brings the number back to what it is now."""
        state = torch.default_generator.get_state()

        def rewind() -> None:
            torch.default_generator.set_state(state)

        return rewind

    def stand_at(self, number: int) -> Tensor:
        """The next draw has this number. Not by torch.manual_seed: without CUDA it keeps a stack trace for every
        call."""
        torch.default_generator.manual_seed(number)
        if number not in self.clean:
            self.clean[number] = torch.default_generator.get_state()
        return self.clean[number]
