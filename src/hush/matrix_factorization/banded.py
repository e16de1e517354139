"""Banded strategies: C lower triangular with w bands, every row its own (Choquette-Choo et al. 2023b, BandMF).

Row t of C is kept as w numbers, so memory and every formula here are O(T·w) to O(T·w²); the noise is
nₜ = (zₜ − Σ_{1≤j<w} C_{t,t−j} nₜ₋ⱼ) / C_tt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from hush._internal.validate import positive_int
from hush.errors import HushError, InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.cache import cached
from hush.matrix_factorization.recursion import Recursion
from hush.matrix_factorization.sensitivity import Array, pad, participations, quotient, shifted_sum
from hush.matrix_factorization.strategy import Solution, Strategy, freeze
from hush.matrix_factorization.toeplitz import Toeplitz, square_root
from hush.matrix_factorization.workloads import Workload, check_dense, prefix_sums

TOEPLITZ_STEPS = 2000  # from this number of steps on, bands are optimised as a Toeplitz matrix


@dataclass(frozen=True, eq=False)
class BandedMatrix(Strategy):
    """`rows[t, j]` = C_{t,t−j} for 0 ≤ j < w; entries left of the first column (j > t) are zero."""

    rows: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", freeze(self.rows))
        if self.rows.ndim != 2 or not self.rows.size or not np.all(np.isfinite(self.rows)):
            raise InvalidInputError(f"a banded strategy is a finite (steps, bands) array, got shape {self.rows.shape}")
        if np.any(self.rows[:, 0] <= 0):
            raise InvalidInputError("a banded strategy must have a positive diagonal")
        outside = np.arange(self.rows.shape[1]) > np.arange(self.rows.shape[0])[:, None]
        if np.any(self.rows[outside]):
            raise InvalidInputError("rows[t, j] must be zero for j > t: there is no step before the first")

    @property
    def steps(self) -> int:  # type: ignore[override]
        """T."""
        return int(self.rows.shape[0])

    @property
    def bands(self) -> int:
        """w."""
        return int(self.rows.shape[1])

    @property
    def restarts(self) -> int | None:
        """1 for a diagonal C, else never."""
        return 1 if self.bands == 1 else None

    @cached_property
    def columns(self) -> Array:
        """columns[i, j] = C_{i+j,i}."""
        return freeze(_to_columns(self.rows))

    def column_norms(self) -> Array:
        """√X_ii."""
        return np.sqrt(self._band(0))

    def single(self) -> float:
        """Largest column norm."""
        return math.sqrt(float(np.max(self._band(0))))

    def same_order(self, per_epoch: int) -> float:
        """√ of the largest Σ|X_ij| over an epoch's residue; X has entries only at distances below w."""
        positive_int(per_epoch=per_epoch)
        batch = np.arange(self.steps) % per_epoch
        total = np.bincount(batch, self._band(0))
        for distance in range(per_epoch, min(self.bands, self.steps), per_epoch):
            values = np.abs(self._band(distance))
            total += 2 * np.bincount(batch[: len(values)], values, len(total))
        return math.sqrt(float(total.max()))

    def separated(self, times: int, apart: int) -> float:
        """Exact on the diagonal if w ≤ apart, else the two-stage row bound inside the bands of X."""
        if self.bands <= apart:
            return math.sqrt(float(sensitivity.heaviest(self._band(0), times, apart)))
        width = min(self.bands, self.steps)
        window = np.zeros((self.steps, 2 * width - 1))  # |X_{i,i+d}| for −w < d < w
        for distance in range(width):
            values = np.abs(self._band(distance))
            window[: len(values), width - 1 + distance] = values
            window[distance:, width - 1 - distance] = values
        return math.sqrt(float(sensitivity.heaviest(sensitivity.heaviest(window, times, apart), times, apart)))

    def inverse_norms(self) -> Array:
        """Row norms of C⁻¹, by the recursion of the noise's covariance."""
        return np.sqrt(Recursion.of(self.rows, prefix_sums(self.steps)).noise_variances())

    def rmse(self, workload: Workload | None = None) -> float:
        """‖A C⁻¹‖_F / √T in O(T·w²)."""
        return math.sqrt(Recursion.of(self.rows, workload or prefix_sums(self.steps)).total() / self.steps)

    def prefix_variances(self) -> Array:
        """Squared row norms of A C⁻¹, by the same recursion."""
        return Recursion.of(self.rows, prefix_sums(self.steps)).seen_variances()

    def first(self, steps: int) -> BandedMatrix:
        """The first rows."""
        positive_int(steps=steps)
        return BandedMatrix(self.rows[:steps, : min(self.bands, steps)])

    def strategy(self) -> Array:
        """C, T×T."""
        check_dense(self.steps)
        C = np.zeros((self.steps, self.steps))
        for lag in range(min(self.bands, self.steps)):
            index = np.arange(lag, self.steps)
            C[index, index - lag] = self.rows[lag:, lag]
        return C

    def noise_map(self) -> Array:
        """C⁻¹, T×T."""
        return np.asarray(np.tril(np.linalg.inv(self.strategy())))

    def _band(self, distance: int) -> Array:
        """X_{i,i+distance} = Σⱼ C_{i+d+j,i} C_{i+d+j,i+d} for all i."""
        columns, width = self.columns, self.bands
        left = columns[: self.steps - distance, distance:]
        return np.asarray(np.sum(left * columns[distance:, : width - distance], axis=1))


def _to_columns(rows: Array) -> Array:
    """From rows[t, j] = C_{t,t−j} to columns[i, j] = C_{i+j,i}."""
    columns = np.zeros_like(rows)
    for lag in range(min(rows.shape[1], len(rows))):
        columns[: len(rows) - lag, lag] = rows[lag:, lag]
    return columns


def _to_rows(columns: Array) -> Array:
    """From columns[i, j] = C_{i+j,i} to rows[t, j] = C_{t,t−j}."""
    rows = np.zeros_like(columns)
    for lag in range(min(columns.shape[1], len(columns))):
        rows[lag:, lag] = columns[: len(columns) - lag, lag]
    return rows


# Optimal banded strategies: column-normalised (BandMF, Choquette-Choo et al. 2023b) and Toeplitz (McKenna 2024).
#
# BandMF minimises ‖A C⁻¹‖_F over C with w bands and unit columns: with participations at least w apart, k of them cost
# √k exactly. The Toeplitz optimum minimises rmse · sensitivity over w coefficients; it needs O(T·w) a step, for any T.

_ITERATIONS = 2000


def best_banded(workload: Workload, bands: int) -> Strategy:
    """The best banded strategy for one participation per cycle: column-normalised, or Toeplitz for many steps."""
    width = min(bands, workload.steps)
    if width == 1:
        return Toeplitz(workload.steps, np.ones(1))
    if workload.steps >= TOEPLITZ_STEPS:
        return optimal_toeplitz(workload, width, times=1, apart=workload.steps).structure
    return optimal_banded(workload, width).structure


def optimal_banded(workload: Workload, bands: int, *, rtol: float = 1e-9) -> Solution[BandedMatrix]:
    """The best C with `bands` bands and unit columns; its sensitivity here is of one participation, 1."""
    positive_int(bands=bands)
    bands = min(bands, workload.steps)
    question = {"workload": workload, "bands": bands, "rtol": rtol}
    stored = cached("banded", question, lambda: _banded(workload, bands, rtol))
    structure = BandedMatrix(stored["rows"])
    return Solution.of(structure, workload, structure.single(), stored)


def optimal_toeplitz(
    workload: Workload, bands: int, times: int = 1, apart: int | None = None, *, rtol: float = 1e-12
) -> Solution[Toeplitz]:
    """The best Toeplitz C with `bands` bands for at most `times` participations at least `apart` steps apart."""
    positive_int(bands=bands, times=times)
    if not workload.toeplitz:
        raise InvalidInputError("a Toeplitz optimum needs a constant learning rate: use optimal_banded instead")
    bands, apart = min(bands, workload.steps), min(apart or workload.steps, workload.steps)
    question = {"workload": workload, "bands": bands, "times": times, "apart": apart, "rtol": rtol}
    stored = cached("toeplitz", question, lambda: _toeplitz(workload, bands, times, apart, rtol))
    structure = Toeplitz(workload.steps, stored["coefficients"])
    return Solution.of(structure, workload, structure.separated(times, apart), stored)


def _banded(workload: Workload, bands: int, rtol: float) -> dict[str, Array]:
    """L-BFGS from the Toeplitz optimum over entries below a unit diagonal; the objective normalises the columns."""
    steps = workload.steps
    flat = Workload(steps, workload.momentum, workload.decay)
    start = np.tile(_toeplitz(flat, bands, 1, steps, 1e-8)["coefficients"], (steps, 1))
    inside = np.arange(bands) < np.arange(steps, 0, -1)[:, None]  # columns end at the last step
    below = inside & (np.arange(bands) > 0)

    def columns(free: Array) -> tuple[Array, Array]:
        raw = np.zeros((steps, bands))
        raw[:, 0] = 1.0
        raw[below] = free
        norm = np.linalg.norm(raw, axis=1, keepdims=True)
        return raw / norm, norm

    def loss(free: Array) -> tuple[float, Array]:
        unit, norm = columns(free)
        value, by_row = Recursion.of(_to_rows(unit), workload).total_and_gradient()
        gradient = _to_columns(by_row)
        tangent = (gradient - unit * np.sum(gradient * unit, axis=1, keepdims=True)) / norm
        return math.log(value), tangent[below] / value

    found = _descend(loss, start[below], rtol)
    return {"rows": _to_rows(columns(found.x)[0]), "iterations": np.array(float(found.nit))}


def _toeplitz(workload: Workload, bands: int, times: int, apart: int, rtol: float) -> dict[str, Array]:
    """L-BFGS over c₁, … at c₀ = 1; where columns can overlap, over differences cⱼ − cⱼ₊₁ ≥ 0, which keep the formula
    exact."""
    loss = _toeplitz_loss(workload, bands, times, apart)
    root = square_root(workload, bands).coefficients

    def by_coefficients(free: Array) -> tuple[float, Array]:
        value, gradient = loss(np.concatenate([[1.0], free]))
        return value, gradient[1:]

    def by_falls(falls: Array) -> tuple[float, Array]:
        value, gradient = loss(np.cumsum(falls[::-1])[::-1])
        return value, np.cumsum(gradient)

    if bands <= apart:
        best, iterations = _guarded(by_coefficients, root[1:], rtol)
        c = np.concatenate([[1.0], best])
    else:
        found = _descend(by_falls, root - np.append(root[1:], 0.0), rtol, least=0.0)
        c, iterations = np.cumsum(found.x[::-1])[::-1], found.nit
    return {"coefficients": c / c[0], "iterations": np.array(float(iterations))}


def _toeplitz_loss(workload: Workload, bands: int, times: int, apart: int) -> Callable[[Array], tuple[float, Array]]:
    """log(error² · sensitivity²) and its gradient; it does not change when c is scaled."""
    steps = workload.steps
    target = workload.coefficients()
    weight = steps - np.arange(steps)
    count = participations(steps, times, apart)

    def loss(c: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            seen = quotient(target, c, steps)
            error = float(np.dot(weight, seen**2))
        if not math.isfinite(error * error):  # a step too far: the inverse of c explodes
            return math.inf, np.zeros(bands)
        echo, weighted = quotient(seen, c, steps), weight * seen
        by_error = -2 * np.array([np.dot(weighted[lag:], echo[: steps - lag]) for lag in range(bands)])
        total = shifted_sum(pad(c, steps), count, apart)
        padded = pad(total, steps + bands)
        by_total = 2 * sum((padded[j * apart : j * apart + bands] for j in range(count)), np.zeros(bands))
        squared = float(np.dot(total, total))
        return math.log(error) + math.log(squared), by_error / error + by_total / squared

    return loss


def _descend(
    loss: Callable[[Array], tuple[float, Array]], start: Array, rtol: float, least: float | None = None
) -> OptimizeResult:
    options = {"maxiter": _ITERATIONS, "maxfun": 4000, "maxcor": 20, "ftol": rtol, "gtol": 0.0}
    bounds = None if least is None else [(least, None)] * len(start)
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def _guarded(loss: Callable[[Array], tuple[float, Array]], start: Array, rtol: float) -> tuple[Array, int]:
    """BFGS that halves its step until the loss is finite and falls: c must stay where its inverse is bounded.

    Stops when the predicted gain ½ gᵀHg is below rtol. (scipy's line search gives up at its first infinite value.)
    """
    x, (value, gradient) = start, loss(start)
    H = np.eye(len(x)) * 0.1 / max(float(np.linalg.norm(gradient)), 1e-300)
    for iteration in range(_ITERATIONS):
        step = -H @ gradient
        slope = float(gradient @ step)
        if -slope / 2 < rtol and iteration:
            return x, iteration
        for _ in range(60):
            moved = loss(x + step)
            if moved[0] <= value + 1e-4 * slope:
                break
            step, slope = step / 2, slope / 2
        else:
            return x, iteration  # rounding hides any further gain
        change = moved[1] - gradient
        curvature = float(change @ step)
        if curvature > 0:
            if iteration == 0:
                H = np.eye(len(x)) * curvature / float(change @ change)
            project = np.eye(len(x)) - np.outer(step, change) / curvature
            H = project @ H @ project.T + np.outer(step, step) / curvature
        x, (value, gradient) = x + step, moved
    raise HushError(f"the Toeplitz optimum did not settle in {_ITERATIONS} iterations")
