"""Workloads against the optimizers they describe, and the convergence-aware Λ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInputError
from hush.matrix_factorization.workloads import DENSE_LIMIT, Workload, distances, objective, prefix_sums


def _optimizer(steps: int, momentum: float, decay: float, rates: list[float]) -> np.ndarray:
    """θ_T and all before, for the gradients that are unit vectors: −θₜ is row t of A."""
    theta, moment, rows = np.zeros(steps), np.zeros(steps), []
    for t in range(steps):
        moment = momentum * moment + np.eye(steps)[t]
        theta = decay * theta - rates[t] * moment
        rows.append(-theta)
    return np.array(rows)


def test_prefix_sums_are_lower_triangular_ones():
    assert np.array_equal(prefix_sums(7).matrix(), np.tri(7))


@settings(max_examples=30, deadline=None)
@given(
    steps=st.integers(1, 12),
    momentum=st.floats(0, 0.99),
    decay=st.floats(0.5, 1),
    data=st.data(),
)
def test_matrix_is_what_the_optimizer_does(steps, momentum, decay, data):
    rates = data.draw(st.lists(st.floats(0.01, 2), min_size=steps, max_size=steps))
    A = Workload(steps, momentum, decay, tuple(rates)).matrix()
    assert np.allclose(A, _optimizer(steps, momentum, decay, rates), atol=1e-12)


def test_coefficients_are_the_first_column():
    workload = Workload(40, momentum=0.9, decay=0.99, learning_rates=(0.5,) * 40)
    assert workload.toeplitz
    assert np.allclose(workload.coefficients(), workload.matrix()[:, 0], rtol=1e-12)


def test_mean_square_of_toeplitz_noise_is_the_matrix_norm():
    inverse = np.array([1.0, -0.5, -0.125, -0.0625, 0.3])
    C_inv = sum(value * np.eye(5, k=-lag) for lag, value in enumerate(inverse))
    for workload in (Workload(5, 0.8, 0.9), Workload(5, 0.8, 0.9, (1, 2, 3, 4, 5))):
        expected = np.sum((workload.matrix() @ C_inv) ** 2) / 5
        assert workload.mean_square(inverse) == pytest.approx(expected, rel=1e-12)


def test_distances_golden():
    # MECHANISMS §6: T = 6, τ = 3, s = 1/√3
    s = 1 / math.sqrt(3)
    expected = [
        (s, 0, 0, 0, 0, 0),
        (0, s, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0),
        (0, 0, -s, s, 0, 0),
        (0, 0, -s, 0, s, 0),
        (0, 0, -1, 0, 0, 1),
    ]
    assert np.allclose(distances(6, 3), expected, atol=1e-15)


def test_objective_with_distances_is_block_diagonal():
    W = objective(prefix_sums(10), tau=4)
    assert not W[4:, :4].any()
    assert not W[8:, :8].any()
    assert np.array_equal(W[:4, :4], W[4:8, 4:8])
    assert np.linalg.matrix_rank(W) == 10


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 3, "momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"steps": 3, "decay": 0.0}, "decay .* must be above 0 and at most 1, got 0"),
        ({"steps": 3, "decay": 1.5}, "decay .* must be above 0 and at most 1, got 1.5"),
        ({"steps": 3, "learning_rates": (1.0,)}, "3 steps need 3 learning rates, got 1"),
        ({"steps": 2, "learning_rates": (1.0, 0.0)}, "learning_rates must be above zero"),
        ({"steps": 2, "learning_rates": (1.0, math.inf)}, "learning_rates must be a finite number"),
    ],
)
def test_bad_values_are_refused(bad, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        Workload(**bad)


def test_a_matrix_too_large_is_refused_with_the_remedy():
    with pytest.raises(InvalidInputError):
        prefix_sums(DENSE_LIMIT + 1).matrix()
