"""Banded strategies: C lower triangular with w bands, every row its own (Choquette-Choo et al. 2023b, BandMF).

Row t of C is kept as w numbers, so memory and every formula here are O(T·w) to O(T·w²); the noise is
nₜ = (zₜ − Σ_{1≤j<w} C_{t,t−j} nₜ₋ⱼ) / C_tt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.errors import BadInput
from hush.matrices import sensitivity
from hush.matrices.recursion import Recursion
from hush.matrices.series import Array
from hush.matrices.structure import Structure, freeze
from hush.matrices.workloads import Workload, check_dense, prefix_sums
from hush.validate import whole


@dataclass(frozen=True, eq=False)
class Banded(Structure):
    """`rows[t, j]` = C_{t,t−j} for 0 ≤ j < w; entries left of the first column (j > t) are zero."""

    rows: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", freeze(self.rows))
        if self.rows.ndim != 2 or not self.rows.size or not np.all(np.isfinite(self.rows)):
            raise BadInput(f"a banded strategy is a finite (steps, bands) array, got shape {self.rows.shape}")
        if np.any(self.rows[:, 0] <= 0):
            raise BadInput("a banded strategy must have a positive diagonal")
        outside = np.arange(self.rows.shape[1]) > np.arange(self.rows.shape[0])[:, None]
        if np.any(self.rows[outside]):
            raise BadInput("rows[t, j] must be zero for j > t: there is no step before the first")

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
        return freeze(to_columns(self.rows))

    def column_norms(self) -> Array:
        """√X_ii."""
        return np.sqrt(self._band(0))

    def single(self) -> float:
        """Largest column norm."""
        return math.sqrt(float(np.max(self._band(0))))

    def same_order(self, per_epoch: int) -> float:
        """√ of the largest Σ|X_ij| over an epoch's residue; X has entries only at distances below w."""
        whole(per_epoch=per_epoch)
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

    def first(self, steps: int) -> Banded:
        """The first rows."""
        whole(steps=steps)
        return Banded(self.rows[:steps, : min(self.bands, steps)])

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


def to_columns(rows: Array) -> Array:
    """From rows[t, j] = C_{t,t−j} to columns[i, j] = C_{i+j,i}."""
    columns = np.zeros_like(rows)
    for lag in range(min(rows.shape[1], len(rows))):
        columns[: len(rows) - lag, lag] = rows[lag:, lag]
    return columns


def to_rows(columns: Array) -> Array:
    """From columns[i, j] = C_{i+j,i} to rows[t, j] = C_{t,t−j}."""
    rows = np.zeros_like(columns)
    for lag in range(min(columns.shape[1], len(columns))):
        rows[lag:, lag] = columns[: len(columns) - lag, lag]
    return rows
