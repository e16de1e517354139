"""The trade-off curve: how seldom an attacker can miss somebody, given how often they accuse somebody wrongly.

An attacker who sees a release decides whether one unit took part. With α the probability of a "yes" where it did not
(false positive) and β that of a "no" where it did (false negative), every attacker's β is at least f(α). That function
says all there is to say about the privacy of a release (Dong, Roth and Su 2022, "Gaussian differential privacy");
(ε, δ) is one of its tangents.

**Every curve here lies on or below the true one**, so that no attacker does better than it says. Let P be the release
of the data with the unit, Q of the data without, and let S be the outcomes with answer "yes", so β = 1 − P(S) and
α = Q(S). If δ(ε) is an upper bound on the δ of the release at ε ≥ 0 in both directions, then

    1 − β = P(S) ≤ e^ε·Q(S) + δ(ε)           hence  β ≥ 1 − δ(ε) − e^ε·α,
    1 − α = Q(not S) ≤ e^ε·P(not S) + δ(ε)   hence  β ≥ e^(−ε)·(1 − δ(ε) − α),

for an attacker who tosses coins too, as both sides are averages over the coins. So the maximum over *any* ε, of both
lines and 0, is a lower bound on β; more ε only raise it, and over all ε with the exact δ it is f. A δ that is too large
lowers a line: whatever an accountant rounds up makes the curve lower, never higher. The bound is symmetric in the two
kinds of error and holds whichever of the neighbours is called P.

A line of slope x with intercept c says that β + x·α ≥ c for every attacker. The largest such c as a function of x,
C(x) = min over α of f(α) + x·α, is concave and does not fall, so the chord between two intercepts is one as well:
that is `Lines.least_cost`, and C(e^ε) = 1 − δ(ε).

For a Gaussian with μ = sensitivity/σ, f(α) = Φ(Φ⁻¹(1 − α) − μ) exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from hush.errors import BadInput, Refused
from hush.privacy.accounting import Accountant, Adjacency, default_accountant, profile_of
from hush.privacy.guarantee import Guarantee
from hush.privacy.leaves import Profile, find_leaves
from hush.privacy.profile import gaussian_delta
from hush.validate import not_negative

Vector = NDArray[np.float64]
POINTS: dict[Accountant, int] = {"pld": 4000, "gdp": 4000, "rdp": 400}  # ε at which the profile is asked, by accountant
SMALLEST = 1e-12  # δ from which on a larger ε adds nothing to see
HIGHEST = 700.0  # ε: its exponential is still a number
UNIT = 4e-16  # what floating point may hide of one line


class Curve(Protocol):
    """A lower bound on the false negatives of every attacker."""

    def beta(self, alpha: ArrayLike) -> Vector:
        """The smallest rate of false negatives at these rates of false positives."""
        ...

    def least_cost(self, weight: float) -> float:
        """The smallest β + weight·α over all attackers; for weight e^ε it is 1 − δ(ε)."""
        ...


@dataclass(frozen=True)
class GaussianCurve:
    """The exact curve of Gaussian releases with this μ, lowered by what floating point may hide of it."""

    mu: float

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise BadInput(f"mu must be zero or above, got {self.mu}")

    def beta(self, alpha: ArrayLike) -> Vector:
        """Φ(Φ⁻¹(1 − α) − μ)."""
        rates = _rates(alpha)
        if self.mu == math.inf:
            return np.zeros_like(rates)
        z = -ndtri(rates) - self.mu
        hidden = 1e-14 * (100 + np.minimum(z * z, 1600.0))  # beyond 40 standard deviations the tail is 0 anyway
        return np.asarray(ndtr(z) * (1 - hidden))

    def least_cost(self, weight: float) -> float:
        """1 − δ(ln weight); below weight 1 by the symmetry C(x) = x·C(1/x)."""
        not_negative(weight=weight)
        if weight < 1:
            return weight * self.least_cost(1 / weight) if weight > 0 else 0.0
        return 1.0 - gaussian_delta(math.log(weight), self.mu)


@dataclass(frozen=True, eq=False)
class Lines:
    """The maximum of 0 and of lines intercept − slope·α; slopes rise from 0."""

    slopes: Vector
    intercepts: Vector

    def beta(self, alpha: ArrayLike) -> Vector:
        """The highest of the lines."""
        rates = _rates(alpha)
        heights = [float(np.max(self.intercepts - self.slopes * rate)) for rate in rates.flat]
        return np.asarray(np.maximum(heights, 0.0), dtype=np.float64).reshape(rates.shape)

    def least_cost(self, weight: float) -> float:
        """The chord between the intercepts of the two slopes beside ``weight``; the last one beyond all of them."""
        not_negative(weight=weight)
        return max(float(np.interp(weight, self.slopes, self.intercepts)) - UNIT, 0.0)


def curve_of_event(
    event: Any, *, adjacency: Adjacency = "add-remove", accountant: Accountant | None = None
) -> GaussianCurve | Lines:
    """The curve of a privacy event: exact for Gaussians, else from its profile, which is composed only a few times.

    The accountant is the tightest that can prove the event, unless named.
    """
    chosen = default_accountant(event, adjacency) if accountant is None else accountant
    if chosen != "rdp" and not isinstance(event, Profile):
        parts = find_leaves(event)
        if parts.purely_gaussian or parts.mu == math.inf:
            return GaussianCurve(parts.mu)
    profile = profile_of(event, adjacency=adjacency, accountant=chosen)
    return curve_of_points(_sampled(profile, _reach(profile), POINTS[chosen]))


def curve_of_points(points: Iterable[tuple[float, float]]) -> Lines:
    """The curve that follows from (ε, δ) pairs alone, each of which holds for the release in both directions.

    An infinite ε, or a δ of 1, says nothing and adds nothing. Without any pair that does, the curve is 0.
    """
    lines: dict[float, float] = {0.0: 0.0}
    for epsilon, delta in points:
        if not (epsilon >= 0 and 0 <= delta <= 1):
            raise BadInput(f"a privacy point needs ε of at least 0 and δ between 0 and 1, got ({epsilon}, {delta})")
        if epsilon > HIGHEST:
            continue
        held = max(1.0 - delta - UNIT, 0.0)
        for slope, intercept in ((math.exp(epsilon), held), (math.exp(-epsilon), math.exp(-epsilon) * held)):
            lines[slope] = max(intercept, lines.get(slope, 0.0))
    slopes = np.array(sorted(lines), dtype=np.float64)
    intercepts = np.array([lines[slope] for slope in slopes], dtype=np.float64)
    return Lines(slopes, np.maximum.accumulate(intercepts))


def curve_of_guarantee(guarantee: Guarantee) -> Lines:
    """The curve that a guarantee states, with the event it rests on, or from its (ε, δ) where there is none.

    A guarantee keeps a part of its δ for what the event does not know: the end of the noise's tails, a batch with more
    examples than places. How much is not written in it, but it is less than δ at every ε up to its own; so δ as a whole
    is added to the event's there, and from its own ε on δ alone holds. (The factor of 1 + 5e-21 per coordinate and step
    that `hush.privacy.scale` derives for δ itself is far within what is left of it.)

    An event that does not prove the guarantee's own pair is another's, and is not used.
    """
    own = (guarantee.epsilon, guarantee.delta)
    accountant = next((name for name in POINTS if name == guarantee.accountant), None)
    if accountant is None or not math.isfinite(guarantee.epsilon):
        return curve_of_points([own])
    try:
        profile = profile_of(guarantee.event, adjacency=guarantee.adjacency, accountant=accountant)
        proves = profile(guarantee.epsilon) <= 1.01 * guarantee.delta
    except (BadInput, Refused):  # no event, its readable line, or one that this accountant does not know
        return curve_of_points([own])
    if not proves:
        return curve_of_points([own])
    top = min(guarantee.epsilon, _reach(profile))
    sampled = _sampled(profile, top, POINTS[accountant])
    return curve_of_points([*((e, min(d + guarantee.delta, 1.0)) for e, d in sampled), own])


def sample_points(curve: Curve, top: float, count: int = 64) -> list[tuple[float, float]]:
    """Pairs (ε, δ) up to ``top`` from which `curve_of_points` makes a curve on or below this one: δ = 1 − C(e^ε)."""
    return [(float(e), min(1.0 - curve.least_cost(math.exp(e)) + UNIT, 1.0)) for e in np.linspace(0.0, top, count + 1)]


def _sampled(profile: Callable[[float], float], top: float, count: int) -> list[tuple[float, float]]:
    return [(float(epsilon), profile(float(epsilon))) for epsilon in np.linspace(0.0, top, count + 1)]


def _reach(profile: Callable[[float], float]) -> float:
    """An ε beyond which the profile hardly falls any more, within a factor of two."""
    top, found = 1.0, profile(1.0)
    if found <= SMALLEST:
        while top > 1e-9 and profile(top / 2) <= SMALLEST:
            top /= 2
        return top
    while top < HIGHEST / 2 and found > SMALLEST:
        beyond = profile(2 * top)
        if found < 0.5 and beyond > 0.999 * found:  # all that is left is the probability of an unbounded loss
            break
        top, found = 2 * top, beyond
    return top


def _rates(alpha: ArrayLike) -> Vector:
    rates = np.asarray(alpha, dtype=np.float64)
    if not bool(np.all((rates >= 0) & (rates <= 1))):
        raise BadInput("rates of false positives lie between 0 and 1")
    return rates
