"""The privacy profile of a Gaussian release, exactly: δ as a function of ε, and back (Balle and Wang 2018).

With μ = sensitivity / standard deviation, the privacy loss is N(μ²/2, μ²) and
δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Composed Gaussian releases are one with μ² = Σ μᵢ² (Dong, Roth and Su 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

SAFETY = 1e-9  # relative; more than floating point can lose below


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest δ for which a Gaussian release with this μ is (ε, δ)-DP.

    With t = ε/μ − μ/2 it is ½·exp(−t²/2)·[erfcx(t/√2) − erfcx((t+μ)/√2)], free of the overflow of e^ε.
    """
    if mu == 0:
        return 0.0
    if mu == math.inf:
        return 1.0
    t = epsilon / mu - mu / 2
    if t * t > 1e300:
        return 0.0 if t > 0 else 1.0
    second = 0.5 * math.exp(-t * t / 2) * float(erfcx((epsilon / mu + mu / 2) / math.sqrt(2)))
    first = float(ndtr(-t)) if t < 0 else 0.5 * math.exp(-t * t / 2) * float(erfcx(t / math.sqrt(2)))
    return min(max((first - second) * (1 + SAFETY) + 1e-15 * first, 0.0), 1.0)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε ≥ 0 for which a Gaussian release with this μ is (ε, δ)-DP."""
    if mu == math.inf:
        return math.inf
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    top = mu * mu / 2 + mu * max(float(-ndtri(delta)), 0.0)  # where P(loss > ε) ≤ δ, which is enough
    if not math.isfinite(top):
        return math.inf

    def excess(epsilon: float) -> float:
        return math.log(max(gaussian_delta(epsilon, mu), 1e-320)) - math.log(delta)

    found = top if excess(top) >= 0 else float(brentq(excess, 0.0, top, xtol=1e-300, rtol=1e-13))
    while gaussian_delta(found, mu) > delta:
        found *= 1 + 1e-13
    return found


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ for which a Gaussian release is (ε, δ)-DP: the analytic calibration, σ = sensitivity/μ."""
    low, high = 1.0, 1.0
    while gaussian_delta(epsilon, low) > delta:
        low /= 2
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low


# Gaussian releases in some of which an example takes part, by coins that may be public.
#
# K ~ Binomial(T, q) of T steps contain the example. Given the coins the releases are one Gaussian, and the hockey-stick
# divergence is jointly convex, so δ(ε) ≤ E_K δ_Gauss(ε; μ_K), whether or not the attacker sees the coins.

Array = NDArray[np.float64]
LEFT_OUT = 1e-18  # probability of the values of K that are not summed but counted as a complete loss of privacy
ROUNDING = 1e-15  # of the sum over the other values


@dataclass(frozen=True)
class Participating:
    """T = ``steps`` Gaussian releases: K ~ Binomial(T, ``rate``) of them cost ``each`` in μ², and every one costs
    ``always``, with or without the example."""

    steps: int
    rate: float
    each: float
    always: float = 0.0

    def __str__(self) -> str:
        if self.always == 0:
            return f"Gaussian(μ {math.sqrt(self.each):.6g}) in Binomial({self.steps}, {self.rate:.6g}) steps"
        mu, more = math.sqrt(self.always), math.sqrt(self.always + self.each)
        return f"{self.steps} × Gaussian(μ {mu:.6g}, and {more:.6g} where sampled, rate {self.rate:.6g})"

    @cached_property
    def _mixture(self) -> tuple[Array, Array, float]:
        """The μ and probability of every K that is summed, and the probability of all other K."""
        count = stats.binom(self.steps, self.rate)
        low, high = max(0, int(count.ppf(LEFT_OUT))), max(0, int(count.isf(LEFT_OUT)))
        times = np.arange(low, high + 1)
        outside = float(count.cdf(low - 1) + count.sf(high))
        return np.sqrt(self.steps * self.always + times * self.each), np.asarray(count.pmf(times)), outside

    def delta_of(self, epsilon: float) -> float:
        """E_K δ_Gauss(ε; √(T·always + K·each)); values of K that are not summed count in full."""
        mu, chances, outside = self._mixture
        return min(1.0, float(chances @ gaussian_deltas(epsilon, mu)) + outside + ROUNDING)


def gaussian_deltas(epsilon: float, mu: Array) -> Array:
    """δ_Gauss(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) for many μ at once, rounded up slightly; 0 where μ is 0."""
    some = np.where(mu > 0, mu, 1.0)
    t = epsilon / some - some / 2
    first = ndtr(-t)
    second = 0.5 * np.exp(-t * t / 2) * erfcx((epsilon / some + some / 2) / math.sqrt(2))
    rounding = 1e-14 * first  # bound on the rounding error of the difference
    return np.asarray(np.where(mu > 0, np.clip((first - second) + rounding, 0.0, 1.0), 0.0))
