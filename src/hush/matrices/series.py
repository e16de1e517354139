"""Power series for Toeplitz matrices: a lower-triangular one is its first column, a product is a convolution.

Everything is O(T·bands) by recurrence or O(T log T) by FFT, so a million steps never need a T×T matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.signal import fftconvolve, lfilter

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
