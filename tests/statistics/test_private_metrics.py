"""Noisy metrics: sensitivity of the counts, noise distribution, and accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from classification import example
from hush.accounting.accountant import epsilon as epsilon_of
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.noise_tails import grid
from hush.errors import InvalidInputError, NotProvenError
from hush.randomness import Secret
from hush.statistics.histogram import weigh_units
from hush.statistics.metrics import Counts, count_rows, from_counts, judge_classes
from hush.statistics.private_metrics import (
    SENSITIVITY,
    CountNoise,
    _calibrate_counts,
    _with_noise,
    add_count_noise,
    noise_stds,
)
from hush.textbook.gaussian import analytic_sigma

ROWS = st.integers(0, 10**6)


def weighted(counts: Counts, std: tuple[float, float], sigma: float) -> np.ndarray:
    """The counts in units in which the noise of every cell is σ: the sum that the proof is about."""
    return np.concatenate([counts.confusion.ravel() * sigma / std[0], counts.histograms.ravel() * sigma / std[1]])


def moved(first: Counts, second: Counts, adjacency: str) -> float:
    """How far two sums lie apart, in sensitivities of Gaussian(σ): at most 1."""
    stds = noise_stds(3.0, adjacency, first.histograms.shape[1])
    return float(np.linalg.norm(weighted(first, stds, 3.0) - weighted(second, stds, 3.0)))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), ROWS, st.sampled_from(["add-remove", "zero-out", "replace"]))
def test_one_row_moves_the_counts_by_the_sensitivity_at_most(classes: int, seed: int, adjacency: str) -> None:
    shares, labels = example(12, classes, seed)
    more, label = example(classes + 1, classes, seed + 1)
    full = count_rows(shares, labels)
    if adjacency == "replace":
        other = count_rows(np.vstack([shares[:-1], more[-1:]]), np.append(labels[:-1], label[-1]))
    elif adjacency == "zero-out":
        blank = np.where(np.arange(12)[:, None] == 3, np.nan, shares)
        other = count_rows(blank, labels)
    else:
        other = count_rows(np.vstack([shares, more[-1:]]), np.append(labels, label[-1]))
    assert moved(full, other, adjacency) <= 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), ROWS, st.sampled_from(["add-remove", "replace"]))
def test_a_unit_with_many_rows_moves_the_counts_no_more(classes: int, seed: int, adjacency: str) -> None:
    """All rows of unit 0 go, or are replaced by other rows and another number of them; without weights it is more."""
    shares, labels = example(14, classes, seed)
    units = np.array([0] * 5 + list(range(1, 10)))
    full = count_rows(shares, labels, weights=weigh_units(units))
    if adjacency == "replace":
        more, label = example(classes + 3, classes, seed + 1)
        rows, named = np.vstack([shares[5:], more]), np.append(labels[5:], label)
        other = count_rows(rows, named, weights=weigh_units(np.append(units[5:], np.zeros(len(label)))))
    else:
        other = count_rows(shares[5:], labels[5:], weights=weigh_units(units[5:]))
    assert moved(full, other, adjacency) <= 1.0
    assert moved(count_rows(shares, labels), count_rows(shares[5:], labels[5:]), "add-remove") > 1.0


def test_weights_are_exact_multiples_that_sum_to_one_at_most() -> None:
    weights = weigh_units(["a", "b", "a", "c", "a", "b"])
    assert weights.tolist() == [math.floor(2**24 / m) / 2**24 for m in (3, 2, 3, 1, 3, 2)]
    assert 1 - 3 * 2.0**-24 <= 3 * weights[0] <= 1
    shares, labels = example(6, 2)
    with pytest.raises(InvalidInputError, match="6"):
        add_count_noise(shares, labels, CountNoise(5.0, 0.0, "add-remove"), units=["a"])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_sensitivity_is_attained_and_a_twin_with_full_weights_exceeds_it(classes: int) -> None:
    shares, labels = np.eye(classes), np.arange(classes)
    full, less = count_rows(shares, labels), count_rows(shares[1:], labels[1:])
    swapped = count_rows(shares[[1, *range(1, classes)]], labels[[1, *range(1, classes)]])
    assert moved(full, less, "add-remove") == pytest.approx(1.0, abs=1e-9)
    assert moved(full, swapped, "replace") == pytest.approx(1.0, abs=1e-9)
    assert moved(full, swapped, "add-remove") == pytest.approx(math.sqrt(2), abs=1e-9)
    plain = np.concatenate([(full.confusion - less.confusion).ravel(), (full.histograms - less.histograms).ravel()])
    assert np.linalg.norm(plain) >= math.sqrt(2) - 1e-12  # each cell at weight 1: too much for noise of σ a cell


def test_the_same_noise_meets_neighbours_and_what_is_released_lies_on_the_grid() -> None:
    shares, labels = example(40, 3)
    full, less = count_rows(shares, labels), count_rows(shares[:-1], labels[:-1])
    stds = noise_stds(2.0, "add-remove", 3)
    one, other = (_with_noise(counts, *stds, Secret.from_seed(5)) for counts in (full, less))
    for name, std in (("confusion", stds[0]), ("histograms", stds[1])):
        step = grid(std)
        values, others = getattr(one, name), getattr(other, name)
        assert np.array_equal(values, np.round(values / step) * step)
        exact = getattr(full, name) - getattr(less, name)
        assert np.abs(values - others - exact).max() <= step
        assert (values != getattr(full, name)).mean() > 0.95  # the empty cells have noise too
    assert full.confusion.sum() == 40  # what was counted is left as it was


def drawn(stds: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    nothing = Counts(np.zeros((10, 10)), np.zeros((10, 10, 20)))
    every = [_with_noise(nothing, *stds, Secret.from_seed(seed)) for seed in range(20)]
    return tuple(np.concatenate([getattr(n, name).ravel() for n in every]) for name in ("confusion", "histograms"))


def fits(values: np.ndarray, std: float) -> bool:
    spread = abs(float(np.sqrt(np.mean(values**2))) / std - 1) < 4.5 / math.sqrt(2 * len(values))
    return spread and stats.kstest(values / std, "norm").pvalue > 1e-4


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace"])
def test_the_noise_is_gaussian_at_its_scale_and_at_no_other(adjacency: str) -> None:
    stds = noise_stds(2.0, adjacency, 10)
    delta = math.sqrt(2) if adjacency == "replace" else 1.0
    assert stds == pytest.approx((2 * delta * math.sqrt(2), 2 * delta * math.sqrt(20)), rel=1e-9)
    assert SENSITIVITY[adjacency] == delta
    matrix, bins = drawn(stds)
    assert fits(matrix, stds[0])
    assert fits(bins, stds[1])
    assert not fits(matrix, stds[0] / math.sqrt(2))
    assert not fits(bins, 1.05 * stds[1])
    assert abs(np.corrcoef(matrix, bins[: len(matrix)])[0, 1]) < 0.1


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace"])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.1, 1e-6), (5.0, 1e-5)])
def test_the_event_costs_what_was_asked_for(adjacency: str, epsilon: float, delta: float) -> None:
    noise = _calibrate_counts(epsilon, delta, classes=3, adjacency=adjacency)
    assert 1 <= noise.sigma / analytic_sigma(epsilon, delta) < 1.001
    spent = epsilon_of(noise.event, delta - noise.lost, adjacency=adjacency, accountant="gdp")
    assert 0.998 * epsilon < spent <= epsilon
    assert noise.adjacency == adjacency
    assert gaussian_epsilon(delta - noise.lost, 1 / noise.sigma) == pytest.approx(spent, rel=1e-12)


def test_golden_noise_and_the_reference_accountant() -> None:
    """Analytic σ for (1, 1e-5): 3.7306; dp-accounting gives the event ε = 1 back."""
    noise = _calibrate_counts(1.0, 1e-5, classes=2)
    assert noise.sigma == pytest.approx(3.7306, rel=6e-4)
    theirs = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(noise.event).get_epsilon(1e-5)
    assert theirs == pytest.approx(1.0, rel=1e-3)
    assert noise_stds(noise.sigma, "add-remove", 1)[0] == pytest.approx(3.7306 * math.sqrt(2), rel=6e-4)


def test_two_releases_never_share_their_noise() -> None:
    shares, labels = example(30, 2)
    one, other = (add_count_noise(shares, labels, CountNoise(4.0, 0.0, "add-remove")) for _ in range(2))
    assert not np.array_equal(one.confusion, other.confusion)


@pytest.mark.parametrize("classes", [2, 4])
def test_figures_follow_from_the_noisy_counts(classes: int) -> None:
    """20 000 rows at ε = 2: noise of 3 to 8 in a cell, so that figures are right to about a hundredth."""
    shares, labels = example(20_000, classes, skill=2.0)
    exact = judge_classes(shares, labels)
    found = from_counts(add_count_noise(shares, labels, _calibrate_counts(2.0, 1e-6, classes=classes)))
    assert found.accuracy == pytest.approx(exact.accuracy, abs=0.01)
    assert found.balanced_accuracy == pytest.approx(exact.balanced_accuracy, abs=0.02)
    assert found.auc == pytest.approx(exact.auc, abs=0.02)
    assert found.log_loss == pytest.approx(exact.log_loss, abs=0.05)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="adjacency"):
        _calibrate_counts(1.0, 1e-5, classes=2, adjacency="removal")
    with pytest.raises(InvalidInputError, match="epsilon"):
        _calibrate_counts(0.0, 1e-5, classes=2)
    with pytest.raises(NotProvenError):
        _calibrate_counts(1.0, 1e-24, classes=2)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_what_a_run_releases_has_the_noise_that_was_accounted(adjacency: str) -> None:
    """Through `add_count_noise`, as `hush train --private-metrics` calls it: neither half of the noise nor twice."""
    noise = CountNoise(4.0, 0.0, adjacency)
    probabilities, labels = np.full((1, 10), 0.1), np.zeros(1, dtype=int)
    exact = count_rows(probabilities, labels, bins=20)
    drawn = [add_count_noise(probabilities, labels, noise) for _ in range(20)]
    for part, std in zip(("confusion", "histograms"), noise_stds(4.0, adjacency, 10), strict=True):
        rest = np.concatenate([(np.asarray(getattr(d, part)) - getattr(exact, part)).ravel() for d in drawn])
        assert 0.85 < rest.std() / std < 1.15


def test_noise_from_a_secret_repeats_for_the_same_counts_and_is_independent_for_others() -> None:
    """One row less, or another scale: the difference of two releases has the noise of both."""
    shares, labels = example(40, 3)
    secret, noise = Secret.from_seed(5), CountNoise(2.0, 0.0, "add-remove")

    def release(rows: int, noise: CountNoise = noise) -> np.ndarray:
        found = add_count_noise(shares[:rows], labels[:rows], noise, secret=secret)
        return np.concatenate([found.confusion.ravel(), found.histograms.ravel()])

    assert np.array_equal(release(40), release(40))
    for other in (release(39), release(40, CountNoise(2.5, 0.0, "add-remove"))):
        assert np.std(release(40) - other) > 0.9 * math.sqrt(2) * 2.0 * math.sqrt(2.0)
