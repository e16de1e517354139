"""Every generator in hush is made here, as a pure function of (secret, stream, step).

Sampling and noise must be unpredictable to whoever sees the released model, and the same again after a resume. So a
run holds one 256-bit secret, and each (stream, step) pair keys a counter-based generator of its own through BLAKE2b.
torch's CPU generator is not used for noise: it keeps 32 bits of its seed, so that two of 100 000 steps would share
their noise almost surely.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hush.errors import Refused
from hush.normals import normal_of_key

ORDER = "order"
"""The stream of fixed batches and groups."""


@dataclass(frozen=True, repr=False)
class Secret:
    """Thirty-two bytes from which all sampling and noise of one run derive; never printed, never released."""

    key: bytes
    origin: str = "system"  # "system", or "seed" where a person chose it: then the guarantee says so
    root: bytes = b""  # the first secret's key, where this one took its place: of fixed batches and groups

    def __repr__(self) -> str:
        return f"Secret(origin={self.origin!r}, key hidden)"

    @staticmethod
    def fresh() -> Secret:
        """A new secret from the operating system."""
        return Secret(secrets.token_bytes(32))

    @staticmethod
    def from_seed(seed: int, *bound_to: str) -> Secret:
        """A reproducible secret, bound to what it is for (the plan), so that two plans never share noise."""
        text = "\0".join(["hush secret", str(seed), *bound_to])
        return Secret(hashlib.blake2b(text.encode(), digest_size=32).digest(), origin="seed")

    def derive(self, stream: str, step: int, size: int = 16) -> bytes:
        """The key of one stream at one step."""
        message = f"{stream}\0{step}".encode()
        key = self.root if self.root and stream == ORDER else self.key
        return hashlib.blake2b(message, key=key, digest_size=size).digest()

    @property
    def name(self) -> str:
        """What tells this secret from any other, and says nothing about it."""
        return self.derive("name", 0).hex()

    def renewed(self) -> Secret:
        """A fresh secret for all noise and coins to come. Fixed batches stay as they are: in another order somebody
        could take part more often than planned."""
        return Secret(secrets.token_bytes(32), self.origin, self.first.key)

    @property
    def first(self) -> Secret:
        """The secret that the run began with."""
        return Secret(self.root or self.key, self.origin)

    def to_json(self) -> dict[str, str]:
        """For a checkpoint, which is private."""
        return {"key": self.key.hex(), "origin": self.origin, "root": self.root.hex()}

    @staticmethod
    def from_json(data: Mapping[str, str]) -> Secret:
        """Back from `to_json`."""
        return Secret(bytes.fromhex(data["key"]), data["origin"], bytes.fromhex(data["root"]))

    def child(self, stream: str) -> Secret:
        """A secret of its own for a part of the run."""
        return Secret(self.derive(stream, 0, size=32), self.origin)


def generator(secret: Secret, stream: str, step: int) -> np.random.Generator:
    """The numpy generator of (secret, stream, step): Philox with a 128-bit key."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(secret.derive(stream, step), "little")))


def normal(secret: Secret, stream: str, step: int, like: Tensor, start: int = 0) -> Tensor:
    """A flat standard normal vector with the length, type and device of ``like``, keyed by (secret, stream, step); on
    the CPU also the part of a longer one that begins at ``start``, a multiple of a block.

    On the CPU the bits are AES-256 in counter mode, so they are cryptographically secure, and the transform is Box and
    Muller's. The vector is made in blocks of a fixed size: it does not depend on the number of threads.
    """
    if like.device.type == "cuda":
        assert start == 0, "the part of a vector is made on the CPU only"
        seed = int.from_bytes(secret.derive(stream, step, size=8), "little", signed=True)
        device_generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(like.numel(), generator=device_generator, dtype=like.dtype, device=like.device)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return normal_of_key(secret.derive(stream, step, size=32), like.numel(), dtype, start).to(like.device, like.dtype)


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
            counter._stand_at(0)
            yield counter
        finally:
            for each, state in zip((torch.default_generator, *others), states, strict=True):
                each.set_state(state)

    def take(self) -> int:
        """The number of this draw; the next one has the next."""
        self.check()
        number = self.number
        self._stand_at(number + 1)
        return number

    @property
    def number(self) -> int:
        """Of the next draw."""
        return torch.default_generator.initial_seed()

    def check(self) -> None:
        """Refuse where torch's generators were drawn from."""
        seed = torch.default_generator.initial_seed()
        state = torch.default_generator.get_state()
        same = torch.equal(state, self.clean[seed] if seed in self.clean else self._stand_at(seed))
        if self.device.type == "cuda":
            now = torch.cuda.default_generators[self.device.index or 0].get_state()
            same = same and torch.equal(now, self.before[0])
        if not same:
            raise Refused(
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

    def _stand_at(self, number: int) -> Tensor:
        """Not torch.manual_seed: without CUDA it keeps a stack trace for every call."""
        torch.default_generator.manual_seed(number)
        if number not in self.clean:
            self.clean[number] = torch.default_generator.get_state()
        return self.clean[number]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fix torch's global generator by a public seed (initial weights, splits); the caller's state comes back after."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def public_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Public seeds for repetitions: the first ``count`` children of numpy's ``SeedSequence(seed)``, 32 bits each."""
    children = np.random.SeedSequence(seed).spawn(count)
    return tuple(int(child.generate_state(1)[0]) for child in children)
