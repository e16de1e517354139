"""Gaussian releases of which an example takes part in some, by coins that anybody may see.

K ~ Binomial(T, q) of T steps have the example. Given the coins the releases are one Gaussian, and the hockey-stick
divergence is jointly convex, so that δ(ε) ≤ E_K δ_Gauss(ε; μ_K), whether the attacker sees the coins or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import erfcx, ndtr

Array = NDArray[np.float64]
LEFT_OUT = 1e-18  # probability of participations that are counted as a complete loss of privacy instead of summed up
ROUNDING = 1e-15  # of the sum over the others


@dataclass(frozen=True)
class Participating:
    """T = ``steps`` Gaussian releases: K ~ Binomial(T, ``rate``) of them cost ``each`` in μ², and every one ``always``,
    whether the example is in it or not."""

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
        """The μ of every K that matters, its probability, and the probability of all others."""
        count = stats.binom(self.steps, self.rate)
        low, high = max(0, int(count.ppf(LEFT_OUT))), max(0, int(count.isf(LEFT_OUT)))
        times = np.arange(low, high + 1)
        outside = float(count.cdf(low - 1) + count.sf(high))
        return np.sqrt(self.steps * self.always + times * self.each), np.asarray(count.pmf(times)), outside

    def delta_of(self, epsilon: float) -> float:
        """E_K δ_Gauss(ε; √(T·always + K·each)); what is left out of K counts in full."""
        mu, chances, outside = self._mixture
        return min(1.0, float(chances @ gaussian_deltas(epsilon, mu)) + outside + ROUNDING)


def gaussian_deltas(epsilon: float, mu: Array) -> Array:
    """δ_Gauss(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) for many μ at once, rounded up a little; 0 where μ is."""
    some = np.where(mu > 0, mu, 1.0)
    t = epsilon / some - some / 2
    first = ndtr(-t)
    second = 0.5 * np.exp(-t * t / 2) * erfcx((epsilon / some + some / 2) / math.sqrt(2))
    rounding = 1e-14 * first  # what the difference of the two can lose
    return np.asarray(np.where(mu > 0, np.clip((first - second) + rounding, 0.0, 1.0), 0.0))
