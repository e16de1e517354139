"""One Gaussian release: how much noise (ε, δ) needs, a private mean, and the distribution of its privacy loss.

Four calibrations of the standard deviation for sensitivity Δ, from the oldest to the exact one:

- classic (Dwork and Roth 2014): Δ√(2 ln(1.25/δ))/ε, for ε < 1 only;
- any-epsilon: (Δ/ε)√(2 ln(1/δ) + 2ε);
- pei: Δ times the smallest of √(2 ln(1/δ))/ε + 1/√(2ε);  max(1, √ln(1/2πδ²)₊)/ε + 1/√(2ε);  √(ε + ln(1/δ²))/ε;
  max(√(1+ε), √(ε + ln(1/2πδ²))₊)/ε;
- analytic (Balle and Wang 2018): the smallest with Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) ≤ δ. Use this one.

The second term of the first two of Pei's is 1/√(2ε). It is sometimes printed 2ε^(−3/2), which is too little noise from
ε ≈ 6.5 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from dp_accounting import dp_event
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from hush._internal.validate import choice, positive, probability
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from hush.accounting.guarantee import PRECISE, Guarantee
from hush.accounting.noise_tails import Tails, check_std, grid
from hush.errors import InvalidInputError, NotProvenError

__all__ = [
    "LossDistribution",
    "PrivateMean",
    "analytic_sigma",
    "any_epsilon_sigma",
    "classic_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "pei_sigma",
    "private_mean",
]

NUMPY_REACH = 13.0  # of numpy's normal draws, a little less than r + 53 ln 2/r of its ziggurat
UNIT_BITS = 36
Calibration = Literal["classic", "any-epsilon", "pei", "analytic"]


def classic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Δ√(2 ln(1.25/δ))/ε (Dwork and Roth 2014, theorem A.1); refused from ε = 1 on, where its proof ends."""
    _check(epsilon, delta, sensitivity)
    if epsilon >= 1:
        raise NotProvenError(
            f"the classic calibration is proven for epsilon below 1 only, got {epsilon:g}: use the analytic one"
        )
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def any_epsilon_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """(Δ/ε)√(2 ln(1/δ) + 2ε), for every ε."""
    _check(epsilon, delta, sensitivity)
    return sensitivity * math.sqrt(2 * math.log(1 / delta) + 2 * epsilon) / epsilon


def pei_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Pei's refinement: the smallest of four bounds, each of which holds for every ε (see the module)."""
    _check(epsilon, delta, sensitivity)
    power = 2 * math.log(1 / delta)  # ln δ⁻²
    less = power - math.log(2 * math.pi)
    extra = 1 / math.sqrt(2 * epsilon)
    return sensitivity * min(
        math.sqrt(power) / epsilon + extra,
        max(1.0, math.sqrt(max(less, 0.0))) / epsilon + extra,
        math.sqrt(epsilon + power) / epsilon,
        max(math.sqrt(1 + epsilon), math.sqrt(max(epsilon + less, 0.0))) / epsilon,
    )


def analytic_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation there is (Balle and Wang 2018)."""
    _check(epsilon, delta, sensitivity)
    return sensitivity / gaussian_mu(epsilon, delta) * (1 + 1e-12)


CALIBRATIONS: dict[str, Callable[[float, float, float], float]] = {
    "classic": classic_sigma,
    "any-epsilon": any_epsilon_sigma,
    "pei": pei_sigma,
    "analytic": analytic_sigma,
}


@dataclass(frozen=True)
class PrivateMean:
    """A released mean, the standard deviation of its noise (per coordinate), and its guarantee."""

    value: NDArray[np.float64]
    noise_std: float
    sensitivity: float
    guarantee: Guarantee


def private_mean(
    values: ArrayLike,
    bound: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    lower: float | None = None,
    adjacency: Adjacency = "replace",
    divisor: int | None = None,
    calibration: Calibration = "analytic",
) -> PrivateMean:
    """The mean of ``values`` with Gaussian noise, (ε, δ)-private in the arithmetic that computes it.

    Numbers are clipped to [lower, bound] (lower is −bound unless given), vectors (rows) to norm ``bound``; what is not
    finite counts as zero. With n values, replacing one moves the mean by (bound − lower)/n (vectors: 2·bound/n) and
    zeroing one by max(|lower|, |bound|)/n. Under add-remove the number of values is itself private, so the sum is
    divided by a public ``divisor`` that must be given. ``rng`` must be unpredictable to anyone who sees the result.

    Every clipped value is rounded towards zero to a whole number of a public unit, 2⁻³⁶ of the bound or less, so the
    sum is a sum of integers: exact, in any order, and it moves by no more than the clipped value does. The noise is
    rounded to the same unit, which makes sum plus noise the Gaussian release rounded, and the result is rounded once
    more to the grid of `hush.accounting.noise_tails`, because its last bits would otherwise show the resolution of the
    draw.
    """
    positive(bound=bound)
    _check(epsilon, delta, 1.0)
    choice(ADJACENCIES, adjacency=adjacency)
    choice(CALIBRATIONS, calibration=calibration)
    rows, base, moved = _clipped(np.asarray(values, dtype=np.float64), bound, lower, adjacency)
    count = _public_count(len(rows), adjacency, divisor)
    sensitivity = moved / count
    calibrated = CALIBRATIONS[calibration]
    std, coordinates = calibrated(epsilon, delta, sensitivity), max(1, math.prod(rows.shape[1:]))
    tails = Tails(coordinates, 1, sensitivity / std, reach=NUMPY_REACH).check(delta, epsilon)
    std = calibrated(epsilon, delta - tails, sensitivity)  # more noise, whose tails take less
    check_std(std * count)
    noisy = _noisy_sum(rows, moved, std * count, rng)
    guarantee = Guarantee(
        min(epsilon, gaussian_epsilon(delta - tails, sensitivity / std)),
        delta,
        adjacency,
        unit="value",
        event=dp_event.GaussianDpEvent(std / sensitivity),
        accountant="gdp",
        assumptions=("the noise is unpredictable", PRECISE),
    )
    return PrivateMean(np.asarray(base + noisy / count), std, sensitivity, guarantee)


def _noisy_sum(rows: NDArray[np.float64], moved: float, std: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Σ rows + noise in integers of a public unit, then rounded to the public grid of the noise."""
    spacing = grid(std)
    unit = min(2.0 ** (math.frexp(moved)[1] - UNIT_BITS), spacing)
    if moved / unit > 2.0**50:
        raise NotProvenError(
            f"noise of {std:g} is too small relative to values of up to {moved:g} for exact sums: lower epsilon"
        )
    whole_rows = np.trunc(rows / unit).astype(np.int64)  # a power of two: the division is exact
    cut = int(2**61 * unit / moved)
    pieces = [whole_rows[start : start + cut].sum(axis=0) for start in range(0, len(rows), cut)]
    exact = np.asarray(sum((piece.astype(object) for piece in pieces), np.zeros(rows.shape[1:], dtype=object)))
    noise = np.asarray(np.floor(rng.normal(0.0, std, rows.shape[1:]) / unit + 0.5))  # moves with what it is added to
    steps = int(spacing / unit)
    released = [round(Fraction(int(s) + int(z), steps)) for s, z in zip(exact.flat, noise.flat, strict=True)]
    return np.array([float(number) * spacing for number in released]).reshape(rows.shape[1:])


@dataclass(frozen=True)
class LossDistribution:
    """The privacy loss of a Gaussian release: N(μ²/2, μ²) with μ = Δ/σ."""

    mu: float

    def __post_init__(self) -> None:
        positive(mu=self.mu)

    @property
    def mean(self) -> float:
        """Δ²/2σ²."""
        return self.mu**2 / 2

    @property
    def std(self) -> float:
        """Δ/σ."""
        return self.mu

    def density(self, loss: ArrayLike) -> NDArray[np.float64]:
        """The density of the loss, to show it."""
        z = (np.asarray(loss, dtype=np.float64) - self.mean) / self.std
        return np.asarray(np.exp(-(z**2) / 2) / (self.std * math.sqrt(2 * math.pi)))

    def tail(self, epsilon: float) -> float:
        """P(loss > ε), which is a δ: a tail of at most δ implies (ε, δ)-DP. `gaussian_delta` is the smallest δ."""
        return float(ndtr((self.mean - epsilon) / self.std))


def _check(epsilon: float, delta: float, sensitivity: float) -> None:
    positive(epsilon=epsilon, sensitivity=sensitivity)
    probability(delta=delta)


def _clipped(
    values: NDArray[np.float64], bound: float, lower: float | None, adjacency: Adjacency
) -> tuple[NDArray[np.float64], float, float]:
    """The values within their bounds, less a public base that is the same for all, the base, and how far one moves the
    sum. Under replace numbers count from their lower bound: what matters then is how far apart the bounds are."""
    values = np.where(np.isfinite(values), values, 0.0)
    if values.ndim == 1:
        low = -bound if lower is None else float(lower)
        if not low < bound:
            raise InvalidInputError(f"lower must be below bound, got lower {low:g} and bound {bound:g}")
        if adjacency == "replace":
            return np.clip(np.clip(values, low, bound) - low, 0.0, bound - low), low, bound - low
        return np.clip(values, low, bound), 0.0, max(abs(low), bound)
    if values.ndim != 2:
        raise InvalidInputError(f"values must be numbers or rows of numbers, got an array of {values.ndim} dimensions")
    if lower is not None:
        raise InvalidInputError("lower is for numbers; vectors are clipped to norm bound")
    tiny = np.finfo(np.float64).tiny
    largest = np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0), tiny)  # norms must not overflow
    norms = np.maximum(np.linalg.norm(values / largest, axis=1, keepdims=True), tiny)
    below = bound * (1 - (values.shape[1] + 16) * 2.0**-52)  # norm, quotient and product are rounded
    clipped = values / largest * np.minimum(largest, below / norms)
    return clipped, 0.0, 2 * bound if adjacency == "replace" else bound


def _public_count(found: int, adjacency: Adjacency, divisor: int | None) -> int:
    if divisor is not None:
        if isinstance(divisor, bool) or divisor < 1:
            raise InvalidInputError(f"divisor must be a whole number of at least 1, got {divisor!r}")
        return divisor
    if adjacency == "add-remove":
        raise NotProvenError(
            "under add-remove the number of values is private too: give a public divisor, or use replace adjacency"
        )
    if found == 0:
        raise InvalidInputError("the mean of no values does not exist")
    return found
