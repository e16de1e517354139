"""What several releases on the same data cost together: an upper bound, and which theorem it rests on.

Where all spends are privacy events under one neighbouring relation that one accountant can handle, they are composed
as one event; more different releases than an accountant takes are rounded up to fewer kinds first (`coarsen`). What
cannot be composed so is added up: m parts get δ/m each and their ε are summed (a spend that is known at a few δ only
takes one of those). No total raises: where nothing is proven it is ∞.

All of these hold for models that build on each other. All take each run's noise and number of steps as fixed in
advance, which is stated as an assumption if there are several spends: if the noise of a later run is chosen by looking
at what an earlier one released, the total itself depends on the data. `use_filter` needs no such
assumption, but a budget that was there first: it is a Rényi filter (Feldman and Zrnic 2021), by which any sequence of
releases, each chosen in the light of all before it and broken off at will, is (α, B)-RDP for one α and one B that were
fixed in advance, as long as their divergences of order α add up to at most B.

An example that contributes nothing may as well be absent: for a plan whose rate and divisor are fixed, zeroing an
example and removing it give the same distribution of outcomes, so an add-remove spend is a zero-out spend of the same
event, and the two are composed as zero-out. The converse does not hold: a zero-out spend may take the number of
examples to be public, and that does not hide presence, so add-remove spends never turn the total into add-remove.
If `replace` is combined with another relation, all is stated for `replace`, which is one removal and one addition (or
one example zeroed and another one filled in): (ε, δ) becomes (2ε, (1 + e^ε)δ).

A total is about one unit and all or a part of its data (`hush.ledger.total`, with the proofs): every spend enters it as
a number of changes of the spend's own kind, or makes it ∞.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dp_accounting import dp_event

from hush._internal.validate import choice
from hush.accounting.accountant import (
    MOST_LEAVES,
    SMALLEST_DELTA,
    Accountant,
    Adjacency,
    default_accountant,
    epsilon,
    imprecise_epsilon,
)
from hush.accounting.events import CountedEvents, find_leaves, rebuild
from hush.accounting.guarantee import (
    PROTECTED,
    WHAT,
    Protects,
    Status,
    list_in_line,
    order_conditions,
    rounded_up,
)
from hush.accounting.renyi import divergences
from hush.errors import HushError, InvalidInputError

# What a total is about: whose data (its unit) and which part of them, and how a spend about one counts for another.
#
# Every spend compares two datasets that differ in one change of its own kind: one row or all rows of one person, and of
# these everything, the features alone or the labels alone. A total compares datasets that differ in one change of its
# kind. Where that is k changes of the spend's kind, one after another, group privacy gives (Vadhan 2017, lemma 2.2)
#
#     (ε, δ) becomes (kε, δ·Σ_{j<k} e^{jε}).
#
# Proof: with P_0 … P_k the distributions along the way, P_0(A) ≤ e^ε P_1(A) + δ ≤ … ≤ e^{kε} P_k(A) + δ·Σ_{j<k} e^{jε}.
# So all there is to know of a spend is k, or that no such way exists and its ε is ∞. Spends with the same k are
# composed first: the ways they go need not be the same, for at every place each of them, whatever the others have
# released, is compared with itself one change of its own kind farther.
#
# **Which part.** A spend about features alone takes the labels, and who is in the data, to be public: two datasets that
# differ in a label may be told apart by it with certainty. So it is ∞ in a total about labels and in one about whole
# examples; and a spend about labels alone is ∞ in the other two. A spend about whole examples covers a part of them:
# changing the features of an example is replacing it. So totals about a part are stated for `replace`.
#
# **Replace.** One replacement is one removal and one addition (or one example zeroed and another filled in): a spend of
# another relation counts twice in a total for `replace`.
#
# **A spend per row in a total per person.** Without a bound on a person's rows there is no k. If every person is known
# to have at most m rows, removing or adding a person is at most m such changes of a row, and zeroing one is too: k = m.
# Replacing a person's rows by as many others is m replacements, or 2m removals and additions. For replacements by fewer
# or more rows a spend that compares under `replace` or `zero-out` says nothing, for it takes the number of rows to be
# public; then that is written down as an assumption. The m is a public fact that somebody declares (`Ledger.cap`), not
# one that is read off the data: with one person more it could be another.
#
# **A spend per person in a total per row.** One row more for somebody who is in the data is that person replaced: one
# removal, and one addition of the person with that row: k = 2. (The row of somebody new is one addition.) The factor is
# not for nothing: a person's clipped mean can turn around when a row is added, which is twice what it can do when the
# person goes. Zeroing a row is zeroing the person and filling the other rows in: k = 2. Under `replace` a row that
# becomes another row of the same person is one replacement of the person, k = 1; whose a row is, is then taken to be
# public, which is written down. A unit is made of whole rows: this holds for no other.
#
# **A spend per one unit in a total per another**, per patient and per household say: nothing is known about how many of
# the one are in one of the other. It is ∞.

ROW = "example"  # the unit that is one row
HALF = {
    "features": "features only, and takes the labels, and who is in the data, to be public",
    "labels": "labels only, and takes the features, and who is in the data, to be public",
}
Caps = Mapping[str, int]  # by unit: how many rows one has at most, as somebody declared


@dataclass(frozen=True)
class Scope:
    """Whose data, and which part of them: what a spend, a total or a budget is about."""

    unit: str = ROW
    protects: Protects = "example"

    def __post_init__(self) -> None:
        choice(PROTECTED, protects=self.protects)
        if not isinstance(self.unit, str) or not self.unit.strip() or len(self.unit) > 200:
            raise InvalidInputError("a unit needs a name of at most 200 printable characters, such as a column's")
        if not self.unit.isprintable():
            raise InvalidInputError(f"a unit needs a name of at most 200 printable characters, got {self.unit!r}")

    def in_words(self) -> str:
        """As used after "for": "the features of one patient_id"."""
        return f"{WHAT[self.protects]}one {self.unit}"


WHOLE_ROW = Scope()


def _describe_unbounded(spent: Scope, asked: Scope, caps: Caps) -> str:
    """Why a spend's ε is ∞ in a total of this scope, as words that follow "one spend is"; empty where it is not."""
    if spent.protects not in ("example", asked.protects):
        return f"about {HALF[spent.protects]}"
    if spent.unit == asked.unit or asked.unit == ROW or (spent.unit == ROW and asked.unit in caps):
        return ""
    if spent.unit != ROW:
        return f"per {spent.unit}, of which one {asked.unit} may have any number"
    return (
        f"per {ROW}, of which one {asked.unit} may have any number: train with --unit {asked.unit}, or declare with "
        f"`hush ledger cap` how many rows one has at most if that is public"
    )


def list_scopes(spent: Iterable[Scope], caps: Caps) -> Iterator[Scope]:
    """Every scope that has a total of its own: each unit that a spend or a cap names, and rows, as a whole and, where a
    spend is about a part, by its parts."""
    spent = list(spent)
    parts = PROTECTED if any(scope.protects != "example" for scope in spent) else PROTECTED[:1]
    for unit in dict.fromkeys([ROW, *(scope.unit for scope in spent), *caps]):
        yield from (Scope(unit, part) for part in parts)


def count_changes(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> int:
    """k: how many changes of a spend's kind one change of the total's kind is, where it is finite; the spend compares
    under ``adjacency`` and the total under ``relation``."""
    twice = 2 if relation == "replace" and adjacency != "replace" else 1
    if spent.unit == asked.unit:
        return twice
    if asked.unit == ROW:
        return 1 if adjacency == "replace" else 2
    return twice * caps[asked.unit]


def _list_taken(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> tuple[str, ...]:
    """What counting a spend of one unit in a total of another takes for granted."""
    if spent.unit == asked.unit:
        return ()
    if asked.unit == ROW:
        return (f"whose a row is (its {spent.unit}) is public",) if relation == "replace" else ()
    capped = f"no {asked.unit} has more than {caps[asked.unit]} rows, which is public and was not counted in the data"
    numbers = f"how many rows each {asked.unit} has is public"
    return (capped, numbers) if relation == "replace" and adjacency != "add-remove" else (capped,)


def group_privacy(delta: float, epsilon: float, changes: int) -> tuple[float, float]:
    """(δ, ε) of k consecutive changes: (δ·Σ_{j<k} e^{jε}, kε); never rounded below what it is."""
    if changes == 1 or math.isinf(epsilon):
        return delta, epsilon
    if changes == 2:
        return (1 + math.exp(min(epsilon, 700.0))) * delta, 2 * epsilon
    if changes * epsilon > 700:
        return math.inf, changes * epsilon
    if epsilon < 1e-9:  # Σ e^{jε} ≤ k·e^{kε}
        return changes * math.exp(changes * epsilon) * delta, changes * epsilon
    terms = math.expm1(changes * epsilon) / math.expm1(epsilon)
    return (1 + 1e-12) * terms * delta, changes * epsilon


WORST: tuple[Status, ...] = ("none", "refuted", "claimed", "proven")
SET_ASIDE = 0.01  # of a filter's δ, for what runs lose of theirs: each about a ten-thousandth
NOTHING = "nothing to compose"
UNBOUNDED = "not bounded"
NO_CAPS: Caps = MappingProxyType({})
FIXED = "the noise, steps and budget of a later run were chosen without looking at an earlier run's release"
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
    lost: float = 0.0  # δ that the event does not know: the noise's tails
    composed: float = (
        0.0  # δ that it loses in addition at a larger ε than its own, and where it is composed with others
    )
    unit: str = ROW
    protects: Protects = "example"
    different: int = 0  # how many different releases the event stands for, where they were too many to compose exactly

    @property
    def scope(self) -> Scope:
        """Whose data it is about, and which part of them."""
        return Scope(self.unit, self.protects)

    def epsilon(self, delta: float) -> float:
        """ε of the event at this δ, by the tightest accountant that can prove it; ∞ where none can."""
        return find_epsilon(self.event, delta, self.adjacency)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for costs that are the same; of events, those that are one object, as lines of one template have."""
        priced = (self.adjacency, self.status, self.delta, id(self.event), self.points, self.assumptions)
        return (*priced, self.lost, self.composed, self.unit, self.protects)


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
        on = f", on conditions{list_in_line(self.assumptions)}" if self.assumptions else ""
        said = f"{self.composition}; {LABEL[self.status]}{on}"
        return f"at most {pair} ({about}) over {runs}, {said}"


def add_up(
    costs: Sequence[Cost], delta: float | None = None, *, scope: Scope = WHOLE_ROW, caps: Caps = NO_CAPS
) -> Total:
    """The total of these costs for a scope at ``delta``; by default at the smallest δ that is natural for them."""
    spends, counts = len(costs), _count_equal(costs)
    costs = [cost for cost, _ in counts]
    found: set[Status] = {cost.status for cost in costs} or {"proven"}
    status = min(found, key=WORST.index)
    adjacency = _common({cost.adjacency for cost in costs}, scope)
    why = next(filter(None, (_describe_unbounded(cost.scope, scope, caps) for cost in costs)), "")
    if why and status != "none":
        delta = delta or max(cost.delta for cost in costs)
        return Total(math.inf, delta, adjacency, "none", UNBOUNDED, spends, scope=scope, reason=why)
    changes = [1 if why else count_changes(c.scope, scope, caps, c.adjacency, adjacency) for c in costs]
    if not (spends == 1 and changes[0] == 1 and (delta is None or delta >= costs[0].delta)):  # more than is stated
        costs = _charge_composed(costs)
    changing = [_Change(c, k, n) for c, k, (_, n) in zip(costs, changes, counts, strict=True)]
    delta = _natural_delta(changing) if delta is None else delta
    if not costs or status == "none":
        return Total(0.0 if not costs else math.inf, delta, adjacency, status, NOTHING, spends, scope=scope)
    spent, parts = min(((_added(p, delta), p) for p in _ways(changing)), key=lambda way: way[0])
    taken = (text for c in costs for text in _list_taken(c.scope, scope, caps, c.adjacency, adjacency))
    own = (text for cost in costs for text in cost.assumptions)
    assumed = order_conditions((*taken, *own, *((FIXED,) if spends > 1 else ())))
    return Total(spent, delta, adjacency, status, _how(spends, parts), spends, assumed, scope)


def _count_equal(costs: Sequence[Cost]) -> list[tuple[Cost, int]]:
    """Every different cost, and how often it was spent."""
    found: dict[tuple[object, ...], list[Cost]] = {}
    for cost in costs:
        found.setdefault(cost.key, []).append(cost)
    return [(same[0], len(same)) for same in found.values()]


def _charge_composed(costs: Sequence[Cost]) -> list[Cost]:
    """These costs with what they lose at any ε: composed with others, for several changes, and at a smaller δ."""
    return [
        replace(cost, lost=cost.lost + cost.composed, points=tuple((d + cost.composed, e) for d, e in cost.points))
        for cost in costs
    ]


@dataclass(frozen=True)
class _Change:
    """A cost, how many changes of its kind one change of the total's kind is, and how often it was spent."""

    cost: Cost
    changes: int
    count: int = 1

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
        spent, lost = divergences(joint, adjacency, (order,))[order], sum(cost.lost for cost in _charge_composed(costs))
        lost += (1 + math.exp(min(epsilon, 700.0))) * find_leaves(joint).imprecise_delta
        return Filtered(order, spent, max(allowed[order], 0.0), lost, SET_ASIDE * delta)
    except HushError:
        return None


def _conversion(order: float, delta: float) -> float:
    return (math.log(delta * (order - 1)) - order * math.log1p(-1 / order)) / (order - 1)


def _how(spends: int, parts: Sequence[_Change]) -> str:
    number = sum(part.count for part in parts)
    if number > 1:
        return f"by basic composition: the ε of {number} parts, each at its share of δ, added up"
    if parts[0].cost.event is None:
        return "as it was stated"
    if parts[0].cost.different:
        return f"composed as one event, its {parts[0].cost.different} different releases rounded up to fewer kinds"
    return "accounted as one event" if spends == 1 else "composed as one event"


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
    if any(one.changes != other.changes for one, other in zip(raised, changing, strict=True)):
        yield list(_parts(raised))


def _parts(changing: Sequence[_Change]) -> Iterator[_Change]:
    """As few parts as can be accounted for: the events of one relation and number of changes together, everything else
    alone."""
    yield from (change for change in changing if change.cost.event is None)
    groups: Mapping[tuple[bool, int], list[_Change]] = defaultdict(list)
    for change in changing:
        if change.relation is not None:
            groups[change.relation, change.changes].append(change)
    for _, members in sorted(groups.items(), key=lambda item: item[0]):
        yield from _join(members)


def _join(members: list[_Change]) -> Iterator[_Change]:
    """One part for all of them where an accountant takes their events together, else one for those that the pld
    accountant takes and one for those that only rdp takes; what neither takes is alone."""
    if (joint := _compose(members)) is not None:
        yield joint
        return
    by_accountant: Mapping[Accountant | None, list[_Change]] = defaultdict(list)
    for member in members:
        found = _find_accountant(member.cost.event, member.cost.adjacency)
        by_accountant["pld" if found == "gdp" else found].append(member)
    for accountant, those in by_accountant.items():
        composed = None if accountant is None else _compose(those)
        yield from those if composed is None else (composed,)


def _compose(members: list[_Change]) -> _Change | None:
    """These as one; None where no accountant takes their events together."""
    adjacency = _common({member.cost.adjacency for member in members})
    if len(members) == 1 and members[0].count == 1:
        event = members[0].cost.event
    else:
        event = dp_event.ComposedDpEvent(
            [dp_event.SelfComposedDpEvent(member.cost.event, member.count) for member in members]
        )
    try:
        leaves = find_leaves(event)
    except HushError:  # an event with a privacy profile of its own
        return None
    different = len(leaves.others) if len(leaves.others) > MOST_LEAVES else 0
    if different:
        event = rebuild(coarsen(leaves, COARSE))
    if _find_accountant(event, adjacency) is None:
        return None
    lost, first = sum(member.cost.lost * member.count for member in members), members[0]
    joint = Cost(adjacency, "proven", first.cost.delta, event, lost=lost, different=different)
    return _Change(joint, first.changes)


def _find_accountant(event: Any, adjacency: Adjacency) -> Accountant | None:
    try:
        return default_accountant(event, adjacency)
    except HushError:
        return None


# Bounds for what an accountant does not take as it is.
#
# **Fewer kinds.** A composition of thousands of different releases is too long for an accountant: every kind needs a
# grid of its own (pld) or a series of its own (rdp). `coarsen` replaces every release by one of fewer kinds that costs
# no less, so that the ε of the result is at least that of the composition:
#
# - A pair (P', Q') that follows from (P, Q) by a randomised map of the outcome has no larger δ(ε), at every ε (data
#   processing), and a composition never gets cheaper when one of its releases is replaced by a dearer one: the same
#   maps, applied to each outcome in turn, lead from the composition of the dearer pairs to that of the cheaper ones.
# - *Less noise is dearer.* Gaussian(σ') with σ' > σ is Gaussian(σ) with independent noise of variance σ'² − σ² added to
#   the outcome; also within a sample, where that is added whether or not the example was drawn. Laplace(b') with b' > b
#   is Laplace(b) with noise added that is 0 with probability b²/b'² and else Laplace(b'), as the characteristic
#   functions 1/(1 + b²t²) say. Randomised response that answers at random more often is one that answers at random less
#   often, whose answer is then replaced by a random one with some probability.
# - *A higher Poisson rate is dearer.* With rate q the outcomes are (1 − q)R + qA and (1 − q)R + qB, or R and
#   (1 − q)R + qA, where R is what comes without the example. Replacing an outcome by a fresh draw from R with
#   probability 1 − q'/q makes of these the pair of the smaller rate q'.
#
# So among releases of one kind, that with the highest rate and the least noise of a group takes the place of all of it.
# Groups are cells of a grid in the logarithms of rate and noise, as fine as the number of kinds allows. Events that
# have none of these forms stay as they are; sums of Gaussians are one Gaussian already (`find_leaves`).
#
# **Parts.** Where an accountant fails on a composition, its releases are halved, each half gets half of δ, and the two
# ε are added (basic composition), down to single releases; what cannot be bound at all is ∞.

COARSE = 250  # kinds that a composition of more than MOST_LEAVES is rounded to
_Kind = tuple[tuple[object, ...], tuple[float, ...], tuple[float, ...]]  # what must agree, what is dearer up, and down


def coarsen(parts: CountedEvents, most: int) -> CountedEvents:
    """A composition of at most ``most`` kinds of releases, if their forms permit, that costs no less than this one."""
    kinds = [_read_kind(leaf) for leaf, _ in parts.others]
    fixed = tuple(part for part, kind in zip(parts.others, kinds, strict=True) if kind is None)
    free = [(kind, count) for (_, count), kind in zip(parts.others, kinds, strict=True) if kind is not None]
    width = 1e-3
    while True:
        cells: dict[tuple[object, ...], list[tuple[_Kind, int]]] = defaultdict(list)
        for kind, count in free:
            cells[kind[0], *(math.floor(math.log(x) / width) for x in (*kind[1], *kind[2]))].append((kind, count))
        if len(fixed) + len(cells) <= most or width > 100:
            return replace(parts, others=(*fixed, *(_worst_of(cell) for cell in cells.values())))
        width *= 2


def _read_kind(leaf: Any) -> _Kind | None:
    match leaf:
        case dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent()):
            return ("Poisson",), (leaf.sampling_probability,), (leaf.event.noise_multiplier,)
        case dp_event.LaplaceDpEvent():
            return ("Laplace",), (), (leaf.noise_multiplier,)
        case dp_event.RandomizedResponseDpEvent():
            return ("RandomizedResponse", leaf.num_buckets), (), (leaf.noise_parameter,)
        case dp_event.SampledWithoutReplacementDpEvent(event=dp_event.GaussianDpEvent()):
            size = leaf.source_dataset_size, leaf.sample_size
            return ("SampledWithoutReplacement", *size), (), (leaf.event.noise_multiplier,)
    return None


def _worst_of(cell: list[tuple[_Kind, int]]) -> tuple[Any, int]:
    """The dearest release of a cell, as often as all of them together."""
    (name, *agreed), ups, downs = cell[0][0]
    up = tuple(max(kind[1][i] for kind, _ in cell) for i in range(len(ups)))
    down = tuple(min(kind[2][i] for kind, _ in cell) for i in range(len(downs)))
    count = sum(count for _, count in cell)
    match name:
        case "Poisson":
            return dp_event.PoissonSampledDpEvent(up[0], dp_event.GaussianDpEvent(down[0])), count
        case "Laplace":
            return dp_event.LaplaceDpEvent(down[0]), count
        case "RandomizedResponse":
            return dp_event.RandomizedResponseDpEvent(down[0], agreed[0]), count
        case _:
            return dp_event.SampledWithoutReplacementDpEvent(*agreed, dp_event.GaussianDpEvent(down[0])), count


def find_epsilon(event: Any, delta: float, adjacency: Adjacency) -> float:
    """ε of the event at this δ, by the tightest accountant that can prove it; by rdp or in halves where that fails."""
    tightest = _find_accountant(event, adjacency)
    for accountant in dict.fromkeys(("pld" if tightest is None else tightest, "rdp")):
        try:
            return epsilon(event, delta, adjacency=adjacency, accountant=accountant)
        except HushError:
            continue
    try:
        leaves = find_leaves(event)
    except HushError:
        return math.inf
    if leaves != leaves.ideal:
        return imprecise_epsilon(lambda d: find_epsilon(rebuild(leaves.ideal), d, adjacency), leaves, delta)
    single = [CountedEvents(0.0, (leaf,)) for leaf in leaves.others]
    if leaves.mu > 0:
        single.append(CountedEvents(leaves.mu, ()))
    if len(single) < 2 or delta / 2 < SMALLEST_DELTA:
        return math.inf
    half = len(single) // 2
    halves = (dp_event.ComposedDpEvent([rebuild(leaf) for leaf in part]) for part in (single[:half], single[half:]))
    return sum(find_epsilon(each, delta / 2, adjacency) for each in halves)


def _added(parts: Sequence[_Change], delta: float) -> float:
    """Σ ε, where those that are known at few δ take theirs and the others share what is left."""
    number = sum(part.count for part in parts)
    stated = [(part.count, *_stated(part, delta / number)) for part in parts if part.cost.event is None]
    events = [part for part in parts if part.cost.event is not None]
    left = delta - sum(n * d for n, d, _ in stated) - sum(part.count * part.cost.lost for part in events)
    if left < -1e-12 * delta or (events and left <= 0):
        return math.inf
    spent = sum(n * e for n, _, e in stated)
    share = left / max(1, sum(part.count for part in events))
    return spent + sum(part.count * _event_epsilon(part, share) for part in events)


def _stated(part: _Change, share: float) -> tuple[float, float]:
    """The point (δ, ε) to use: the smallest ε within the share, else the point with the smallest δ."""
    points = [group_privacy(d, e, part.changes) for d, e in part.cost.points]
    within = [point for point in points if point[0] <= share * (1 + 1e-12)]
    return min(within, key=lambda point: point[1]) if within else min(points)


def _event_epsilon(part: _Change, delta: float) -> float:
    """ε of an event that has ``delta`` in addition to what it loses, for as many changes as it must cover."""
    cost, changes = part.cost, part.changes
    if changes == 1:
        return cost.epsilon(delta)
    share, inner = delta + cost.lost, delta / 2
    while inner >= SMALLEST_DELTA:
        found = cost.epsilon(inner)
        if not found < 200 or group_privacy(cost.lost, found, changes)[0] > share:
            break
        needed, grown = group_privacy(inner + cost.lost, found, changes)
        if needed <= share:
            return grown
        inner = min(0.5 * inner, 0.5 * inner * share / needed)
    return math.inf


def _natural_delta(changing: Sequence[_Change]) -> float:
    """Room for every stated δ, and for the largest δ among the events."""
    known = [part for part in changing if part.cost.event is None and part.cost.points]
    stated = sum(part.count * _stated(part, math.inf)[0] for part in known)
    events = max((part.cost.delta for part in changing if part.cost.event is not None), default=0.0)
    return min(stated + events, 1.0) or 1e-5
