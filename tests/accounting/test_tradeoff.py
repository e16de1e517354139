"""The trade-off curve lies on or below the exact curve and close to it; a curve rounded the other way lies above."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from hush.accounting.accountant import delta as delta_of
from hush.accounting.accountant import epsilon as epsilon_of
from hush.accounting.accountant import profile_of
from hush.accounting.gaussian import gaussian_delta
from hush.accounting.guarantee import Guarantee
from hush.accounting.tradeoff import (
    GaussianCurve,
    LineCurve,
    best_accuracy,
    best_odds,
    curve_of_event,
    curve_of_guarantee,
    curve_of_points,
    describe_curve,
    detection,
)
from hush.errors import InvalidInputError

ALPHAS = np.concatenate([np.logspace(-6, -1.2, 30), np.linspace(0.07, 0.93, 60), 1 - np.logspace(-1.2, -6, 30)])
STEP = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
RUN = dp_event.SelfComposedDpEvent(STEP, 1000)


def above(curve: LineCurve | GaussianCurve, exact: np.ndarray, hidden: float = 1e-12) -> int:
    """At how many false-positive rates the curve promises more than is true."""
    return int((curve.beta(ALPHAS) > exact * (1 + hidden) + 1e-300).sum())


def gaussian(mu: float) -> np.ndarray:
    return ndtr(-ndtri(ALPHAS) - mu)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 3.0, 8.0])
def test_a_gaussian_event_has_the_closed_form(mu: float) -> None:
    event = dp_event.GaussianDpEvent(2 / mu) if mu else dp_event.NoOpDpEvent()
    curve = curve_of_event(dp_event.SelfComposedDpEvent(event, 4))
    assert isinstance(curve, GaussianCurve)
    assert above(curve, gaussian(mu)) == 0
    np.testing.assert_allclose(curve.beta(ALPHAS), gaussian(mu), rtol=1e-6)
    for epsilon in (0.0, 0.5, 2.0):
        assert curve.least_cost(math.exp(epsilon)) == pytest.approx(1 - gaussian_delta(epsilon, mu), rel=1e-12)
        every = np.linspace(0.0, 1.0, 100_001)
        least = np.min(ndtr(-ndtri(every) - mu) + math.exp(-epsilon) * every)
        assert curve.least_cost(math.exp(-epsilon)) == pytest.approx(least, abs=2e-5)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_lines_from_the_profile_meet_the_closed_form(mu: float) -> None:
    """And rounding the other way (a δ that is a ten-thousandth too small) is seen."""
    epsilons = np.linspace(0.0, mu * mu / 2 + 7 * mu, 8001)
    points = [(float(e), gaussian_delta(float(e), mu)) for e in epsilons]
    curve = curve_of_points(points)
    assert above(curve, gaussian(mu)) == 0
    np.testing.assert_allclose(curve.beta(ALPHAS), gaussian(mu), rtol=5e-6)
    assert above(curve_of_points([(e, d * (1 - 1e-4)) for e, d in points]), gaussian(mu)) > 20


def mixture(z: np.ndarray, rate: float, sigma: float) -> np.ndarray:
    return (1 - rate) * ndtr(z / sigma) + rate * ndtr((z - 1) / sigma)


def step_delta(epsilon: float, rate: float, sigma: float) -> float:
    """One Poisson step exactly: the larger δ of N(0, σ²) against (1 − q)·N(0, σ²) + q·N(1, σ²) and the other way."""

    def where(loss: float) -> float:
        return 0.5 + sigma**2 * math.log1p(math.expm1(loss) / rate)

    top = where(epsilon)
    over = (1 - rate) * ndtr(-top / sigma) + rate * ndtr((1 - top) / sigma) - math.exp(epsilon) * ndtr(-top / sigma)
    if math.exp(-epsilon) <= 1 - rate:
        return float(over)
    low = where(-epsilon)
    return float(max(over, ndtr(low / sigma) - math.exp(epsilon) * mixture(low, rate, sigma)))


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 0.7), (0.9, 2.0)])
def test_one_poisson_step_lies_below_both_directions_and_close(rate: float, sigma: float) -> None:
    """In either direction the best tests are thresholds; the twin whose δ is a thousandth too small lies above."""
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    curve = curve_of_event(event)
    plain = -sigma * ndtri(ALPHAS)  # the threshold with these false positives where the member is absent
    absent = mixture(plain, rate, sigma)
    z = np.array([brentq(lambda t, a=a: mixture(t, rate, sigma) - a, -40 * sigma, 40 * sigma) for a in ALPHAS])
    present = ndtr(-z / sigma)
    for exact in (absent, present):
        assert above(curve, exact, hidden=1e-9) == 0
    points = [(float(e), step_delta(float(e), rate, sigma)) for e in np.linspace(0.0, 16.0, 16001)]
    np.testing.assert_allclose(curve.beta(ALPHAS), curve_of_points(points).beta(ALPHAS), atol=2e-6)
    twin = curve_of_points([(e, 0.999 * d) for e, d in points])
    assert above(twin, np.minimum(absent, present), hidden=1e-9) > 20


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_a_composed_run_agrees_with_the_reference_accountant(adjacency: str) -> None:
    """dp-accounting doubles the sensitivity under replace: its σ is hush's twice."""
    replace = adjacency == "replace"
    pld = reference.from_gaussian_mechanism(
        2.0 if replace else 1.0,
        sampling_prob=0.01,
        value_discretization_interval=1e-4,
        **({"neighboring_relation": NeighboringRelation.REPLACE_ONE} if replace else {}),
    ).self_compose(1000)
    epsilons = np.linspace(0.0, 4.0, 1001)
    deltas = np.maximum(pld.get_delta_for_epsilon(epsilons.tolist()), 0.0)
    theirs = curve_of_points(zip(epsilons.tolist(), deltas.tolist(), strict=True))
    curve = curve_of_event(RUN, adjacency=adjacency)
    np.testing.assert_allclose(curve.beta(ALPHAS), theirs.beta(ALPHAS), atol=2e-4)
    assert curve.least_cost(1.0) == pytest.approx(1 - pld.get_delta_for_epsilon(0.0), abs=1e-4)


def test_a_profile_is_what_the_accountant_says_at_every_epsilon() -> None:
    profile = profile_of(RUN)
    for epsilon in (0.0, 0.3, 1.0, 1.828, 3.0):
        assert profile(epsilon) == pytest.approx(delta_of(RUN, epsilon), rel=2e-3)
    assert profile(epsilon_of(RUN, 1e-5)) == pytest.approx(1e-5, rel=2e-3)
    loose = profile_of(RUN, accountant="rdp")
    assert profile(1.0) < loose(1.0) == delta_of(RUN, 1.0, accountant="rdp")


def test_a_composition_is_made_once_for_all_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    from hush.accounting import accountant

    plain = accountant.compose

    def counted(*args: object, **how: object) -> object:
        made.append(args)
        return plain(*args, **how)

    monkeypatch.setattr(accountant, "compose", counted)
    curve_of_event(RUN)
    assert len(made) == 2 * (1 + len(accountant.SHARP))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_pure_privacy_has_two_lines(epsilon: float) -> None:
    exact = np.maximum(1 - math.exp(epsilon) * ALPHAS, math.exp(-epsilon) * (1 - ALPHAS))
    curve = curve_of_points([(epsilon, 0.0)])
    np.testing.assert_allclose(curve.beta(ALPHAS), exact, rtol=1e-9)
    assert above(curve, exact) == 0
    assert curve.least_cost(1.0) == pytest.approx(2 / (1 + math.exp(epsilon)), rel=1e-12)


def test_laplace_has_the_curve_of_dong_roth_and_su() -> None:
    """Between e^(−ε)/2 and 1/2 the curve of Laplace noise is e^(−ε)/(4α)."""
    curve = curve_of_event(dp_event.LaplaceDpEvent(1.0), adjacency="replace")
    inner = np.linspace(math.exp(-1) / 2, 0.5, 50)
    exact = math.exp(-1) / (4 * inner)
    assert float(np.max(curve.beta(inner) - exact)) < 1e-12
    np.testing.assert_allclose(curve.beta(inner), exact, rtol=2e-6)


CURVES = {
    "gaussian": lambda: GaussianCurve(1.3),
    "nothing": lambda: GaussianCurve(math.inf),
    "perfect": lambda: GaussianCurve(0.0),
    "run": lambda: curve_of_event(RUN),
    "points": lambda: curve_of_points([(0.5, 0.1), (2.0, 1e-6)]),
    "selection": lambda: curve_of_event(dp_event.RepeatAndSelectDpEvent(RUN, 5.0, 1.0)),
}


@pytest.mark.parametrize("name", CURVES)
def test_every_curve_falls_is_convex_and_no_better_than_guessing(name: str) -> None:
    curve = CURVES[name]()
    alphas = np.linspace(0.0, 1.0, 1001)
    beta = curve.beta(alphas)
    assert (beta >= 0).all()
    assert (beta <= 1 - alphas + 1e-12).all()
    assert (np.diff(beta) <= 1e-12).all()
    assert (np.diff(beta, 2) >= -1e-10).all()
    for weight in (0.0, 0.01, 1.0, 50.0):
        assert curve.least_cost(weight) <= float(np.min(beta + weight * alphas)) + 1e-10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=7))
def test_no_test_on_a_small_space_beats_the_curve(masses: list[tuple[int, int]]) -> None:
    """All tests on a few outcomes, against the curve from their own exact profile."""
    p, q = (np.array(side, dtype=float) for side in zip(*masses, strict=True))
    if not p.any() or not q.any():
        return
    p, q = p / p.sum(), q / q.sum()

    def exact(epsilon: float) -> float:
        sides = ((p, q), (q, p))
        return max(float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()) for a, b in sides)

    curve = curve_of_points([(e, min(exact(e), 1.0)) for e in (0.0, 0.2, 0.7, 1.5, 3.0, 40.0)])
    for chosen in itertools.product([False, True], repeat=len(p)):
        yes = np.array(chosen)
        alpha, beta = min(float(q[yes].sum()), 1.0), float(p[~yes].sum())
        assert float(curve.beta(alpha)) <= beta + 1e-12
        for weight in (0.3, 1.0, 4.0):
            assert curve.least_cost(weight) <= beta + weight * alpha + 1e-12


def test_a_guarantee_gives_the_curve_of_its_event_less_its_delta() -> None:
    guarantee = Guarantee(epsilon_of(RUN, 0.99e-5), 1e-5, event=RUN)
    curve, exact = curve_of_guarantee(guarantee), curve_of_event(RUN)
    assert (curve.beta(ALPHAS) <= exact.beta(ALPHAS) + 1e-12).all()
    np.testing.assert_allclose(curve.beta(ALPHAS), exact.beta(ALPHAS), atol=3e-5)
    alone = curve_of_points([(guarantee.epsilon, guarantee.delta)])
    assert (curve.beta(ALPHAS) >= alone.beta(ALPHAS) - 1e-12).all()
    assert float(alone.beta(0.3)) < float(curve.beta(0.3)) - 0.2  # one point says much less


def test_a_guarantee_without_a_usable_event_gives_its_point() -> None:
    stated = curve_of_points([(1.0, 1e-5)]).beta(ALPHAS)
    other = dp_event.GaussianDpEvent(0.5)  # costs far more than (1, 1e-5): another's event
    for event in (None, "1000 × Poisson", other):
        np.testing.assert_array_equal(curve_of_guarantee(Guarantee(1.0, 1e-5, event=event)).beta(ALPHAS), stated)
    assert not curve_of_guarantee(Guarantee(math.inf, 1e-5, event=RUN)).beta(ALPHAS).any()
    assert not curve_of_event(dp_event.NonPrivateDpEvent()).beta(ALPHAS).any()


def test_what_is_no_rate_and_no_point_is_refused() -> None:
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidInputError, match="0.*1"):
            GaussianCurve(1.0).beta(rate)
    for point in ((-1.0, 0.1), (1.0, 1.5), (math.nan, 0.1)):
        with pytest.raises(InvalidInputError):
            curve_of_points([point])
    with pytest.raises(InvalidInputError):
        GaussianCurve(-1.0)


# The best attacker's odds: exact for Gaussians, never exceeded on small spaces, and the sentences about them.


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_gaussian_odds_are_the_closed_forms(mu: float) -> None:
    curve = GaussianCurve(mu)
    assert best_accuracy(curve) == pytest.approx(float(ndtr(mu / 2)), rel=1e-8)
    for rate in (0.001, 0.01, 0.1):
        assert detection(curve, rate) == pytest.approx(float(ndtr(mu + ndtri(rate))), rel=1e-9)
    odds = best_odds(curve, 0.1, false_positives=0.01)
    found = float(ndtr(mu + ndtri(0.01)))
    assert odds.accusing == pytest.approx(0.1 * found / (0.1 * found + 0.9 * 0.01), rel=1e-9)
    best = max(0.1 * ndtr(mu - t) + 0.9 * ndtr(t) for t in np.linspace(-5, 40, 450_001))  # every threshold
    assert odds.right == pytest.approx(best, abs=1e-8)
    assert odds.without == 0.9


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("prior", [0.01, 0.5])
def test_the_belief_is_exceeded_no_more_often_than_said(mu: float, prior: float) -> None:
    """The Gaussian loss is N(μ²/2, μ²) where the unit took part; a belief taken at three times the chance is."""

    def exceeded(belief: float) -> float:
        ratio = math.log(belief / (1 - belief)) - math.log(prior / (1 - prior))
        return float(ndtr((mu * mu / 2 - ratio) / mu))

    curve = GaussianCurve(mu)
    assert exceeded(best_odds(curve, prior, exception=0.01).belief) <= 0.01
    assert exceeded(best_odds(curve, prior, exception=0.1).belief) > 0.01


def test_pure_privacy_is_bayes_with_the_odds_raised_by_its_exponential() -> None:
    curve = curve_of_points([(1.0, 0.0)])
    assert best_accuracy(curve) == pytest.approx(math.e / (1 + math.e), rel=1e-12)
    assert best_odds(curve, 0.5).belief == pytest.approx(math.e / (1 + math.e), rel=1e-9)
    assert best_odds(curve, 0.01).right == pytest.approx(0.99, abs=1e-12)  # nothing moves them to say yes


def test_a_delta_above_the_exception_allows_certainty() -> None:
    curve = curve_of_points([(0.0, 0.02)])
    assert best_odds(curve, 0.5, exception=0.01).belief == 1.0
    assert best_odds(curve, 0.5, exception=0.04).belief == pytest.approx(2 / 3, rel=1e-9)  # 0.04 − 0.02 = a
    assert best_accuracy(curve) == pytest.approx(0.51, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=6),
    st.sampled_from([0.01, 0.1, 0.5, 0.8]),
    st.sampled_from([0.01, 0.1, 0.4]),
)
def test_no_attacker_on_a_small_space_does_better(masses: list, prior: float, exception: float) -> None:
    """Every answer to every outcome, and the posterior of every outcome, against the bounds."""
    p, q = (np.array(side, dtype=float) for side in zip(*masses, strict=True))
    if not p.any() or not q.any():
        return
    p, q = p / p.sum(), q / q.sum()

    def exact(epsilon: float) -> float:
        return max(float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()) for a, b in ((p, q), (q, p)))

    ratios = {abs(math.log(a / b)) for a, b in zip(p, q, strict=True) if a > 0 and b > 0}
    curve = curve_of_points([(e, min(exact(e), 1.0)) for e in sorted({0.0, 50.0} | ratios)])
    odds = best_odds(curve, prior, exception=exception)
    right = [
        prior * p[yes].sum() + (1 - prior) * q[~yes].sum()
        for yes in map(np.array, itertools.product([False, True], repeat=len(p)))
    ]
    assert max(right) <= odds.right + 1e-12
    with np.errstate(invalid="ignore"):
        posterior = prior * p / (prior * p + (1 - prior) * q)
    assert float(p[np.nan_to_num(posterior) > odds.belief + 1e-9].sum()) <= exception + 1e-12


def test_words_for_a_person() -> None:
    told = describe_curve(curve_of_points([(1.0, 0.0)]))
    first, second, third = told.sentences
    assert "50:50 whether you are in the data" in first
    assert "right 74 times in 100" in first  # 73.1, rounded up
    assert "more than 73.2 % likely is at most 1 in 100" in second
    assert re.findall(r"at most (\d+\.\d)", third) == ["0.3", "2.8", "27.2"]
    assert told.rows[2] == ("50 %", "50", "73.2", "73.2", "73.2 %")
    assert [row[0] for row in told.rows] == ["1 %", "10 %", "50 %"]
    assert all(len(row) == len(told.columns) for row in told.rows)


def test_nothing_learnt_and_everything_learnt_read_as_that() -> None:
    assert describe_curve(GaussianCurve(0.0)).rows[2] == ("50 %", "50", "50", "50", "50 %")
    told = describe_curve(GaussianCurve(math.inf))
    assert "right 100 times in 100" in told.sentences[0]
    assert told.rows[0][2] == "100"
    assert told.rows[0][4] == "100 %"


@pytest.mark.parametrize(
    ("adjacency", "unit", "words"),
    [
        ("replace", "person", "50:50 which of two possible records is yours"),
        ("zero-out", "person", "50:50 whether your data were used"),
        (
            "add-remove",
            "example",
            "every other example and thinks it is 50:50 whether one given example is in the data",
        ),
        ("replace", "example", "50:50 which of two possible values one example has"),
    ],
)
def test_words_ask_what_neighbours_differ_in(adjacency: str, unit: str, words: str) -> None:
    assert words in describe_curve(GaussianCurve(1.0), adjacency=adjacency, unit=unit).sentences[0]


def test_priors_are_probabilities() -> None:
    for prior in (0.0, 1.0, -0.5):
        with pytest.raises(InvalidInputError, match="prior"):
            best_odds(GaussianCurve(1.0), prior)
