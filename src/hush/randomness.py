"""Every generator in hush is made here, as a pure function of (secret, stream, step).

Sampling and noise must be unpredictable to whoever sees the released model, and the same again after a resume. So a
run holds one 256-bit secret, and each (stream, step) pair keys a counter-based generator of its own through BLAKE2b.
torch's CPU generator is not used for noise: it keeps 32 bits of its seed, so that two of 100 000 steps would share
their noise almost surely.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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


@contextmanager
def model_randomness(secret: Secret, step: int, piece: int, device: torch.device) -> Iterator[None]:
    """Fix torch's global generator for one piece of one step: dropout and a VAE's draws are the same for every
    gradient engine, for both points of a two-point query, and after a resume. The caller's state comes back after."""
    seed = int.from_bytes(secret.derive(f"model/{piece}", step, size=7), "little")
    generators = [torch.default_generator]  # not torch.manual_seed: without CUDA it keeps a stack trace for every call
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [each.get_state() for each in generators]
    try:
        for each in generators:
            each.manual_seed(seed)
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


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
