"""Samplers match their declarations and are pure functions of (secret, step)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hush.errors import InvalidInputError
from hush.randomness import Secret
from hush.sampling import (
    CyclicPoisson,
    CyclicPoissonSampled,
    FixedSize,
    OnePass,
    Partitioned,
    Poisson,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Shuffled,
    WithoutReplacement,
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
    CyclicPoisson(N, 5, 0.3, T),
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
    sampler = CyclicPoisson(60, 4, 1.0, 16)
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
    with pytest.raises(InvalidInputError, match="11.*10"):
        kind(10, 11, 5)


@pytest.mark.parametrize(
    "sampler", [FixedSize(N, L, T), Shuffled(N, L, T), Partitioned(N, L, T), CyclicPoisson(N, 5, 0.3, T)]
)
def test_another_number_of_examples_is_refused_where_it_is_public(sampler) -> None:
    with pytest.raises(InvalidInputError, match="103"):
        sampler.indices(SECRET, 0, N + 1)


def visits(sampler, secret: Secret) -> list[list[int]]:
    """By example, the steps that it takes part in."""
    found: list[list[int]] = [[] for _ in range(N)]
    for step in range(sampler.steps):
        for example in sampler.indices(secret, step, N).tolist():
            found[example].append(step)
    return found


def within(participation, steps: list[int]) -> bool:
    """Whether one example may take part in these steps, by what is declared."""
    match participation:
        case OnePass():
            return len(steps) <= 1
        case SameOrder(per_epoch=b) | CyclicPoissonSampled(groups=b):
            return len({step % b for step in steps}) <= 1
        case Reshuffled(per_epoch=b):
            return len({step // b for step in steps}) == len(steps)
    return len(set(steps)) == len(steps)


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)
class TestGuarantees:
    """The list in `Sampler`, from its third line on; the first two are the test of a pure function above."""

    def test_nobody_takes_part_more_often_or_closer_than_declared(self, sampler) -> None:
        assert all(within(sampler.participation, steps) for steps in visits(sampler, SECRET))

    def test_a_declared_probability_is_everybodys(self, sampler) -> None:
        match sampler.participation:
            case PoissonSampled(rate=rate):
                chance, fewest, turns = rate, T, T
            case CyclicPoissonSampled(groups=w, rate=rate):
                chance, fewest, turns = rate, T // w, -(-T // w)
            case WithoutReplacement(examples=n, size=size):
                chance, fewest, turns = size / n, T, T
            case _:
                return
        drawn = [visits(sampler, Secret.from_seed(seed)) for seed in range(20)]
        taken = [sum(len(found[example]) for found in drawn) for example in range(N)]
        most = stats.binom(20 * turns, chance).isf(1e-6 / N)
        least = stats.binom(20 * fewest, chance).ppf(1e-6 / N)
        assert all(least <= count <= most for count in taken)

    def test_what_is_declared_covers_every_step_and_stays(self, sampler) -> None:
        before = sampler.participation
        visits(sampler, SECRET)
        assert sampler.participation == before
        assert before.steps == sampler.steps

    def test_no_batch_is_larger_than_declared(self, sampler) -> None:
        members = {PoissonSampled: N + 1, CyclicPoissonSampled: -(-N // 5)}.get(type(sampler.participation), L)
        assert sampler.largest_batch == members
        assert max(len(sampler.indices(SECRET, step, N)) for step in range(sampler.steps)) <= members

    def test_a_population_that_is_not_covered_is_refused(self, sampler) -> None:
        with pytest.raises(InvalidInputError, match=f"{N} examples"):
            sampler.indices(SECRET, 0, N + 2)
