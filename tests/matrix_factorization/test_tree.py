"""Trees: golden S_max, the published table, and streams whose noise map inverts the strategy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from hush.errors import InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.tree import Tree
from hush.matrix_factorization.workloads import Workload


def _rdp_epsilon(sigma: float, delta: float = 1e-5) -> float:
    """RDP of one Gaussian over α = 1.1, 1.2, … 200, with the conversion of MECHANISMS §2."""
    alpha = np.arange(11, 2001) / 10
    return float(
        np.min(alpha / (2 * sigma**2) - (np.log(delta * (alpha - 1)) - alpha * np.log1p(-1 / alpha)) / (alpha - 1))
    )


def _exact_delta(sigma: float, epsilon: float) -> float:
    return float(norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma))


@pytest.mark.parametrize(
    ("steps", "per_epoch", "squared"),
    # MECHANISMS §5: one tree over all epochs, complete nodes, same order
    [(1200, 120, 225), (300, 100, 35), (500, 100, 50), (600, 60, 215), (1024, 128, 176)],
)
def test_one_tree_golden(steps, per_epoch, squared):
    assert Tree(steps).same_order(per_epoch) ** 2 == pytest.approx(squared)


def test_restarts_golden():
    # MECHANISMS §5: 120 leaves × 10
    for complete, squared in (("none", 70), ("all-but-last", 79), ("all", 80)):
        assert Tree(1200, restart=120, complete=complete).same_order(120) ** 2 == pytest.approx(squared)
    assert Tree(1200, restart=120).single() ** 2 == pytest.approx(7)
    assert Tree(1200, restart=120, complete="all").single() ** 2 == pytest.approx(8)


def test_published_table():
    # MECHANISMS §5: the published Table III by RDP, and the exact values
    sens = Tree(1200).same_order(120)
    for node_noise, by_rdp, exact in (
        (25, 2.653, 2.445),
        (20, 3.408, 3.147),
        (12.5, 5.838, 5.413),
        (8, 9.915, 9.236),
        (4, 23.80, 22.36),
    ):
        digits = 5e-4 if by_rdp < 10 else 5e-3
        assert _rdp_epsilon(node_noise / sens) == pytest.approx(by_rdp, abs=digits)
        digits = 5e-4 if exact < 10 else 5e-3
        assert (
            _exact_delta(node_noise / sens, exact + digits) <= 1e-5 <= _exact_delta(node_noise / sens, exact - digits)
        )


def test_error_golden():
    # MECHANISMS §5: error per unit sensitivity at T = 64
    plain, honaker = Tree(64), Tree(64, estimate="honaker")
    assert plain.rmse() * plain.single() == pytest.approx(4.594, abs=5e-4)
    assert honaker.rmse() * honaker.single() == pytest.approx(3.652, abs=5e-4)
    best = plain.pseudo_inverse()
    assert best.rmse() * best.single() == pytest.approx(2.518, abs=5e-4)


ALL = [
    Tree(steps, restart, complete, estimate, nodes)
    for steps, restart, complete, estimate, nodes in itertools.product(
        (1, 2, 7, 16, 21),
        (None, 1, 5, 6, 8),
        ("none", "all-but-last", "all"),
        ("plain", "honaker"),
        ("complete", "read"),
    )
    if not (nodes == "read" and estimate == "honaker")
]


@pytest.mark.parametrize("tree", ALL, ids=str)
def test_the_stream_undoes_the_strategy(tree):
    M, C = tree.noise_map(), tree.strategy()
    assert np.allclose(M @ C, np.eye(tree.steps), atol=1e-12)
    # every row of Z that reaches the noise is a counted node, so the declared sensitivity covers all that is released
    assert not M[:, ~C.any(axis=1)].any()
    X = C.T @ C
    assert tree.single() == pytest.approx(sensitivity.single(X), rel=1e-12)
    for per_epoch in (1, 3, 8):
        assert tree.same_order(per_epoch) == pytest.approx(sensitivity.same_order(X, per_epoch), rel=1e-12)
    assert np.allclose(tree.inverse_norms(), np.linalg.norm(M, axis=1), atol=1e-12)
    seen = np.tri(tree.steps) @ M
    assert tree.rmse() == pytest.approx(np.linalg.norm(seen) / math.sqrt(tree.steps), rel=1e-12)
    momentum = Workload(tree.steps, 0.9)
    assert tree.rmse(momentum) == pytest.approx(
        np.linalg.norm(momentum.matrix() @ M) / math.sqrt(tree.steps), rel=1e-12
    )


@pytest.mark.parametrize("tree", [tree for tree in ALL if tree.steps == 21], ids=str)
def test_first_steps_are_the_same_stream(tree):
    for steps in (1, 5, 12, 16, 20, 21):
        cut = tree.first(steps)
        M, whole = cut.noise_map(), tree.noise_map()
        width = min(M.shape[1], whole.shape[1])
        assert np.allclose(M[:, :width], whole[:steps, :width])
        assert not M[:, width:].any()
        assert not whole[:steps, width:].any()


def test_separated_bound_covers_every_pattern():
    for tree in (Tree(12), Tree(12, restart=5, complete="all"), Tree(12, nodes="read")):
        C = tree.strategy()
        X = C.T @ C
        for times, apart in ((1, 1), (2, 3), (3, 4), (4, 2)):
            worst = max(
                X[np.ix_(pattern, pattern)].sum()
                for size in range(1, times + 1)
                for pattern in itertools.combinations(range(12), size)
                if all(b - a >= apart for a, b in itertools.pairwise(pattern))
            )
            assert tree.separated(times, apart) >= math.sqrt(worst) * (1 - 1e-12)
    assert Tree(12).separated(1, 1) == pytest.approx(Tree(12).single())


def test_large_trees_stay_cheap():
    tree = Tree(10**6, estimate="honaker")
    assert tree.single() ** 2 == pytest.approx(20)
    assert tree.buffers == 20
    assert len(tree.step(2**19 - 1).merged) == 19
    assert tree.separated(10, 10**5) >= tree.first(1000).separated(1, 1)
    assert tree.rmse() < Tree(10**6).rmse()


def test_counting_only_what_is_read_is_tighter():
    # the plain estimate never reads a right child: S_max 174 instead of 225
    assert Tree(1200, nodes="read").same_order(120) ** 2 == pytest.approx(174)
    assert Tree(1200, nodes="read").rmse() == Tree(1200).rmse()


def test_refusals():
    with pytest.raises(InvalidInputError):
        Tree(8, estimate="honaker", nodes="read")
    with pytest.raises(InvalidInputError, match="8"):
        Tree(8).step(8)
    with pytest.raises(InvalidInputError):
        Tree(8, complete="al")
