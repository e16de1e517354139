"""BLT: the stream, the inverse, closed forms against series, and the distance to the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInputError
from hush.matrix_factorization import BLT, Dense, optimal_blt, optimal_single, square_root
from hush.matrix_factorization.blt import prefix_mean_square, squared_sensitivity
from hush.matrix_factorization.workloads import Workload, prefix_sums


def random_blt(seed: int, steps: int, buffers: int) -> BLT:
    rng = np.random.default_rng(seed)
    return BLT(steps, 1 - np.exp(-rng.uniform(0.1, 9, buffers)), rng.uniform(0.01, 1 / buffers, buffers))


def test_the_recurrence_of_the_docstring_gives_the_inverse():
    blt = random_blt(0, 25, 3)
    buffers, rows = np.zeros((3, 25)), []
    for z in np.eye(25):
        noise = z - blt.omega @ buffers
        buffers = blt.theta[:, None] * buffers + noise
        rows.append(noise)
    assert np.allclose(rows, blt.noise_map(), atol=1e-13)
    assert np.allclose(np.array(rows) @ blt.strategy(), np.eye(25), atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 120),
    buffers=st.integers(1, 5),
    times=st.integers(1, 6),
    apart=st.integers(1, 40),
)
def test_closed_forms(seed, steps, buffers, times, apart):
    blt = random_blt(seed, steps, buffers)
    dense = Dense(blt.strategy())
    assert blt.rmse() == pytest.approx(dense.rmse(), rel=1e-10)
    assert prefix_mean_square(blt.theta, blt.omega, steps) == pytest.approx(blt.rmse() ** 2, rel=1e-8)
    squared = squared_sensitivity(blt.theta, blt.omega, steps, times, apart)
    assert squared == pytest.approx(blt.separated(times, apart) ** 2, rel=1e-10)
    assert blt.separated(times, apart) <= dense.separated(times, apart) * (1 + 1e-10)
    assert blt.same_order(apart) == pytest.approx(dense.same_order(apart), rel=1e-10)
    assert blt.single() == pytest.approx(dense.single(), rel=1e-12)
    assert np.allclose(blt.inverse_norms(), dense.inverse_norms(), rtol=1e-10)


def test_few_buffers_come_close_to_the_best():
    best = optimal_single(prefix_sums(256)).error  # 2.524, the optimum over all matrices
    errors = [optimal_blt(prefix_sums(256), buffers).error for buffers in (1, 2, 3)]
    assert errors == sorted(errors, reverse=True)
    root = square_root(prefix_sums(256))
    assert best < errors[-1] < root.rmse() * root.single()
    assert errors[-1] < 1.05 * best


def test_optimum_is_stationary():
    found = optimal_blt(prefix_sums(300), 2, times=3, apart=100)
    rng = np.random.default_rng(1)
    for _ in range(20):
        theta = 1 - (1 - found.structure.theta) * (1 + 1e-3 * rng.normal(size=2))
        near = BLT(300, theta, found.structure.omega * (1 + 1e-3 * rng.normal(size=2)))
        assert near.rmse() * near.separated(3, 100) >= found.error * (1 - 1e-12)


def test_momentum_changes_the_optimum():
    work = Workload(200, momentum=0.9)
    tuned, plain = optimal_blt(work, 2), optimal_blt(prefix_sums(200), 2).structure
    assert tuned.error < plain.rmse(work) * plain.single()


def test_a_million_steps_need_few_buffers():
    found = optimal_blt(prefix_sums(10**6), 4, rtol=1e-8)
    # the square root, optimal up to a constant, has sens·rmse ≈ ln(T)/π + 1 at T steps
    assert found.error < 5.6
    assert found.structure.buffers == 4
    assert found.structure.first(1000).steps == 1000


def test_as_many_buffers_as_pay():
    found = optimal_blt(prefix_sums(64), rtol=1e-8)
    assert found.structure.buffers == 2  # 1: 2.216, 2: 2.1799, 3: 2.1797
    assert found.error == pytest.approx(2.1799, abs=1e-4)


@pytest.mark.parametrize(
    ("theta", "omega", "sentence"),
    [
        ([1.0], [0.5], "every decay θ of a BLT must be at least 0 and below 1"),
        ([0.5], [0.0], "weights ω of a BLT must be above 0"),
        ([0.5, 0.5], [0.7, 0.7], "add up to at most 1"),
        ([0.5], [0.1, 0.1], "as many decays θ as weights ω"),
        ([], [], "at least one"),
    ],
)
def test_bad_parameters(theta, omega, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        BLT(5, np.array(theta), np.array(omega))


def test_refusals():
    with pytest.raises(InvalidInputError):
        optimal_blt(Workload(3, learning_rates=(1, 2, 3)), 1)
