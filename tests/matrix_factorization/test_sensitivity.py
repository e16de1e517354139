"""Sensitivities against brute force over all participation patterns, and against vector contributions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.matrix_factorization import sensitivity


def patterns(steps: int, times: int, apart: int):
    for size in range(1, times + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(later - earlier >= apart for earlier, later in itertools.pairwise(chosen)):
                yield list(chosen)


def brute(X: np.ndarray, chosen) -> float:
    """max over patterns of √Σ|X_ij|, the definition."""
    return max(math.sqrt(np.abs(X[np.ix_(pattern, pattern)]).sum()) for pattern in chosen)


def epochs(steps: int, per_epoch: int):
    return [list(range(start, steps, per_epoch)) for start in range(min(per_epoch, steps))]


def reachable(C: np.ndarray, pattern: list[int], rng: np.random.Generator) -> float:
    """What unit vectors can really do on this pattern: ‖C G‖_F, improved by block ascent from random starts."""
    X = (C.T @ C)[np.ix_(pattern, pattern)]
    best = 0.0
    for _ in range(3):
        V = rng.normal(size=(len(pattern), len(pattern)))
        V /= np.linalg.norm(V, axis=1, keepdims=True)
        for _ in range(40):
            for i in range(len(pattern)):
                pull = X[i] @ V - X[i, i] * V[i]
                V[i] = pull / np.linalg.norm(pull) if pull.any() else V[i]
        best = max(best, math.sqrt(max(np.sum(X * (V @ V.T)), 0.0)))
    return best


def lower_triangular(seed: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.tril(rng.normal(size=(steps, steps))) + 2 * np.eye(steps)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 9), per_epoch=st.integers(1, 10))
def test_same_order_is_the_brute_force_maximum(seed, steps, per_epoch):
    C = lower_triangular(seed, steps)  # signs of all kinds, so X has negative entries
    X = C.T @ C
    assert sensitivity.same_order(X, per_epoch) == pytest.approx(brute(X, epochs(steps, per_epoch)), rel=1e-12)
    assert sensitivity.single(X) == pytest.approx(max(np.linalg.norm(C, axis=0)), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 9), times=st.integers(1, 4), apart=st.integers(1, 4))
def test_separated_bounds_brute_force_and_is_exact_when_banded(seed, steps, times, apart):
    C = lower_triangular(seed, steps)
    X = C.T @ C
    assert sensitivity.separated(X, times, apart) >= brute(X, patterns(steps, times, apart)) * (1 - 1e-12)
    narrow = np.triu(C, 1 - apart)  # at most `apart` bands: participations never meet
    X = narrow.T @ narrow
    expected = brute(X, patterns(steps, times, apart))
    assert sensitivity.separated(X, times, apart) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 8), per_epoch=st.integers(1, 3))
def test_no_vectors_exceed_the_bound(seed, steps, per_epoch):
    C = lower_triangular(seed, steps)
    rng = np.random.default_rng(seed)
    reached = max(reachable(C, pattern, rng) for pattern in epochs(steps, per_epoch))
    assert reached <= sensitivity.same_order(C.T @ C, per_epoch) * (1 + 1e-9)
    positive = np.abs(C)
    reached = max(reachable(positive, pattern, rng) for pattern in epochs(steps, per_epoch))
    assert reached == pytest.approx(sensitivity.same_order(positive.T @ positive, per_epoch), rel=1e-9)


def test_signs_are_unsound_for_vectors():
    # MECHANISMS §6: 3×3, unit diagonal, −0.4 elsewhere: bound 2.3238, truth 2.0494, ±1 signs 1.9494
    X = 1.4 * np.eye(3) - 0.4
    assert sensitivity.same_order(X, 1) == pytest.approx(2.3238, abs=5e-5)
    signs = max(math.sqrt(np.array(s) @ X @ np.array(s)) for s in itertools.product((-1, 1), repeat=3))
    assert signs == pytest.approx(1.9494, abs=5e-5)
    truth = reachable(np.linalg.cholesky(X).T, [0, 1, 2], np.random.default_rng(0))
    assert truth == pytest.approx(2.0494, abs=5e-5)
    assert signs < truth < sensitivity.same_order(X, 1)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(0, 5), min_size=1, max_size=9), times=st.integers(1, 5), apart=st.integers(1, 12))
def test_heaviest_pattern(values, times, apart):
    expected = max(sum(values[i] for i in pattern) for pattern in patterns(len(values), times, apart))
    assert sensitivity.heaviest(np.array(values), times, apart) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 9), times=st.integers(1, 5), apart=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_toeplitz_formula(steps, times, apart, seed):
    rng = np.random.default_rng(seed)
    falling = np.sort(rng.uniform(size=steps))[::-1]
    C = sum(value * np.eye(steps, k=-lag) for lag, value in enumerate(falling))
    exact = brute(C.T @ C, patterns(steps, times, apart))
    assert sensitivity.toeplitz_separated(falling, times, apart) == pytest.approx(exact, rel=1e-12)
    mixed = rng.normal(size=steps)
    C = sum(value * np.eye(steps, k=-lag) for lag, value in enumerate(mixed))
    bound = sensitivity.toeplitz_separated(mixed, times, apart)
    assert bound >= brute(C.T @ C, patterns(steps, times, apart)) * (1 - 1e-12)


def test_bandwidth():
    assert sensitivity.bandwidth(np.eye(4)) == 1
    assert sensitivity.bandwidth(np.eye(4) + np.eye(4, k=-2)) == 3
    assert sensitivity.bandwidth(np.ones((4, 4))) == 4
