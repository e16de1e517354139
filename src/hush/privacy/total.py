"""What several releases on the same data cost together: an upper bound, and which theorem it rests on.

Where all spends are privacy events under one neighbouring relation that one accountant can handle, they are composed
as one event. That holds for models that build on each other, as long as nobody chose the noise or the number of steps
of a later run by looking at what an earlier one released. What cannot be composed so is added up: m parts get δ/m each
and their ε are summed (a spend that is known at a few δ only takes one of those); this holds in any case.

An example that contributes nothing may as well be absent, so an add-remove spend is a zero-out spend too. Where
`replace` meets another relation, all is stated for `replace`, which is one removal and one addition: (ε, δ) becomes
(2ε, (1 + e^ε)δ).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import dp_event

from hush.errors import HushError
from hush.privacy.accounting import Adjacency, default_accountant, epsilon
from hush.privacy.guarantee import Status, rounded_up

WORST: tuple[Status, ...] = ("none", "refuted", "claimed", "proven")
LABEL = {
    "none": "no privacy: something was trained on it without noise",
    "refuted": "not a guarantee: an audit refuted the ε of a run in it",
    "claimed": "not a guarantee: a run in it has an ε that is claimed and not proven",
    "proven": "proven",
}


@dataclass(frozen=True)
class Cost:
    """What one run, or its first steps, cost: an event, or where it cannot be written down some points (δ, ε)."""

    adjacency: Adjacency
    status: Status
    delta: float
    event: Any = None
    points: tuple[tuple[float, float], ...] = ()

    def epsilon(self, delta: float) -> float:
        """ε of the event at this δ, by the tightest accountant that can prove it."""
        accountant = default_accountant(self.event, self.adjacency)
        return epsilon(self.event, delta, adjacency=self.adjacency, accountant=accountant)


@dataclass(frozen=True)
class Total:
    """(ε, δ) of everything that was spent on a dataset."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    status: Status
    composition: str
    spends: int = field(default=0)

    def sentence(self) -> str:
        """One honest sentence."""
        if not self.spends:
            return "nothing has been spent"
        runs = "1 spend" if self.spends == 1 else f"{self.spends} spends"
        pair = f"ε = {rounded_up(self.epsilon)} at δ = {rounded_up(self.delta)}"
        return f"at most {pair} ({self.adjacency}) over {runs}, {self.composition}; {LABEL[self.status]}"


def total(costs: Sequence[Cost], delta: float | None = None) -> Total:
    """The total of these costs at ``delta``; by default at the smallest δ that is natural for them."""
    found: set[Status] = {cost.status for cost in costs} or {"proven"}
    status = min(found, key=WORST.index)
    adjacency = _common({cost.adjacency for cost in costs})
    delta = _natural_delta(costs, adjacency) if delta is None else delta
    if not costs:
        return Total(0.0, delta, adjacency, status, "nothing to compose")
    if status == "none":
        return Total(math.inf, delta, adjacency, status, "nothing to compose", len(costs))
    parts = list(_parts(costs))
    spent = _added(parts, delta, adjacency)
    return Total(spent, delta, adjacency, status, _how(len(costs), parts), len(costs))


def _how(costs: int, parts: Sequence[Cost]) -> str:
    if len(parts) > 1:
        return f"by basic composition: the ε of {len(parts)} parts, each at its share of δ, added up"
    if parts[0].event is None:
        return "as it was stated"
    return "accounted as one event" if costs == 1 else "composed as one event"


def _common(kinds: set[Adjacency]) -> Adjacency:
    if "replace" in kinds:
        return "replace"
    return "zero-out" if "zero-out" in kinds else "add-remove"


def _parts(costs: Sequence[Cost]) -> Iterator[Cost]:
    """As few parts as can be accounted for: the events of one relation together, everything else alone."""
    yield from (cost for cost in costs if cost.event is None)
    for group in (("add-remove", "zero-out"), ("replace",)):
        members = [cost for cost in costs if cost.event is not None and cost.adjacency in group]
        if len(members) < 2:
            yield from members
            continue
        event = dp_event.ComposedDpEvent([cost.event for cost in members])
        joint = Cost(_common({cost.adjacency for cost in members}), "proven", members[0].delta, event)
        yield from [joint] if _accountable(joint) else members


def _accountable(cost: Cost) -> bool:
    try:
        default_accountant(cost.event, cost.adjacency)
    except HushError:
        return False
    return True


def _added(parts: Sequence[Cost], delta: float, adjacency: Adjacency) -> float:
    """Σ ε, where those that are known at few δ take theirs and the others share what is left."""
    stated = [_stated(part, delta / len(parts), adjacency) for part in parts if part.event is None]
    events = [part for part in parts if part.event is not None]
    left = delta - sum(d for d, _ in stated)
    if left < -1e-12 * delta or (events and left <= 0):
        return math.inf
    spent = sum(e for _, e in stated)
    return spent + sum(_event_epsilon(part, left / len(events), adjacency) for part in events)


def _stated(cost: Cost, share: float, adjacency: Adjacency) -> tuple[float, float]:
    """The point (δ, ε) to use: the smallest ε within the share, else the point with the smallest δ."""
    twice = adjacency == "replace" and cost.adjacency != "replace"
    points = [_doubled(d, e) if twice else (d, e) for d, e in cost.points]
    within = [point for point in points if point[0] <= share * (1 + 1e-12)]
    return min(within, key=lambda point: point[1]) if within else min(points)


def _doubled(delta: float, epsilon: float) -> tuple[float, float]:
    """One removal and one addition."""
    return (1 + math.exp(min(epsilon, 700.0))) * delta, 2 * epsilon


def _event_epsilon(cost: Cost, delta: float, adjacency: Adjacency) -> float:
    if adjacency != "replace" or cost.adjacency == "replace":
        return cost.epsilon(delta)
    inner = delta / 2
    for _ in range(60):
        found = cost.epsilon(inner)
        if not found < 200:
            return math.inf
        needed, twice = _doubled(inner, found)
        if needed <= delta:
            return twice
        inner *= 0.5 * delta / needed
    return math.inf


def _natural_delta(costs: Sequence[Cost], adjacency: Adjacency) -> float:
    """Room for every stated δ, and for the largest δ among the events."""
    stated = sum(_stated(cost, math.inf, adjacency)[0] for cost in costs if cost.event is None and cost.points)
    events = max((cost.delta for cost in costs if cost.event is not None), default=0.0)
    return min(stated + events, 1.0) or 1e-5
