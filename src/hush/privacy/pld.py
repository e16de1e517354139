"""Numerical composition of privacy-loss distributions, for one step or for millions, never below the truth.

Losses of composed releases add, so their distribution is a convolution; it is taken in one FFT. Two things make it
exact where it matters:

- The FFT works on the *tilted* masses p(x)·exp(λx)/M(λ), with λ the Chernoff (saddle) point of the question asked, and
  tilts back afterwards. Its rounding errors are then relative to the tail that is read, not to 1: without the tilt, a
  million steps at δ = 1e-10 come out 1 % too low.
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

import numpy as np
from scipy import fft, optimize
from scipy.signal import lfilter

from hush.errors import Refused
from hush.privacy.discrete import MOST_CELLS, Grid, Vector

Build = Callable[[float], Grid]  # a leaf's grid at a given step
ACCURACY = 1e-5  # relative, of ε
OUTSIDE = 1e-13  # tilted mass that may fall outside the window on either side
ROUNDING = 1e-14  # loss that floating point may hide in one step
UNIT = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Part:
    """One leaf, how to put it on a grid, how wide its losses spread, and how often it occurs."""

    build: Build
    width: float
    count: int


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
    moment: float  # ln M(λ)
    start: int
    tilted: Vector
    slack: float  # bound on what window and rounding hide, in units of exp(ln M(λ) − λ·loss)

    @cached_property
    def _tails(self) -> tuple[Vector, Vector, Vector]:
        """Losses; and at each loss x, in units of exp(ln M − λx): P(loss > x) and E[exp(x − loss); loss > x]."""
        h, tilt = self.product.step, self.tilt
        losses = np.asarray((self.start + np.arange(len(self.tilted))) * h, dtype=np.float64)
        above = np.append(self.tilted[1:], 0.0)[::-1]
        keep = math.exp(-tilt * h)  # one cell further up, the unit shrinks by this
        upper = keep * lfilter([1.0], [1.0, -keep], above)[::-1]
        keep_both = math.exp(-(tilt + 1) * h)
        lower = keep_both * lfilter([1.0], [1.0, -keep_both], above)[::-1]
        return losses, upper, lower

    def delta(self, epsilon: float) -> float:
        """δ at ε ≥ 0, an upper bound."""
        losses, upper, lower = self._tails
        at, last = epsilon - ROUNDING * self.product.steps, len(losses) - 1
        if at < losses[0]:
            return 1.0
        cell = min(int((at - losses[0]) / self.product.step), last)
        past = min(max(at - losses[cell], 0.0), self.product.step)
        tail = max(float(upper[cell] - math.exp(past) * lower[cell]), 0.0)  # 0 above the window
        hidden = math.exp(min(self.moment - self.tilt * losses[cell], 700.0)) * (tail + self.slack)
        return min(self.product.infinite + hidden, 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with δ(ε) ≤ delta, or infinity."""
        left = delta - self.product.infinite
        if left <= 0:
            return math.inf
        losses, upper, lower = self._tails
        goal = math.log(left) - self.moment + self.tilt * losses
        with np.errstate(divide="ignore", over="ignore"):
            enough = np.log(np.maximum(upper - lower, 0.0) + self.slack) <= goal
        if not enough.any():
            return math.inf
        first = int(np.argmax(enough))
        found = losses[first]
        if first > 0 and lower[first - 1] > 0:  # inside the cell below, δ is linear in exp ε
            ratio = (upper[first - 1] + self.slack - math.exp(min(goal[first - 1], 700.0))) / lower[first - 1]
            found = min(found, losses[first - 1] + math.log(max(ratio, 1.0)))
        return max(float(found) + ROUNDING * self.product.steps, 0.0)


def compose(parts: Sequence[Part], *, delta: float | None = None, epsilon: float | None = None) -> Composed:
    """The composition of ``parts``, sharp around the given δ (to ask for ε) or the given ε (to ask for δ)."""
    widest = max(part.width for part in parts)
    cells = MOST_CELLS / max(1.0, len(parts) / 8)
    step, floor, tilt = widest / 500, widest / cells, None
    for _ in range(100):
        product = Product(tuple(part.build(step) for part in parts), tuple(part.count for part in parts))
        tilt = _tilt(product, delta, epsilon, tilt)
        low, high = _window(product, tilt)
        if delta is not None:
            epsilon = (product.log_moment(tilt) - math.log(delta)) / tilt
        wanted = max(_step(product, tilt, epsilon or 0.0), floor)
        if (high - low) / step > 1.5 * cells:  # too fine for the memory allowed: coarser, and never finer again
            step = floor = max((high - low) / cells, 1.5 * step)
        elif step <= wanted:
            return _convolve(product, tilt, low, high)
        else:
            step = max(min(wanted, step / 2) / 1.1, floor)
    raise Refused("the PLD accountant finds no grid for these events within its memory: use the rdp accountant")


def surely_below(parts: Sequence[Part], delta: float, epsilon: float, step: float) -> bool:
    """Whether Chernoff's bound on a grid of this step already shows δ(ε) ≤ delta."""
    product = Product(tuple(part.build(step) for part in parts), tuple(part.count for part in parts))
    tilt = _tilt(product, None, epsilon, None)
    shown = product.log_moment(tilt) - tilt * (epsilon - ROUNDING * product.steps)
    return product.infinite + math.exp(min(shown, 0.0)) <= delta


def _tilt(product: Product, delta: float | None, epsilon: float | None, before: float | None) -> float:
    """The λ of the Chernoff bound: least (ln M(λ) + ln 1/δ)/λ, or least ln M(λ) − λε."""
    if before is None:
        std = max(product.spread(0.0)[1], product.step / 10)
        low, high = math.log(1e-3 / std), math.log(1e6 / std)
    else:
        low, high = math.log(before) - 1.5, math.log(before) + 1.5

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        moment = product.log_moment(tilt)
        return (moment - math.log(delta)) / tilt if delta is not None else moment - tilt * (epsilon or 0.0)

    best = optimize.minimize_scalar(bound, bounds=(low, high), method="bounded", options={"xatol": 0.05})
    return math.exp(float(best.x))


def _step(product: Product, tilt: float, epsilon: float) -> float:
    """The step that keeps the error of ε, T(λ+1)h²/8, below the wanted accuracy."""
    scale = max(epsilon, 0.1 * product.spread(tilt)[1])
    return math.sqrt(8 * ACCURACY * scale / (product.steps * (tilt + 1)))


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
    spectrum, origin = np.ones(size // 2 + 1, dtype=np.complex128), 0
    for grid, count in zip(product.grids, product.counts, strict=True):
        masses, offset = _folded(grid, tilt, size)
        spectrum *= fft.rfft(masses) ** count
        origin += offset * count
    tilted = np.maximum(np.roll(fft.irfft(spectrum, size), (origin - start) % size), 0.0)
    reach = math.sqrt(min(size, 1 / -math.expm1(-2 * tilt * h)))  # cells that a tail sums, in the L2 sense
    rounding = 8 * UNIT * (product.steps + 1) * math.log2(size) * reach * float(np.linalg.norm(tilted))
    return Composed(product, tilt, product.log_moment(tilt), start, tilted, 2 * OUTSIDE + rounding)


def _folded(grid: Grid, tilt: float, size: int) -> tuple[Vector, int]:
    """The tilted masses, wrapped to ``size`` cells with their mean at cell 0, and the loss of that cell in steps."""
    with np.errstate(divide="ignore"):
        powers = np.log(grid.masses) + tilt * grid.losses
    weights = np.exp(powers - powers.max())
    weights /= weights.sum()
    centre = round(float(weights @ np.arange(len(weights))))
    lead = -centre % size
    padded = np.zeros(-(-(lead + len(weights)) // size) * size)
    padded[lead : lead + len(weights)] = weights
    return padded.reshape(-1, size).sum(axis=0), grid.start + centre
