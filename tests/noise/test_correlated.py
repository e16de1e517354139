"""Correlated noise streams: known faults are detected, the identity equals DP-SGD's noise, block sizes agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hush.errors import NotProvenError
from hush.guarantees import check_proof, find_sensitivity
from hush.matrix_factorization import Dense, Strategy, Toeplitz, Tree, distances, optimal_single
from hush.noise import DenseNoise, Independent, make_noise
from hush.randomness import Secret, normal
from hush.sampling import OnePass, Reshuffled
from noise_structures import STRUCTURES, WORK, T, impulses, measured


def test_the_injection_that_is_too_small_by_the_root_of_t_fails() -> None:
    """A public benchmark injects differences of Λ A C⁻¹ Z with τ = T instead of C⁻¹Z (MECHANISMS.md §6)."""
    structure = optimal_single(WORK, tau=T).structure
    A = np.tril(np.ones((T, T)))
    seen = distances(T, T) @ A @ structure.inverse
    faulty = np.diff(np.vstack([np.zeros(T), seen]), axis=0)
    declared = find_sensitivity(OnePass(T), structure)
    assert measured(structure.inverse, OnePass(T)) == pytest.approx(declared, rel=1e-9)
    assert measured(faulty, OnePass(T)) > 2 * declared


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_a_stream_at_another_scale_is_caught(wrong: float) -> None:
    structure = STRUCTURES["bsr-3"]
    M = wrong * impulses(make_noise(structure))
    assert measured(M, OnePass(T)) != pytest.approx(find_sensitivity(OnePass(T), structure), rel=0.1)


@pytest.mark.parametrize(
    "make", [lambda t: Toeplitz(t, np.ones(1)), lambda t: Dense(np.eye(t))], ids=["toeplitz", "dense"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_identity_is_dp_sgds_noise_bit_for_bit(make, dtype) -> None:
    like, secret = torch.empty(1000, dtype=dtype), Secret.from_seed(1)

    def rows(j: int) -> torch.Tensor:
        return normal(secret, "noise/gradient", j, like)

    ours, plain = make_noise(make(T)), Independent(T)
    state, none = ours.init(like), plain.init(like)
    for step in range(T):
        drawn, state = ours.draw(step, rows, state)
        expected, none = plain.draw(step, rows, none)
        assert torch.equal(drawn, expected)
        assert torch.equal(expected, rows(step))


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_step_has_the_declared_distribution(name: str) -> None:
    structure, secret = STRUCTURES[name], Secret.from_seed(3)
    noise, like = make_noise(structure), torch.empty(4000)
    state = noise.init(like)
    for step in range(T):
        drawn, state = noise.draw(step, lambda j: normal(secret, "noise/gradient", j, like), state)
        std = noise.std(step)
        assert stats.kstest(drawn.double().numpy() / std, "norm").pvalue > 1e-6
        assert stats.kstest(drawn.double().numpy() / (1.5 * std), "norm").pvalue < 1e-6


@pytest.mark.parametrize("memory", [1, 40, 10**9])
def test_dense_blocks_of_any_size_give_the_same_noise(memory: int) -> None:
    structure = STRUCTURES["me"]
    assert isinstance(structure, Dense)
    assert np.allclose(impulses(DenseNoise(structure, memory))[:, :T], structure.inverse, atol=1e-12)


@pytest.mark.parametrize(("name", "most"), [("bsr-3", 2), ("bisr-4", 3), ("bandmf-4", 3), ("blt", 2), ("tree", 5)])
def test_how_many_vectors_a_stream_keeps(name: str, most: int) -> None:
    state = make_noise(STRUCTURES[name]).init(torch.empty(50))
    assert sum(value.numel() for value in state.values()) == 50 * most


def test_a_structure_without_a_stream_is_refused() -> None:
    class Own(Tree):
        pass

    class Other(Strategy):
        steps, bands, restarts = T, None, None

        def first(self, steps):
            return self

        def strategy(self):
            return np.eye(T)

        def noise_map(self):
            return np.eye(T)

    assert type(make_noise(Own(T))) is type(make_noise(Tree(T)))
    with pytest.raises(NotProvenError):
        make_noise(Other())


def test_reshuffled_epochs_need_restarts() -> None:
    assert find_sensitivity(Reshuffled(4, T), Tree(T, restart=4)) == math.sqrt(3)
    check_proof(Reshuffled(4, T), Tree(T, restart=4), "zero-out")
    with pytest.raises(NotProvenError):
        check_proof(Reshuffled(4, T), STRUCTURES["bsr-3"], "zero-out")
