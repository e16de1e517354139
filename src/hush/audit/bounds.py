"""Lower bounds on ε from the scores of many independent runs, half of them with a canary and half without it.

An adversary gives every run a score, and answers "the canary took part" where it is above a threshold. Of n_out runs
without the canary it accuses FP wrongly, and of n_in runs with it misses FN. With a threshold that was fixed before
these scores were seen, FP and FN are binomial, and with probability of at least 1 − p both

    α = P(yes | out) ≤ ᾱ = BetaInv(1 − p/2; FP + 1, n_out − FP),
    β = P(no  | in)  ≤ β̄ = BetaInv(1 − p/2; FN + 1, n_in − FN)

(Clopper and Pearson 1934, one side each). From the region (ᾱ, β̄) follows:

- A release whose trade-off curve is f has β ≥ f(α) for every adversary. f decreases, so the curve is refuted if
  β̄ < f(ᾱ), and p is an upper bound on the probability of refuting a curve that holds. Verdicts are based on this.
- A release that is (ε, δ)-DP in both directions has 1 − δ ≤ e^ε·α + β and 1 − δ ≤ α + e^ε·β, so that
  ε ≥ max(0, ln((1 − δ − β̄)/ᾱ), ln((1 − δ − ᾱ)/β̄)), for any mechanism. This is the printed bound.
- A release whose curve is a Gaussian's has μ ≥ Φ⁻¹(1 − ᾱ) − Φ⁻¹(β̄). This assumes the shape of the curve.

The Gaussian fit is an estimate and no bound: the distance of the means in units of the pooled standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from hush._internal import validate
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.tradeoff import Curve
from hush.errors import InvalidInputError

Vector = NDArray[np.float64]
SMALLEST_P = 1e-15  # smaller p-values of a refutation are not distinguished
Worth = Callable[["Errors"], Vector]  # the score of the errors at each threshold, to be maximised


@dataclass(frozen=True, eq=False)
class Errors:
    """Wrong answers at one or several thresholds, of ``outside`` runs without and ``inside`` runs with the canary."""

    false_positives: NDArray[np.int64]
    outside: int
    false_negatives: NDArray[np.int64]
    inside: int

    @staticmethod
    def of(false_positives: ArrayLike, outside: int, false_negatives: ArrayLike, inside: int) -> Errors:
        """Check that there are runs of both kinds, and no more errors than runs."""
        validate.positive_int(runs_without_the_canary=outside, runs_with_the_canary=inside)
        counts = [np.asarray(count, dtype=np.int64) for count in (false_positives, false_negatives)]
        for count, most in zip(counts, (outside, inside), strict=True):
            if bool(np.any((count < 0) | (count > most))):
                raise InvalidInputError(f"the errors of {most} runs must lie between 0 and {most}, got {count}")
        return Errors(counts[0], outside, counts[1], inside)

    def region(self, confidence: float) -> tuple[Vector, Vector]:
        """Upper bounds (ᾱ, β̄) on both rates, which hold together with this confidence."""
        each = 1 - (1 - confidence) / 2
        return (
            highest_rate(self.false_positives, self.outside, each),
            highest_rate(self.false_negatives, self.inside, each),
        )


def highest_rate(errors: ArrayLike, trials: int, confidence: float) -> Vector:
    """The one-sided upper bound of Clopper and Pearson on a rate, from errors and trials."""
    validate.probability(confidence=confidence)
    count = np.asarray(errors, dtype=np.float64)
    left = np.maximum(trials - count, 1.0)
    return np.asarray(np.where(count >= trials, 1.0, betaincinv(count + 1, left, confidence)))


def count_errors(inside: ArrayLike, outside: ArrayLike, threshold: ArrayLike) -> Errors:
    """The errors of an adversary who says "took part" where a score is above the threshold."""
    present, absent = np.sort(_scores(inside)), np.sort(_scores(outside))
    at = np.asarray(threshold, dtype=np.float64)
    accused = len(absent) - np.searchsorted(absent, at, side="right")
    missed = np.searchsorted(present, at, side="right")
    return Errors.of(accused, len(absent), missed, len(present))


def choose_threshold(inside: ArrayLike, outside: ArrayLike, worth: Worth) -> float:
    """The threshold that maximises ``worth`` on these scores; the errors are then counted on *other* scores.

    Every value between two neighbouring scores is tried; of several equal maxima the middle one is taken."""
    both = np.unique(np.concatenate([_scores(inside), _scores(outside)]))
    if len(both) == 1:
        return float(both[0])
    between = 0.5 * both[:-1] + 0.5 * both[1:]
    candidates = np.where((between >= both[:-1]) & (between < both[1:]), between, both[:-1])
    worths = worth(count_errors(inside, outside, candidates))
    best = np.flatnonzero(worths == worths.max())
    return float(candidates[best[len(best) // 2]])


def bound_epsilon(errors: Errors, delta: float, confidence: float) -> Vector:
    """A lower bound on ε at δ, with this confidence, for any mechanism: ln((1 − δ − β̄)/ᾱ) or its mirror, or 0."""
    validate.probability(delta=delta)
    false_positives, false_negatives = errors.region(confidence)
    ratios = [
        np.maximum(1 - delta - mine, 0.0) / theirs
        for mine, theirs in ((false_negatives, false_positives), (false_positives, false_negatives))
    ]
    return np.asarray(np.log(np.maximum(np.maximum(*ratios), 1.0)))


def bound_mu(errors: Errors, confidence: float) -> Vector:
    """A lower bound on μ *if* the trade-off curve is a Gaussian's: Φ⁻¹(1 − ᾱ) − Φ⁻¹(β̄), or 0."""
    false_positives, false_negatives = errors.region(confidence)
    distance = -ndtri(false_positives) - ndtri(false_negatives)
    return np.asarray(np.maximum(np.where(np.isnan(distance), 0.0, distance), 0.0))


def is_refuted(errors: Errors, curve: Curve, confidence: float) -> bool:
    """Whether these errors are too few for the curve: β̄ < f(ᾱ) at one threshold that was fixed beforehand."""
    if np.ndim(errors.false_positives):
        raise InvalidInputError("a verdict needs the errors at one threshold, got several: fix one beforehand")
    false_positives, false_negatives = errors.region(confidence)
    return bool(false_negatives < curve.beta(false_positives))


def refutation_p(errors: Errors, curve: Curve) -> float:
    """The smallest p at which the curve is refuted with confidence 1 − p; 1 if there is none."""
    low, high = math.log(SMALLEST_P), math.log(0.5)
    if not is_refuted(errors, curve, 0.5):
        return 1.0
    if is_refuted(errors, curve, 1 - SMALLEST_P):
        return SMALLEST_P
    for _ in range(60):  # always refuted at the higher end
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_refuted(errors, curve, 1 - math.exp(middle)) else (middle, high)
    return math.exp(high)


@dataclass(frozen=True)
class GaussianFit:
    """Two normal distributions with one spread, fitted to the scores: an estimate, never a verdict."""

    mu: float

    @staticmethod
    def of(inside: ArrayLike, outside: ArrayLike) -> GaussianFit:
        """μ = (mean inside − mean outside) / pooled standard deviation, and 0 where that is negative."""
        present, absent = _scores(inside), _scores(outside)
        if min(len(present), len(absent)) < 2:
            raise InvalidInputError("a fit needs at least two scores with the canary and two without it")
        spread = math.sqrt(0.5 * (float(present.var(ddof=1)) + float(absent.var(ddof=1))))
        apart = max(float(present.mean() - absent.mean()), 0.0)
        return GaussianFit(apart / spread if spread > 0 else (math.inf if apart > 0 else 0.0))

    def epsilon(self, delta: float) -> float:
        """The ε of a Gaussian release with this μ, exactly."""
        return gaussian_epsilon(delta, self.mu)


def _scores(values: ArrayLike) -> Vector:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or bool(np.isnan(scores).any()):
        raise InvalidInputError(f"scores must be a list of at least one number without NaN, got shape {scores.shape}")
    return scores


# The results of an audit: a bound on ε at 95 %, which is printed; and a verdict, at 99.99 % after every correction.
#
# A curve is refuted if p · comparisons ≤ 1e-4, with p the smallest of the comparisons made and their number counted
# over adversaries, bounds, thresholds and repetitions (Bonferroni). So of 10 000 audits of curves that hold, at most
# one is refuted on average, for any number of adversaries. Audits beyond the c that were announced have a smaller
# limit: 1e-4/(k(k − 1)) at the k-th, which is 1e-4/c over all k > c together. A larger c that is announced later is
# ignored, because it may depend on a verdict. Every other result is "consistent", which proves nothing: a better
# adversary may find more.

Outcome = Literal["consistent", "refuted"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
PRINTED = 0.95  # confidence of the bound that is printed
FALSE_REFUTATIONS = 1e-4  # the largest probability of refuting a claim that holds, after every correction


def decide(p_values: Sequence[float], comparisons: int) -> Outcome:
    """ "refuted" if a p-value is small enough for this number of comparisons (at least the number of p-values)."""
    validate.positive_int(comparisons=comparisons)
    if len(p_values) > comparisons:
        raise InvalidInputError(
            f"{len(p_values)} p-values cannot come from {comparisons} comparisons: count every comparison that was made"
        )
    if any(not 0 <= p <= 1 for p in p_values):
        raise InvalidInputError(f"a p-value must lie between 0 and 1, got {list(p_values)}")
    smallest = min(p_values, default=1.0)
    return "refuted" if smallest <= FALSE_REFUTATIONS / comparisons else "consistent"


def allow_for_repeats(announced: int, number: int) -> int:
    """The number of comparisons that audit ``number`` (from 1 on) counts as, given the announced number of audits."""
    validate.positive_int(comparisons=announced, number=number)
    return announced if number <= announced else number * (number - 1)


@dataclass(frozen=True)
class Verdict:
    """The claim about a method, the measurement, and the verdict.

    ``epsilon_lower`` is a bound for any mechanism, ``epsilon_if_gaussian`` is a bound *if* the trade-off curve is a
    Gaussian's, ``epsilon_estimate`` is a fit and not a bound. All are at ``delta``."""

    method: str
    status: str
    claimed_epsilon: float
    delta: float
    epsilon_lower: float
    verdict: Outcome
    adversary: str
    p_value: float
    comparisons: int
    runs: int
    epsilon_if_gaussian: float = 0.0
    epsilon_estimate: float = 0.0
    confidence: float = PRINTED
    canaries: int = 1

    def __post_init__(self) -> None:
        validate.choice(OUTCOMES, verdict=self.verdict)

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.verdict == "refuted"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; infinite values are null."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in found.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_json`; other keys are ignored."""
        known = {name: data[name] for name in Verdict.__dataclass_fields__ if name in data}
        for name in ("claimed_epsilon", "epsilon_lower", "epsilon_if_gaussian", "epsilon_estimate"):
            known[name] = math.inf if known[name] is None else float(known[name])
        return Verdict(**known)
