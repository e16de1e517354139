"""Numbers the random draws of a model's forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from hush.errors import UnsupportedModelError

State = bytes


@dataclass(eq=False)
class Counter:
    """The number of the next random draw of a forward pass, stored as the seed of torch's own generator.

    Nothing is drawn from that generator; the number keys the draw. Code that rewinds torch's generator (a second
    evaluation point, activation checkpointing, ``torch.random.fork_rng``) therefore rewinds the number too, and a draw
    that bypasses hush is detected because the generator has left the state of its seed.
    """

    device: torch.device
    before: tuple[State, ...]
    clean: dict[int, State]
    again: bool = False  # True once a draw must be repeated in the backward pass

    @staticmethod
    @contextmanager
    def counting(device: torch.device) -> Iterator[Counter]:
        """Count from 0; restores the caller's generators on exit."""
        others = (torch.cuda.default_generators[device.index or 0],) if device.type == "cuda" else ()
        states = [each.get_state() for each in (torch.default_generator, *others)]
        counter = Counter(device, tuple(map(_read_state, others)), {})
        try:
            counter.set_number(0)
            yield counter
        finally:
            for each, state in zip((torch.default_generator, *others), states, strict=True):
                each.set_state(state)

    def take(self) -> int:
        """Return the number of this draw and advance."""
        self.check()
        number = self.number
        self.set_number(number + 1)
        return number

    @property
    def number(self) -> int:
        """The number of the next draw."""
        return torch.default_generator.initial_seed()

    def check(self) -> None:
        """Raise if torch's generators were drawn from."""
        seed = torch.default_generator.initial_seed()
        state = _read_state(torch.default_generator)
        same = state == (self.clean[seed] if seed in self.clean else self.set_number(seed))
        if self.device.type == "cuda":
            now = _read_state(torch.cuda.default_generators[self.device.index or 0])
            same = same and now == self.before[0]
        if not same:
            raise UnsupportedModelError(
                "the model drew from torch's own generator where hush could not intercept the draw, so the numbers are "
                "not tied to examples: draw with torch.rand, torch.randn or dropout, called from Python in the model's "
                "forward or its losses"
            )

    def bookmark(self) -> Callable[[], None]:
        """Return a function that resets the number to its present value."""
        state = torch.default_generator.get_state()

        def rewind() -> None:
            torch.default_generator.set_state(state)

        return rewind

    def set_number(self, number: int) -> State:
        # Not torch.manual_seed: without CUDA it stores a stack trace for every call.
        torch.default_generator.manual_seed(number)
        if number not in self.clean:
            self.clean[number] = _read_state(torch.default_generator)
        return self.clean[number]


def _read_state(generator: torch.Generator) -> State:
    """The state as bytes: comparing tensors would count as a value that the model reads, and inside torch.func a
    tensor made here would be wrapped."""
    with torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction():
        return generator.get_state().numpy().tobytes()
