"""The privacy profile of a Gaussian release, exactly: δ as a function of ε, and back (Balle and Wang 2018).

With μ = sensitivity / standard deviation, the privacy loss is N(μ²/2, μ²) and
δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Composed Gaussian releases are one with μ² = Σ μᵢ² (Dong, Roth and Su 2022).
"""

from __future__ import annotations

import math

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
