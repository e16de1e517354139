"""Banded strategies: the block recursion against matrices, and optima against a certified dense solver."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.accounting.accountant import epsilon
from hush.errors import InvalidInputError
from hush.guarantees import find_sensitivity
from hush.matrix_factorization import (
    BandedMatrix,
    Dense,
    Toeplitz,
    optimal_banded,
    optimal_single,
    optimal_toeplitz,
    square_root,
)
from hush.matrix_factorization.banded import _toeplitz_loss
from hush.matrix_factorization.multi_epoch import TraceProblem, minimise
from hush.matrix_factorization.recursion import Recursion
from hush.matrix_factorization.workloads import Workload, prefix_sums
from hush.sampling import CyclicPoissonSampled


def random_rows(seed: int, steps: int, bands: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = 0.4 * rng.normal(size=(steps, bands))
    rows[:, 0] = rng.uniform(0.8, 2, steps)
    rows[np.arange(bands) > np.arange(steps)[:, None]] = 0
    return rows


WORKLOADS = {
    "prefix": lambda steps: Workload(steps),
    "momentum": lambda steps: Workload(steps, 0.9, 0.97),
    "schedule": lambda steps: Workload(steps, 0.5, 0.99, tuple(np.linspace(1, 0.1, steps))),
}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 70),
    bands=st.integers(1, 40),
    kind=st.sampled_from(sorted(WORKLOADS)),
)
def test_everything_agrees_with_the_matrix(seed, steps, bands, kind):
    banded = BandedMatrix(random_rows(seed, steps, min(bands, steps)))
    dense, work = Dense(banded.strategy()), WORKLOADS[kind](steps)
    assert banded.rmse(work) == pytest.approx(dense.rmse(work), rel=1e-9)
    assert np.allclose(banded.inverse_norms(), dense.inverse_norms(), rtol=1e-9)
    assert np.allclose(banded.noise_map(), dense.inverse, atol=1e-9 * np.abs(dense.inverse).max())
    assert banded.single() == pytest.approx(dense.single(), rel=1e-12)
    for apart in (1, 2, 5, 50):
        assert banded.same_order(apart) == pytest.approx(dense.same_order(apart), rel=1e-12)
        assert banded.separated(3, apart) == pytest.approx(dense.separated(3, apart), rel=1e-12)
    cut = min(steps, 9)
    assert np.allclose(banded.first(cut).strategy(), banded.strategy()[:cut, :cut])


@pytest.mark.parametrize("kind", sorted(WORKLOADS))
@pytest.mark.parametrize(("steps", "bands"), [(7, 3), (60, 4), (70, 33), (24, 24)])
def test_gradient_by_differences(kind, steps, bands):
    rows, work = random_rows(1, steps, bands), WORKLOADS[kind](steps)
    total, gradient = Recursion.of(rows, work).total_and_gradient()
    assert total == pytest.approx(Recursion.of(rows, work).total(), rel=1e-12)
    direction = np.where(rows != 0, np.random.default_rng(2).normal(size=rows.shape), 0)
    ahead, behind = (Recursion.of(rows + step * direction, work).total() for step in (1e-6, -1e-6))
    assert np.vdot(gradient, direction) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


def test_banded_optimum_is_the_certified_one():
    # the same problem solved densely: X banded with unit diagonal, Newton's method
    steps, bands = 48, 6
    work = prefix_sums(steps)
    A = work.matrix()
    index = np.arange(steps)
    distance = np.abs(index[:, None] - index)
    free = ((distance > 0) & (distance < bands)).astype(float)
    X, _ = minimise(TraceProblem(A.T @ A, index, index, free, steps), 1e-10)
    expected = math.sqrt(np.trace(np.linalg.solve(X, A.T @ A)) / steps)
    best = optimal_banded(work, bands)
    assert best.error == pytest.approx(expected, rel=1e-6)
    assert np.allclose(np.linalg.norm(best.structure.strategy(), axis=0), 1, atol=1e-12)
    assert best.structure.separated(5, bands) == pytest.approx(math.sqrt(5), rel=1e-12)


def test_banded_optimum_with_all_bands_is_the_single_epoch_optimum():
    for work in (prefix_sums(32), Workload(32, 0.9), Workload(32, learning_rates=tuple(np.linspace(1, 0.2, 32)))):
        assert optimal_banded(work, 32).error == pytest.approx(optimal_single(work).error, rel=1e-5)


def test_toeplitz_optimum():
    work = prefix_sums(200)
    best = optimal_toeplitz(work, 10)
    root = square_root(work, 10)
    assert optimal_banded(work, 10).error < best.error < root.rmse() * root.single()
    rng = np.random.default_rng(3)
    for _ in range(20):  # a local optimum: no small change of the coefficients helps
        near = Toeplitz(200, best.structure.coefficients * (1 + 1e-3 * rng.normal(size=10)))
        assert near.rmse() * near.single() > best.error
    assert best.structure.bands == 10


@pytest.mark.parametrize("steps", [10**4, 10**6])
def test_toeplitz_optimum_is_stationary_for_many_steps(steps):
    # at many steps the inverse of c soon explodes, and a careless line search stops there and calls it converged
    best = optimal_toeplitz(prefix_sums(steps), 8, rtol=1e-9)
    _, gradient = _toeplitz_loss(prefix_sums(steps), 8, 1, steps)(best.structure.coefficients)
    assert np.max(np.abs(gradient[1:])) < 1e-3


def test_toeplitz_optimum_for_several_participations():
    # MECHANISMS §6 gives BSR 12.1032 at T = 1000, k = 10, b = 100 with 100 bands
    best = optimal_toeplitz(prefix_sums(1000), 100, times=10, apart=100)
    assert best.error < 12.1032
    assert best.sensitivity == pytest.approx(Dense(best.structure.strategy()).separated(10, 100), rel=1e-10)
    wide = optimal_toeplitz(prefix_sums(60), 20, times=6, apart=10)  # more bands than the distance
    assert wide.error <= optimal_toeplitz(prefix_sums(60), 10, times=6, apart=10).error * (1 + 1e-9)
    assert np.all(np.diff(wide.structure.coefficients) <= 1e-15)
    assert wide.sensitivity == pytest.approx(Dense(wide.structure.strategy()).separated(6, 10), rel=1e-10)


def test_amplified_golden():
    # MECHANISMS §6: N = 50 000, L = 500, T = 2000, 10 groups, PLD, δ = 1e-5; a step of a group has q = L·w/N
    root = square_root(prefix_sums(2000), 10)
    assert find_sensitivity(CyclicPoissonSampled(10, 0.1, 2000), root) == root.single()
    for sigma, expected in ((1.0, 9.971), (2.0, 3.360)):
        visit = dp_accounting.PoissonSampledDpEvent(500 * 10 / 50_000, dp_accounting.GaussianDpEvent(sigma))
        event = dp_accounting.SelfComposedDpEvent(visit, -(-2000 // 10))
        assert epsilon(event, 1e-5) == pytest.approx(expected, abs=5e-4)


def test_refusals():
    with pytest.raises(InvalidInputError):
        BandedMatrix(np.zeros((3, 2)))
    with pytest.raises(InvalidInputError):
        BandedMatrix(np.ones((3, 2)))
    with pytest.raises(InvalidInputError):
        optimal_toeplitz(Workload(3, learning_rates=(1, 2, 3)), 2)
    with pytest.raises(InvalidInputError, match="1.*0"):
        optimal_banded(prefix_sums(4), 0)
    with pytest.raises(InvalidInputError):
        optimal_banded(prefix_sums(8), 4).structure.rmse(prefix_sums(9))
