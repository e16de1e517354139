"""A run's secret and the keys derived from it: one for each (stream, step), none with two purposes.

The key of a stream at a step is BLAKE2b (RFC 7693) of the text ``stream ‖ 0 ‖ step``, keyed with the secret's 32 bytes.
Stream names (`hush.randomness.streams`) and steps separate purposes: noise of each channel, coins, fixed order, draws
inside a model, digests. A shorter key is not a prefix of a longer one, because BLAKE2b hashes the output length.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hush.randomness import streams


@dataclass(frozen=True, repr=False)
class Secret:
    """The 32 bytes from which all sampling and noise of one run derive; never printed, never released."""

    key: bytes
    origin: str = "system"  # "seed": chosen by a person; "given": handed to the run. The guarantee states both
    root: bytes = b""  # key of the run's first secret, if this one replaced it: for fixed batches and groups

    def __repr__(self) -> str:
        return f"Secret(origin={self.origin!r}, key hidden)"

    @staticmethod
    def fresh() -> Secret:
        """A new secret from the operating system."""
        return Secret(secrets.token_bytes(32))

    @staticmethod
    def from_seed(seed: int, *bound_to: str) -> Secret:
        """A reproducible secret, bound to its purpose (the plan's fingerprint), so that two plans never share noise."""
        text = "\0".join(["hush secret", str(seed), *bound_to])
        return Secret(hashlib.blake2b(text.encode(), digest_size=32).digest(), origin="seed")

    def given(self) -> Secret:
        """The same secret, marked as handed to the run: the caller may use it for another run too."""
        return replace(self, origin="given") if self.origin == "system" else self

    def derive(self, stream: str, step: int, size: int = 16) -> bytes:
        """The key of one stream at one step."""
        message = f"{stream}\0{step}".encode()
        key = self.root if self.root and stream == streams.ORDER else self.key
        return hashlib.blake2b(message, key=key, digest_size=size).digest()

    @property
    def name(self) -> str:
        """An identifier of this secret that reveals nothing about it."""
        return self.derive(streams.SECRET_NAME, 0).hex()

    def renewed(self) -> Secret:
        """A fresh secret for all later noise and coins. Fixed batches keep their order: in another order an example
        could take part more often than planned."""
        return Secret(secrets.token_bytes(32), self.origin, self.first.key)

    @property
    def first(self) -> Secret:
        """The secret the run started with."""
        return Secret(self.root or self.key, self.origin)

    def to_json(self) -> dict[str, str]:
        """For a checkpoint, which is private."""
        return {"key": self.key.hex(), "origin": self.origin, "root": self.root.hex()}

    @staticmethod
    def from_json(data: Mapping[str, str]) -> Secret:
        """Back from `to_json`."""
        return Secret(bytes.fromhex(data["key"]), data["origin"], bytes.fromhex(data["root"]))

    def child(self, stream: str) -> Secret:
        """A separate secret for a part of the run."""
        return Secret(self.derive(stream, 0, size=32), self.origin)
