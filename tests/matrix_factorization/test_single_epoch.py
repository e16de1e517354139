"""SE: golden errors, a certificate of optimality, and the convergence-aware objective."""

from __future__ import annotations

import numpy as np
import pytest

from hush.matrix_factorization.single_epoch import optimal_single
from hush.matrix_factorization.toeplitz import square_root
from hush.matrix_factorization.workloads import Workload, distances, objective, prefix_sums


@pytest.mark.parametrize(
    ("steps", "plain", "aware"),
    # MECHANISMS §6: SE optimum, and with Λ_T (T = 938 is in the slower test below)
    [(64, 2.100, 2.246), (256, 2.524, 2.691)],
)
def test_golden(steps, plain, aware):
    best = optimal_single(prefix_sums(steps))
    assert best.error == pytest.approx(plain, abs=5e-4)
    assert best.sensitivity == pytest.approx(1.0, abs=1e-12)
    assert best.gap < 1e-9
    assert optimal_single(prefix_sums(steps), tau=steps).error == pytest.approx(aware, abs=5e-4)


def test_golden_at_938():
    # MECHANISMS §6; a looser tolerance than the default reaches the same digits
    best = optimal_single(prefix_sums(938), rtol=1e-3)
    assert best.error == pytest.approx(2.928, abs=5e-4)
    assert best.gap < 1e-5
    aware = optimal_single(prefix_sums(938), tau=938, rtol=1e-3)
    assert aware.error == pytest.approx(3.106, abs=5e-4)
    # MECHANISMS §6: injecting differences of Λ A C⁻¹ Z instead of C⁻¹Z has sensitivity 38.8 where 1 is claimed
    A = prefix_sums(938).matrix()
    injected = np.diff(distances(938, 938) @ A @ aware.structure.inverse, axis=0, prepend=0)
    assert np.max(np.linalg.norm(np.linalg.inv(injected), axis=0)) == pytest.approx(38.8, abs=0.05)


def test_diagonal_and_fixed_point():
    best = optimal_single(Workload(40, momentum=0.9, decay=0.99))
    X = best.structure.gram
    assert np.allclose(np.diag(X), 1, atol=1e-12)
    A = Workload(40, momentum=0.9, decay=0.99).matrix()
    gradient = np.linalg.solve(X, np.linalg.solve(X, A.T @ A).T)
    # stationary: X⁻¹GX⁻¹ is diagonal
    assert np.max(np.abs(gradient - np.diag(np.diag(gradient)))) < 1e-6 * np.max(gradient)
    assert (
        best.error
        < square_root(Workload(40, momentum=0.9, decay=0.99)).rmse(Workload(40, momentum=0.9, decay=0.99))
        * square_root(Workload(40, momentum=0.9, decay=0.99)).single()
    )


def test_convergence_aware_is_best_for_its_own_objective_only():
    work, tau = prefix_sums(24), 24
    plain, aware = optimal_single(work), optimal_single(work, tau=tau)
    W = objective(work, tau)
    cost = [np.linalg.norm(W @ solution.structure.inverse) * solution.sensitivity for solution in (plain, aware)]
    assert cost[1] < cost[0]
    assert plain.error < aware.error


def test_small_tau_restarts_the_noise():
    aware = optimal_single(prefix_sums(20), tau=8)
    assert aware.structure.restarts == 8
    assert aware.structure.single() == pytest.approx(1.0)
    alone = optimal_single(prefix_sums(8), tau=8).structure
    assert np.allclose(aware.structure.C[8:16, 8:16], alone.C)


def test_learning_rates_shape_the_optimum():
    rates = tuple(np.linspace(1, 0.1, 30))
    work = Workload(30, learning_rates=rates)
    flat = optimal_single(prefix_sums(30)).structure
    best = optimal_single(work)
    assert best.error < flat.rmse(work) * flat.single()
    assert best.gap < 1e-9
