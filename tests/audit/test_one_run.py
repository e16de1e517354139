"""ε lower bounds from one run with many canaries: golden values, tight mechanisms and error rates."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from hush.accounting.gaussian import gaussian_mu
from hush.accounting.tradeoff import GaussianCurve, curve_of_points
from hush.audit.one_run import (
    Guesses,
    bound_epsilon_if_gaussian,
    bound_epsilon_of,
    bound_mu_of,
    chance_at,
    chance_under,
    guess_coins,
    is_possible,
)
from hush.errors import InvalidInputError

DELTA = 1e-5
REPETITIONS = 2000
MOST = int(binom.ppf(0.999, REPETITIONS, 0.05))


def test_a_thousand_canaries_all_guessed() -> None:
    found = Guesses(1000, 1000, 1000)
    assert bound_epsilon_of(found, DELTA, 0.95) == pytest.approx(5.78, abs=0.005)
    assert bound_epsilon_of(found, DELTA, 0.9999) == pytest.approx(1.57, abs=0.005)


def test_without_delta_it_is_the_binomial_tail() -> None:
    q = 1 / (1 + math.exp(-1.0))
    assert chance_at(Guesses(300, 200, 160), 1.0, 0.0) == pytest.approx(binom.sf(159, 200, q), rel=1e-12)
    assert chance_at(Guesses(300, 200, 0), 1.0, 0.0) == 1.0


def test_the_delta_term_counts_every_canary_and_not_only_those_guessed() -> None:
    at = {m: chance_at(Guesses(m, 10, 10), 0.0, 1e-3) - 2.0**-10 for m in (10, 100)}
    assert at[100] == pytest.approx(10 * at[10], rel=1e-9)
    i = np.arange(1, 11)
    assert at[10] == pytest.approx(2 * 10 * 1e-3 * max((binom.sf(9 - i, 10, 0.5) - 2.0**-10) / i), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "right"), [(0.0, 60), (1.0, 80), (3.0, 99)])
def test_the_curve_of_pure_privacy_allows_randomised_response(epsilon: float, right: int) -> None:
    """It is ε-DP and guessed with probability e^ε/(1 + e^ε), each coin for itself."""
    q = 1 / (1 + math.exp(-epsilon))
    chance = chance_under(Guesses(100, 100, right), curve_of_points([(epsilon, 0.0)]))
    tail = float(binom.sf(right - 1, 100, q))
    assert tail <= chance <= 12 * tail  # the recursion has one more unknown than this mechanism, no more


@pytest.mark.parametrize("leak", [0.05, 1e-3])
def test_the_curve_allows_a_mechanism_that_sometimes_tells_everything(leak: float) -> None:
    """With probability p every coin is published, else none: (0, p)-DP, and all guesses right at p at least."""
    found = Guesses(60, 60, 60)
    curve = curve_of_points([(0.0, leak)])
    assert leak <= chance_under(found, curve) <= 3 * leak
    assert not is_possible(found, curve, 3 * leak)


def test_the_curve_allows_canaries_that_stand_or_fall_together() -> None:
    """Only how many coins are 1 is released, with noise 1: flipping one moves it by μ, and all guesses go together."""
    rng, mu, m = np.random.default_rng(3), 1.0, 40
    coins = rng.integers(0, 2, size=(20_000, m))
    total = mu * coins.sum(1) + rng.normal(size=20_000)
    right = np.where(total > mu * m / 2, coins.sum(1), m - coins.sum(1))
    for count in (24, 28, 30):
        assert 0 < (right >= count).mean() <= chance_under(Guesses(m, m, count), GaussianCurve(mu))


def test_guesses_take_both_ends_and_look_at_no_coin() -> None:
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert guess_coins(scores, [1, 1, 0, 1, 0, 0], 4) == Guesses(6, 4, 4)
    assert guess_coins(scores, [1, 1, 0, 1, 0, 0], 6) == Guesses(6, 6, 4)
    assert guess_coins([1.0] * 6, [0, 0, 0, 1, 1, 1], 6) == Guesses(6, 6, 0)
    with pytest.raises(InvalidInputError):
        guess_coins(scores, [1, 1, 0, 1, 0, 0], 7)
    with pytest.raises(InvalidInputError, match="NaN"):
        guess_coins([math.nan], [1], 1)


def test_more_right_guesses_than_guesses_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        Guesses(10, 5, 6)


@cache
def _epsilon(right: int) -> float:
    return bound_epsilon_of(Guesses(200, 100, right), DELTA, 0.95)


@cache
def _mu(right: int) -> float:
    return bound_mu_of(Guesses(200, 100, right), 0.95)


def _rights(scores: np.ndarray, coins: np.ndarray) -> list[int]:
    return [guess_coins(s, c, 100).right for s, c in zip(scores, coins, strict=True)]


@pytest.mark.parametrize("tails", ["normal", "cauchy", "constant"])
def test_scores_that_carry_nothing_give_nothing_at_the_stated_rate(tails: str) -> None:
    rng = np.random.default_rng(21)
    draw = {"normal": rng.standard_normal, "cauchy": rng.standard_cauchy, "constant": np.zeros}[tails]
    rights = _rights(draw((REPETITIONS, 200)), rng.integers(0, 2, size=(REPETITIONS, 200)))
    assert sum(_epsilon(right) > 0 for right in rights) <= MOST
    assert sum(_mu(right) > 0 for right in rights) <= MOST


@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_the_bound_at_a_known_epsilon_with_heavy_tails(shift: float) -> None:
    rng = np.random.default_rng(22)
    coins = rng.integers(0, 2, size=(REPETITIONS, 200))
    rights = _rights(shift * coins + rng.standard_cauchy((REPETITIONS, 200)), coins)
    bounds = np.array([_epsilon(right) for right in rights])
    assert int((bounds > 2 * math.asinh(shift / 2)).sum()) <= MOST
    assert (bounds > 0).mean() > 0.1


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_bound_at_a_known_gaussian(mu: float) -> None:
    rng = np.random.default_rng(23)
    coins = rng.integers(0, 2, size=(REPETITIONS, 200))
    rights = _rights(mu * coins + rng.normal(size=(REPETITIONS, 200)), coins)
    bounds = np.array([_mu(right) for right in rights])
    assert int((bounds > mu).sum()) <= MOST
    assert (bounds > 0).mean() > 0.1


def test_randomised_response_is_where_the_bound_is_tight() -> None:
    rng = np.random.default_rng(24)
    rights = rng.binomial(100, 1 / (1 + math.exp(-1.0)), size=REPETITIONS)
    assert 5 <= sum(bound_epsilon_of_pure(int(right)) > 1.0 for right in rights) <= MOST


@cache
def bound_epsilon_of_pure(right: int) -> float:
    return bound_epsilon_of(Guesses(100, 100, right), 0.0, 0.95)


def test_the_refinement_beats_the_plain_bound_on_a_gaussian() -> None:
    """Of 2 000 canaries of which 500 are guessed, at μ = 0.93 (ε = 4): more than (ε, δ) alone can say."""
    mu = gaussian_mu(4.0, DELTA)
    rng = np.random.default_rng(25)
    coins = rng.integers(0, 2, size=2000)
    found = guess_coins(mu * coins + rng.normal(size=2000), coins, 500)
    plain, refined = bound_epsilon_of(found, DELTA, 0.95), bound_epsilon_if_gaussian(found, DELTA, 0.95)
    assert 0.5 < plain < refined < 4.0
