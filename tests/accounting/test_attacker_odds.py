"""The best odds: exact for Gaussians, never beaten on small spaces, and in words that are true as they stand."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from hush.accounting.tradeoff import GaussianCurve, best_accuracy, best_odds, curve_of_points, detection, in_words
from hush.errors import InvalidInputError


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
    told = in_words(curve_of_points([(1.0, 0.0)]))
    first, second, third = told.sentences
    assert "50:50 whether you are in the data" in first
    assert "right 74 times in 100" in first  # 73.1, rounded up
    assert "more than 73.2 % likely is at most 1 in 100" in second
    assert re.findall(r"at most (\d+\.\d)", third) == ["0.3", "2.8", "27.2"]
    assert told.rows[2] == ("50 %", "50", "73.2", "73.2", "73.2 %")
    assert [row[0] for row in told.rows] == ["1 %", "10 %", "50 %"]
    assert all(len(row) == len(told.columns) for row in told.rows)


def test_nothing_learnt_and_everything_learnt_read_as_that() -> None:
    assert in_words(GaussianCurve(0.0)).rows[2] == ("50 %", "50", "50", "50", "50 %")
    told = in_words(GaussianCurve(math.inf))
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
    assert words in in_words(GaussianCurve(1.0), adjacency=adjacency, unit=unit).sentences[0]


def test_priors_are_probabilities() -> None:
    for prior in (0.0, 1.0, -0.5):
        with pytest.raises(InvalidInputError, match="prior"):
            best_odds(GaussianCurve(1.0), prior)
