"""The error of a banded strategy and its gradient in O(T·w²): covariances carried from block to block of steps.

With blocks of at least w − 1 steps, C couples a block to the one before only: Dᵢ nᵢ + Eᵢ nᵢ₋₁ = zᵢ. The state after
block i is xᵢ = (nᵢ, last moment, last parameter) = Fᵢ xᵢ₋₁ + Gᵢ zᵢ and the parameters seen within it are
oᵢ = Hᵢ xᵢ₋₁ + Jᵢ zᵢ. Then Pᵢ = Cov(xᵢ) = Fᵢ Pᵢ₋₁ Fᵢᵀ + Gᵢ Gᵢᵀ, the total ‖A C⁻¹‖_F² = Σ tr(Hᵢ Pᵢ₋₁ Hᵢᵀ) + ‖Jᵢ‖², and
its gradient follows from the adjoint Λᵢ₋₁ = Fᵢᵀ Λᵢ Fᵢ + Hᵢᵀ Hᵢ run backwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hush.errors import InvalidInputError
from hush.matrix_factorization.sensitivity import Array, lower, powers
from hush.matrix_factorization.workloads import Workload

_BLOCK = 24  # smaller blocks spend their time in calls, larger ones in arithmetic


@dataclass(frozen=True)
class Recursion:
    """All blocks of one strategy under one workload; arrays are stacked over blocks."""

    steps: int
    bands: int
    E: Array
    M: Array  # D⁻¹
    carry: Array  # (nᵢ → xᵢ): identity over the weights of nᵢ in the last moment and parameter
    keep: Array  # (moment, parameter) → themselves over a block without noise
    seen: Array  # nᵢ → oᵢ
    drift: Array  # (moment, parameter) → oᵢ

    @staticmethod
    def of(rows: Array, workload: Workload) -> Recursion:
        """Cut C and A into blocks; steps after the last are padded with C = I and do not count."""
        steps, bands = rows.shape
        if workload.steps != steps:
            raise InvalidInputError(f"a strategy of {steps} steps cannot serve a workload of {workload.steps}")
        size = min(max(bands - 1, _BLOCK), steps)
        count = -(-steps // size)
        D, E = _blocks(rows, size, count)
        inverse = np.asarray(np.linalg.inv(D), dtype=np.float64)
        return Recursion(steps, bands, E, inverse, *_workload_blocks(workload, size, count))

    def total(self) -> float:
        """‖A C⁻¹‖_F²."""
        return float(np.sum(self.seen_variances()))

    def seen_variances(self) -> Array:
        """Var((A C⁻¹Z)ₜ) for every t."""
        _, H, _, J = self._maps()
        before = self._covariances()[0]
        rows = np.sum((H @ before) * H, axis=2) + np.sum(J**2, axis=2)
        return np.asarray(rows.reshape(-1)[: self.steps])

    def noise_variances(self) -> Array:
        """Var(nₜ) for every t."""
        after = self._covariances()[1]
        size = self.E.shape[1]
        return np.asarray(np.einsum("bii->bi", after[:, :size, :size]).reshape(-1)[: self.steps])

    def total_and_gradient(self) -> tuple[float, Array]:
        """‖A C⁻¹‖_F² and its gradient with respect to rows[t, j] = C_{t,t−j}."""
        F, H, G, J = self._maps()
        before = self._covariances()[0]
        seen = H @ before
        adjoint = self._adjoints(F, H)
        size = self.E.shape[1]
        down, out = np.swapaxes(self.carry, 1, 2), np.swapaxes(self.seen, 1, 2)
        dN = -2 * (down @ (adjoint @ F @ before)[:, :, :size] + out @ seen[:, :, :size])  # N = D⁻¹E
        dM = 2 * (down @ (adjoint @ G) + out @ J) + dN @ np.swapaxes(self.E, 1, 2)
        turned = np.swapaxes(self.M, 1, 2)
        gradient = _gather(-turned @ dM @ turned, turned @ dN, self.steps, self.bands)
        return float(np.sum(seen * H) + np.sum(J**2)), gradient

    def _maps(self) -> tuple[Array, Array, Array, Array]:
        """F, H, G, J of every block."""
        N = self.M @ self.E
        count, size = N.shape[0], N.shape[1]
        F = np.zeros((count, size + 2, size + 2))
        F[:, :, :size] = -self.carry @ N
        F[:, size:, size:] = self.keep
        H = np.concatenate([-self.seen @ N, np.broadcast_to(self.drift, (count, size, 2))], axis=2)
        return F, H, self.carry @ self.M, self.seen @ self.M

    def _covariances(self) -> tuple[Array, Array]:
        """Covariance of the state before and after every block."""
        F, _, G, _ = self._maps()
        fresh = G @ np.swapaxes(G, 1, 2)
        after = np.empty_like(fresh)
        state = np.zeros(fresh.shape[1:])
        for index, (move, noise) in enumerate(zip(F, fresh, strict=True)):
            state = move @ state @ move.T + noise
            after[index] = state
        return np.concatenate([np.zeros_like(after[:1]), after[:-1]]), after

    def _adjoints(self, F: Array, H: Array) -> Array:
        """Λ after every block."""
        result = np.zeros_like(F)
        own = np.swapaxes(H, 1, 2) @ H
        for index in range(len(F) - 1, 0, -1):
            result[index - 1] = F[index].T @ result[index] @ F[index] + own[index]
        return result


def _blocks(rows: Array, size: int, count: int) -> tuple[Array, Array]:
    """D (within a block) and E (from the block before)."""
    steps, bands = rows.shape
    padded = np.zeros((count * size, bands))
    padded[:steps] = rows
    padded[steps:, 0] = 1.0
    stacked = padded.reshape(count, size, bands)
    D, E = np.zeros((count, size, size)), np.zeros((count, size, size))
    for lag in range(min(bands, steps)):
        inside = np.arange(lag, size)
        D[:, inside, inside - lag] = stacked[:, lag:, lag]
        across = np.arange(min(lag, size))
        E[:, across, size + across - lag] = stacked[:, : len(across), lag]
    E[0] = 0.0
    return D, E


def _gather(dD: Array, dE: Array, steps: int, bands: int) -> Array:
    """Gradients of the blocks back to rows[t, j]."""
    count, size, _ = dD.shape
    result = np.zeros((count, size, bands))
    for lag in range(min(bands, steps)):
        inside = np.arange(lag, size)
        result[:, lag:, lag] = dD[:, inside, inside - lag]
        across = np.arange(min(lag, size))
        result[1:, : len(across), lag] = dE[1:, across, size + across - lag]
    return np.asarray(result.reshape(count * size, bands)[:steps])


def _workload_blocks(workload: Workload, size: int, count: int) -> tuple[Array, Array, Array, Array]:
    """carry, keep, seen and drift of every block; one shared block if nothing changes from block to block."""
    momentum, decay = workload.momentum, workload.decay
    padded = np.zeros(count * size)
    padded[: workload.steps] = workload.rates()
    rates = padded.reshape(count, size)
    counted = (np.arange(count * size) < workload.steps).astype(np.float64).reshape(count, size, 1)
    if workload.toeplitz and workload.steps == count * size:
        rates, counted = rates[:1], counted[:1]
    past = lower(powers(decay, size), size)
    moments = lower(powers(momentum, size), size)
    seen = past @ (rates[:, :, None] * moments)
    drift = np.empty((len(rates), size, 2))
    drift[:, :, 0] = (rates * momentum ** np.arange(1, size + 1)) @ past.T
    drift[:, :, 1] = decay ** np.arange(1, size + 1)
    carry = np.concatenate(
        [np.broadcast_to(np.eye(size), seen.shape), np.broadcast_to(moments[-1], (len(rates), 1, size)), seen[:, -1:]],
        1,
    )
    keep = np.zeros((len(rates), 2, 2))
    keep[:, 0, 0] = momentum**size
    keep[:, 1] = drift[:, -1]
    return carry, keep, seen * counted, drift * counted
