"""ε and δ of any privacy event, by one of three accountants, behind one interface.

- ``pld``: the privacy-loss distribution, composed numerically; the tightest, and always an upper bound.
- ``rdp``: Rényi divergences (Mironov 2017), by dp-accounting; an upper bound, looser, for the events PLD cannot do.
- ``gdp``: exact, for compositions of Gaussians and nothing else (Dong, Roth and Su 2022); no central-limit step.

Events are written for the sensitivity of the adjacency they are accounted under (see `hush.accounting.events`);
nothing is
doubled here. So DP-SGD with noise σ·clip is two events: PoissonSampled(q, Gaussian(σ)) against adding or removing an
example, and PoissonSampled(q, Gaussian(σ/2)) against replacing one, as that moves a sum by twice the clip. At q = 0.01,
T = 1000, σ = 1, δ = 1e-5 the first costs ε = 1.828 and the second 2.843 (less than plain doubling would: the example is
seldom sampled at all). Zero-out (one example's contribution becomes zero) costs what add-remove costs.

An event may also be any object with a method ``delta_of(epsilon)``: its privacy profile, used without an accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from hush._internal.settings import Adjacency as Adjacency
from hush._internal.validate import choice, non_negative, probability
from hush.accounting import renyi
from hush.accounting.events import (
    CountedEvents,
    FinitePrecisionDpEvent,
    Profile,
    find_leaves,
    name_event,
    rebuild,
)
from hush.accounting.gaussian import gaussian_delta, gaussian_epsilon
from hush.accounting.pld import (
    CountedLeaf,
    Direction,
    by_reference,
    chernoff_delta,
    compose,
    laplace,
    poisson_gaussian,
    randomized_response,
    reference_width,
)
from hush.errors import InvalidInputError, NotProvenError

Accountant = Literal["pld", "rdp", "gdp"]
ADJACENCIES: tuple[str, ...] = get_args(Adjacency)
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)
SMALLEST_DELTA = 1e-100
MOST_STEPS = 10**12
MOST_LEAVES = 1000
SHARP = (1e-3, 1e-6)  # δ around which a profile is composed


def epsilon(
    event: Any,
    delta: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "pld",
    orders: tuple[float, ...] | None = None,
) -> float:
    """The smallest ε that the accountant can prove for ``event`` at this δ; infinity if there is none.

    ``orders`` are the Rényi orders of the rdp accountant (dp-accounting's own by default).
    """
    probability(delta=delta)
    if delta < SMALLEST_DELTA:
        raise InvalidInputError(
            f"delta must be at least {SMALLEST_DELTA:g}, got {delta:g}: smaller ones mean pure ε-privacy"
        )
    _check_names(adjacency, accountant, orders)
    if isinstance(event, Profile):
        _check_profile(event, accountant)
        return _own_epsilon(event, delta)
    parts = _supported(event, accountant, adjacency)
    ideal = parts.ideal
    if parts.mu == math.inf:
        return math.inf

    def in_exact_arithmetic(delta: float) -> float:
        if accountant == "rdp":
            return renyi.find_epsilon(ideal, delta, adjacency, orders)
        if ideal.purely_gaussian:
            return gaussian_epsilon(delta, ideal.mu)
        return _cached(_pld_epsilon, ideal, delta, adjacency)

    return in_exact_arithmetic(delta) if parts == ideal else imprecise_epsilon(in_exact_arithmetic, parts, delta)


def delta(
    event: Any,
    epsilon: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "pld",
    orders: tuple[float, ...] | None = None,
) -> float:
    """The smallest δ that the accountant can prove for ``event`` at this ε."""
    non_negative(epsilon=epsilon)
    _check_names(adjacency, accountant, orders)
    if isinstance(event, Profile):
        _check_profile(event, accountant)
        return min(max(float(event.delta_of(epsilon)), 0.0), 1.0)
    parts = _supported(event, accountant, adjacency)
    ideal = parts.ideal
    if parts.mu == math.inf:
        return 1.0

    def in_exact_arithmetic(epsilon: float) -> float:
        if accountant == "rdp":
            return renyi.find_delta(ideal, epsilon, adjacency, orders)
        if ideal.purely_gaussian:
            return gaussian_delta(epsilon, ideal.mu)
        return _cached(_pld_delta, ideal, epsilon, adjacency)

    return in_exact_arithmetic(epsilon) if parts == ideal else _imprecise_delta(in_exact_arithmetic, parts, epsilon)


MOST_IMPRECISE = 0.1  # of δ, for the finite precision of the noise


def imprecise_epsilon(exact: Callable[[float], float], parts: CountedEvents, delta: float) -> float:
    """The smallest ε + 2a with eᵃ·δ(ε) + (1 + e^(ε+a))·δ₂ ≤ δ (`FinitePrecisionDpEvent`), to a small share of δ;
    infinite where the second term would be more than a tenth of δ."""
    share = 1e-6
    while True:
        found = exact(math.exp(-parts.log_ratio) * delta * (1 - share))
        taken = _imprecise_share(parts, found) / delta
        if taken <= share:
            return found + 2 * parts.log_ratio
        if share == MOST_IMPRECISE:
            return math.inf
        share = min(1.1 * taken, MOST_IMPRECISE)


def _imprecise_delta(exact: Callable[[float], float], parts: CountedEvents, epsilon: float) -> float:
    """eᵃ·δ(ε − 2a) + (1 + e^(ε−a))·δ₂; below 2a, δ(ε − 2a) is at most δ(0) + 1 − e^(ε−2a)."""
    inner = epsilon - 2 * parts.log_ratio
    below = -math.expm1(min(inner, 0.0))
    found = math.exp(parts.log_ratio) * (exact(max(inner, 0.0)) + below) + _imprecise_share(parts, max(inner, 0.0))
    return min(found, 1.0)


@dataclass(frozen=True)
class ImpreciseProfile:
    """An event with its own privacy profile, whose noise is drawn in finite precision."""

    event: Profile
    precision: FinitePrecisionDpEvent

    def delta_of(self, epsilon: float) -> float:
        """δ(ε); from where e^ε·δ₂ would make it rise, as small as at a smaller ε."""
        parts = CountedEvents(0.0, (), self.precision.log_ratio, self.precision.delta)
        top = min(epsilon, self._turn)
        return _imprecise_delta(lambda inner: min(max(float(self.event.delta_of(inner)), 0.0), 1.0), parts, top)

    @property
    def _turn(self) -> float:
        """Where (1 + e^ε)·δ₂ is 1e-9, or 1: for all larger ε, the bound there is used."""
        return max(1.0, math.log(1e-9 / max(self.precision.delta, 1e-300)))

    def __str__(self) -> str:
        return f"{self.event} + {name_event(self.precision)}"


def _imprecise_share(parts: CountedEvents, epsilon: float) -> float:
    return (1.0 + math.exp(min(epsilon + parts.log_ratio, 700.0))) * parts.imprecise_delta


def profile_of(
    event: Any, *, adjacency: Adjacency = "add-remove", accountant: Accountant = "pld"
) -> Callable[[float], float]:
    """ε ↦ δ(ε) as the accountant proves it, for evaluation at many ε: the event is composed only a few times.

    Each composition is sharp around the question it was made for, ε = 0 or one of a few δ, and an upper bound
    everywhere; so the smallest of them is one, and of two directions the larger counts.
    """
    if isinstance(event, Profile):
        return lambda epsilon: delta(event, epsilon, adjacency=adjacency, accountant=accountant)
    _check_names(adjacency, accountant, None)
    parts = _supported(event, accountant, adjacency)
    if parts.mu == math.inf:
        return lambda epsilon: 1.0
    if parts != parts.ideal:
        exact = profile_of(rebuild(parts.ideal), adjacency=adjacency, accountant=accountant)
        return lambda epsilon: _imprecise_delta(exact, parts, epsilon)
    if accountant == "rdp":
        found = renyi.divergences(event, adjacency)
        orders, values = np.array(list(found)), np.array(list(found.values()))
        return lambda epsilon: float(rdp_privacy_accountant.compute_delta(orders, values, epsilon)[0])
    if parts.purely_gaussian:
        return lambda epsilon: gaussian_delta(epsilon, parts.mu)
    plans = [_plan(parts, direction, 1e-12) for direction in _directions(adjacency)]
    composed = [[compose(plan, epsilon=0.0), *(compose(plan, delta=d) for d in SHARP)] for plan in plans]
    return lambda epsilon: max(min(each.delta(epsilon) for each in direction) for direction in composed)


def default_accountant(event: Any, adjacency: Adjacency = "add-remove") -> Accountant:
    """The tightest accountant with a proof for this event: gdp for Gaussians alone, else pld, else rdp."""
    _check_names(adjacency, "pld", None)
    if isinstance(event, Profile):
        return "pld"
    parts = find_leaves(event)
    if parts.purely_gaussian:
        return "gdp"
    if not any(_no_pld(leaf, adjacency) for leaf, _ in parts.others):
        return "pld"
    for leaf, _ in parts.others:
        renyi.check_leaf(leaf, adjacency)
    return "rdp"


def _check_names(adjacency: str, accountant: str, orders: tuple[float, ...] | None) -> None:
    choice(ADJACENCIES, adjacency=adjacency)
    choice(ACCOUNTANTS, accountant=accountant)
    if orders is not None and accountant != "rdp":
        raise InvalidInputError(f"orders are Rényi orders, for the rdp accountant; the accountant here is {accountant}")


def _check_profile(event: Any, accountant: str) -> None:
    if accountant != "pld":
        raise NotProvenError(
            f"{event} brings its own privacy profile: the {accountant} accountant cannot use it, pld can"
        )


def _supported(event: Any, accountant: Accountant, adjacency: Adjacency) -> CountedEvents:
    """The leaves of the event, all of which the accountant can handle; else a refusal that names the leaf."""
    parts = find_leaves(event)
    if sum(count for _, count in parts.others) > MOST_STEPS:
        raise NotProvenError(
            f"more than {MOST_STEPS:g} composed releases are beyond these accountants: {name_event(event)}"
        )
    if len(parts.others) > MOST_LEAVES:
        raise NotProvenError(
            f"{len(parts.others)} different releases in one composition are more than the {MOST_LEAVES} that are "
            "accounted for: let the noise or the rate take fewer values"
        )
    for leaf, _ in parts.others:
        if accountant == "gdp":
            raise NotProvenError(
                f"the gdp accountant is exact for Gaussian releases only, and {name_event(leaf)} is not one: use "
                f"accountant '{'rdp' if _no_pld(leaf, adjacency) else 'pld'}'"
            )
        if accountant == "rdp":
            renyi.check_leaf(leaf, adjacency)
        elif reason := _no_pld(leaf, adjacency):
            raise NotProvenError(reason)
    return parts


def _no_pld(leaf: Any, adjacency: str) -> str:
    """Why the pld accountant cannot account for the leaf; empty if it can."""
    name = name_event(leaf)
    match leaf:
        case dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent()) | dp_event.LaplaceDpEvent():
            return ""
        case dp_event.RandomizedResponseDpEvent():
            if adjacency == "add-remove":
                return f"{name} answers for a record that exists: account for it under replace or zero-out"
            return ""
        case (
            dp_event.PoissonSampledDpEvent(event=dp_event.LaplaceDpEvent())
            | dp_event.DiscreteLaplaceDpEvent()
            | dp_event.MixtureOfGaussiansDpEvent()
            | dp_event.TruncatedSubsampledGaussianDpEvent()
        ):
            return f"{name} is accounted for under add-remove or zero-out only" if adjacency == "replace" else ""
        case dp_event.SampledWithoutReplacementDpEvent() | dp_event.RepeatAndSelectDpEvent() | dp_event.ZCDpEvent():
            return f"the privacy-loss distribution of {name} is not known: use accountant 'rdp'"
        case _:
            return f"the pld accountant cannot account for {name}"


def _cached(function: Any, parts: CountedEvents, value: float, adjacency: Adjacency) -> float:
    try:
        hash(parts)
    except TypeError:  # an event that holds a list
        function = function.__wrapped__
    return float(function(parts, value, adjacency))


@lru_cache(maxsize=1024)
def _pld_epsilon(parts: CountedEvents, delta: float, adjacency: Adjacency) -> float:
    worst, step = 0.0, math.nan
    for direction in _directions(adjacency):
        plan = _plan(parts, direction, delta)
        if worst == math.inf or (worst > 0 and chernoff_delta(plan, worst, step) <= delta):
            continue  # this direction is surely the cheaper one
        found = compose(plan, delta=delta)
        worst, step = max(worst, found.epsilon(delta)), found.product.step
    return worst


@lru_cache(maxsize=1024)
def _pld_delta(parts: CountedEvents, epsilon: float, adjacency: Adjacency) -> float:
    worst, step = 0.0, math.nan
    for direction in _directions(adjacency):
        plan = _plan(parts, direction, 1e-20)
        if worst > 0 and chernoff_delta(plan, epsilon, step) <= worst:
            continue
        found = compose(plan, epsilon=epsilon)
        worst, step = max(worst, found.delta(epsilon)), found.product.step
    return worst


def _directions(adjacency: Adjacency) -> tuple[Direction, ...]:
    return ("replace",) if adjacency == "replace" else ("remove", "add")


def _plan(parts: CountedEvents, direction: Direction, delta: float) -> list[CountedLeaf]:
    """Every leaf with its grid; losses so rare that all steps' together weigh 1e-7 δ count as unbounded."""
    steps = sum(count for _, count in parts.others) + 1
    cut = delta * 1e-7 / steps
    plan = [_part(leaf, count, direction, cut) for leaf, count in parts.others]
    if parts.mu > 0:
        pair = poisson_gaussian(1.0, 1 / parts.mu, "remove", cut)
        plan.append(CountedLeaf(pair.grid, pair.width, 1))
    return plan


def _part(leaf: Any, count: int, direction: Direction, cut: float) -> CountedLeaf:
    match leaf:
        case dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent()):
            pair = poisson_gaussian(leaf.sampling_probability, leaf.event.noise_multiplier, direction, cut)
        case dp_event.LaplaceDpEvent():
            pair = laplace(leaf.noise_multiplier)
        case dp_event.RandomizedResponseDpEvent():
            pair = randomized_response(leaf.noise_parameter, leaf.num_buckets, direction)
        case _:
            slow = isinstance(leaf, dp_event.MixtureOfGaussiansDpEvent)
            cells = 2**11 if slow else 2**14
            return CountedLeaf(lambda step: by_reference(leaf, direction, step), reference_width(leaf), count, cells)
    return CountedLeaf(pair.grid, pair.width, count)


def _own_epsilon(event: Profile, delta: float) -> float:
    """Bisection on the event's own δ(ε); the upper end is returned, so it never says too little."""
    low, high = 0.0, 1.0
    if event.delta_of(0.0) <= delta:
        return 0.0
    while event.delta_of(high) > delta:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if event.delta_of(middle) > delta else (low, middle)
    return high
