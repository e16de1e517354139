"""Composition theorems: golden values, and the optimal theorem as a bound of the others."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from hush.accounting.accountant import epsilon
from hush.errors import InvalidInputError, NotProvenError
from hush.textbook.composition import advanced, basic, kairouz_oh_viswanath, optimal_delta
from hush.textbook.gaussian import analytic_sigma


def test_golden_kairouz_oh_viswanath() -> None:
    # MECHANISMS.md §2: ε = 1, δ = 1e-6, T = 100
    each = kairouz_oh_viswanath(1.0, 1e-6, 100)
    assert each.epsilon == pytest.approx(0.013452, abs=5e-7)
    assert each.delta == pytest.approx(5e-9)
    sigma = analytic_sigma(each.epsilon, each.delta)
    assert sigma == pytest.approx(321.65, abs=5e-3)
    exact = 10 * analytic_sigma(1.0, 1e-6)
    assert exact == pytest.approx(42.25, abs=5e-3)
    assert epsilon(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(exact), 100), 1e-6) <= 1.0 + 1e-12


def test_a_central_limit_formula_is_not_exact() -> None:
    # MECHANISMS.md §2: μ = √(e^{1/σ²} − 1) with q = 1 costs 58 % more noise for one release at ε = 10; δ = 1e-5
    mu = 1 / analytic_sigma(10.0, 1e-5)
    assert 1 / math.sqrt(math.log1p(mu**2)) == pytest.approx(1.58 / mu, rel=5e-3)


def test_basic_and_advanced_by_hand() -> None:
    assert basic(0.1, 1e-7, 30) == basic(0.1, 1e-7, 30)
    assert basic(0.1, 1e-7, 30).epsilon == pytest.approx(3.0)
    assert basic(0.1, 1e-7, 30).delta == pytest.approx(3e-6)
    total = advanced(0.1, 1e-7, 30, 1e-6)
    # 0.1·√(60·13.8155) + 3·0.105171
    assert total.epsilon == pytest.approx(2.8791 + 0.3155, abs=1e-3)
    assert total.delta == pytest.approx(4e-6)


@given(st.floats(0.001, 1.0), st.floats(0, 1e-4), st.integers(1, 2000), st.floats(1e-9, 0.1))
def test_no_theorem_promises_more_than_the_optimal_one(each: float, delta: float, times: int, slack: float) -> None:
    total = advanced(each, delta, times, slack)
    assert optimal_delta(each, delta, times, total.epsilon) <= total.delta * (1 + 1e-6) + 1e-12
    total = basic(each, delta, times)
    assert optimal_delta(each, delta, times, total.epsilon) <= total.delta * (1 + 1e-6) + 1e-12


@given(st.floats(0.01, 5.0), st.floats(1e-12, 0.1), st.integers(1, 10_000))
def test_the_split_adds_up(total: float, delta: float, times: int) -> None:
    each = kairouz_oh_viswanath(total, delta, times)
    assert optimal_delta(each.epsilon, each.delta, times, total) <= delta


def test_the_split_does_not_hold_everywhere() -> None:
    with pytest.raises(NotProvenError):
        kairouz_oh_viswanath(100.0, 0.01, 1000)


def test_optimal_delta_of_one_release_is_its_own() -> None:
    assert optimal_delta(0.5, 1e-6, 1, 0.5) == pytest.approx(1e-6)
    assert optimal_delta(0.5, 0.0, 1, 0.0) == pytest.approx(math.tanh(0.25))
    # two releases, by hand: [e^1 − e^0.2]/(1 + e^0.5)²
    assert optimal_delta(0.5, 0.0, 2, 0.2) == pytest.approx((math.e - math.exp(0.2)) / (1 + math.exp(0.5)) ** 2)


def test_bad_input() -> None:
    with pytest.raises(InvalidInputError, match="epsilon"):
        basic(0.0, 0.0, 3)
    with pytest.raises(InvalidInputError):
        advanced(0.1, 0.0, 0, 0.1)
    with pytest.raises(InvalidInputError, match="delta"):
        kairouz_oh_viswanath(1.0, 0.0, 3)
