"""Square-root factorisations: golden values, matrices against series, and a million steps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from hush.errors import InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.dense import Dense
from hush.matrix_factorization.sensitivity import quotient, reciprocal
from hush.matrix_factorization.toeplitz import Toeplitz, inverse_square_root, square_root
from hush.matrix_factorization.workloads import Workload, prefix_sums


def test_square_root_golden():
    # MECHANISMS §6: T = 1000 and T = 256, single participation
    for steps, squared, error in ((1000, 3.2650, 3.1022), (256, 2.8310, 2.6688)):
        root = square_root(prefix_sums(steps))
        assert root.single() ** 2 == pytest.approx(squared, abs=5e-5)
        assert root.single() * root.rmse() == pytest.approx(error, abs=5e-5)


def test_separated_golden():
    # MECHANISMS §6: T = 20, min-separation
    work = prefix_sums(20)
    assert square_root(work, 4).separated(5, 4) == pytest.approx(2.7279, abs=5e-5)
    assert square_root(work, 8).separated(4, 5) == pytest.approx(3.0566, abs=5e-5)
    assert inverse_square_root(work, 4).separated(5, 4) == pytest.approx(3.5589, abs=5e-5)
    full = square_root(work)
    assert full.separated(4, 5) == pytest.approx(3.7575, abs=5e-5)
    # the two-stage row bound gives the same; the diagonal alone would be 2.7006, too little
    X = full.strategy().T @ full.strategy()
    assert sensitivity.separated(X, 4, 5) == pytest.approx(3.7575, abs=5e-5)
    assert float(sensitivity.heaviest(np.diag(X), 4, 5)) ** 0.5 == pytest.approx(2.7006, abs=5e-5)


def test_multi_epoch_golden():
    # MECHANISMS §6: T = 1000, k = 10, b = 100
    work = prefix_sums(1000)
    for structure, sens, error in (
        (square_root(work, 100), 5.0313, 12.1032),
        (inverse_square_root(work, 32), 5.0016, 13.1708),
    ):
        assert structure.separated(10, 100) == pytest.approx(sens, abs=5e-5)
        assert structure.same_order(100) == pytest.approx(sens, abs=5e-5)
        assert structure.separated(10, 100) * structure.rmse() == pytest.approx(error, abs=5e-5)


@pytest.mark.parametrize("workload", [Workload(12), Workload(12, 0.9), Workload(12, 0.5, 0.95), Workload(12, 0, 0.9)])
def test_square_root_is_the_root(workload):
    C = square_root(workload).strategy()
    assert np.allclose(C @ C, workload.matrix(), atol=1e-12)
    assert np.allclose(C, sqrtm(workload.matrix()).real, atol=1e-5)
    cut = inverse_square_root(workload, 4)
    assert np.allclose(np.diag(cut.noise_map(), -3), np.diag(np.linalg.inv(C), -3))
    assert not np.tril(cut.noise_map(), -4).any()
    assert np.allclose(cut.strategy() @ cut.noise_map(), np.eye(12), atol=1e-12)


@pytest.mark.parametrize(
    "structure",
    [
        square_root(Workload(30, 0.9), 5),
        inverse_square_root(Workload(30, 0.9), 5),
        Toeplitz(30, np.array([1.0, -0.7, 0.2, 0.4])),
        Toeplitz(30, np.array([1.0, 0.7, -0.2]), inverse_banded=True),
    ],
)
def test_series_agree_with_matrices(structure):
    dense = Dense(structure.strategy())
    workload = Workload(30, 0.6, 0.97)
    assert structure.single() == pytest.approx(dense.single(), rel=1e-12)
    assert structure.rmse(workload) == pytest.approx(dense.rmse(workload), rel=1e-10)
    assert np.allclose(structure.inverse_norms(), dense.inverse_norms(), rtol=1e-10)
    for per_epoch in (3, 7, 30):
        assert structure.same_order(per_epoch) == pytest.approx(dense.same_order(per_epoch), rel=1e-10)
        assert structure.separated(4, per_epoch) <= dense.separated(4, per_epoch) * (1 + 1e-10)
    assert np.allclose(structure.first(11).strategy(), structure.strategy()[:11, :11])


def test_long_series_by_fft_agree_with_the_recurrence():
    coefficients = square_root(prefix_sums(3000)).coefficients
    exact = inverse_square_root(prefix_sums(3000), 3000).coefficients
    assert np.allclose(reciprocal(coefficients, 3000), exact, atol=1e-13)
    top = np.cos(np.arange(3000.0))
    assert np.allclose(quotient(top, coefficients, 3000), np.convolve(top, exact)[:3000], atol=1e-10)


def test_a_million_steps():
    banded = square_root(prefix_sums(10**6), 16)
    cut = inverse_square_root(prefix_sums(10**6), 16)
    # the same formula at a size where it can be checked against a matrix is tested above; here it must finish and scale
    assert banded.separated(10, 10**5) == pytest.approx(10**0.5 * banded.single(), rel=1e-12)
    assert 1 < cut.same_order(10**5) < 1e3
    assert banded.rmse() == pytest.approx(banded.first(10**5).rmse() * 10**0.5, rel=0.02)
    assert len(banded.inverse_norms()) == 10**6


def test_refusals():
    with pytest.raises(InvalidInputError):
        square_root(Workload(3, learning_rates=(1, 2, 3)))
    with pytest.raises(InvalidInputError, match="number"):
        Toeplitz(3, np.array([0.0, 1.0]))
