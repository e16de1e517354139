"""BLT, buffered linear Toeplitz noise: p buffers stand for a full Toeplitz matrix.

Dvijotham et al. 2024 (single participation), McMahan et al. 2024 (several).
C has the coefficients c₀ = 1, cₜ = Σⱼ ωⱼ θⱼ^(t−1). The noise streams with p buffers sⱼ (zero at first):
nₜ = zₜ − Σⱼ ωⱼ sⱼ, then sⱼ ← θⱼ sⱼ + nₜ. With u = √ω, C⁻¹ is again of this form, from the eigenvalues θ̂ⱼ of
diag(θ) − uuᵀ and ω̂ⱼ = (vⱼᵀu)²: its coefficients are 1, −Σⱼ ω̂ⱼ θ̂ⱼ^(t−1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hush.errors import BadInput
from hush.matrices import sensitivity
from hush.matrices.series import Array
from hush.matrices.structure import freeze
from hush.matrices.toeplitz import OneColumn
from hush.validate import whole


@dataclass(frozen=True, eq=False)
class BLT(OneColumn):
    """T steps with decays 0 ≤ θⱼ < 1 and weights ωⱼ > 0, Σω ≤ 1: the coefficients of C then fall from 1 towards 0."""

    steps: int
    theta: Array
    omega: Array

    def __post_init__(self) -> None:
        whole(steps=self.steps)
        object.__setattr__(self, "theta", freeze(np.atleast_1d(self.theta)))
        object.__setattr__(self, "omega", freeze(np.atleast_1d(self.omega)))
        if self.theta.ndim != 1 or self.theta.shape != self.omega.shape or not self.theta.size:
            raise BadInput("a BLT needs as many decays θ as weights ω, at least one")
        if not (np.all(self.theta >= 0) and np.all(self.theta < 1)):
            raise BadInput("every decay θ of a BLT must be at least 0 and below 1")
        if not (np.all(self.omega > 0) and self.omega.sum() <= 1):
            raise BadInput("the weights ω of a BLT must be above 0 and add up to at most 1")

    @property
    def buffers(self) -> int:
        """p: parameter-sized vectors held while streaming."""
        return len(self.theta)

    @property
    def bands(self) -> None:
        """C is dense."""
        return

    @property
    def restarts(self) -> None:
        """The noise never restarts."""
        return

    @cached_property
    def inverse(self) -> tuple[Array, Array]:
        """θ̂, ω̂ of C⁻¹ (its coefficients are 1, −Σ ω̂ⱼ θ̂ⱼ^(t−1))."""
        return inverse_parameters(self.theta, self.omega)

    @cached_property
    def column(self) -> Array:
        """First column of C, length T."""
        return freeze(_column(self.theta, self.omega, self.steps))

    @cached_property
    def inverse_column(self) -> Array:
        """First column of C⁻¹, length T."""
        decay, weight = self.inverse
        return freeze(_column(decay, -weight, self.steps))

    def same_order(self, per_epoch: int) -> float:
        """The first batch of an epoch has the largest; exact, because the coefficients fall."""
        whole(per_epoch=per_epoch)
        return self.separated(-(-self.steps // per_epoch), per_epoch)

    def separated(self, times: int, apart: int) -> float:
        """Exact: the pattern 0, apart, 2·apart, … is the worst for falling coefficients."""
        return sensitivity.toeplitz_separated(self.column, times, apart)

    def first(self, steps: int) -> BLT:
        """The same buffers over fewer steps."""
        return BLT(steps, self.theta, self.omega)


def inverse_parameters(theta: Array, omega: Array) -> tuple[Array, Array]:
    """θ̂, ω̂ of the inverse: eigenvalues of diag(θ) − uuᵀ and squared overlaps with u = √ω."""
    u = np.sqrt(omega)
    values, vectors = np.linalg.eigh(np.diag(theta) - np.outer(u, u))
    return values, (vectors.T @ u) ** 2


def _column(decay: Array, weight: Array, steps: int) -> Array:
    result = np.zeros(steps)
    lag = np.arange(steps - 1, dtype=np.float64)
    for base, share in zip(decay, weight, strict=True):
        result[1:] += share * np.power(base, lag)
    result[0] = 1.0
    return result
