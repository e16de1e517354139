"""Samplers do what they declare, and are pure in (secret, step)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import BadInput
from hush.randomness import Secret
from hush.sampling import (
    Cyclic,
    FixedSize,
    OnePass,
    Partitioned,
    Poisson,
    Reshuffled,
    SameOrder,
    Shuffled,
    one_pass,
)

SECRET = Secret.from_seed(7)
N, L, T = 103, 10, 37
ALL = [
    Poisson(N, L / N, T),
    FixedSize(N, L, T),
    Shuffled(N, L, T),
    Partitioned(N, L, T),
    one_pass(N, L),
    Cyclic(N, 5, 0.3, T),
]


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)
def test_a_batch_is_a_pure_function_of_secret_and_step(sampler) -> None:
    steps = [3, 0, 9, 3]
    drawn = [sampler.indices(SECRET, t, N) for t in steps]
    assert torch.equal(drawn[0], drawn[3])
    assert any(
        not torch.equal(sampler.indices(Secret.from_seed(8), t, N), d) for t, d in zip(steps, drawn, strict=True)
    )
    for indices in drawn:
        assert indices.dtype == torch.int64
        assert len(indices) == len(set(indices.tolist()))
        assert all(0 <= i < N for i in indices.tolist())


def test_poisson_batch_sizes_are_binomial() -> None:
    sampler = Poisson(2000, 0.05, 400)
    sizes = torch.tensor([len(sampler.indices(SECRET, t, 2000)) for t in range(400)], dtype=torch.float64)
    mean, variance = 2000 * 0.05, 2000 * 0.05 * 0.95
    assert abs(sizes.mean() - mean) < 4 * math.sqrt(variance / 400)
    assert 0.75 < sizes.var() / variance < 1.3  # a fixed batch size would give 0


def test_poisson_coins_do_not_move_when_an_example_is_added() -> None:
    sampler = Poisson(50, 0.3, 20)
    for t in range(20):
        fewer, more = sampler.indices(SECRET, t, 50).tolist(), sampler.indices(SECRET, t, 51).tolist()
        assert fewer == [i for i in more if i != 50]


def test_poisson_examples_take_part_equally_often() -> None:
    sampler = Poisson(20, 0.25, 2000)
    counts = torch.zeros(20)
    for t in range(2000):
        counts[sampler.indices(SECRET, t, 20)] += 1
    assert (counts / 2000 - 0.25).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 2000)


def test_fixed_size_is_fixed() -> None:
    sampler = FixedSize(N, L, T)
    assert {len(sampler.indices(SECRET, t, N)) for t in range(T)} == {L}


def test_shuffled_visits_everybody_once_an_epoch_in_a_new_order() -> None:
    sampler = Shuffled(N, L, 33)
    assert sampler.participation == Reshuffled(11, 33)
    epochs = [torch.cat([sampler.indices(SECRET, e * 11 + t, N) for t in range(11)]).tolist() for e in range(3)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_partitioned_repeats_its_order() -> None:
    sampler = Partitioned(N, L, 33)
    assert sampler.participation == SameOrder(11, 33)
    assert sampler.participation.times == 3
    for t in range(11):
        assert torch.equal(sampler.indices(SECRET, t, N), sampler.indices(SECRET, t + 22, N))


def test_one_pass_is_declared_as_one() -> None:
    assert one_pass(N, L).participation == OnePass(11)
    assert Partitioned(N, L, 11).participation == OnePass(11)
    assert Partitioned(N, L, 12).participation == SameOrder(11, 12)


def test_cyclic_groups_are_fixed_and_disjoint() -> None:
    sampler = Cyclic(60, 4, 1.0, 16)
    groups = [set(sampler.indices(SECRET, t, 60).tolist()) for t in range(8)]
    assert groups[:4] == groups[4:]
    assert sum(len(g) for g in groups[:4]) == 60 == len(set().union(*groups[:4]))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 50), st.integers(0, 2**32))
def test_participation_is_never_denser_than_declared(n: int, size: int, steps: int, seed: int) -> None:
    size, secret = min(n, size), Secret.from_seed(seed)
    fixed = Partitioned(n, size, steps)
    seen = [[t for t in range(steps) if i in fixed.indices(secret, t, n).tolist()] for i in range(n)]
    declared = fixed.participation
    for times in seen:
        if isinstance(declared, OnePass):
            assert len(times) <= 1
        else:
            assert len(times) <= declared.times
            assert all(b - a == declared.per_epoch for a, b in zip(times, times[1:], strict=False))


@pytest.mark.parametrize("kind", [FixedSize, Shuffled, Partitioned])
def test_a_batch_larger_than_the_data_is_refused(kind) -> None:
    with pytest.raises(BadInput, match="batch size 11 is larger than the data: 10 examples"):
        kind(10, 11, 5)


@pytest.mark.parametrize("sampler", [FixedSize(N, L, T), Shuffled(N, L, T), Partitioned(N, L, T), Cyclic(N, 5, 0.3, T)])
def test_another_number_of_examples_is_refused_where_it_is_public(sampler) -> None:
    with pytest.raises(BadInput, match="exactly 103 examples"):
        sampler.indices(SECRET, 0, N + 1)
