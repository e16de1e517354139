"""What several releases on the same data cost together: an upper bound, and which theorem it rests on.

Where all spends are privacy events under one neighbouring relation that one accountant can handle, they are composed
as one event. What cannot be composed so is added up: m parts get δ/m each and their ε are summed (a spend that is
known at a few δ only takes one of those). Both hold for models that build on each other. Both take each run's noise
and number of steps as fixed in advance, and where there are several spends that is written down as an assumption:
whoever chooses the noise of a later run by looking at what an earlier one released makes the total itself depend on
the data. `use_filter` needs no such assumption, but a budget that was there first: it is a Rényi filter (Feldman and
Zrnic 2021), by which any sequence of releases, each chosen in the light of all before it and broken off at will, is
(α, B)-RDP for one α and one B that were fixed in advance, as long as their divergences of order α add up to at most B.

An example that contributes nothing may as well be absent: for a plan whose rate and divisor are fixed, zeroing an
example and removing it give the same distribution of outcomes, so an add-remove spend is a zero-out spend of the same
event, and the two are composed as zero-out. The converse does not hold: a zero-out spend may take the number of
examples to be public, and that hides nobody's presence, so add-remove spends never turn the total into add-remove.
Where `replace` meets another relation, all is stated for `replace`, which is one removal and one addition (or one
example zeroed and another one filled in): (ε, δ) becomes (2ε, (1 + e^ε)δ).

A total is about one unit and all or a part of its data (`hush.ledger.scope`, with the proofs): every spend enters it as
so many changes of the spend's own kind, or makes it ∞."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dp_accounting import dp_event

from hush.errors import HushError
from hush.ledger.scope import ROW, WHOLE_ROW, Caps, Scope, count_changes, grow, list_taken, tell_unbounded
from hush.privacy.accounting import SMALLEST_DELTA, Adjacency, default_accountant, epsilon
from hush.privacy.guarantee import Protects, Status, assuming, rounded_up
from hush.privacy.renyi import divergences

WORST: tuple[Status, ...] = ("none", "refuted", "claimed", "proven")
SET_ASIDE = 0.01  # of a filter's δ, for what runs lose of theirs: each about a ten-thousandth
NOTHING = "nothing to compose"
UNBOUNDED = "not bounded"
NO_CAPS: Caps = MappingProxyType({})
FIXED = "nobody chose the noise, the steps or the budget of a later run by looking at what an earlier one released"
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
    assumptions: tuple[str, ...] = ()
    lost: float = 0.0  # δ that the event does not know: batches with more examples than places, the noise's tails
    beside: float = 0.0  # δ that it loses in addition at a larger ε than its own, and where it is composed with others
    unit: str = ROW
    protects: Protects = "example"

    @property
    def scope(self) -> Scope:
        """Whose data it is about, and which part of them."""
        return Scope(self.unit, self.protects)

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
    spends: int = 0
    assumptions: tuple[str, ...] = ()
    scope: Scope = WHOLE_ROW
    reason: str = ""  # why it is ∞, where that is for what a spend is about

    def __post_init__(self) -> None:
        if self.status == "proven" and not (math.isfinite(self.epsilon) and 0 < self.delta < 1):
            object.__setattr__(self, "status", "none")  # nothing is proven by an infinite ε

    def sentence(self) -> str:
        """One honest sentence."""
        if not self.spends:
            return "nothing has been spent"
        runs = "1 spend" if self.spends == 1 else f"{self.spends} spends"
        pair = f"ε = {rounded_up(self.epsilon)} at δ = {rounded_up(self.delta)}"
        about = self.adjacency if self.scope == WHOLE_ROW else f"{self.adjacency}, for {self.scope.in_words()}"
        if self.status == "none" and self.composition != NOTHING:
            why = f": one is {self.reason}" if self.reason else ""
            return f"no finite ε is proven at δ = {rounded_up(self.delta)} ({about}) over {runs}{why}"
        said = f"{self.composition}; {LABEL[self.status]}{assuming(self.assumptions)}"
        return f"at most {pair} ({about}) over {runs}, {said}"


def add_up(
    costs: Sequence[Cost], delta: float | None = None, *, scope: Scope = WHOLE_ROW, caps: Caps = NO_CAPS
) -> Total:
    """The total of these costs for a scope at ``delta``; by default at the smallest δ that is natural for them."""
    found: set[Status] = {cost.status for cost in costs} or {"proven"}
    status = min(found, key=WORST.index)
    adjacency = _common({cost.adjacency for cost in costs}, scope)
    why = next(filter(None, (tell_unbounded(cost.scope, scope, caps) for cost in costs)), "")
    if why and status != "none":
        delta = delta or max(cost.delta for cost in costs)
        return Total(math.inf, delta, adjacency, "none", UNBOUNDED, len(costs), scope=scope, reason=why)
    changes = [1 if why else count_changes(c.scope, scope, caps, c.adjacency, adjacency) for c in costs]
    costs = costs if _is_as_stated(costs, changes, delta) else charge_beside(costs)
    changing = [_Change(*pair) for pair in zip(costs, changes, strict=True)]
    delta = _natural_delta(changing) if delta is None else delta
    if not costs or status == "none":
        return Total(0.0 if not costs else math.inf, delta, adjacency, status, NOTHING, len(costs), scope=scope)
    spent, parts = min(((_added(p, delta), p) for p in _ways(changing)), key=lambda way: way[0])
    taken = (text for c in costs for text in list_taken(c.scope, scope, caps, c.adjacency, adjacency))
    assumed = tuple(dict.fromkeys((*taken, *_assumed(costs))))
    return Total(spent, delta, adjacency, status, _how(changing, parts), len(costs), assumed, scope)


def _is_as_stated(costs: Sequence[Cost], changes: Sequence[int], delta: float | None) -> bool:
    """Whether this is one cost for one change at no smaller a δ, and so no larger an ε, than it was stated for."""
    return len(costs) == 1 and changes[0] == 1 and (delta is None or delta >= costs[0].delta)


def charge_beside(costs: Sequence[Cost]) -> list[Cost]:
    """These costs with what they lose at any ε: beside others, for several changes, and at a smaller δ."""
    return [
        replace(cost, lost=cost.lost + cost.beside, points=tuple((d + cost.beside, e) for d, e in cost.points))
        for cost in costs
    ]


def _assumed(costs: Sequence[Cost]) -> tuple[str, ...]:
    """Every assumption that a spend rests on, once, and what composing several of them takes for granted."""
    own = dict.fromkeys(text for cost in costs for text in cost.assumptions)
    return (*own, FIXED) if len(costs) > 1 else tuple(own)


@dataclass(frozen=True)
class _Change:
    """A cost, and how many changes of its kind one change of the total's kind is."""

    cost: Cost
    changes: int

    @property
    def relation(self) -> bool | None:
        """Whether its event compares under `replace`; None where there is none. Events that differ stay apart."""
        return None if self.cost.event is None else self.cost.adjacency == "replace"


@dataclass(frozen=True)
class Filtered:
    """How much of a Rényi filter is used: ``spent`` of ``allowed``, both divergences of order ``order``, and of the δ
    that was set aside for what no divergence knows ``lost`` of ``set_aside``."""

    order: float
    spent: float
    allowed: float
    lost: float = 0.0
    set_aside: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether all spends so far stay within it."""
        return self.spent <= self.allowed and self.lost <= self.set_aside


def use_filter(
    first: Cost, costs: Sequence[Cost], epsilon: float, delta: float, *, scope: Scope = WHOLE_ROW
) -> Filtered | None:
    """The filter that belongs to (ε, δ), and what these costs take of it; None where a divergence is not known, and
    where a cost is not about what the budget is about.

    Order α allows B(α) = ε + [ln(δ'(α − 1)) − α ln(1 − 1/α)]/(α − 1), where δ' is δ without what is set aside for the
    δ that runs lose. Nothing of it may depend on anything released: the order is the one at which ``first``, the plan
    of the first run, would fit in most often.
    """
    if any(cost.event is None or cost.adjacency == "replace" or cost.status != "proven" for cost in (first, *costs)):
        return None
    if any(cost.scope != scope for cost in (first, *costs)):
        return None
    adjacency = _common({cost.adjacency for cost in costs}, scope)
    try:
        each = divergences(first.event, adjacency)
        allowed = {order: epsilon + _conversion(order, delta * (1 - SET_ASIDE)) for order in each}
        order = max(each, key=lambda order: allowed[order] / max(each[order], 1e-300))
        joint = dp_event.ComposedDpEvent([cost.event for cost in costs])
        spent, lost = divergences(joint, adjacency, (order,))[order], sum(cost.lost for cost in charge_beside(costs))
        return Filtered(order, spent, max(allowed[order], 0.0), lost, SET_ASIDE * delta)
    except HushError:
        return None


def _conversion(order: float, delta: float) -> float:
    return (math.log(delta * (order - 1)) - order * math.log1p(-1 / order)) / (order - 1)


def _how(costs: Sequence[_Change], parts: Sequence[_Change]) -> str:
    if len(parts) > 1:
        return f"by basic composition: the ε of {len(parts)} parts, each at its share of δ, added up"
    if parts[0].cost.event is None:
        return "as it was stated"
    return "accounted as one event" if len(costs) == 1 else "composed as one event"


def _common(kinds: set[Adjacency], scope: Scope = WHOLE_ROW) -> Adjacency:
    if "replace" in kinds or scope.protects != "example":
        return "replace"
    return "zero-out" if "zero-out" in kinds else "add-remove"


def _ways(changing: Sequence[_Change]) -> Iterator[list[_Change]]:
    """The parts to add up, in the ways that may be the best: each event for as many changes as it must bear, and where
    these differ, all of one relation for as many as any of them, so that they are one part."""
    yield list(_parts(changing))
    most = {kind: max((c.changes for c in changing if c.relation == kind), default=1) for kind in (True, False)}
    raised = [c if c.relation is None else replace(c, changes=most[c.relation]) for c in changing]
    if raised != list(changing):
        yield list(_parts(raised))


def _parts(changing: Sequence[_Change]) -> Iterator[_Change]:
    """As few parts as can be accounted for: the events of one relation and number of changes together, everything else
    alone."""
    yield from (change for change in changing if change.cost.event is None)
    groups: Mapping[tuple[bool, int], list[Cost]] = defaultdict(list)
    for change in changing:
        if change.relation is not None:
            groups[change.relation, change.changes].append(change.cost)
    for (_, changes), members in sorted(groups.items(), key=lambda item: item[0]):
        yield from (_Change(cost, changes) for cost in _join(members))


def _join(members: list[Cost]) -> list[Cost]:
    """One cost for all of them, if their events can be accounted for together."""
    if len(members) < 2:
        return members
    event = dp_event.ComposedDpEvent([cost.event for cost in members])
    lost = sum(cost.lost for cost in members)
    joint = Cost(_common({cost.adjacency for cost in members}), "proven", members[0].delta, event, lost=lost)
    return [joint] if _accountable(joint) else members


def _accountable(cost: Cost) -> bool:
    try:
        default_accountant(cost.event, cost.adjacency)
    except HushError:
        return False
    return True


def _added(parts: Sequence[_Change], delta: float) -> float:
    """Σ ε, where those that are known at few δ take theirs and the others share what is left."""
    stated = [_stated(part, delta / len(parts)) for part in parts if part.cost.event is None]
    events = [part for part in parts if part.cost.event is not None]
    left = delta - sum(d for d, _ in stated) - sum(part.cost.lost for part in events)
    if left < -1e-12 * delta or (events and left <= 0):
        return math.inf
    spent = sum(e for _, e in stated)
    return spent + sum(_event_epsilon(part, left / len(events)) for part in events)


def _stated(part: _Change, share: float) -> tuple[float, float]:
    """The point (δ, ε) to use: the smallest ε within the share, else the point with the smallest δ."""
    points = [grow(d, e, part.changes) for d, e in part.cost.points]
    within = [point for point in points if point[0] <= share * (1 + 1e-12)]
    return min(within, key=lambda point: point[1]) if within else min(points)


def _event_epsilon(part: _Change, delta: float) -> float:
    """ε of an event that has ``delta`` beside what it loses, for as many changes as it must bear."""
    cost, changes = part.cost, part.changes
    if changes == 1:
        return cost.epsilon(delta)
    share, inner = delta + cost.lost, delta / 2
    while inner >= SMALLEST_DELTA:
        found = cost.epsilon(inner)
        if not found < 200 or grow(cost.lost, found, changes)[0] > share:
            break
        needed, grown = grow(inner + cost.lost, found, changes)
        if needed <= share:
            return grown
        inner = min(0.5 * inner, 0.5 * inner * share / needed)
    return math.inf


def _natural_delta(changing: Sequence[_Change]) -> float:
    """Room for every stated δ, and for the largest δ among the events."""
    stated = sum(_stated(part, math.inf)[0] for part in changing if part.cost.event is None and part.cost.points)
    events = max((part.cost.delta for part in changing if part.cost.event is not None), default=0.0)
    return min(stated + events, 1.0) or 1e-5
