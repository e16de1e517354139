"""Dense strategies: any lower-triangular C with a positive diagonal, kept as a matrix.

The noise of step t is Σ_{j≤t} (C⁻¹)_tj Zⱼ: causal, so gradients may depend on earlier releases (Denisov et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from hush._internal.validate import positive_int
from hush.errors import InvalidInputError
from hush.matrix_factorization.sensitivity import Array, bandwidth
from hush.matrix_factorization.strategy import Strategy, freeze
from hush.matrix_factorization.workloads import check_dense


@dataclass(frozen=True, eq=False)
class Dense(Strategy):
    """C itself, T×T, lower triangular with a positive diagonal."""

    C: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "C", freeze(self.C))
        if self.C.ndim != 2 or self.C.shape[0] != self.C.shape[1] or not self.C.size:
            raise InvalidInputError(f"a dense strategy is a square matrix, got shape {self.C.shape}")
        if not np.all(np.isfinite(self.C)):
            raise InvalidInputError("a dense strategy must be finite")
        if np.any(np.triu(self.C, 1)) or np.any(np.diag(self.C) <= 0):
            raise InvalidInputError("a dense strategy must be lower triangular with a positive diagonal")

    @property
    def steps(self) -> int:  # type: ignore[override]
        """T."""
        return len(self.C)

    @cached_property
    def inverse(self) -> Array:
        """C⁻¹: row t holds the weights of Z₀ … Zₜ in the noise of step t."""
        return freeze(np.tril(scipy.linalg.solve_triangular(self.C, np.eye(self.steps), lower=True)))

    @cached_property
    def bands(self) -> int | None:
        """Number of bands of C; None if all T are in use."""
        used = bandwidth(self.C)
        return used if used < self.steps or self.steps == 1 else None

    @cached_property
    def restarts(self) -> int | None:
        """Length of the diagonal blocks of C, if it is made of equal blocks."""
        return _period(self.C)

    def first(self, steps: int) -> Dense:
        """The leading corner of C: its inverse is the leading corner of C⁻¹."""
        positive_int(steps=steps)
        return Dense(self.C[:steps, :steps])

    def strategy(self) -> Array:
        """C."""
        return self.C

    def noise_map(self) -> Array:
        """C⁻¹."""
        return self.inverse


def from_gram(X: Array) -> Dense:
    """The lower-triangular C with CᵀC = X: the Cholesky factor of X read backwards."""
    check_dense(len(X))
    backwards = scipy.linalg.cholesky(X[::-1, ::-1], lower=True)
    return Dense(np.tril(backwards.T[::-1, ::-1]))


def _period(C: Array) -> int | None:
    """Smallest r < T such that C has no entry below the diagonal blocks [r·i, r·(i+1))."""
    steps = len(C)
    first = np.argmax(C != 0, axis=1)  # leftmost entry of each row; the diagonal is never zero
    reach = np.minimum.accumulate(first[::-1])[::-1]  # leftmost entry of all rows from t on
    boundary = reach >= np.arange(steps)  # boundary[t]: nothing crosses from before t to t or later
    for period in range(1, steps):
        if boundary[period::period].all():
            return period
    return 1 if steps == 1 else None
