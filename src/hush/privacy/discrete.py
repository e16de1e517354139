"""Privacy-loss distributions on a grid, always rounded so that the privacy loss is over-stated.

A pair (P, Q) is given by its tails P(loss > t), Q(loss > t). The mass of each cell (t, t + h] is split between its two
ends so that both its P- and its Q-mass are kept ("connect the dots", Doroshenko et al. 2022): with P-mass p and Q-mass
r, the upper end gets (p − eᵗ r)/(1 − e⁻ʰ), the lower end the rest. Such a grid dominates the pair it came from. Masses
are differences of tails taken cell by cell, so their total stays 1 even where one step's loss is 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as reference
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from hush.errors import BadInput, Refused

Vector = NDArray[np.float64]
Direction = Literal["remove", "add", "replace"]
MOST_CELLS = 2**21


@dataclass(frozen=True)
class Grid:
    """Loss (start + i)·step has probability masses[i]; ``infinite`` is the probability of an unbounded loss."""

    step: float
    start: int
    masses: Vector
    infinite: float

    @property
    def losses(self) -> Vector:
        """The loss of every cell end."""
        return np.asarray((self.start + np.arange(len(self.masses))) * self.step, dtype=np.float64)


@dataclass(frozen=True)
class Pair:
    """Tails of the loss under P and Q, and the interval outside which P has next to no mass."""

    tails: Callable[[Vector], tuple[Vector, Vector]]
    lowest: float
    highest: float

    @property
    def width(self) -> float:
        """Length of the interval; never 0, as even a constant loss needs a grid."""
        return max(self.highest - self.lowest, 1e-3 * abs(self.highest), 1e-3 * abs(self.lowest), 1e-12)

    def grid(self, step: float) -> Grid:
        """The pair on a grid of the given step; what lies above the interval counts as infinite loss."""
        start, stop = math.floor(self.lowest / step), math.ceil(self.highest / step)
        ends = np.asarray(np.arange(start, max(stop, start + 1) + 1) * step, dtype=np.float64)
        upper, lower = self.tails(ends)
        p, r = np.maximum(-np.diff(upper), 0.0), np.maximum(-np.diff(lower), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            share = (p - np.exp(ends[:-1]) * r) / -math.expm1(-step)
        share = np.clip(np.where(np.isfinite(share), share, p), 0.0, p)
        masses = np.append(p - share, 0.0)
        masses[1:] += share
        masses[0] += max(1.0 - float(upper[0]), 0.0)
        return Grid(step, start, masses, float(upper[-1]))


def poisson_gaussian(rate: float, sigma: float, direction: Direction, cut: float) -> Pair:
    """Poisson-sampled Gaussian (rate 1: plain): P, Q dominate every pair of neighbours; ``cut`` is the mass cut off.

    remove: P = (1−q)N(0, σ²) + qN(1, σ²), Q = N(0, σ²); add: the same, swapped (Zhu, Dong and Wang 2022).
    replace: P = (1−q)N(0, s²) + qN(1, s²), Q = (1−q)N(0, s²) + qN(−1, s²) with s = 2σ, as one example moves from one
    end of the ball to the other: the sensitivity 2 is what σ is written for. No other u, v in the ball do worse: with
    X_u = ⟨z,u⟩ − |u|²/2, the divergence is E[q·exp X_u − e^ε q·exp X_v − (e^ε − 1)(1−q)]₊, which by Plackett's identity
    falls in Cov(X_u, X_v) = ⟨u,v⟩ and rises in |u| and |v|.
    """
    far = float(-ndtri(min(cut, 0.1)))  # in standard deviations
    if direction == "replace":
        return _replace(rate, 2 * sigma, far)
    near, top = _loss(rate, sigma, -far * sigma), _loss(rate, sigma, 1 + far * sigma)
    if direction == "remove":

        def tails(loss: Vector) -> tuple[Vector, Vector]:
            z = _where_loss(rate, sigma, loss)
            plain = ndtr(-z / sigma)
            return (1 - rate) * plain + rate * ndtr((1 - z) / sigma), plain

        return Pair(tails, near, top)

    def swapped(loss: Vector) -> tuple[Vector, Vector]:
        z = _where_loss(rate, sigma, -loss)
        plain = ndtr(z / sigma)
        return plain, (1 - rate) * plain + rate * ndtr((z - 1) / sigma)

    return Pair(swapped, -_loss(rate, sigma, far * sigma), -near)


def _loss(rate: float, sigma: float, z: float) -> float:
    exponent = (2 * z - 1) / (2 * sigma**2)
    if rate == 1:
        return exponent
    if exponent > 1:
        return exponent + math.log(rate + (1 - rate) * math.exp(-exponent))
    return math.log1p(rate * math.expm1(exponent))


def _where_loss(rate: float, sigma: float, loss: Vector) -> Vector:
    """The z at which ln(1 − q + q·exp((2z − 1)/2σ²)) equals the loss; −∞ below its infimum ln(1 − q)."""
    if rate == 1:
        return 0.5 + sigma**2 * loss
    small = np.minimum(loss, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.maximum(np.expm1(small) / rate, -1.0)
        low = np.log1p(inside)
        high = loss - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 1.0)))
    return np.asarray(0.5 + sigma**2 * np.where(loss <= 1.0, low, high))


def _replace(rate: float, sigma: float, far: float) -> Pair:
    alpha = math.log1p(-rate) - math.log(rate) + 0.5 / sigma**2 if rate < 1 else -math.inf

    def tails(loss: Vector) -> tuple[Vector, Vector]:
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        power = alpha + log_sinh
        arc = np.logaddexp(power, 0.5 * np.logaddexp(0.0, 2 * power))  # arcsinh(exp(power))
        z = np.sign(loss) * sigma**2 * (arc + half)
        plain = (1 - rate) * ndtr(-z / sigma)
        return plain + rate * ndtr((1 - z) / sigma), plain + rate * ndtr((-1 - z) / sigma)

    z = 1 + far * sigma
    top = _loss(rate, sigma, z) - _loss(rate, sigma, -z)
    return Pair(tails, -top, top)


def laplace(scale: float) -> Pair:
    """Laplace noise of the given scale on a value of sensitivity 1; the same in both directions."""
    most = 1 / scale

    def tails(loss: Vector) -> tuple[Vector, Vector]:
        x = (1 - scale * loss) / 2
        below, inside = loss < -most, (loss >= -most) & (loss < most)
        upper = np.where(inside, 1 - 0.5 * np.exp(-np.clip(x, 0, 1) / scale), 0.0)
        lower = np.where(inside, 0.5 * np.exp((np.clip(x, 0, 1) - 1) / scale), 0.0)
        return np.where(below, 1.0, upper), np.where(below, 1.0, lower)

    return Pair(tails, -most, most)


def randomized_response(random: float, buckets: int, direction: Direction) -> Pair:
    """k-ary randomised response that answers at random with probability ``random``, else truly.

    replace: another true answer; remove/add: the true answer against (from) a uniform one.
    """
    true, false = 1 - random + random / buckets, random / buckets
    if direction == "replace":
        p, q = [true, false, (buckets - 2) * false], [false, true, (buckets - 2) * false]
    else:
        p, q = [true, 1 - true], [1 / buckets, 1 - 1 / buckets]
    if direction == "add":
        p, q = q, p
    masses = [(math.log(a / b), a, b) for a, b in zip(p, q, strict=True) if a > 0 and b > 0]
    losses, ps, qs = (np.array(column) for column in zip(*sorted(masses), strict=True))

    def tails(loss: Vector) -> tuple[Vector, Vector]:
        first = np.searchsorted(losses, loss, side="right")
        return np.append(ps[::-1].cumsum()[::-1], 0.0)[first], np.append(qs[::-1].cumsum()[::-1], 0.0)[first]

    return Pair(tails, float(losses[0]), float(losses[-1]))


def by_reference(event: Any, direction: Direction, step: float) -> Grid:
    """The rarer leaves that dp-accounting's PLD knows under add-remove, on a grid that it makes."""
    try:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            pld = _reference(event, step)
    except (ValueError, ArithmeticError) as error:
        raise BadInput(f"dp-accounting cannot read {event}: {error}") from error
    part = (pld._pmf_add if direction == "add" else pld._pmf_remove).to_dense_pmf()
    masses, infinite = np.asarray(part._probs, dtype=np.float64), float(part._infinity_mass)
    if not abs(float(masses.sum()) + infinite - 1) < 1e-6 or not masses.any():
        raise BadInput(f"dp-accounting cannot put {event} on a grid: its parameters are too extreme")
    return Grid(step, int(part._lower_loss), masses, infinite)


def reference_width(event: Any) -> float:
    """About how far the losses of such a leaf spread."""
    match event:
        case dp_event.PoissonSampledDpEvent(event=dp_event.LaplaceDpEvent()):
            return 2 / float(event.event.noise_multiplier)
        case dp_event.DiscreteLaplaceDpEvent():
            width = float(2 * event.noise_parameter * event.sensitivity)
        case dp_event.MixtureOfGaussiansDpEvent():
            width = _gaussian_width(float(max(map(abs, event.sensitivities))), float(event.standard_deviation))
        case _:
            width = _gaussian_width(2.0, float(event.noise_multiplier))
    if not (math.isfinite(width) and width > 0):
        raise BadInput(f"{event} has no noise, or nothing to hide")
    return width


def _gaussian_width(sensitivity: float, sigma: float) -> float:
    return sensitivity * (sensitivity + 20 * sigma) / sigma**2 if sigma > 0 else math.inf


def _reference(event: Any, step: float) -> Any:
    match event:
        case dp_event.PoissonSampledDpEvent(event=dp_event.LaplaceDpEvent()):
            return reference.from_laplace_mechanism(
                event.event.noise_multiplier,
                value_discretization_interval=step,
                sampling_prob=event.sampling_probability,
            )
        case dp_event.DiscreteLaplaceDpEvent():
            return reference.from_discrete_laplace_mechanism(
                event.noise_parameter, event.sensitivity, value_discretization_interval=step, use_connect_dots=True
            )
        case dp_event.MixtureOfGaussiansDpEvent():
            return reference.from_mixture_gaussian_mechanism(
                event.standard_deviation,
                event.sensitivities,
                event.sampling_probs,
                value_discretization_interval=step,
            )
        case dp_event.TruncatedSubsampledGaussianDpEvent():
            return reference.from_truncated_subsampled_gaussian_mechanism(
                dataset_size=event.dataset_size,
                sampling_probability=event.sampling_probability,
                truncated_batch_size=event.truncated_batch_size,
                noise_multiplier=event.noise_multiplier,
                value_discretization_interval=step,
            )
    raise Refused(f"the PLD accountant has no privacy-loss distribution for {type(event).__name__}")
