"""Randomised response with a prior: its table exactly, its answers in distribution, its choice of k."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hush.errors import InvalidInputError
from hush.randomness import Secret
from hush.sanitize.labels import (
    VALUES,
    ResponseTable,
    bound_growth,
    check_prior,
    choose_sizes,
    draw_integers,
    find_largest_ratio,
    respond,
)

SECRET = Secret.from_seed(3, "a test of randomised response")


@pytest.mark.parametrize(
    ("epsilon", "size", "kept"),
    [(1.0, 10, 0.231969), (3.0, 10, 0.690568), (8.0, 10, 0.996990), (1.0, 2, 0.731059), (0.5, 100, 0.016381)],
)
def test_a_label_is_kept_with_the_published_probability(epsilon: float, size: int, kept: float) -> None:
    """e^ε/(e^ε + k − 1)."""
    table = ResponseTable.of(epsilon, size)
    assert table.own / VALUES == pytest.approx(kept, abs=1e-6)
    assert table.own + (size - 1) * table.other == VALUES


@given(st.floats(1e-10, 100.0), st.integers(1, 300))
def test_no_two_labels_are_told_apart_by_more_than_epsilon(epsilon: float, size: int) -> None:
    """Exactly, from the integers that are drawn by; and hardly less, so that no privacy is wasted."""
    table = ResponseTable.of(epsilon, size)
    rows = table.list_rows()
    assert all(sum(row) == VALUES for row in rows)
    ratio = find_largest_ratio(table)
    assert ratio <= bound_growth(epsilon)
    assert math.log(ratio) <= epsilon
    if size > 1 and 1e-6 < epsilon < 20:
        assert math.log(ratio) >= epsilon * (1 - 1e-5)


def test_the_largest_ratio_sees_every_pair() -> None:
    """A table whose own label has too much, and one whose outside row does not fit."""
    fair = ResponseTable.of(1.0, 3)
    assert find_largest_ratio(ResponseTable(3, fair.own + 2**40, fair.other - 2**39)) > bound_growth(1.0)
    assert find_largest_ratio(ResponseTable(3, VALUES - 2, 1)) == Fraction(VALUES - 2, 1)
    assert find_largest_ratio(ResponseTable(1, VALUES, 1)) == 1  # one answer says nothing


@pytest.mark.parametrize(
    ("prior", "epsilon", "size"),
    [
        # e^ε/(e^ε + k − 1)·(p₁ + … + p_k), by hand; e = 2.71828:
        ([0.25, 0.25, 0.25, 0.25], 1.0, 4),  # 0.25, 0.366, 0.432, 0.475
        ([0.7, 0.1, 0.1, 0.1], 1.0, 1),  # 0.7, 0.585, 0.518, 0.475
        ([0.45, 0.45, 0.05, 0.05], 1.0, 2),  # 0.45, 0.658, 0.547, 0.475
        ([0.05, 0.45, 0.05, 0.45], 5.0, 4),  # 0.45, 0.894, 0.937, 0.980
        ([0.5, 0.5, 0.0, 0.0], 5.0, 2),  # 0.5, 0.993, 0.987, 0.980
    ],
)
def test_k_is_chosen_by_the_prior(prior: list[float], epsilon: float, size: int) -> None:
    assert choose_sizes(epsilon, np.array([prior])).tolist() == [size]


def _count(label: int, prior: list[float], epsilon: float, count: int = 200_000) -> np.ndarray:
    draws = draw_integers(SECRET, f"label {label}", count)
    answers = respond(np.full(count, label), epsilon, np.tile(prior, (count, 1)), draws)
    return np.bincount(answers, minlength=len(prior))


def _expect(label: int, prior: list[float], epsilon: float) -> np.ndarray:
    """The probabilities of the paper's algorithm, written down a second time."""
    best = sorted(range(len(prior)), key=lambda y: -prior[y])
    grow = math.exp(epsilon)
    k = max(range(1, len(prior) + 1), key=lambda k: grow / (grow + k - 1) * sum(prior[y] for y in best[:k]))
    chances = np.zeros(len(prior))
    for y in best[:k]:
        chances[y] = 1 / k if label not in best[:k] else (grow if y == label else 1) / (grow + k - 1)
    return chances


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("prior", [[0.2] * 5, [0.02, 0.4, 0.05, 0.4, 0.13]])
@pytest.mark.parametrize("label", range(5))
def test_answers_have_the_papers_distribution(label: int, prior: list[float], epsilon: float) -> None:
    counts, chances = _count(label, prior, epsilon), _expect(label, prior, epsilon)
    assert counts[chances == 0].sum() == 0
    seen = chances > 0
    expected = chances[seen] * counts.sum()
    assert stats.chisquare(counts[seen], expected).pvalue > 1e-4
    if label in np.flatnonzero(seen):  # a twin that was calibrated to a fifth more is told apart
        twin = _expect(label, prior, epsilon * 1.2)[seen] * counts.sum()
        assert stats.chisquare(counts[seen], twin).pvalue < 1e-4


def test_each_example_has_coins_of_its_own() -> None:
    short, long = draw_integers(SECRET, "labels", 100), draw_integers(SECRET, "labels", 1000)
    assert (short == long[:100]).all()
    assert (long >= 0).all()
    assert (long < VALUES).all()
    assert stats.kstest(long / VALUES, "uniform").pvalue > 1e-3
    assert len(set(long.tolist())) == 1000
    assert not (draw_integers(SECRET, "other", 100) == short).any()
    assert not (draw_integers(Secret.from_seed(4, "another"), "labels", 100) == short).any()


def test_golden_answers() -> None:
    """The same secret gives the same answers, now and later."""
    labels = np.arange(12) % 4
    answers = respond(labels, 1.0, np.full((12, 4), 0.25), draw_integers(SECRET, "labels", 12))
    assert answers.tolist() == [2, 1, 2, 3, 1, 1, 2, 3, 0, 1, 1, 3]


def test_bad_labels_and_priors_get_a_sentence() -> None:
    with pytest.raises(InvalidInputError, match="0.*3"):
        respond(np.array([0, 4]), 1.0, np.full((2, 4), 0.25), np.array([0, 0]))
    with pytest.raises(InvalidInputError, match="0"):
        check_prior([0.0, 0.0])
    with pytest.raises(InvalidInputError, match="2.*3"):
        check_prior([0.5, 0.5], 3)
    with pytest.raises(InvalidInputError, match="epsilon"):
        ResponseTable.of(0.0, 3)
