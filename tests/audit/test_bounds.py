"""ε lower bounds from many runs: golden values and error rates."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import binom

from hush.accounting.gaussian import gaussian_epsilon, gaussian_mu
from hush.accounting.tradeoff import GaussianCurve, curve_of_points
from hush.audit.audit import Scores
from hush.audit.bounds import (
    Errors,
    GaussianFit,
    Verdict,
    allow_for_repeats,
    bound_epsilon,
    bound_mu,
    choose_threshold,
    count_errors,
    decide,
    highest_rate,
    is_refuted,
    refutation_p,
)
from hush.errors import InvalidInputError

DELTA = 1e-5
REPETITIONS = 2000


def _most_misses(rate: float, repetitions: int = REPETITIONS) -> int:
    return int(binom.ppf(0.999, repetitions, rate))


@pytest.mark.parametrize(("epsilon", "runs"), [(4.0, 26), (10.0, 58)])
def test_perfect_separation_refutes_a_gaussian_curve_from_so_many_runs_on(epsilon: float, runs: int) -> None:
    curve = GaussianCurve(gaussian_mu(epsilon, DELTA))
    assert is_refuted(Errors.of(0, runs, 0, runs), curve, 0.9999)
    assert not is_refuted(Errors.of(0, runs - 1, 0, runs - 1), curve, 0.9999)


@pytest.mark.parametrize(("epsilon", "runs"), [(4.0, 546), (10.0, 218_000)])
def test_a_single_pair_takes_many_more(epsilon: float, runs: int) -> None:
    curve = curve_of_points([(epsilon, DELTA)])
    assert is_refuted(Errors.of(0, round(1.01 * runs), 0, round(1.01 * runs)), curve, 0.9999)
    assert not is_refuted(Errors.of(0, round(0.99 * runs), 0, round(0.99 * runs)), curve, 0.9999)


def test_clopper_and_pearson_by_their_definition() -> None:
    """The rate at which so few errors have the probability that is left over."""
    for errors, trials in ((0, 20), (3, 20), (19, 20)):
        rate = float(highest_rate(errors, trials, 0.975))
        assert binom.cdf(errors, trials, rate) == pytest.approx(0.025, rel=1e-9)
    assert float(highest_rate(20, 20, 0.975)) == 1.0


def test_the_bound_is_the_larger_of_both_directions() -> None:
    """100 runs of either kind: nothing accused, half missed; and the mirror image of it."""
    alpha, beta = (float(highest_rate(count, 100, 0.975)) for count in (0, 50))
    expected = math.log((1 - DELTA - beta) / alpha)
    assert float(bound_epsilon(Errors.of(0, 100, 50, 100), DELTA, 0.95)) == pytest.approx(expected, rel=1e-12)
    assert float(bound_epsilon(Errors.of(50, 100, 0, 100), DELTA, 0.95)) == pytest.approx(expected, rel=1e-12)
    assert expected > 2


def test_answers_that_are_all_wrong_bound_nothing() -> None:
    assert float(bound_epsilon(Errors.of(100, 100, 100, 100), DELTA, 0.95)) == 0
    assert float(bound_mu(Errors.of(100, 100, 100, 100), 0.95)) == 0


def test_p_is_where_the_refutation_begins() -> None:
    curve, errors = GaussianCurve(0.5), Errors.of(30, 100, 30, 100)
    p = refutation_p(errors, curve)
    assert 1e-6 < p < 0.05
    assert is_refuted(errors, curve, 1 - 1.001 * p)
    assert not is_refuted(errors, curve, 1 - 0.999 * p)
    assert refutation_p(Errors.of(50, 100, 50, 100), curve) == 1.0


def test_ties_and_infinities_are_counted() -> None:
    errors = count_errors([1.0, 2.0, np.inf], [0.0, 1.0, -np.inf], 1.0)
    assert (int(errors.false_positives), int(errors.false_negatives)) == (0, 1)
    worth = lambda found: -(found.false_positives + found.false_negatives).astype(float)  # noqa: E731
    assert 0.0 <= choose_threshold([np.inf, np.inf], [0.0, -np.inf], worth) < np.inf
    assert choose_threshold([3.0, 3.0], [3.0], worth) == 3.0
    ulp = np.nextafter(1.0, 2.0)
    assert choose_threshold([ulp], [1.0], worth) == 1.0  # no number lies between


@pytest.mark.parametrize("scores", [[], [np.nan, 1.0], [[1.0]]])
def test_scores_that_are_none_are_refused(scores: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        count_errors(scores, [1.0], 0.0)


def test_a_verdict_at_several_thresholds_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="threshold"):
        is_refuted(count_errors([1.0], [0.0], [0.2, 0.5]), GaussianCurve(1.0), 0.95)


def test_the_fit_finds_the_distance() -> None:
    rng = np.random.default_rng(5)
    fit = GaussianFit.of(3 * (rng.normal(size=20_000) + 1.5), 3 * rng.normal(size=20_000))
    assert fit.mu == pytest.approx(1.5, abs=0.05)
    assert GaussianFit.of([1.0, 1.0], [0.0, 0.0]).mu == math.inf
    assert GaussianFit.of([0.0, 1.0], [5.0, 6.0]).epsilon(DELTA) == 0


def _split_bounds(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """One bound a row: the threshold from the first half of the scores, the errors from the other."""
    half = inside.shape[1] // 2
    found = []
    for present, absent in zip(inside, outside, strict=True):
        threshold = choose_threshold(present[:half], absent[:half], lambda e: bound_epsilon(e, DELTA, 0.95))
        found.append(float(bound_epsilon(count_errors(present[half:], absent[half:], threshold), DELTA, 0.95)))
    return np.array(found)


@pytest.mark.parametrize("tails", ["normal", "cauchy", "constant"])
def test_scores_that_carry_nothing_give_nothing_at_the_stated_rate(tails: str) -> None:
    rng = np.random.default_rng(11)
    draw = {"normal": rng.standard_normal, "cauchy": rng.standard_cauchy, "constant": np.zeros}[tails]
    bounds = _split_bounds(draw((REPETITIONS, 80)), draw((REPETITIONS, 80)))
    assert int((bounds > 0).sum()) <= _most_misses(0.05)


@pytest.mark.parametrize("shift", [0.5, 3.0])
def test_the_bound_at_a_known_epsilon_with_heavy_tails(shift: float) -> None:
    """Cauchy noise of scale 1 on a shift s is ε-DP with ε = 2 asinh(s/2), and no less at δ = 0."""
    rng = np.random.default_rng(12)
    absent, present = rng.standard_cauchy((REPETITIONS, 80)), shift + rng.standard_cauchy((REPETITIONS, 80))
    bounds = _split_bounds(present, absent)
    assert int((bounds > 2 * math.asinh(shift / 2)).sum()) <= _most_misses(0.05)
    assert (bounds > 0).mean() > (0.9 if shift == 3.0 else 0.02)  # it is no bound that always says 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_where_it_is_tight(epsilon: float) -> None:
    """Randomised response is the mechanism with the least errors at its ε: misses come near the stated rate."""
    rng = np.random.default_rng(13)
    lie = 1 / (1 + math.exp(epsilon))
    wrong = rng.binomial(500, lie, size=(2, REPETITIONS))
    bounds = bound_epsilon(Errors.of(wrong[0], 500, wrong[1], 500), DELTA, 0.95)
    misses = int((bounds > epsilon).sum())
    assert misses <= _most_misses(0.05)
    assert misses >= 5
    loose = bound_epsilon(Errors.of(wrong[0], 500, wrong[1], 500), DELTA, 0.5)  # the wrong confidence is seen
    assert int((loose > epsilon).sum()) > _most_misses(0.05)


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_a_curve_that_holds_is_refuted_no_more_often_than_stated(mu: float) -> None:
    """Normal scores at the distance that their curve allows: any threshold that was fixed beforehand is sound."""
    rng = np.random.default_rng(14)
    absent, present = rng.normal(size=(REPETITIONS, 200)), mu + rng.normal(size=(REPETITIONS, 200))
    refuted = [
        is_refuted(count_errors(p, a, mu / 2), GaussianCurve(mu), 0.95) for p, a in zip(present, absent, strict=True)
    ]
    assert sum(refuted) <= _most_misses(0.05)
    at = bound_mu(Errors.of((absent > mu / 2).sum(1), 200, (present <= mu / 2).sum(1), 200), 0.95)
    assert int((at > mu).sum()) <= _most_misses(0.05)


def test_a_curve_with_twice_the_noise_is_refuted() -> None:
    rng = np.random.default_rng(15)
    absent, present = rng.normal(size=(50, 400)), 2.0 + rng.normal(size=(50, 400))
    for p, a in zip(present, absent, strict=True):
        assert is_refuted(count_errors(p, a, 1.0), GaussianCurve(1.0), 0.95)


@pytest.mark.parametrize(("tails", "mu"), [("normal", 0.0), ("cauchy", 0.0), ("constant", 0.0), ("normal", 1.0)])
def test_what_an_audit_prints_and_decides_is_wrong_no_more_often_than_stated(tails: str, mu: float) -> None:
    """Thresholds and counts as an audit takes them from its scores, of which a quarter chooses. Scores that carry
    nothing have a curve of μ = 0, whatever their tails; the bound may pass the ε of μ at one in twenty."""
    rng = np.random.default_rng(16)
    draw = {"normal": rng.standard_normal, "cauchy": rng.standard_cauchy, "constant": np.zeros}[tails]
    found = [Scores(mu + draw(80), draw(80)) for _ in range(REPETITIONS)]
    epsilon, curve = gaussian_epsilon(DELTA, mu), GaussianCurve(mu)
    printed = [float(bound_epsilon(scores.count_for_bound(DELTA), DELTA, 0.95)) for scores in found]
    assert sum(bound > epsilon for bound in printed) <= _most_misses(0.05)
    assert sum(is_refuted(scores.count_for_verdict(), curve, 0.95) for scores in found) <= _most_misses(0.05)
    assert sum(is_refuted(scores.count_for_verdict(), curve, 0.9999) for scores in found) <= _most_misses(1e-4)


# Verdicts: when a claim is refuted.


@pytest.mark.parametrize(
    ("p_values", "comparisons", "expected"),
    [
        ([1e-4], 1, "refuted"),
        ([1.01e-4], 1, "consistent"),
        ([1e-4], 2, "consistent"),
        ([0.5, 4.9e-5], 2, "refuted"),
        ([1e-6], 100, "refuted"),
        ([1e-6], 101, "consistent"),
        ([], 3, "consistent"),
    ],
)
def test_a_verdict_is_corrected_for_every_comparison(p_values: list[float], comparisons: int, expected: str) -> None:
    assert decide(p_values, comparisons) == expected


def test_comparisons_cannot_be_left_out() -> None:
    with pytest.raises(InvalidInputError):
        decide([0.1, 0.2], 1)
    with pytest.raises(InvalidInputError, match="0.*1"):
        decide([-0.1], 1)


@pytest.mark.parametrize("announced", [1, 3, 20])
def test_audits_beyond_those_announced_share_what_one_more_family_would_have(announced: int) -> None:
    """The announced ones share the rate of false alarms, and all later ones a part of it, however many there are."""
    shares = [1 / allow_for_repeats(announced, number) for number in range(1, 5000)]
    assert sum(shares[:announced]) == pytest.approx(1.0)
    assert 0.99 / announced - 1 / 4999 < sum(shares[announced:]) < 1 / announced
    with pytest.raises(InvalidInputError):
        allow_for_repeats(0, 1)


def test_a_verdict_as_json() -> None:
    found = Verdict("m", "claimed", 1.0, 1e-5, 2.5, "refuted", "white-box", 1e-9, 2, 100, float("inf"), 3.0)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["epsilon_if_gaussian"] is None
    keys = ("method", "status", "claimed_epsilon", "delta", "epsilon_lower", "confidence", "verdict")
    assert [data[key] for key in keys] == ["m", "claimed", 1.0, 1e-5, 2.5, 0.95, "refuted"]
    assert found.refuted
