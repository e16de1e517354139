"""Steps that were taken again with fresh noise: which, and under which secret their batches are drawn.

A step taken again with the same sums and the same secret is the same release and costs nothing. With other sums it
takes a fresh secret, and both takings are charged (`hush.claims`). An attempt is a stretch of steps under one secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hush.randomness import Secret
from hush.sampling import OnePass, Participation, Reshuffled, SameOrder, Separated


@dataclass(frozen=True)
class Attempt:
    """The steps ``start`` … ``taken`` − 1 (from 0) under one secret."""

    start: int = 0
    taken: int = 0


@dataclass(frozen=True)
class History:
    """Every attempt of a run, and the one that it is on."""

    attempts: tuple[Attempt, ...] = (Attempt(),)
    current: int = 0

    @property
    def now(self) -> Attempt:
        """The attempt that the run is on."""
        return self.attempts[self.current]

    @property
    def again(self) -> tuple[Attempt, ...]:
        """All but the first."""
        return self.attempts[1:]

    def reached(self, steps: int) -> History:
        """The current attempt has taken all steps before this one."""
        if steps <= self.now.taken:
            return self
        moved = replace(self.now, taken=steps)
        return replace(self, attempts=(*self.attempts[: self.current], moved, *self.attempts[self.current + 1 :]))

    def renewed(self, step: int) -> History:
        """From this step on, another attempt."""
        return History((*self.attempts, Attempt(step, step)), len(self.attempts))

    def joined(self, others: Sequence[Attempt]) -> History:
        """With what another record knows of the same attempts: whatever was taken by either was taken."""
        pairs = zip(self.attempts, others, strict=False)
        both = [Attempt(min(a.start, b.start), max(a.taken, b.taken)) for a, b in pairs]
        longer = max(self.attempts, others, key=len)
        return replace(self, attempts=(*both, *longer[len(both) :]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"attempts": [[a.start, a.taken] for a in self.attempts], "current": self.current}

    @staticmethod
    def from_json(data: dict[str, Any]) -> History:
        """Back from `to_json`."""
        return History(tuple(Attempt(int(a), int(b)) for a, b in data["attempts"]), int(data["current"]))


def pick_secret(secret: Secret, participation: Participation) -> Secret:
    """The secret that batches are drawn by: fixed batches by the first one for ever, coins by the present one. Groups
    that are fixed, with coins in them, take the stream `hush.randomness.ORDER`, which stays the first one's."""
    return secret.first if isinstance(participation, (OnePass, SameOrder, Separated, Reshuffled)) else secret
