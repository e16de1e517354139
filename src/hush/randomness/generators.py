"""Generators of numpy and torch: keyed by the secret for coins and orders, by a seed for public randomness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hush.randomness.secret import Secret


def generator(secret: Secret, stream: str, step: int) -> np.random.Generator:
    """The numpy generator of (secret, stream, step): Philox with a 128-bit key."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(secret.derive(stream, step), "little")))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator with a public seed (initial weights, splits); restores the state on exit."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def public_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Public seeds for repetitions: the first ``count`` children of numpy's ``SeedSequence(seed)``, 32 bits each."""
    children = np.random.SeedSequence(seed).spawn(count)
    return tuple(int(child.generate_state(1)[0]) for child in children)
