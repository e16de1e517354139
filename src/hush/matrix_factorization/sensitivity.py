"""Sensitivities of a strategy C from its Gram matrix X = CᵀC, for vectors as contributions.

An example that takes part at the steps of a pattern π with gradients gᵢ (‖gᵢ‖ ≤ 1) moves CG by at most
√(Σ_{i,j∈π} |X_ij|), and by exactly that much where X ≥ 0. Trying signs ±1 instead of absolute values would be unsound:
vectors can do better than signs. Single participation: Denisov et al. 2022. Same order every epoch, (k, b):
Choquette-Choo et al. 2023a. At most k times, at least b apart: Choquette-Choo et al. 2023b (banded), and the two-stage
row bound. Monotone Toeplitz: Kalinin & Lampert 2024, the pattern 0, b, 2b, … is the worst.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.signal import fftconvolve, lfilter

from hush._internal.validate import positive_int

# Power series for Toeplitz matrices: a lower-triangular one is its first column, a product is a convolution.
#
# Everything is O(T·bands) by recurrence or O(T log T) by FFT, so a million steps never need a T×T matrix.

Array = NDArray[np.float64]

_RECURRENCE_LIMIT = 128  # above this many coefficients the FFT is cheaper than the recurrence


def pad(coefficients: Array, steps: int) -> Array:
    """The first `steps` coefficients, zeros after the last one given."""
    out = np.zeros(steps)
    kept = min(steps, len(coefficients))
    out[:kept] = coefficients[:kept]
    return out


def product(left: Array, right: Array, steps: int) -> Array:
    """First `steps` coefficients of left(x)·right(x)."""
    left, right = left[:steps], right[:steps]
    small = min(len(left), len(right)) <= _RECURRENCE_LIMIT
    full = np.convolve(left, right) if small else fftconvolve(left, right)
    return pad(full, steps)


def quotient(top: Array, bottom: Array, steps: int) -> Array:
    """First `steps` coefficients of top(x)/bottom(x); bottom[0] must not be zero."""
    bottom = bottom[:steps]
    if len(bottom) <= _RECURRENCE_LIMIT:
        return np.asarray(lfilter([1.0], bottom, pad(top, steps)), dtype=np.float64)
    return product(top, reciprocal(bottom, steps), steps)


def reciprocal(coefficients: Array, steps: int) -> Array:
    """First `steps` coefficients of 1/c(x): by recurrence for few, by FFT and Newton's y ← y(2 − c·y) for many."""
    if len(coefficients) <= _RECURRENCE_LIMIT:
        return quotient(np.ones(1), coefficients, steps)
    size = min(_RECURRENCE_LIMIT, steps)
    result = quotient(np.ones(1), coefficients[:size], size)
    while size < steps:
        size = min(2 * size, steps)
        correction = -product(coefficients, result, size)
        correction[0] += 2.0
        result = product(result, correction, size)
    return result


def powers(base: float, steps: int) -> Array:
    """1, base, base², …: the coefficients of 1/(1 − base·x)."""
    return np.asarray(np.power(float(base), np.arange(steps)), dtype=np.float64)


def binomial(exponent: float, base: float, steps: int) -> Array:
    """Coefficients of (1 − base·x)^exponent, by the ratio of neighbours."""
    index = np.arange(1, steps)
    return np.concatenate([[1.0], np.cumprod(base * (index - 1 - exponent) / index)])


def lower(coefficients: Array, steps: int) -> Array:
    """The T×T lower-triangular Toeplitz matrix with this first column."""
    return np.asarray(toeplitz(pad(coefficients, steps), np.zeros(steps)), dtype=np.float64)


def participations(steps: int, times: int, apart: int) -> int:
    """The largest number of participations of one example: min(times, ⌈steps/apart⌉)."""
    positive_int(steps=steps, times=times, apart=apart)
    return min(times, -(-steps // apart))


def single(X: Array) -> float:
    """√max X_ii: the largest column norm of C."""
    return math.sqrt(float(np.max(np.diag(X))))


def same_order(X: Array, per_epoch: int) -> float:
    """max over residues r of √(Σ_{i≡j≡r mod b} |X_ij|): fixed batches in the same order every epoch."""
    positive_int(per_epoch=per_epoch)
    strided = [np.abs(X[start::per_epoch, start::per_epoch]).sum() for start in range(min(per_epoch, len(X)))]
    return math.sqrt(float(max(strided)))


def bandwidth(X: Array) -> int:
    """Smallest w with X_ij = 0 whenever |i − j| ≥ w (1 for a diagonal matrix)."""
    rows, columns = np.nonzero(X)
    return 1 + int(np.max(np.abs(rows - columns), initial=0))


def heaviest(values: Array, times: int, apart: int) -> Array:
    """max of Σ_{i∈π} values[…, i] over patterns of at most `times` steps at least `apart` apart (values ≥ 0).

    Dynamic programming over the number of participations: best_j(t) = max(best_j(t−1), value(t) + best_{j−1}(t−apart)).
    """
    steps = values.shape[-1]
    best = np.zeros_like(values)
    for _ in range(participations(steps, times, apart)):
        earlier = np.zeros_like(values)
        earlier[..., apart:] = best[..., : max(steps - apart, 0)]
        best = np.maximum.accumulate(values + earlier, axis=-1)
    return np.asarray(best[..., -1])


def separated(X: Array, times: int, apart: int) -> float:
    """At most `times` participations, at least `apart` steps apart.

    If X has bandwidth ≤ apart, two participations never interact, and the diagonal gives the exact value. Otherwise the
    two-stage row bound: every row i is charged its heaviest pattern of |X_ij|, then the heaviest pattern of rows is
    taken.
    """
    if bandwidth(X) <= apart:
        return math.sqrt(float(heaviest(np.diag(X), times, apart)))
    rows = heaviest(np.abs(X), times, apart)
    return math.sqrt(float(heaviest(rows, times, apart)))


def monotone(coefficients: Array) -> bool:
    """Whether c₀ ≥ c₁ ≥ … ≥ 0."""
    return bool(np.all(np.diff(coefficients) <= 0) and coefficients[-1] >= 0)


def shifted_sum(coefficients: Array, times: int, apart: int) -> Array:
    """Σ_{j<k} of the column c delayed by j·apart, over the first T = len(c) steps, in O(T)."""
    steps = len(coefficients)
    count = participations(steps, times, apart)
    if count == 1:
        return coefficients.copy()
    width = -(-steps // apart)
    grid = np.zeros(width * apart)
    grid[:steps] = coefficients
    total = np.cumsum(grid.reshape(width, apart), axis=0)
    if count < width:
        total[count:] -= np.cumsum(grid.reshape(width, apart), axis=0)[:-count]
    return np.asarray(total.reshape(-1)[:steps])


def toeplitz_separated(coefficients: Array, times: int, apart: int) -> float:
    """Separated sensitivity of a Toeplitz C with first column c of length T, in O(T).

    For c₀ ≥ c₁ ≥ … ≥ 0 it is exactly ‖Σ_{j<k} C[:, j·apart]‖ (Kalinin & Lampert 2024). Otherwise the same for the
    smallest monotone majorant max_{m≥j} |c_m|, which dominates |C| entrywise and so can only be larger.
    """
    if not monotone(coefficients):
        coefficients = np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1]
    return float(np.linalg.norm(shifted_sum(coefficients, times, apart)))
