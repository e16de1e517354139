"""A run's secret, and the keys that derive from it: one for each (stream, step), none for two purposes.

The key of a stream at a step is BLAKE2b (RFC 7693) of the text ``stream ‖ 0 ‖ step``, keyed with the secret's 32 bytes.
Stream names and steps are what separates purposes: noise of each channel, coins, fixed order, draws inside a model,
digests. A shorter key is not the beginning of a longer one, since BLAKE2b takes its output's length into account.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hush.randomness import streams


@dataclass(frozen=True, repr=False)
class Secret:
    """Thirty-two bytes from which all sampling and noise of one run derive; never printed, never released."""

    key: bytes
    origin: str = "system"  # "seed" where a person chose it, "given" where a run did not make it: the guarantee says so
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

    def given(self) -> Secret:
        """The same, handed to a run by somebody who may hand it to another."""
        return replace(self, origin="given") if self.origin == "system" else self

    def derive(self, stream: str, step: int, size: int = 16) -> bytes:
        """The key of one stream at one step."""
        message = f"{stream}\0{step}".encode()
        key = self.root if self.root and stream == streams.ORDER else self.key
        return hashlib.blake2b(message, key=key, digest_size=size).digest()

    @property
    def name(self) -> str:
        """What tells this secret from any other, and says nothing about it."""
        return self.derive(streams.SECRET_NAME, 0).hex()

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
