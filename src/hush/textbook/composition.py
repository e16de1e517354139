"""The composition theorems from before Rényi and PLD accounting, kept to show what those gain.

- basic: k releases, each (ε, δ)-DP, are (kε, kδ)-DP;
- advanced (Dwork, Rothblum and Vadhan 2010): (ε√(2k ln(1/δ')) + kε(e^ε − 1), kδ + δ')-DP;
- Kairouz, Oh and Viswanath 2015: each of T releases may have ε₀ = ε/(2√(T ln(e + ε/δ))), δ₀ = δ/2T;
- optimal (the same paper, theorem 3.3): the best that holds for all (ε₀, δ₀)-DP releases alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from hush._internal.validate import non_negative, positive, positive_int, probability
from hush.errors import NotProvenError


@dataclass(frozen=True)
class EpsilonDelta:
    """An (ε, δ) pair."""

    epsilon: float
    delta: float


def basic(epsilon: float, delta: float, times: int) -> EpsilonDelta:
    """The total of ``times`` releases, each (ε, δ)-DP: both add up."""
    positive(epsilon=epsilon)
    non_negative(delta=delta)
    positive_int(times=times)
    return EpsilonDelta(times * epsilon, min(times * delta, 1.0))


def advanced(epsilon: float, delta: float, times: int, slack: float) -> EpsilonDelta:
    """The total of ``times`` releases, each (ε, δ)-DP, with δ' = ``slack`` spent on the theorem itself."""
    positive(epsilon=epsilon)
    non_negative(delta=delta)
    positive_int(times=times)
    probability(slack=slack)
    total = epsilon * math.sqrt(2 * times * math.log(1 / slack)) + times * epsilon * math.expm1(epsilon)
    return EpsilonDelta(total, min(times * delta + slack, 1.0))


def kairouz_oh_viswanath(epsilon: float, delta: float, times: int) -> EpsilonDelta:
    """What each of ``times`` releases may cost so that all together are (ε, δ)-DP; checked by `optimal_delta`."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    positive_int(times=times)
    each = EpsilonDelta(epsilon / (2 * math.sqrt(times * math.log(math.e + epsilon / delta))), delta / (2 * times))
    if optimal_delta(each.epsilon, each.delta, times, epsilon) > delta:
        raise NotProvenError(
            f"this split of ε = {epsilon:g} at δ = {delta:g} over {times} releases does not hold: use an accountant"
        )
    return each


def optimal_delta(epsilon: float, delta: float, times: int, total: float) -> float:
    """The smallest δ at which ``times`` (ε, δ)-DP releases are all (total, δ)-DP.

    1 − (1−δ)^k · (1 − Σ_l C(k,l) [e^{(k−l)ε} − e^{total + lε}]₊ / (1+e^ε)^k): randomised response is the worst case.
    """
    positive(epsilon=epsilon)
    non_negative(delta=delta, total=total)
    positive_int(times=times)
    index = np.arange(times + 1)
    plus, minus = (times - index) * epsilon, total + index * epsilon
    kept = plus > minus
    with np.errstate(divide="ignore"):
        gap = plus[kept] + np.log(-np.expm1(minus[kept] - plus[kept]))
    choose = gammaln(times + 1) - gammaln(index[kept] + 1) - gammaln(times - index[kept] + 1)
    spread = 0.0
    if kept.any():
        spread = math.exp(float(logsumexp(choose + gap)) - times * float(np.logaddexp(0.0, epsilon)))
    return min(-math.expm1(times * math.log1p(-min(delta, 1 - 1e-16)) + math.log1p(-min(spread, 1 - 1e-16))), 1.0)
