"""Toeplitz strategies: C, or its inverse, has few bands and the same coefficients in every column.

Square root (BSR, Kalinin & Lampert 2024): C = A^½ cut to p bands; with momentum β and decay α, A(x) = 1/((1−αx)(1−βx)),
so A^½ has the coefficients of (1−αx)^−½ (1−βx)^−½. Inverse square root (BISR, Kalinin et al. 2025): C⁻¹ = A^−½ cut to p
bands. The uncut square root is Fichtenberger et al. 2023. Everything here is O(T·p) or O(T log T), never T×T.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush._internal.validate import positive_int
from hush.errors import InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.sensitivity import Array, binomial, lower, pad, product, reciprocal
from hush.matrix_factorization.strategy import Strategy, freeze
from hush.matrix_factorization.workloads import Workload, check_dense, prefix_sums

_EXACT_LIMIT = 2048  # up to this T a Toeplitz matrix that is not monotone is treated exactly, as a dense one


class LowerToeplitz(Strategy):
    """A lower-triangular Toeplitz C, which is given by its first column, as is C⁻¹."""

    @property
    @abstractmethod
    def column(self) -> Array:
        """First column of C, length T."""

    @property
    @abstractmethod
    def inverse_column(self) -> Array:
        """First column of C⁻¹, length T."""

    def column_norms(self) -> Array:
        """Column t has the first T − t coefficients."""
        return np.sqrt(np.cumsum(self.column**2)[::-1])

    def single(self) -> float:
        """Norm of the first column, the longest."""
        return float(np.linalg.norm(self.column))

    def inverse_norms(self) -> Array:
        """√(Σ_{j≤t} (c⁻¹ⱼ)²)."""
        return np.sqrt(np.cumsum(self.inverse_column**2))

    def rmse(self, workload: Workload | None = None) -> float:
        """√(Σⱼ (T − j) bⱼ² / T) with b = a ∗ c⁻¹."""
        return math.sqrt((workload or prefix_sums(self.steps)).mean_square(self.inverse_column))

    def prefix_variances(self) -> Array:
        """Σ_{j≤t} bⱼ² with b the running sums of c⁻¹."""
        return np.asarray(np.cumsum(np.cumsum(self.inverse_column) ** 2))

    def strategy(self) -> Array:
        """C, T×T."""
        check_dense(self.steps)
        return lower(self.column, self.steps)

    def noise_map(self) -> Array:
        """C⁻¹, T×T."""
        check_dense(self.steps)
        return lower(self.inverse_column, self.steps)


@dataclass(frozen=True, eq=False)
class Toeplitz(LowerToeplitz):
    """T steps of a lower-triangular Toeplitz C.

    `coefficients` are the first ones of C, or of C⁻¹ if `inverse_banded`; those after the last are zero. The noise is
    nₜ = (zₜ − Σ_{j≥1} cⱼ nₜ₋ⱼ)/c₀, or nₜ = Σⱼ c⁻¹ⱼ zₜ₋ⱼ if `inverse_banded`.
    """

    steps: int
    coefficients: Array
    inverse_banded: bool = False

    def __post_init__(self) -> None:
        positive_int(steps=self.steps)
        values = np.atleast_1d(np.asarray(self.coefficients, dtype=np.float64))
        if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)) or values[0] <= 0:
            raise InvalidInputError("Toeplitz coefficients must be a finite list that starts with a positive number")
        used = int(np.flatnonzero(values[: self.steps])[-1]) + 1
        object.__setattr__(self, "coefficients", freeze(values[:used]))

    @property
    def bands(self) -> int | None:
        """Number of bands of C; None if it is dense (also when only the inverse is banded)."""
        if len(self.coefficients) == 1:
            return 1
        return None if self.inverse_banded or len(self.coefficients) == self.steps else len(self.coefficients)

    @property
    def restarts(self) -> int | None:
        """1 for independent noise, else never."""
        return 1 if len(self.coefficients) == 1 else None

    @cached_property
    def column(self) -> Array:
        """First column of C, length T."""
        given = self.coefficients
        return freeze(reciprocal(given, self.steps) if self.inverse_banded else pad(given, self.steps))

    @cached_property
    def inverse_column(self) -> Array:
        """First column of C⁻¹, length T."""
        given = self.coefficients
        return freeze(pad(given, self.steps) if self.inverse_banded else reciprocal(given, self.steps))

    def same_order(self, per_epoch: int) -> float:
        """Sensitivity of fixed batches in the same order: the first batch of an epoch has the largest."""
        positive_int(per_epoch=per_epoch)
        if self._exact:
            return sensitivity.same_order(self.gram, per_epoch)
        return sensitivity.toeplitz_separated(self.column, -(-self.steps // per_epoch), per_epoch)

    def separated(self, times: int, apart: int) -> float:
        """Exact for monotone coefficients and for at most `apart` bands; else a bound."""
        count = sensitivity.participations(self.steps, times, apart)
        if self.bands is not None and self.bands <= apart:
            return self._orthogonal(count, apart)
        bound = sensitivity.toeplitz_separated(self.column, times, apart)
        return min(bound, sensitivity.separated(self.gram, times, apart)) if self._exact else bound

    def first(self, steps: int) -> Toeplitz:
        """The same coefficients over fewer steps."""
        return Toeplitz(steps, self.coefficients, self.inverse_banded)

    @property
    def _exact(self) -> bool:
        return self.steps <= _EXACT_LIMIT and not sensitivity.monotone(self.column)

    def _orthogonal(self, count: int, apart: int) -> float:
        # Columns without common rows add their squared norms; column i keeps T − i coefficients, so early ones are
        # longest.
        partial = np.cumsum(self.column**2)
        return math.sqrt(float(np.sum(partial[self.steps - 1 - apart * np.arange(count)])))


def square_root(workload: Workload, bands: int | None = None) -> Toeplitz:
    """C = A^½ cut to `bands` (BSR); uncut when None."""
    return Toeplitz(workload.steps, _root(workload, -0.5, bands))


def inverse_square_root(workload: Workload, bands: int) -> Toeplitz:
    """C⁻¹ = A^−½ cut to `bands` (BISR)."""
    return Toeplitz(workload.steps, _root(workload, 0.5, bands), inverse_banded=True)


def _root(workload: Workload, exponent: float, bands: int | None) -> Array:
    """Coefficients of ((1−αx)(1−βx))^exponent; a constant learning rate only scales A and is left out."""
    if not workload.toeplitz:
        raise InvalidInputError(
            "the square root of a workload needs a constant learning rate: use a dense or banded optimum instead"
        )
    size = workload.steps if bands is None else min(bands, workload.steps)
    positive_int(bands=size)
    decay = binomial(exponent, workload.decay, size)
    return decay if workload.momentum == 0 else product(decay, binomial(exponent, workload.momentum, size), size)
