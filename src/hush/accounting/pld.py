"""Numerical composition of privacy-loss distributions, for one step or for millions, never below the truth.

Losses of composed releases add, so their distribution is a convolution; it is taken in one FFT. Two things make it
exact where it matters:

- The FFT works on the *tilted* masses p(x)·exp(λx)/M(λ), with λ the Chernoff (saddle) point of the question asked, and
  tilts back afterwards. Its rounding errors are then relative to the tail that is read, not to 1, where they would be
  larger than a small δ (figures: docs/accounting.md).
- The grid's step h is chosen from the question: splitting a cell raises ln M by at most λ(λ+1)h²/8 a step, hence ε by
  about T(λ+1)h²/8, which is kept below a small fraction of ε.

What falls outside the FFT's window, and the FFT's own rounding, are bounded and added to δ. See Koskela et al. 2020
(the Fourier accountant), Doroshenko et al. 2022 (the grid), Alghamdi et al. 2023 (the saddle point).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as reference
from numpy.typing import NDArray
from scipy import fft, optimize
from scipy.signal import lfilter
from scipy.special import ndtr, ndtri

from hush.errors import InvalidInputError, NotProvenError

# Privacy-loss distributions on a grid, always rounded so that the privacy loss is over-stated.
#
# A pair (P, Q) is given by its tails P(loss > t), Q(loss > t). The mass of each cell (t, t + h] is split between its
# two ends so that both its P- and its Q-mass are kept ("connect the dots", Doroshenko et al. 2022): with P-mass p and
# Q-mass r, the upper end gets (p − eᵗ r)/(1 − e⁻ʰ), the lower end the rest. Such a grid dominates the pair it came
# from. Masses are differences of tails taken cell by cell, so their total stays 1 even where one step's loss is 1e-10.

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
    """Less common leaves, which dp-accounting's PLD supports under add-remove, on its own grid."""
    try:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            pld = _reference(event, step)
    except (ValueError, ArithmeticError) as error:
        raise InvalidInputError(f"dp-accounting cannot read {event}: {error}") from error
    part = (pld._pmf_add if direction == "add" else pld._pmf_remove).to_dense_pmf()
    masses, infinite = np.asarray(part._probs, dtype=np.float64), float(part._infinity_mass)
    if not abs(float(masses.sum()) + infinite - 1) < 1e-6 or not masses.any():
        raise InvalidInputError(f"dp-accounting cannot put {event} on a grid: its parameters are too extreme")
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
        raise InvalidInputError(f"{event} has no noise, or nothing to hide")
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
    raise NotProvenError(f"the PLD accountant has no privacy-loss distribution for {type(event).__name__}")


Build = Callable[[float], Grid]  # a leaf's grid at a given step
ACCURACY = 1e-5  # relative, of ε
LONG = 100_000  # steps; above it the accuracy falls in proportion, so that time and memory do not grow
DELTA_ACCURACY = 1e-3  # relative, of δ
OUTSIDE = 1e-13  # tilted mass that may fall outside the window on either side
ROUNDING = 1e-14  # what floating point may hide of one step's loss, and of its ln M
RELATIVE = 1e-12  # and relative to the whole loss
UNIT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class CountedLeaf:
    """One leaf, how to put it on a grid, how wide its losses spread, and how often it occurs."""

    build: Build
    width: float
    count: int
    cells: int = MOST_CELLS  # the most its grid may have


@dataclass(frozen=True)
class Product:
    """The leaves on one grid, before they are convolved."""

    grids: tuple[Grid, ...]
    counts: tuple[int, ...]

    @cached_property
    def _columns(self) -> list[tuple[Vector, Vector]]:
        kept = [(grid, grid.masses > 0) for grid in self.grids]
        return [(grid.losses[mask], np.log(grid.masses[mask])) for grid, mask in kept]

    @property
    def step(self) -> float:
        """The grid's step."""
        return self.grids[0].step

    @property
    def steps(self) -> int:
        """How many releases are composed."""
        return sum(self.counts)

    @property
    def infinite(self) -> float:
        """Probability that any release has unbounded loss."""
        total = sum(n * math.log1p(-min(g.infinite, 1 - UNIT)) for g, n in zip(self.grids, self.counts, strict=True))
        return -math.expm1(total)

    def log_moment(self, tilt: float) -> float:
        """ln E exp(λ·loss) of the composition, over finite losses."""
        total = 0.0
        for (losses, logs), count in zip(self._columns, self.counts, strict=True):
            powers = logs + tilt * losses
            top = float(powers.max())
            total += count * (top + math.log(float(np.exp(powers - top).sum())))
        return total

    def spread(self, tilt: float) -> tuple[float, float]:
        """Mean and standard deviation of the composed loss under the tilted masses."""
        mean = variance = 0.0
        for (losses, logs), count in zip(self._columns, self.counts, strict=True):
            powers = logs + tilt * losses
            weights = np.exp(powers - powers.max())
            weights /= weights.sum()
            centre = float(weights @ losses)
            mean += count * centre
            variance += count * float(weights @ (losses - centre) ** 2)
        return mean, math.sqrt(variance)


@dataclass(frozen=True)
class Composed:
    """The convolved distribution around the losses that matter: tilted masses on a grid from ``start`` on."""

    product: Product
    tilt: float
    moment: float  # ln M(λ), and what floating point may hide of it
    start: int
    tilted: Vector
    slack: float  # bound on what window and rounding hide, in units of exp(ln M(λ) − λ·loss)

    @cached_property
    def _tails(self) -> tuple[Vector, Vector, Vector]:
        """Losses; and at each loss x, in units of exp(ln M − λx): δ(x), and E[exp(x − loss); loss > x].

        Both by recursions over positive terms only, so that δ keeps its relative precision however small ε is.
        """
        h = self.product.step
        losses = np.asarray((self.start + np.arange(len(self.tilted))) * h, dtype=np.float64)
        keep, keep_both = math.exp(-self.tilt * h), math.exp(-(self.tilt + 1) * h)
        above = np.append(self.tilted[1:], 0.0)[::-1]
        upper = keep * lfilter([1.0], [1.0, -keep], above)  # P(loss > x), from the top down
        gap = lfilter([1.0], [1.0, -keep_both], -math.expm1(-h) * upper)
        return losses, gap[::-1], (upper - gap)[::-1]

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0, an upper bound."""
        losses, gap, lower = self._tails
        at = epsilon * (1 - RELATIVE) - ROUNDING * self.product.steps
        if at < losses[0]:
            return 1.0
        cell = min(int((at - losses[0]) / self.product.step), len(losses) - 1)
        past = min(max(at - losses[cell], 0.0), self.product.step)
        rise = math.expm1(min(past, 700.0))  # inside a cell, δ is linear in exp ε
        tail = max(float(gap[cell] - rise * lower[cell]), 0.0)
        shown = math.exp(min(self.moment - self.tilt * losses[cell], 700.0)) * (tail + self.slack)
        return min(self.product.infinite + shown, 1.0)

    def _enough(self, delta: float) -> NDArray[np.bool_]:
        """At which losses δ(loss) ≤ delta."""
        losses, gap, _ = self._tails
        left = delta - self.product.infinite
        if left <= 0:
            return np.zeros(len(losses), dtype=np.bool_)
        return np.asarray(np.log(gap + self.slack) <= math.log(left) - self.moment + self.tilt * losses)

    def sharp(self, delta: float) -> bool:
        """Whether the window reaches below the ε of this δ, and rounding is a small part of δ there."""
        if self.start > 0 and self._enough(delta)[0]:
            return False
        hidden = self.moment - self.tilt * self.epsilon(delta) + math.log(self.slack)
        return math.isfinite(hidden) and hidden < math.log(1e-4 * delta)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with δ(ε) ≤ delta, or infinity."""
        enough = self._enough(delta)
        if not enough.any():
            return math.inf
        losses, gap, lower = self._tails
        first = int(np.argmax(enough))
        found = float(losses[first])
        if first > 0 and lower[first - 1] > 0:
            goal = math.log(delta - self.product.infinite) - self.moment + self.tilt * losses[first - 1]
            excess = gap[first - 1] + self.slack - math.exp(min(goal, 700.0))
            found = min(found, float(losses[first - 1]) + math.log1p(max(excess / lower[first - 1], 0.0)))
        return max(found * (1 + RELATIVE) + ROUNDING * self.product.steps, 0.0)


def compose(parts: Sequence[CountedLeaf], *, delta: float | None = None, epsilon: float | None = None) -> Composed:
    """The composition of ``parts``, sharp around the given δ (to ask for ε) or the given ε (to ask for δ)."""
    widest = max(part.width for part in parts)
    cells = MOST_CELLS / max(1.0, len(parts) / 8)
    step, floor, tilt = widest / 500, max(part.width / min(part.cells, cells) for part in parts), None
    for _ in range(100):
        product = _product(parts, step)
        tilt = _tilt(product, delta, epsilon, tilt)
        low, high = _window(product, tilt)
        wanted = max(_step(product, tilt, delta), floor)
        if (high - low) / step > 1.5 * cells:  # too fine for the memory allowed: coarser, and never finer again
            step = floor = max((high - low) / cells, 1.5 * step)
        elif step > wanted:
            step = max(min(wanted, step / 2) / 1.1, floor)
        else:
            return _around(product, tilt, low, high, delta)
    raise NotProvenError("the PLD accountant finds no grid for these events within its memory: use the rdp accountant")


def _around(product: Product, tilt: float, low: float, high: float, delta: float | None) -> Composed:
    """The convolution; for a δ, with less and less tilt as long as that shows a smaller ε.

    Every tilt gives an upper bound. Chernoff's is the best for small δ; where δ is large, or losses come in lumps, its
    ε lies far above the true one: the window may miss that, or rounding errors weigh too much there.
    """
    composed = _convolve(product, tilt, low, high)
    for _ in range(40):
        if delta is None or composed.sharp(delta) or product.infinite >= delta:
            break
        tilt /= 2
        other = _convolve(product, tilt, *_window(product, tilt))
        if composed.epsilon(delta) < other.epsilon(delta) * (1 + ACCURACY) and not other.sharp(delta):
            break
        composed = other
    return composed


def chernoff_delta(parts: Sequence[CountedLeaf], epsilon: float, step: float) -> float:
    """An upper bound on δ(ε) without any convolution, on a grid of about this step: infinite part + M(λ)e^(−λε)."""
    product = _product(parts, max(step, max(part.width / part.cells for part in parts)))
    tilt = _tilt(product, None, epsilon, None)
    shown = product.log_moment(tilt) - tilt * (epsilon * (1 - RELATIVE) - ROUNDING * product.steps)
    return product.infinite + math.exp(min(shown + ROUNDING * product.steps, 0.0))


def _product(parts: Sequence[CountedLeaf], step: float) -> Product:
    return Product(tuple(part.build(step) for part in parts), tuple(part.count for part in parts))


def _tilt(product: Product, delta: float | None, epsilon: float | None, before: float | None) -> float:
    """The λ of the Chernoff bound: least (ln M(λ) + ln 1/δ)/λ, or least ln M(λ) − λε; ``before`` is a first guess."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        moment = product.log_moment(tilt)
        return (moment - math.log(delta)) / tilt if delta is not None else moment - tilt * (epsilon or 0.0)

    def least(low: float, high: float) -> float:
        best = optimize.minimize_scalar(bound, bounds=(low, high), method="bounded", options={"xatol": 0.05})
        return float(best.x)

    if before is not None:
        guess = math.log(before)
        found = least(guess - 1.5, guess + 1.5)
        if abs(found - guess) < 1.3:
            return math.exp(found)
    std = max(product.spread(0.0)[1], product.step / 10)
    return math.exp(least(math.log(1e-3 / std), math.log(1e3 / std)))


def _step(product: Product, tilt: float, delta: float | None) -> float:
    """The step at which the grid raises ln M(λ), by at most Tλ(λ+1)h²/8, and one step's spread by little enough."""
    allowed = DELTA_ACCURACY
    if delta is not None:
        allowed = ACCURACY * (max(product.log_moment(tilt), 0.0) - math.log(delta))  # λε by Chernoff
    allowed *= max(1.0, product.steps / LONG)
    curve = math.sqrt(8 * allowed / (product.steps * tilt * (tilt + 1)))
    root = math.sqrt(product.steps)
    return min(curve, product.spread(0.0)[1] / root / max(50.0, 500 / root))  # fine also against one step's spread


def _window(product: Product, tilt: float) -> tuple[float, float]:
    """Losses outside which the tilted masses put at most OUTSIDE on either side, by Chernoff's bound."""
    moment, far = product.log_moment(tilt), -math.log(OUTSIDE)
    std = max(product.spread(tilt)[1], product.step / 10)
    pairs = list(zip(product.grids, product.counts, strict=True))
    low, high = (float(sum(grid.losses[end] * count for grid, count in pairs)) for end in (0, -1))

    def above(log_more: float) -> float:
        more = math.exp(log_more)
        return (product.log_moment(tilt + more) - moment + far) / more

    def below(log_more: float) -> float:
        more = math.exp(log_more)
        return (product.log_moment(tilt - more) - moment + far) / more

    span = (math.log(1e-3 / std), math.log(1e2 / std))
    top, bottom = (
        optimize.minimize_scalar(side, bounds=span, method="bounded", options={"xatol": 0.2}).fun
        for side in (above, below)
    )
    return max(low, -float(bottom)), min(high, float(top))


def _convolve(product: Product, tilt: float, low: float, high: float) -> Composed:
    h, start = product.step, math.floor(low / product.step)
    size = fft.next_fast_len(max(math.ceil(high / h) - start + 2, 16), real=True)
    steps = [_Tilted.of(grid, tilt) for grid in product.grids]
    kept = _count_frequencies(steps, product.counts, size) if product.steps > LONG else size // 2 + 1
    spectrum, origin = np.zeros(size // 2 + 1, dtype=np.complex128), 0
    spectrum[:kept] = 1.0
    for grid, step, count in zip(product.grids, steps, product.counts, strict=True):
        spectrum[:kept] *= _power(step.frequencies(kept, size), count)
        origin += (grid.start + step.centre) * count
    tilted = np.maximum(np.roll(fft.irfft(spectrum, size), (origin - start) % size), 0.0)
    reach = math.sqrt(min(size, 1 / -math.expm1(-2 * tilt * h)))  # cells that a tail sums, in the L2 sense
    rounding = 8 * UNIT * (product.steps + 1) * math.log2(size) * reach * float(np.linalg.norm(tilted))
    rounding += reach * DROPPED if kept <= size // 2 else 0.0
    moment = product.log_moment(tilt) + ROUNDING * product.steps
    return Composed(product, tilt, moment, start, tilted, 2 * OUTSIDE + rounding)


@dataclass(frozen=True)
class _Tilted:
    """The tilted masses of one step, and the cell next to their mean, which is cell 0 of their Fourier transform."""

    masses: Vector
    centre: int

    @classmethod
    def of(cls, grid: Grid, tilt: float) -> _Tilted:
        with np.errstate(divide="ignore"):
            powers = np.log(grid.masses) + tilt * grid.losses
        weights = np.exp(powers - powers.max())
        weights /= weights.sum()
        return cls(weights, round(float(weights @ np.arange(len(weights)))))

    def frequencies(self, kept: int, size: int) -> NDArray[np.complex128]:
        """The lowest frequencies of the Fourier transform of the masses, wrapped to ``size`` cells."""
        if kept * len(self.masses) > MOST_TERMS or kept > size // 2:
            lead = -self.centre % size
            padded = np.zeros(-(-(lead + len(self.masses)) // size) * size)
            padded[lead : lead + len(self.masses)] = self.masses
            return np.asarray(fft.rfft(padded.reshape(-1, size).sum(axis=0))[:kept])
        turns = np.outer(np.arange(kept), np.arange(len(self.masses)) - self.centre) % size
        return np.asarray((self.masses * np.exp(-2j * math.pi / size * turns)).sum(axis=1))


# **Long compositions.** The loss of very many steps is smooth, so all but the lowest frequencies of its distribution
# are next to 0 and need not be computed. Let f(w) = |E exp(iwX)|² = E cos w(X − X') for one step's tilted loss X in
# cells, with an independent copy X' and standard deviation s. Since |f''| ≤ E(X − X')² = 2s², between two points that
# are v apart f is at most the larger of its values there plus v²/8·2s². This bounds every step on every interval of a
# coarse set of frequencies, hence the product over all steps. If that is at most `DROPPED` from some frequency on,
# leaving these frequencies out moves the masses by at most `DROPPED` in the L2 norm (Parseval), which is charged.

DROPPED = 1e-30  # magnitude below which frequencies are left out
MOST_TERMS = 2**20  # of a Fourier sum that is taken directly


def _count_frequencies(steps: Sequence[_Tilted], counts: Sequence[int], size: int) -> int:
    """How many of the lowest frequencies exceed `DROPPED` in the composition of these steps, an upper bound."""
    points = 2 ** math.ceil(math.log2(16 * max(len(step.masses) for step in steps)))
    if points > size:
        return size // 2 + 1
    logs = np.zeros(points // 2)
    for step, count in zip(steps, counts, strict=True):
        cells = np.arange(len(step.masses)) - step.centre
        variance = float(step.masses @ cells**2)  # about any cell it is at least s²
        squares = np.abs(step.frequencies(points // 2 + 1, points)) ** 2
        highest = np.maximum(squares[1:], squares[:-1]) + (2 * math.pi / points) ** 2 * variance / 4 + 1e-12
        logs += count / 2 * np.log(np.minimum(highest, 1.0))
    over = np.flatnonzero(logs > math.log(DROPPED))
    first = int(over[-1]) + 1 if len(over) else 0  # from points 2π·first/points on, all are small enough
    return int(min(math.ceil(first * size / points) + 1, size // 2 + 1))


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Above `LONG` by squaring, which is faster than numpy's logarithm and errs by no more than ``count`` products."""
    if count <= LONG:
        return values**count
    found, square = values if count & 1 else np.ones_like(values), values
    while count := count >> 1:
        square = square * square
        if count & 1:
            found = found * square
    return found
