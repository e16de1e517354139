"""Steps that were taken again with fresh noise, and what all of it costs together.

A step taken again with the same sums and the same secret is the same release and costs nothing. With other sums it
takes a fresh secret, and both takings are charged. An attempt is a stretch of steps under one secret. After s steps
were taken, going on from step t with a fresh secret costs, in the steps up to T,

| the plan                                               | costs                 |
|--------------------------------------------------------|-----------------------|
| batches and noise drawn anew at every step             | E(1…s) ∘ E(t+1…T)     |
| correlated noise, fixed batches, or a hidden state     | E(1…s) ∘ E(1…T)       |

where E(1…T) bounds the second stretch because it is a run of its own in which nobody takes part before step t: its
coins and its noise are fresh, the noise starts anew, and the fixed batches or groups stay those of the first secret, so
that nobody takes part more often than planned. A hidden state (DiceSGD's error) carries the first data on; its proof
charges every step for whatever the state holds, so the steps add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dp_accounting import dp_event

from hush.matrices import Structure, drop_first
from hush.queries import Claim
from hush.randomness import Secret
from hush.sampling import (
    OnePass,
    Participation,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)

if TYPE_CHECKING:
    from hush.plan import Plan


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
        both = [max((a, b), key=lambda x: x.taken) for a, b in zip(self.attempts, others, strict=False)]
        longer = max(self.attempts, others, key=len)
        return replace(self, attempts=(*both, *longer[len(both) :]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"attempts": [[a.start, a.taken] for a in self.attempts], "current": self.current}

    @staticmethod
    def from_json(data: dict[str, Any]) -> History:
        """Back from `to_json`."""
        return History(tuple(Attempt(int(a), int(b)) for a, b in data["attempts"]), int(data["current"]))


def drawn_anew(plan: Plan) -> bool:
    """Whether batches and noise of a step have nothing to do with those of any other."""
    sampled = isinstance(plan.sampler.participation, (PoissonSampled, WithoutReplacement))
    plain = all(channel.proof == "sum" for channel in plan.query.channels.values())
    return sampled and plain and plan.noise.structure.bands == 1


def drawing(secret: Secret, participation: Participation) -> Secret:
    """The secret that batches are drawn by: fixed batches by the first one for ever, coins by the present one. Groups
    that are fixed, with coins in them, take the stream `hush.randomness.ORDER`, which stays the first one's."""
    return secret.first if isinstance(participation, (OnePass, SameOrder, Separated, Reshuffled)) else secret


def after(start: int, participation: Any, structure: Structure) -> tuple[Any, Structure]:
    """Participation and noise of the steps from ``start`` on, where every step stands alone."""
    if start == 0:
        return participation, structure
    return replace(participation, steps=participation.steps - start), drop_first(structure, start)


def claims_of(plan: Plan, attempts: Iterable[Attempt]) -> tuple[Claim, ...]:
    """What these attempts cost together, by every claim that there is about the plan; the proven one first."""
    taken = [attempt for attempt in attempts if attempt.taken > attempt.start]
    reason = _reason(taken)
    if hasattr(plan.query, "claims"):
        steps = sum(attempt.taken for attempt in taken)
        return tuple(replace(claim, reason=_both(reason, claim.reason)) for claim in plan.own_claims(steps))
    parts = [_event(plan, attempt) for attempt in taken]
    event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
    return (Claim(event, plan.neighbours, "proven", reason),)


def _event(plan: Plan, attempt: Attempt) -> Any:
    """E(t+1…s) where every step stands alone, else E(1…s)."""
    if not drawn_anew(plan) or attempt.start == 0:
        return plan.event(attempt.taken)
    return plan.event(attempt.taken, start=attempt.start)


def _reason(taken: Sequence[Attempt]) -> str:
    if len(taken) < 2:
        return ""
    parts = " and ".join(f"{a.start + 1} to {a.taken}" for a in taken[1:])
    return f"steps {parts} were taken again with fresh noise, as their sums had changed, and every taking is counted"


def _both(first: str, second: str) -> str:
    return "; ".join(part for part in (first, second) if part)
