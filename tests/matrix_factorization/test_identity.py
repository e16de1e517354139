"""Independent noise as a matrix: golden values, equal in every form, and the remaining noise after some steps."""

from __future__ import annotations

import numpy as np
import pytest

from hush._internal.identity import IdentityScope, declared
from hush.errors import InvalidInputError, NotProvenError
from hush.matrix_factorization import (
    BandedMatrix,
    Dense,
    Diagonal,
    Toeplitz,
    Workload,
    drop_first,
    prefix_sums,
    square_root,
)

SCALES = (1.0, 0.5, 0.25, 2.0, 0.5, 1.0, 3.0)
STEPS = len(SCALES)
WORKLOADS = [None, Workload(STEPS, 0.5, 0.9), Workload(STEPS, learning_rates=(1, 2, 3, 1, 2, 3, 1))]


def test_independent_noise_golden():
    # MECHANISMS §6: identity 5.70 / 11.34 / 21.67 at T = 64 / 256 / 938
    for steps, error in ((64, 5.70), (256, 11.34), (938, 21.67)):
        same = Diagonal(steps)
        assert same.single() * same.rmse() == pytest.approx(error, abs=5e-3)
    assert Diagonal(64).rmse() * Diagonal(64).same_order(16) == pytest.approx(11.4018, abs=5e-5)  # k = 4, b = 16
    assert np.array_equal(Diagonal(9).noise_map(), np.eye(9))
    assert Diagonal(9).separated(3, 4) == 3**0.5


@pytest.mark.parametrize("workload", WORKLOADS, ids=["prefix sums", "momentum", "rates"])
@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (Diagonal(STEPS), Toeplitz(STEPS, np.ones(1))),
        (Diagonal(STEPS), BandedMatrix(np.ones((STEPS, 1)))),
        (Diagonal(STEPS, (0.5,) * STEPS), Toeplitz(STEPS, np.array([2.0]))),
        (Diagonal(STEPS, SCALES), BandedMatrix(1 / np.array(SCALES)[:, None])),
        (Diagonal(STEPS, SCALES), Dense(np.diag(1 / np.array(SCALES)))),
    ],
    ids=["toeplitz", "banded", "toeplitz scaled", "banded scaled", "dense"],
)
def test_one_diagonal_in_every_form_says_the_same(ours, other, workload):
    assert (other.bands, other.restarts) == (ours.bands, ours.restarts) == (1, 1)
    assert other.alike == ours.alike
    assert other.least_scale == pytest.approx(ours.least_scale, rel=1e-14)
    assert other.rmse(workload) == pytest.approx(ours.rmse(workload), rel=1e-12)
    assert np.allclose(other.prefix_variances(), ours.prefix_variances(), rtol=1e-12)
    for length in (1, 2, 3, STEPS):
        assert other.same_order(length) == pytest.approx(ours.same_order(length), rel=1e-12)
        assert other.separated(2, length) == pytest.approx(ours.separated(2, length), rel=1e-12)
        found, expected = other.block_norms(length), ours.block_norms(length)
        assert list(found.values()) == list(expected.values())
        assert list(found) == pytest.approx(list(expected), rel=1e-12)
    for start in (0, 3):
        assert drop_first(other, start).inverse_norms() == pytest.approx(ours.inverse_norms()[start:], rel=1e-14)


def test_blocks_are_counted_in_the_order_of_the_steps():
    assert Diagonal(STEPS, SCALES).block_norms(1) == {1.0: 2, 2.0: 2, 4.0: 1, 0.5: 1, 1 / 3.0: 1}
    assert list(Diagonal(STEPS, SCALES).block_norms(2).items()) == [(2.0, 2), (4.0, 1), (1 / 3.0, 1)]
    assert Diagonal(10**6).block_norms(3) == {1.0: 333_334}


def test_what_is_left_after_some_steps():
    assert drop_first(Diagonal(STEPS, SCALES), 2) == Diagonal(STEPS - 2, SCALES[2:])
    assert drop_first(Diagonal(STEPS), 2) == Diagonal(STEPS - 2)
    with pytest.raises(NotProvenError):
        drop_first(square_root(prefix_sums(8), 2), 2)


def test_only_the_identity_is_alike():
    assert Diagonal(5).alike
    assert Diagonal(5, (1.0,) * 5).alike
    assert not Diagonal(5, (1.0,) * 4 + (0.5,)).alike
    assert not Toeplitz(5, np.array([2.0])).alike  # independent, with half of the noise
    assert not square_root(prefix_sums(5), 2).alike


def test_what_seeds_and_checkpoints_know_it_by():
    scope = IdentityScope(3)
    assert declared(Diagonal(3), scope) == {"kind": "hush.noise.structure.Identity", "steps": 3}
    scaled = {"kind": "hush.noise.structure.Diagonal", "scales": [1.0, 0.5, 2]}
    assert declared(Diagonal(3, (1.0, 0.5, 2)), scope) == scaled


def test_refusals():
    with pytest.raises(InvalidInputError, match="3.*2"):
        Diagonal(3, (1.0, 1.0))
    with pytest.raises(InvalidInputError, match="noise_schedule"):
        Diagonal(2, (1.0, 0.0))
    with pytest.raises(InvalidInputError, match="steps"):
        Diagonal(0)
