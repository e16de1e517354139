"""ME: golden errors, the certificate against the true sensitivity, and the convergence-aware objective."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from hush.errors import InvalidInputError
from hush.matrix_factorization import Diagonal, optimal_epochs, optimal_single
from hush.matrix_factorization.dense import from_gram
from hush.matrix_factorization.multi_epoch import TraceProblem
from hush.matrix_factorization.workloads import Workload, objective, prefix_sums


@pytest.mark.parametrize(("times", "apart", "error"), [(2, 3, 2.0452), (4, 16, 4.4079), (8, 8, 7.0085)])
def test_golden(times, apart, error):
    # MECHANISMS §6: error for (k, b)
    best = optimal_epochs(prefix_sums(times * apart), apart)
    assert best.error == pytest.approx(error, abs=5e-5)
    assert best.gap < 1e-6
    assert best.sensitivity == pytest.approx(1.0, abs=1e-12)


def test_convergence_aware_golden():
    # MECHANISMS §6: (4, 16), prefix error 5.017 at τ = 16, 4.649 at τ = 64, plain 4.408
    short, long = (optimal_epochs(prefix_sums(64), 16, tau) for tau in (16, 64))
    assert short.error == pytest.approx(5.017, abs=5e-4)
    assert long.error == pytest.approx(4.649, abs=5e-4)
    assert short.structure.restarts == 16  # τ = b is a scheme that restarts every epoch …
    alone = optimal_single(prefix_sums(16), tau=16).structure  # … with the single-epoch optimum in every block
    assert np.allclose(short.structure.C[16:32, 16:32] * 2, alone.C, atol=1e-4)
    W = objective(prefix_sums(64), 64)
    plain = optimal_epochs(prefix_sums(64), 16)
    assert np.linalg.norm(W @ long.structure.inverse) < np.linalg.norm(W @ plain.structure.inverse)


def test_ten_epochs_of_49_steps():
    # MECHANISMS/benchmark figure: another library's dense optimiser reaches rmse·sens 9.919 here
    best = optimal_epochs(prefix_sums(490), 49)
    assert best.error <= 9.9195
    assert best.gap < 1e-6
    assert best.error < 0.5 * Diagonal(490).rmse() * Diagonal(490).same_order(49)


def test_incomplete_last_epoch_and_extremes():
    uneven = optimal_epochs(prefix_sums(50), 7)
    assert uneven.gap < 1e-6
    assert optimal_epochs(prefix_sums(24), 24).error == pytest.approx(optimal_single(prefix_sums(24)).error, rel=1e-6)
    assert optimal_epochs(prefix_sums(24), 100).error == pytest.approx(optimal_single(prefix_sums(24)).error, rel=1e-6)
    every = optimal_epochs(prefix_sums(9), 1)  # every example in every step: X is diagonal, X_tt ∝ √(T − t)
    weights = np.sqrt(np.arange(9, 0, -1))
    assert np.allclose(np.diag(every.structure.gram), weights / weights.sum(), atol=1e-4)
    with pytest.raises(InvalidInputError, match="per_epoch.*1.*0"):
        optimal_epochs(prefix_sums(9), 0)


def test_no_other_strategy_is_better():
    # minimise over every C (no zeros imposed), dividing by the |X| sensitivity: (k, b) = (3, 2)
    work = Workload(6, momentum=0.5)
    best = optimal_epochs(work, 2)
    index = np.tril_indices(6)

    def error(free: np.ndarray) -> float:
        C = np.zeros((6, 6))
        C[index] = free
        inverse = np.linalg.inv(C)
        X = C.T @ C
        squared = max(np.sqrt(X[r::2, r::2] ** 2 + 1e-12).sum() for r in range(2))
        return math.log(np.sum((work.matrix() @ inverse) ** 2) * squared)

    rng = np.random.default_rng(0)
    for _ in range(5):
        start = (np.eye(6) + 0.3 * np.tril(rng.normal(size=(6, 6))))[index]
        found = minimize(error, start, method="BFGS").fun
        assert math.exp(found / 2) / math.sqrt(6) >= best.error * (1 - 1e-6)


def test_the_gap_is_honest():
    work = prefix_sums(24)
    W = work.matrix()
    problem = TraceProblem.of(W.T @ W, 8, None)
    gap = problem.gap(np.eye(24) / 3)  # the identity is far from optimal …
    best = optimal_epochs(work, 8)
    distance = 1 - (best.error / (Diagonal(24).rmse() * Diagonal(24).same_order(8))) ** 2
    assert distance <= gap < 1  # … and the gap says at least by how much
    spoilt = best.structure.gram + 0.02  # entries within a pattern: the |X| sensitivity counts them
    order = problem.order
    assert problem.gap(spoilt[np.ix_(order, order)]) > 1e-3
    assert from_gram(spoilt).same_order(8) > 1


@pytest.mark.parametrize(
    "work", [Workload(200), Workload(200, 0.95, 0.9), Workload(200, learning_rates=tuple(np.geomspace(1, 1e-4, 200)))]
)
def test_many_short_epochs(work):
    for per_epoch in (2, 5):
        assert optimal_epochs(work, per_epoch).gap < 1e-5


def test_the_scale_of_the_workload_does_not_matter():
    tiny = optimal_epochs(Workload(30, learning_rates=(1e-12,) * 30), 10)
    plain = optimal_epochs(prefix_sums(30), 10)
    assert tiny.error == pytest.approx(1e-12 * plain.error, rel=1e-6)
    assert optimal_epochs(prefix_sums(1), 1).error == pytest.approx(1.0)


def test_momentum_and_learning_rates():
    work = Workload(40, momentum=0.9, learning_rates=tuple(np.linspace(1, 0.2, 40)))
    tuned, plain = optimal_epochs(work, 10), optimal_epochs(prefix_sums(40), 10).structure
    assert tuned.gap < 1e-6
    assert tuned.error < plain.rmse(work) * plain.same_order(10)
