"""The joint cost of several releases on the same data: an upper bound, and the theorem that it rests on.

If all spends are privacy events under one neighbouring relation that one accountant can handle, they are composed as
one event; if there are more different releases than an accountant takes, they are rounded up to fewer kinds first
(`coarsen`). Spends that cannot be composed are added: m parts get δ/m each and their ε are summed (a spend that is
known at a few δ only uses one of those). A total never raises: if nothing is proven it is ∞.

All of this also holds for models that build on each other. It takes each run's noise and number of steps as fixed in
advance, which is stated as an assumption if there are several spends: if the noise of a later run is chosen by looking
at what an earlier one released, the total itself depends on the data. `use_filter` does not need this assumption, but
needs a budget that was set before the first spend: it is a Rényi filter (Feldman and Zrnic 2021). Any sequence of
releases, each chosen after looking at all earlier ones and stopped at any point, is (α, B)-RDP for an α and a B that
were fixed in advance, as long as their divergences of order α add up to at most B.

For a plan whose rate and divisor are fixed, zeroing an example and removing it give the same distribution of outcomes,
so an add-remove spend is a zero-out spend of the same event, and the two are composed as zero-out. The converse does
not hold: a zero-out spend may take the number of examples to be public, and that does not hide presence, so a total
with a zero-out spend is never add-remove. If `replace` is combined with another relation, the total is stated for
`replace`, which is one removal and one addition (or one example zeroed and another one filled in): (ε, δ) becomes
(2ε, (1 + e^ε)δ).

A total has a scope: one unit, and all or a part of its data (proofs below). Every spend enters it as a number of
changes of the spend's own kind, or makes it ∞.
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

# The scope of a total (its unit, and which part of its data), and how a spend of one scope counts in another.
#
# Every spend compares two datasets that differ in one change of its kind: one row or all rows of one person, and of
# these everything, the features alone or the labels alone. A total compares datasets that differ in one change of its
# kind. If that is k changes of the spend's kind, one after another, group privacy gives (Vadhan 2017, lemma 2.2)
#
#     (ε, δ) becomes (kε, δ·Σ_{j<k} e^{jε}).
#
# Proof: with P_0 … P_k the distributions along the way, P_0(A) ≤ e^ε P_1(A) + δ ≤ … ≤ e^{kε} P_k(A) + δ·Σ_{j<k} e^{jε}.
# So a spend enters a total by its k alone, or is ∞ if no such sequence of changes exists. Spends with the same k are
# composed first. Their sequences of changes may differ: at every place each spend is compared with itself one change
# of its own kind farther, for any releases of the others.
#
# **Which part.** A spend about features alone takes the labels, and the set of examples, to be public: it may
# distinguish two datasets that differ in a label with certainty. So it is ∞ in a total about labels and in one about
# whole examples; and a spend about labels alone is ∞ in the other two. A spend about whole examples covers each part:
# changing the features of an example is replacing it. So totals about a part are stated for `replace`.
#
# **Replace.** One replacement is one removal and one addition (or one example zeroed and another filled in): a spend of
# another relation counts twice in a total for `replace`.
#
# **A spend per row in a total per person.** Without a bound on a person's rows there is no k. If every person is known
# to have at most m rows, removing or adding a person is at most m such changes of a row, and zeroing one is too: k = m.
# Replacing a person's rows by the same number of others is m replacements, or 2m removals and additions. A spend that
# compares under `replace` or `zero-out` takes the number of rows to be public, so it does not cover replacements by
# fewer or more rows; this is stated as an assumption. m is a public fact that the user declares (`Ledger.cap`) and is
# not computed from the data: with one more person it could be different.
#
# **A spend per person in a total per row.** One more row for a person who is in the data replaces that person: one
# removal, and one addition of the person with that row: k = 2. (A row of a new person is one addition.) The factor is
# needed: a person's clipped mean can change its sign when a row is added, which is twice the change when the person
# is removed. Zeroing a row is zeroing the person and filling the other rows in: k = 2. Under `replace` a row that
# becomes another row of the same person is one replacement of the person, k = 1; this takes the person of every row to
# be public, which is stated. It holds only for units that are made of whole rows.
#
# **A spend per one unit in a total per another**, such as per patient and per household: nothing bounds how many of the
# first are in one of the second. It is ∞.

ROW = "example"  # the unit that is one row
HALF = {
    "features": "features only, and takes the labels, and who is in the data, to be public",
    "labels": "labels only, and takes the features, and who is in the data, to be public",
}
Caps = Mapping[str, int]  # the declared largest number of rows of one unit, by unit


@dataclass(frozen=True)
class Scope:
    """The unit, and the part of its data, that a spend, a total or a budget is about."""

    unit: str = ROW
    protects: Protects = "example"

    def __post_init__(self) -> None:
        choice(PROTECTED, protects=self.protects)
        if not isinstance(self.unit, str) or not self.unit.strip() or len(self.unit) > 200:
            raise InvalidInputError("a unit needs a name of at most 200 printable characters, such as a column's")
        if not self.unit.isprintable():
            raise InvalidInputError(f"a unit needs a name of at most 200 printable characters, got {self.unit!r}")

    def describe(self) -> str:
        """The scope as it reads after "for": "the features of one patient_id"."""
        return f"{WHAT[self.protects]}one {self.unit}"


WHOLE_ROW = Scope()


def _describe_unbounded(spent: Scope, asked: Scope, caps: Caps) -> str:
    """Why a spend's ε is ∞ in a total of this scope, as it reads after "one spend is"; empty if it is finite."""
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
    """Every scope that has a total: rows, and each unit that a spend or a cap names; as a whole and, if a spend is
    about a part, for each part."""
    spent = list(spent)
    parts = PROTECTED if any(scope.protects != "example" for scope in spent) else PROTECTED[:1]
    for unit in dict.fromkeys([ROW, *(scope.unit for scope in spent), *caps]):
        yield from (Scope(unit, part) for part in parts)


def count_changes(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> int:
    """k, the number of changes of the spend's kind in one change of the total's kind, which must be finite; the spend
    compares under ``adjacency`` and the total under ``relation``."""
    twice = 2 if relation == "replace" and adjacency != "replace" else 1
    if spent.unit == asked.unit:
        return twice
    if asked.unit == ROW:
        return 1 if adjacency == "replace" else 2
    return twice * caps[asked.unit]


def _list_taken(spent: Scope, asked: Scope, caps: Caps, adjacency: Adjacency, relation: Adjacency) -> tuple[str, ...]:
    """The assumptions of counting a spend of one unit in a total of another."""
    if spent.unit == asked.unit:
        return ()
    if asked.unit == ROW:
        return (f"whose a row is (its {spent.unit}) is public",) if relation == "replace" else ()
    capped = f"no {asked.unit} has more than {caps[asked.unit]} rows, which is public and was not counted in the data"
    numbers = f"how many rows each {asked.unit} has is public"
    return (capped, numbers) if relation == "replace" and adjacency != "add-remove" else (capped,)


def group_privacy(delta: float, epsilon: float, changes: int) -> tuple[float, float]:
    """(δ, ε) of k consecutive changes: (δ·Σ_{j<k} e^{jε}, kε), never rounded down."""
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
SET_ASIDE = 0.01  # the share of a filter's δ for the δ that runs lose, each about a ten-thousandth of its own
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
    """The cost of a run or of its first steps: an event, or some points (δ, ε) if the event cannot be written."""

    adjacency: Adjacency
    status: Status
    delta: float
    event: Any = None
    points: tuple[tuple[float, float], ...] = ()
    assumptions: tuple[str, ...] = ()
    lost: float = 0.0  # δ that the event does not include: the noise's tails
    composed: float = 0.0  # δ that it loses in addition at a larger ε than its own, and in a composition with others
    unit: str = ROW
    protects: Protects = "example"
    different: int = 0  # the number of different releases in the event, if they were too many to compose exactly

    @property
    def scope(self) -> Scope:
        """The unit and the part of its data that the cost is about."""
        return Scope(self.unit, self.protects)

    def epsilon(self, delta: float) -> float:
        """ε of the event at this δ, by the tightest accountant that can prove it; ∞ where none can."""
        return find_epsilon(self.event, delta, self.adjacency)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal costs; two events count as equal if they are one object, as for lines of one template."""
        priced = (self.adjacency, self.status, self.delta, id(self.event), self.points, self.assumptions)
        return (*priced, self.lost, self.composed, self.unit, self.protects)


@dataclass(frozen=True)
class Total:
    """The (ε, δ) of everything that was spent on a dataset."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    status: Status
    composition: str
    spends: int = 0
    assumptions: tuple[str, ...] = ()
    scope: Scope = WHOLE_ROW
    reason: str = ""  # why it is ∞, if the scope of a spend is the reason

    def __post_init__(self) -> None:
        if self.status == "proven" and not (math.isfinite(self.epsilon) and 0 < self.delta < 1):
            object.__setattr__(self, "status", "none")  # nothing is proven by an infinite ε

    def sentence(self) -> str:
        """The total with its conditions, as one sentence."""
        if not self.spends:
            return "nothing has been spent"
        runs = "1 spend" if self.spends == 1 else f"{self.spends} spends"
        pair = f"ε = {rounded_up(self.epsilon)} at δ = {rounded_up(self.delta)}"
        about = self.adjacency if self.scope == WHOLE_ROW else f"{self.adjacency}, for {self.scope.describe()}"
        if self.status == "none" and self.composition != NOTHING:
            why = f": one is {self.reason}" if self.reason else ""
            return f"no finite ε is proven at δ = {rounded_up(self.delta)} ({about}) over {runs}{why}"
        on = f", on conditions{list_in_line(self.assumptions)}" if self.assumptions else ""
        said = f"{self.composition}; {LABEL[self.status]}{on}"
        return f"at most {pair} ({about}) over {runs}, {said}"


def add_up(
    costs: Sequence[Cost], delta: float | None = None, *, scope: Scope = WHOLE_ROW, caps: Caps = NO_CAPS
) -> Total:
    """The total of these costs for a scope at ``delta``; by default at the smallest δ at which all of them are
    stated."""
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
    """The different costs, each with how often it was spent."""
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
    """A cost, the number of its changes in one change of the total's kind, and how often it was spent."""

    cost: Cost
    changes: int
    count: int = 1

    @property
    def relation(self) -> bool | None:
        """Whether its event compares under `replace`; None without an event. Events with different relations are not
        composed."""
        return None if self.cost.event is None else self.cost.adjacency == "replace"


@dataclass(frozen=True)
class Filtered:
    """How much of a Rényi filter is used: ``spent`` of ``allowed``, both divergences of order ``order``, and ``lost``
    of ``set_aside``, the δ for what a divergence does not include."""

    order: float
    spent: float
    allowed: float
    lost: float = 0.0
    set_aside: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether all spends stay within the filter."""
        return self.spent <= self.allowed and self.lost <= self.set_aside


def use_filter(
    first: Cost, costs: Sequence[Cost], epsilon: float, delta: float, *, scope: Scope = WHOLE_ROW
) -> Filtered | None:
    """The filter for (ε, δ), and how much of it these costs use; None if a divergence is unknown or a cost has another
    scope than the budget.

    Order α allows B(α) = ε + [ln(δ'(α − 1)) − α ln(1 − 1/α)]/(α − 1), where δ' is δ without the part that is set aside
    for the δ that runs lose. None of it may depend on a release: the order is the one at which ``first``, the plan of
    the first run, would fit most often.
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
    """The candidate partitions of the spends: each event at its own number of changes, and if these differ, also all
    events of one relation at the largest of them, so that they are one part."""
    yield list(_parts(changing))
    most = {kind: max((c.changes for c in changing if c.relation == kind), default=1) for kind in (True, False)}
    raised = [c if c.relation is None else replace(c, changes=most[c.relation]) for c in changing]
    if any(one.changes != other.changes for one, other in zip(raised, changing, strict=True)):
        yield list(_parts(raised))


def _parts(changing: Sequence[_Change]) -> Iterator[_Change]:
    """The fewest parts that can be accounted for: events of one relation and number of changes together, and every
    other spend alone."""
    yield from (change for change in changing if change.cost.event is None)
    groups: Mapping[tuple[bool, int], list[_Change]] = defaultdict(list)
    for change in changing:
        if change.relation is not None:
            groups[change.relation, change.changes].append(change)
    for _, members in sorted(groups.items(), key=lambda item: item[0]):
        yield from _join(members)


def _join(members: list[_Change]) -> Iterator[_Change]:
    """One part for all of them if an accountant takes their events together; else one for those that the pld accountant
    takes, one for those that only rdp takes, and one for each of the others."""
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
    """The composition of these; None if no accountant takes their events together."""
    adjacency = _common({member.cost.adjacency for member in members})
    if len(members) == 1 and members[0].count == 1:
        event = members[0].cost.event
    else:
        event = dp_event.ComposedDpEvent(
            [dp_event.SelfComposedDpEvent(member.cost.event, member.count) for member in members]
        )
    try:
        leaves = find_leaves(event)
    except HushError:  # an event that is given by its own privacy profile
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


# Bounds for compositions that an accountant cannot handle.
#
# **Fewer kinds.** A composition of thousands of different releases is too long for an accountant: every kind needs its
# own grid (pld) or its own series (rdp). `coarsen` replaces every release by one of fewer kinds that costs no less, so
# that the ε of the result is at least that of the composition:
#
# - A pair (P', Q') that follows from (P, Q) by a randomised map of the outcome has no larger δ(ε), at every ε (data
#   processing), and the cost of a composition never decreases if one of its releases is replaced by a costlier one: the
#   same maps, applied to each outcome in turn, lead from the composition of the costlier pairs to that of the others.
# - *Less noise costs more.* Gaussian(σ') with σ' > σ is Gaussian(σ) with independent noise of variance σ'² − σ² added
#   to the outcome; also within a sample, where it is added whether or not the example was drawn. Laplace(b') with
#   b' > b is Laplace(b) with added noise that is 0 with probability b²/b'² and Laplace(b') otherwise, by the
#   characteristic functions 1/(1 + b²t²). Randomised response with a larger probability of a random answer is one with
#   a smaller probability whose answer is then replaced by a random one with some probability.
# - *A higher Poisson rate costs more.* With rate q the outcomes are (1 − q)R + qA and (1 − q)R + qB, or R and
#   (1 − q)R + qA, where R is the outcome without the example. Replacing an outcome by a fresh draw from R with
#   probability 1 − q'/q gives the pair of the smaller rate q'.
#
# So in a group of releases of one kind, each is replaced by one with the highest rate and the least noise of the group.
# Groups are cells of a grid in the logarithms of rate and noise, as fine as the number of kinds allows. Events of other
# forms are not changed; sums of Gaussians are one Gaussian already (`find_leaves`).
#
# **Parts.** If an accountant fails on a composition, its releases are split in two halves, each half gets half of δ,
# and the two ε are added (basic composition), recursively down to single releases; a release without a bound is ∞.

COARSE = 250  # kinds that a composition of more than MOST_LEAVES is rounded to
_Kind = tuple[tuple[object, ...], tuple[float, ...], tuple[float, ...]]
"""What must agree; the parameters whose cost rises with them; those whose cost falls with them."""


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
    """The costliest release of a cell, counted as often as all of them together."""
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
    """ε of the event at this δ, by the tightest accountant that can prove it; if that fails, by rdp or in halves."""
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
    """Σ ε, where spends that are known at a few δ use one of those, and the others share the rest of δ."""
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
    """ε of a part at ``delta``, in addition to the δ that it loses, for its number of changes."""
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
    """The sum of all stated δ and of the largest δ among the events."""
    known = [part for part in changing if part.cost.event is None and part.cost.points]
    stated = sum(part.count * _stated(part, math.inf)[0] for part in known)
    events = max((part.cost.delta for part in changing if part.cost.event is not None), default=0.0)
    return min(stated + events, 1.0) or 1e-5
