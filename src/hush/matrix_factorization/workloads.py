"""Workloads: the matrix A of the sums of noisy gradients that the weights contain.

With SGD the parameters after step t are θ₀ minus the prefix sum of the released gradients: A is lower-triangular ones.
With momentum β, weight decay and learning rates, mₜ = β mₜ₋₁ + gₜ and θₜ = α θₜ₋₁ − ηₜ mₜ (α = 1 − lr · weight decay):
A = D(α) · diag(η) · D(β) with D(x) the Toeplitz matrix of 1/(1 − x·z) (Denisov et al. 2022; Kalinin & Lampert 2024).
Koloskova et al. 2023 shape the objective with Λ_τ A instead of A: distances to the last multiple of τ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from hush._internal.validate import positive, positive_int
from hush.errors import InvalidInputError
from hush.matrix_factorization.sensitivity import Array, lower, powers

DENSE_LIMIT = 8192  # largest T for which a T×T float64 matrix (512 MB) is made without being asked for explicitly


@dataclass(frozen=True)
class Workload:
    """A, by its recurrence: `momentum` β in [0, 1), `decay` α in (0, 1], learning rates ηₜ > 0 (None: all one)."""

    steps: int
    momentum: float = 0.0
    decay: float = 1.0
    learning_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive_int(steps=self.steps)
        if not 0 <= self.momentum < 1:
            raise InvalidInputError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 < self.decay <= 1:
            raise InvalidInputError(
                f"decay (1 − learning rate × weight decay) must be above 0 and at most 1, got {self.decay}"
            )
        if self.learning_rates is None:
            return
        object.__setattr__(self, "learning_rates", tuple(float(rate) for rate in self.learning_rates))
        if len(self.learning_rates) != self.steps:
            raise InvalidInputError(
                f"{self.steps} steps need {self.steps} learning rates, got {len(self.learning_rates)}"
            )
        positive(learning_rates=min(self.learning_rates))
        positive(learning_rates=max(self.learning_rates))

    @property
    def toeplitz(self) -> bool:
        """Whether A is Toeplitz: the learning rate does not change over steps."""
        return self.learning_rates is None or len(set(self.learning_rates)) == 1

    def rates(self) -> Array:
        """η as an array of length T."""
        return np.ones(self.steps) if self.learning_rates is None else np.array(self.learning_rates)

    def coefficients(self) -> Array:
        """First column of a Toeplitz A: η · (1/(1 − αx)) · (1/(1 − βx))."""
        if not self.toeplitz:
            raise InvalidInputError(
                "a workload with changing learning rates is not Toeplitz: use matrix() or accumulate()"
            )
        rate = float(self.rates()[0])
        if self.momentum == 0:
            return np.asarray(rate * powers(self.decay, self.steps))
        return np.asarray(rate * lfilter([1.0], [1.0, -self.decay], powers(self.momentum, self.steps)))

    def accumulate(self, noise: Array) -> Array:
        """A @ noise for a (T, …) array, by the optimizer's recurrence."""
        if len(noise) != self.steps:
            raise InvalidInputError(f"a workload of {self.steps} steps cannot accumulate {len(noise)} rows")
        moments = lfilter([1.0], [1.0, -self.momentum], noise, axis=0) if self.momentum else noise
        weighted = moments * self.rates().reshape(-1, *[1] * (noise.ndim - 1))
        return np.asarray(lfilter([1.0], [1.0, -self.decay], weighted, axis=0), dtype=np.float64)

    def matrix(self) -> Array:
        """A itself, T×T."""
        check_dense(self.steps)
        return self.accumulate(np.eye(self.steps))

    def mean_square(self, inverse: Array) -> float:
        """‖A C⁻¹‖_F² / T for a Toeplitz C⁻¹ given by its first column: Σⱼ (T − j) bⱼ² / T with b = a ∗ c⁻¹."""
        steps = self.steps
        if self.toeplitz:
            seen = self.accumulate(inverse)
            return float(np.dot(steps - np.arange(steps), seen**2)) / steps
        check_dense(steps)
        return float(np.sum(self.accumulate(lower(inverse, steps)) ** 2)) / steps


def prefix_sums(steps: int) -> Workload:
    """A = lower-triangular ones: plain SGD with a constant learning rate."""
    return Workload(steps)


def check_dense(steps: int) -> None:
    """Raise for a T×T matrix that would not fit into memory, and name an alternative."""
    if steps > DENSE_LIMIT:
        raise InvalidInputError(
            f"a dense {steps}×{steps} matrix is too large (the limit is {DENSE_LIMIT} steps): "
            "use a banded, Toeplitz, BLT or tree structure with a constant learning rate"
        )


def distances(steps: int, tau: int) -> Array:
    """Λ_τ (Koloskova et al. 2023), with t, j counted from 1.

    λ_tt = 1/√τ if τ ∤ t and 1 if τ | t; λ_{t,⌊t/τ⌋τ} = −1/√τ if τ ∤ t and t > τ; λ_{t,t−τ} = −1 if τ | t and t > τ.
    It changes only the objective ‖Λ_τ A C⁻¹‖: the injected noise is C⁻¹Z.
    """
    positive_int(steps=steps, tau=tau)
    check_dense(steps)
    result = np.zeros((steps, steps))
    for t in range(1, steps + 1):
        weight = 1.0 if t % tau == 0 else 1 / math.sqrt(tau)
        start = (t - 1) // tau * tau  # the last multiple of τ before t
        result[t - 1, t - 1] = weight
        if start:
            result[t - 1, start - 1] = -weight
    return result


def objective(workload: Workload, tau: int | None = None) -> Array:
    """The matrix W whose ‖W C⁻¹‖_F is minimised: A, or Λ_τ A when τ is given."""
    A = workload.matrix()
    return A if tau is None else distances(workload.steps, tau) @ A
