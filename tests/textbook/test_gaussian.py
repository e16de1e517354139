"""One Gaussian release: golden calibrations, soundness against the exact profile, private mean, privacy loss."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hush.accounting.gaussian import gaussian_delta
from hush.accounting.noise_tails import grid
from hush.errors import InvalidInputError, NotProvenError
from hush.textbook.gaussian import (
    LossDistribution,
    _clipped,
    _noisy_sum,
    analytic_sigma,
    any_epsilon_sigma,
    classic_sigma,
    pei_sigma,
    private_mean,
)

epsilons = st.floats(1e-3, 300.0)
deltas = st.floats(1e-15, 0.9)


def test_golden_salaries() -> None:
    # MECHANISMS.md §1: n = 10 000, bound 10⁶, ε = 0.5, δ = 1e-6
    assert analytic_sigma(0.5, 1e-6, 100.0) == pytest.approx(805.76, abs=5e-3)
    assert pei_sigma(0.5, 1e-6, 100.0) == pytest.approx(1025.5, abs=5e-2)
    assert any_epsilon_sigma(0.5, 1e-6, 100.0) == pytest.approx(1070.2, abs=5e-2)
    assert classic_sigma(0.5, 1e-6, 100.0) == pytest.approx(1059.8, abs=5e-2)
    released = private_mean(np.zeros(10_000), 1e6, 0.5, 1e-6, np.random.default_rng(0), lower=0.0)
    assert released.sensitivity == 100.0
    assert released.noise_std == pytest.approx(805.76, abs=5e-3)


@given(epsilons, deltas)
def test_every_calibration_is_enough_and_the_analytic_one_is_the_smallest(epsilon: float, delta: float) -> None:
    exact = analytic_sigma(epsilon, delta)
    assert gaussian_delta(epsilon, 1 / exact) <= delta
    assert gaussian_delta(epsilon, 1.0001 / exact) > delta
    for sigma in (any_epsilon_sigma(epsilon, delta), pei_sigma(epsilon, delta)):
        assert sigma >= exact * (1 - 1e-9)


@given(st.floats(1e-3, 0.999), st.floats(1e-15, 0.5))
def test_the_classic_calibration_is_enough_below_one(epsilon: float, delta: float) -> None:
    assert classic_sigma(epsilon, delta) >= analytic_sigma(epsilon, delta) * (1 - 1e-9)


def test_the_classic_calibration_ends_at_one() -> None:
    with pytest.raises(NotProvenError, match="1"):
        classic_sigma(1.0, 1e-5)


def test_pei_with_a_printed_slip_would_be_too_little_noise() -> None:
    # twin that must fail: the second term as 2ε^(−3/2) instead of 1/√(2ε)
    wrong = math.sqrt(2 * math.log(1e5)) / 20 + 2 * 20**-1.5
    assert gaussian_delta(20.0, 1 / wrong) > 1e-5


def test_private_mean_clips_and_adds_the_declared_noise() -> None:
    rng = np.random.default_rng(1)
    values = np.array([-5.0, 0.5, 2.0, math.nan, math.inf])
    draws = [private_mean(values, 1.0, 1.0, 1e-5, rng) for _ in range(4000)]
    assert draws[0].sensitivity == pytest.approx(2 / 5)
    noise = np.array([draw.value for draw in draws]) - (-1 + 0.5 + 1 + 0 + 0) / 5
    std = draws[0].noise_std
    assert std == analytic_sigma(1.0, 1e-5, 2 / 5)
    assert stats.kstest(noise / std, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / (std * wrong), "norm").pvalue < 1e-6


def test_private_mean_of_vectors() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [1e300, 0.0]])
    released = private_mean(rows, 1.0, 50.0, 1e-5, np.random.default_rng(0))
    assert released.sensitivity == pytest.approx(2 / 3)
    assert released.value == pytest.approx(np.array([0.6 + 0.3 + 1.0, 0.8 + 0.4]) / 3, abs=5 * released.noise_std)
    assert private_mean(rows, 1.0, 1.0, 1e-5, np.random.default_rng(0), adjacency="zero-out").sensitivity == 1 / 3


def test_private_mean_under_add_remove_needs_a_public_divisor() -> None:
    values, rng = np.ones(50), np.random.default_rng(0)
    with pytest.raises(NotProvenError):
        private_mean(values, 1.0, 1.0, 1e-5, rng, adjacency="add-remove")
    assert private_mean(values, 1.0, 1.0, 1e-5, rng, adjacency="add-remove", divisor=40).sensitivity == 1 / 40


def test_private_mean_states_what_it_spent() -> None:
    released = private_mean(np.ones(50), 1.0, 0.5, 1e-5, np.random.default_rng(0), calibration="classic")
    assert released.guarantee.status == "proven"
    assert released.guarantee.epsilon < 0.5
    exact = private_mean(np.ones(50), 1.0, 0.5, 1e-5, np.random.default_rng(0))
    assert exact.guarantee.epsilon == pytest.approx(0.5, rel=1e-9)
    assert exact.guarantee.sentence().startswith("(ε = 0.5, δ = 1e-5)-differentially private per value (replacing")


def test_private_mean_refuses_bad_input() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInputError, match="bound"):
        private_mean([1.0], 0.0, 1.0, 1e-5, rng)
    with pytest.raises(InvalidInputError):
        private_mean([1.0], 1.0, 1.0, 1e-5, rng, lower=2.0)
    with pytest.raises(InvalidInputError, match="values"):
        private_mean([], 1.0, 1.0, 1e-5, rng)
    with pytest.raises(InvalidInputError, match="'analytic'"):
        private_mean([1.0], 1.0, 1.0, 1e-5, rng, calibration="analytical")


@given(st.floats(0.01, 10.0), st.floats(0.05, 20.0))
def test_the_two_facts_about_the_privacy_loss(mu: float, epsilon: float) -> None:
    loss = LossDistribution(mu)
    assert gaussian_delta(epsilon, mu) <= loss.tail(epsilon) * (1 + 1e-8) + 1e-300
    half = gaussian_delta(epsilon / 2, mu)
    if 0 < half < 1:
        # of any mechanism: (ε/2, δ)-DP implies P(loss ≥ ε) ≤ δ/(1 − e^(−ε/2))
        assert loss.tail(epsilon) <= half / -math.expm1(-epsilon / 2) * (1 + 1e-9)


def test_the_privacy_loss_is_what_it_says() -> None:
    # sample the release itself: ln of the density ratio at outcomes drawn with the example in
    mu, rng = 0.7, np.random.default_rng(3)
    outcomes = rng.normal(mu, 1.0, 20_000)
    losses = stats.norm.logpdf(outcomes, mu) - stats.norm.logpdf(outcomes, 0.0)
    loss = LossDistribution(mu)
    assert stats.kstest(losses, "norm", args=(loss.mean, loss.std)).pvalue > 1e-3
    assert stats.kstest(losses, "norm", args=(loss.mean, 1.1 * loss.std)).pvalue < 1e-3
    assert loss.density(loss.mean) == pytest.approx(stats.norm.pdf(0) / mu)


def test_no_outcome_tells_one_value_from_another() -> None:
    # with plain float64 noise, {|y| < 1/8 and y no multiple of 2^-53} had probability 0.02 for 0 and none for 1
    spacing = None
    for value in (0.0, 1.0):
        rng = np.random.default_rng(7)
        draws = [private_mean([value], 1.0, 1.0, 1e-6, rng, lower=0.0) for _ in range(3000)]
        found = np.array([float(draw.value) for draw in draws])
        spacing = grid(draws[0].noise_std)
        assert draws[0].noise_std / 128 < spacing <= draws[0].noise_std / 64
        near = found[np.abs(found) < 1 / 8]
        assert len(near) > 10
        assert np.all(np.mod(found, spacing) == 0)
        assert not np.any(np.mod(near, 2.0**-53))


def test_a_value_moves_the_sum_by_no_more_than_the_sensitivity_whoever_stands_beside_it() -> None:
    # in float64 a thousand sums of 0.1 and 1e16 round differently with one value more; integers do not
    rows = np.concatenate([np.full(999, 0.1), [1.0]])
    noise = 3.7e-7
    with_it = _noisy_sum(rows, 1.0, noise, np.random.default_rng(0))
    shuffled = _noisy_sum(rows[::-1], 1.0, noise, np.random.default_rng(0))
    without = _noisy_sum(rows[:-1], 1.0, noise, np.random.default_rng(0))
    assert with_it == shuffled
    assert with_it - without == pytest.approx(1.0, abs=grid(noise))


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_a_clipped_vector_is_never_longer_than_the_bound(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(3, size)) * 10.0 ** rng.integers(-300, 300, (3, 1))
    clipped, _, _ = _clipped(rows, 0.3, None, "zero-out")
    for row in clipped:
        assert sum(Fraction(float(x)) ** 2 for x in row) <= Fraction(0.3) ** 2


def test_private_mean_refuses_what_its_noise_cannot_deliver() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(NotProvenError, match="δ"):
        private_mean([1.0], 1.0, 1e4, 1e-5, rng)  # the shift is larger than any draw
    with pytest.raises(InvalidInputError):
        private_mean([1.0], 1e-200, 1.0, 1e-5, rng)
    with pytest.raises(NotProvenError):
        private_mean([1.0], 1.0, 1.0, 1e-60, rng)
