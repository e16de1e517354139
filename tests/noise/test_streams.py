"""For every stream: the map from Z to the injected noise, recovered by impulses, is what its structure declares."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from hush.errors import Refused
from hush.matrices import (
    BLT,
    Dense,
    Tree,
    distances,
    identity,
    inverse_square_root,
    optimal_banded,
    optimal_epochs,
    optimal_single,
    prefix_sums,
    square_root,
)
from hush.noise import DenseNoise, Independent, sensitivity, streamed
from hush.proofs import check_proof
from hush.randomness import Secret, normal
from hush.sampling import OnePass, Reshuffled, SameOrder, Separated

T = 12
WORK = prefix_sums(T)
STRUCTURES = {
    "identity": identity(T),
    "bsr-3": square_root(WORK, 3),
    "square-root": square_root(WORK),
    "bisr-4": inverse_square_root(WORK, 4),
    "bandmf-4": optimal_banded(WORK, 4).structure,
    "blt": BLT(T, np.array([0.9, 0.3]), np.array([0.2, 0.3])),
    "tree": Tree(T),
    "tree-restart": Tree(T, restart=4),
    "tree-complete": Tree(T, restart=5, complete="all"),
    "tree-complete-but-last": Tree(T, restart=5, complete="all-but-last"),
    "honaker": Tree(T, estimate="honaker"),
    "honaker-restart": Tree(T, restart=5, complete="all-but-last", estimate="honaker"),
    "tree-read": Tree(T, nodes="read"),
    "pseudo-inverse": Tree(T).pseudo_inverse(),
    "se": optimal_single(WORK).structure,
    "se-lambda": optimal_single(WORK, tau=T).structure,
    "me": optimal_epochs(WORK, 4).structure,
    "me-lambda": optimal_epochs(WORK, 4, tau=4).structure,
}
ROWS = 3 * T + 8


def impulses(noise, steps: int = T, rows: int = ROWS) -> np.ndarray:
    """M, by feeding the unit vectors: coordinate j of z(row) is 1 where j = row."""
    like = torch.zeros(rows, dtype=torch.float64)
    eye = torch.eye(rows, dtype=torch.float64)
    state, out = noise.init(like), []
    for step in range(steps):
        drawn, state = noise.draw(step, lambda row: eye[row].clone(), state)
        out.append(drawn.clone())
    return torch.stack(out).numpy()


def patterns(participation):
    """All sets of steps in which one example may take part."""
    match participation:
        case OnePass():
            return [(t,) for t in range(T)]
        case SameOrder(per_epoch=b):
            return [tuple(range(t, T, b)) for t in range(b)]
        case Separated(times=k, apart=b):
            chosen = itertools.chain.from_iterable(itertools.combinations(range(T), n) for n in range(1, k + 1))
            return [p for p in chosen if all(y - x >= b for x, y in zip(p, p[1:], strict=False))]
    raise AssertionError


def measured(M: np.ndarray, participation) -> float:
    """The sensitivity that the map implies: noise MZ hides a shift u as well as Z hides the shortest w with Mw = u.

    Over signs only (a lower bound that is attained where signs balance), by brute force.
    """
    worst = 0.0
    inverse = np.linalg.pinv(M)
    for pattern in patterns(participation):
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            shift = np.zeros(T)
            shift[list(pattern)] = (1.0, *signs)
            worst = max(worst, float(np.linalg.norm(inverse @ shift)))
    return worst


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_stream_is_the_declared_map(name: str) -> None:
    structure = STRUCTURES[name]
    M = impulses(streamed(structure))
    declared = structure.noise_map()
    assert np.allclose(M[:, : declared.shape[1]], declared, atol=1e-12)
    assert not M[:, declared.shape[1] :].any()
    stds = [streamed(structure).std(t) for t in range(T)]
    assert np.allclose(np.linalg.norm(M, axis=1), stds, atol=1e-10)


PARTICIPATIONS = [OnePass(T), SameOrder(4, T), SameOrder(5, T), Separated(2, 4, T), Separated(3, 4, T)]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_declared_sensitivity_covers_what_the_map_implies(name: str, participation) -> None:
    structure = STRUCTURES[name]
    M = impulses(streamed(structure))
    declared, implied = sensitivity(structure, participation), measured(M, participation)
    assert implied <= declared * (1 + 1e-9)
    square = structure.strategy().shape[0] == T
    gram = structure.strategy().T @ structure.strategy()
    if square and (gram >= -1e-12).all() and not isinstance(participation, Separated):
        assert implied == pytest.approx(declared, rel=1e-9)  # where no sign can cancel, the formula is exact


def test_the_injection_that_is_too_small_by_the_root_of_t_fails() -> None:
    """A public benchmark injects differences of Λ A C⁻¹ Z with τ = T instead of C⁻¹Z (MECHANISMS.md §6)."""
    structure = optimal_single(WORK, tau=T).structure
    A = np.tril(np.ones((T, T)))
    seen = distances(T, T) @ A @ structure.inverse
    faulty = np.diff(np.vstack([np.zeros(T), seen]), axis=0)
    declared = sensitivity(structure, OnePass(T))
    assert measured(structure.inverse, OnePass(T)) == pytest.approx(declared, rel=1e-9)
    assert measured(faulty, OnePass(T)) > 2 * declared


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_a_stream_at_another_scale_is_caught(wrong: float) -> None:
    structure = STRUCTURES["bsr-3"]
    M = wrong * impulses(streamed(structure))
    assert measured(M, OnePass(T)) != pytest.approx(sensitivity(structure, OnePass(T)), rel=0.1)


@pytest.mark.parametrize("make", [identity, lambda t: Dense(np.eye(t))], ids=["toeplitz", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_identity_is_dp_sgds_noise_bit_for_bit(make, dtype) -> None:
    like, secret = torch.empty(1000, dtype=dtype), Secret.from_seed(1)

    def rows(j: int) -> torch.Tensor:
        return normal(secret, "noise/gradient", j, like)

    ours, plain = streamed(make(T)), Independent(T)
    state, none = ours.init(like), plain.init(like)
    for step in range(T):
        drawn, state = ours.draw(step, rows, state)
        expected, none = plain.draw(step, rows, none)
        assert torch.equal(drawn, expected)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_step_has_the_declared_distribution(name: str) -> None:
    structure, secret = STRUCTURES[name], Secret.from_seed(3)
    noise, like = streamed(structure), torch.empty(4000)
    state = noise.init(like)
    for step in range(T):
        drawn, state = noise.draw(step, lambda j: normal(secret, "noise/gradient", j, like), state)
        std = noise.std(step)
        assert stats.kstest(drawn.double().numpy() / std, "norm").pvalue > 1e-6
        assert stats.kstest(drawn.double().numpy() / (1.5 * std), "norm").pvalue < 1e-6


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_resumed_stream_goes_on_with_the_same_bits(name: str) -> None:
    structure, secret, like = STRUCTURES[name], Secret.from_seed(4), torch.empty(257)
    noise = DenseNoise(structure, memory=5 * 257 * 4) if isinstance(structure, Dense) else streamed(structure)

    def rows(j: int) -> torch.Tensor:
        return normal(secret, "noise/gradient", j, like)

    for stop in range(T):
        state = noise.init(like)
        for step in range(stop):
            _, state = noise.draw(step, rows, state)
        saved = {key: value.clone() for key, value in state.items() if not key.startswith("_")}
        on, _ = noise.draw(stop, rows, state)
        again, _ = noise.draw(stop, rows, saved)
        assert torch.equal(on, again)


@pytest.mark.parametrize("memory", [1, 40, 10**9])
def test_dense_blocks_of_any_size_give_the_same_noise(memory: int) -> None:
    structure = STRUCTURES["me"]
    assert np.allclose(impulses(DenseNoise(structure, memory))[:, :T], structure.inverse, atol=1e-12)


@pytest.mark.parametrize("name", ["bsr-3", "bisr-4", "bandmf-4", "blt", "tree"])
def test_memory_does_not_grow_with_steps(name: str) -> None:
    structure = STRUCTURES[name]
    noise, like, rows = streamed(structure), torch.zeros(50), torch.zeros(50)
    state, sizes = noise.init(like), set()
    for step in range(T):
        _, state = noise.draw(step, lambda j: rows.clone(), state)
        sizes.add(sum(v.numel() for v in state.values() if isinstance(v, torch.Tensor)))
    assert len(sizes) == 1
    assert sizes.pop() <= 50 * 5


def test_reshuffled_epochs_need_restarts() -> None:
    assert sensitivity(Tree(T, restart=4), Reshuffled(4, T)) == math.sqrt(3)
    check_proof(Reshuffled(4, T), Tree(T, restart=4), "zero-out")
    with pytest.raises(Refused, match="restart the noise every epoch"):
        check_proof(Reshuffled(4, T), STRUCTURES["bsr-3"], "zero-out")
