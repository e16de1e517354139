"""The trade-off curve: the smallest false negative rate of any attacker, given the false positive rate.

An attacker who sees a release decides whether one unit took part. With α the probability of a "yes" where it did not
(false positive) and β that of a "no" where it did (false negative), every attacker's β is at least f(α). That function
says all there is to say about the privacy of a release (Dong, Roth and Su 2022, "Gaussian differential privacy");
(ε, δ) is one of its tangents.

**Every curve here lies on or below the true one**, so no attacker does better than it states. Let P be the release
of the data with the unit, Q of the data without, and let S be the outcomes with answer "yes", so β = 1 − P(S) and
α = Q(S). If δ(ε) is an upper bound on the δ of the release at ε ≥ 0 in both directions, then

    1 − β = P(S) ≤ e^ε·Q(S) + δ(ε)           hence  β ≥ 1 − δ(ε) − e^ε·α,
    1 − α = Q(not S) ≤ e^ε·P(not S) + δ(ε)   hence  β ≥ e^(−ε)·(1 − δ(ε) − α),

for an attacker who tosses coins too, as both sides are averages over the coins. So the maximum over *any* ε, of both
lines and 0, is a lower bound on β; more ε only raise it, and over all ε with the exact δ it is f. A δ that is too large
lowers a line: rounding up by an accountant makes the curve lower, never higher. The bound is symmetric in the two
kinds of error and holds whichever of the neighbours is called P.

A line of slope x with intercept c says that β + x·α ≥ c for every attacker. The largest such c as a function of x,
C(x) = min over α of f(α) + x·α, is concave and does not fall, so the chord between two intercepts is one as well:
that is `LineCurve.least_cost`, and C(e^ε) = 1 − δ(ε).

For a Gaussian with μ = sensitivity/σ, f(α) = Φ(Φ⁻¹(1 − α) − μ) exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from hush._internal.validate import choice, non_negative, probability
from hush.accounting.accountant import ADJACENCIES, Accountant, Adjacency, default_accountant, profile_of
from hush.accounting.events import Profile, find_leaves
from hush.accounting.gaussian import gaussian_delta
from hush.accounting.guarantee import PROTECTED, Guarantee, Protects
from hush.errors import HushError, InvalidInputError

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
            raise InvalidInputError(f"mu must be zero or above, got {self.mu}")

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
        non_negative(weight=weight)
        if weight < 1:
            return weight * self.least_cost(1 / weight) if weight > 0 else 0.0
        return 1.0 - gaussian_delta(math.log(weight), self.mu)


@dataclass(frozen=True, eq=False)
class LineCurve:
    """The maximum of 0 and of lines intercept − slope·α; slopes rise from 0."""

    slopes: Vector
    intercepts: Vector

    def beta(self, alpha: ArrayLike) -> Vector:
        """The highest of the lines."""
        rates = _rates(alpha)
        heights = [float(np.max(self.intercepts - self.slopes * rate)) for rate in rates.flat]
        return np.asarray(np.maximum(heights, 0.0), dtype=np.float64).reshape(rates.shape)

    def least_cost(self, weight: float) -> float:
        """The chord between the intercepts of the two slopes next to ``weight``; the last one beyond all slopes."""
        non_negative(weight=weight)
        return max(float(np.interp(weight, self.slopes, self.intercepts)) - UNIT, 0.0)


def curve_of_event(
    event: Any, *, adjacency: Adjacency = "add-remove", accountant: Accountant | None = None
) -> GaussianCurve | LineCurve:
    """The curve of a privacy event: exact for Gaussians, else from its profile, which is composed only a few times.

    The accountant is the tightest that can prove the event, unless named.
    """
    chosen = default_accountant(event, adjacency) if accountant is None else accountant
    if chosen != "rdp" and not isinstance(event, Profile):
        parts = find_leaves(event)
        if (parts.purely_gaussian and parts == parts.ideal) or parts.mu == math.inf:
            return GaussianCurve(parts.mu)
    profile = profile_of(event, adjacency=adjacency, accountant=chosen)
    return curve_of_points(_sampled(profile, _reach(profile), POINTS[chosen]))


def curve_of_points(points: Iterable[tuple[float, float]]) -> LineCurve:
    """The curve that follows from (ε, δ) pairs alone, each of which holds for the release in both directions.

    Pairs with an infinite ε or a δ of 1 are ignored. If no other pair is left, the curve is 0.
    """
    lines: dict[float, float] = {0.0: 0.0}
    for epsilon, delta in points:
        if not (epsilon >= 0 and 0 <= delta <= 1):
            raise InvalidInputError(
                f"a privacy point needs ε of at least 0 and δ between 0 and 1, got ({epsilon}, {delta})"
            )
        if epsilon > HIGHEST:
            continue
        held = max(1.0 - delta - UNIT, 0.0)
        for slope, intercept in ((math.exp(epsilon), held), (math.exp(-epsilon), math.exp(-epsilon) * held)):
            lines[slope] = max(intercept, lines.get(slope, 0.0))
    slopes = np.array(sorted(lines), dtype=np.float64)
    intercepts = np.array([lines[slope] for slope in slopes], dtype=np.float64)
    return LineCurve(slopes, np.maximum.accumulate(intercepts))


def curve_of_guarantee(guarantee: Guarantee) -> LineCurve:
    """The curve of a guarantee: of its event, or of its (ε, δ) without an event.

    A guarantee reserves a part of its δ for the tails of the noise, which the event does not include. It does not state
    how much, but it is less than δ at every ε up to its own; so δ as a whole
    is added to the event's there, and from its own ε on δ alone holds. (The factor of 1 + 2e-24 per coordinate and step
    that `hush.accounting.noise_tails` derives for δ itself is far within what is left of it.)

    An event that does not prove the guarantee's own pair is another's, and is not used.
    """
    own = (guarantee.epsilon, guarantee.delta)
    accountant = next((name for name in POINTS if name == guarantee.accountant), None)
    if accountant is None or not math.isfinite(guarantee.epsilon):
        return curve_of_points([own])
    try:
        profile = profile_of(guarantee.event, adjacency=guarantee.adjacency, accountant=accountant)
        proves = profile(guarantee.epsilon) <= 1.01 * guarantee.delta
    except HushError:  # no event, its readable line, or an event that this accountant does not support
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
        raise InvalidInputError("rates of false positives lie between 0 and 1")
    return rates


# What a trade-off curve means for one person: the best odds of any attacker, as numbers and as sentences.
#
# The attacker knows everything about the data but one thing, whether one unit took part (or which of two records it
# had), holds it for true with probability p beforehand, and sees the release. All bounds follow from β ≥ f(α) and from
# f being convex; a curve that lies too low makes each of them larger, never smaller. With ROC(α) = 1 − f(α):
#
# - **Right in all**, whatever they answer: p(1 − β) + (1 − p)(1 − α) = 1 − p·(β + x·α) with x = (1 − p)/p, so at most
#   1 − p·C(x), where C(x) is the least cost. At p = ½ that is (1 + total variation)/2 = 1 − min(α + f(α))/2.
# - **Found**: a test with false positives at α finds at most ROC(α) of those who took part.
# - **Right when they accuse**: of the accusations of such a test at most p·ROC(α)/(p·ROC(α) + (1 − p)·α) are right.
#   ROC(α)/α does not rise with α, so a test with more false positives is right less often, and one with fewer can be
#   right more often, up to certainty: a number like this is true at its α and means nothing without it.
# - **Belief**: the posterior, by Bayes' rule. For η in (0, 1) let a be where ROC(a) = η. Where the unit took part, the
#   posterior odds exceed (η/a)·p/(1 − p) with probability at most η. Proof: let A be the outcomes with likelihood ratio
#   above η/a, so that P(A) > (η/a)·Q(A) unless A is empty. Were P(A) > η, then ROC(Q(A)) ≥ P(A) > η = ROC(a), hence
#   Q(A) > a and P(A)/Q(A) ≤ ROC(Q(A))/Q(A) ≤ ROC(a)/a = η/a, against the choice of A. Where δ ≥ η, a is 0 and the
#   bound is certainty.

PRIORS = (0.01, 0.1, 0.5)
FALSE_POSITIVES = (0.001, 0.01, 0.1)
COLUMNS = (
    "thought beforehand",
    "right without the release, in 100",
    "right with it, at most",
    "right when accusing, at most, with 1 false accusation in 100",
    "belief afterwards, at most, but for at most 1 case in 100",
)


@dataclass(frozen=True)
class Odds:
    """The best that any attacker can reach from one prior; every number is an upper bound (but ``without``)."""

    prior: float
    without: float  # right in all without the release
    right: float  # right in all with it
    accusing: float  # right among the accusations of a test with these false positives
    false_positives: float
    belief: float  # posterior, exceeded with probability ``exception`` at most where the unit took part
    exception: float


@dataclass(frozen=True)
class Words:
    """Sentences for a non-technical reader and a small table; all numbers are rounded up."""

    sentences: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def best_odds(curve: Curve, prior: float, *, false_positives: float = 0.01, exception: float = 0.01) -> Odds:
    """The best odds from this prior; see the module's text for what each number means and why it holds."""
    probability(prior=prior, false_positives=false_positives, exception=exception)
    found = prior * detection(curve, false_positives)
    return Odds(
        prior=prior,
        without=max(prior, 1 - prior),
        right=min(1 - prior * curve.least_cost((1 - prior) / prior), 1.0),
        accusing=found / (found + (1 - prior) * false_positives),
        false_positives=false_positives,
        belief=_belief(curve, prior, exception),
        exception=exception,
    )


def best_accuracy(curve: Curve) -> float:
    """How often an attacker can be right at 50:50: (1 + total variation)/2."""
    return best_odds(curve, 0.5).right


def detection(curve: Curve, false_positives: float) -> float:
    """The largest share of those who took part that a test with these false positives finds."""
    return 1.0 - float(curve.beta(false_positives))


def describe_curve(
    curve: Curve,
    *,
    adjacency: Adjacency = "add-remove",
    unit: str = "person",
    protects: Protects = "example",
    priors: Sequence[float] = PRIORS,
) -> Words:
    """What the curve means for one unit: sentences, each true on its own, and a table over priors. If only features or
    only labels are protected, the attacker knows the other half.

    The curve is assumed to be proven; for a claimed curve the caller must add that.
    """
    choice(ADJACENCIES, adjacency=adjacency)
    choice(PROTECTED, protects=protects)
    words = _phrases(adjacency, unit) if protects == "example" else _phrases_of_half(protects, unit)
    even = best_odds(curve, 0.5)
    few, some, many = (_hundredths(detection(curve, rate), 1) for rate in FALSE_POSITIVES)
    sentences = (
        f"Someone who knows everything about {words.others} and thinks it is 50:50 {words.question} can, with what is "
        f"released, at best be right {_hundredths(even.right, 0)} times in 100; by tossing a coin they are right 50 "
        "times.",
        _describe_belief(even, words),
        f"A test that accuses 1 in 1000 falsely finds at most {few} in 100 of the {words.those}; one that accuses 1 in "
        f"100 falsely at most {some}, and one that accuses 1 in 10 falsely at most {many}.",
    )
    return Words(sentences, COLUMNS, tuple(_row(best_odds(curve, prior)) for prior in priors))


def _belief(curve: Curve, prior: float, exception: float) -> float:
    rare = _largest_rate(curve, 1 - exception)
    if rare == 0:
        return 1.0
    odds = exception / rare * prior / (1 - prior)
    return odds / (1 + odds)


def _largest_rate(curve: Curve, height: float) -> float:
    """An α with f(α) ≥ height, close to the largest such α and never above it; 0 if there is none."""
    low, high = math.log(1e-290), 0.0
    if float(curve.beta(math.exp(low))) < height:
        return 0.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(curve.beta(math.exp(middle))) >= height else (low, middle)
    return math.exp(low)


def _describe_belief(odds: Odds, words: _Phrases) -> str:
    rare, belief = f"{_hundredths(odds.exception, 1)} in 100", _percent(odds.belief)
    if belief == _percent(1.0):
        return f"If {words.fact}, the chance that they become as good as certain of it may be more than {rare}."
    return f"If {words.fact}, the chance that they come to think it more than {belief} likely is at most {rare}."


@dataclass(frozen=True)
class _Phrases:
    others: str
    question: str
    fact: str
    those: str


def _phrases(adjacency: Adjacency, unit: str) -> _Phrases:
    """What is asked about one unit, by what neighbours differ in."""
    if unit == "person":
        others, you = (
            "everybody else",
            {
                "add-remove": ("whether you are in the data", "you are in the data", "people who are in the data"),
                "zero-out": ("whether your data were used", "they were used", "people whose data were used"),
                "replace": (
                    "which of two possible records is yours",
                    "it is the first",
                    "people with the first record",
                ),
            },
        )
        return _Phrases(others, *you[adjacency])
    it = {
        "add-remove": (f"whether one given {unit} is in the data", "it is", f"{unit}s in the data"),
        "zero-out": (f"whether one given {unit} was used", "it was", f"{unit}s that were used"),
        "replace": (f"which of two possible values one {unit} has", "it is the first", f"{unit}s with the first value"),
    }
    return _Phrases(f"every other {unit}", *it[adjacency])


def _phrases_of_half(protects: Protects, unit: str) -> _Phrases:
    """What is asked where the other half is public."""
    hidden, public = ("sets of features", "labels") if protects == "features" else ("labels", "features")
    first = "the first set of features" if protects == "features" else "the first label"
    if unit == "person":
        others, question = f"everybody else and your {public}", f"which of two possible {hidden} is yours"
        return _Phrases(others, question, "it is the first", f"people with {first}")
    others, question = f"every other {unit} and this one's {public}", f"which of two possible {hidden} one {unit} has"
    return _Phrases(others, question, "it is the first", f"{unit}s with {first}")


def _row(odds: Odds) -> tuple[str, ...]:
    return (
        _percent(odds.prior),
        _hundredths(odds.without, 1),
        _hundredths(odds.right, 1),
        _hundredths(odds.accusing, 1),
        _percent(odds.belief),
    )


def _percent(share: float) -> str:
    return f"{_hundredths(share, 1)} %"


def _hundredths(share: float, decimals: int) -> str:
    """100·share, rounded up; what floating point adds to a round number (a ten-billionth) is dropped."""
    exact = Decimal(f"{100 * share:.8f}").quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING)
    return f"{exact.normalize():f}"
