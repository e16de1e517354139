"""Noisy histograms: sensitivity to a row or unit, noise distribution, and accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from hush.accounting.noise_tails import grid
from hush.errors import InvalidInputError
from hush.randomness import Secret
from hush.statistics.classes import calibrate_class_counts, plan_class_weights, weigh_classes
from hush.statistics.histogram import (
    FINEST,
    HistogramNoise,
    add_cell_noise,
    calibrate_histograms,
    count_cells,
    weigh_units,
)
from hush.statistics.ranges import (
    COARSE,
    FINE,
    SHARES,
    calibrate_ranges,
    count_octaves,
    count_spans,
    find_octaves,
    find_ranges,
    plan_ranges,
)
from hush.textbook.gaussian import analytic_sigma

SEEDS = st.integers(0, 10**6)
ADJACENCIES = ("add-remove", "zero-out", "replace")
SPANS = [(0.0, 1.0), (-8.0, 8.0), (1e3, 1e6)]


def table(rows: int, seed: int) -> Tensor:
    """Three columns of very different sizes, with values that are missing or infinite."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 3)) * 10.0 ** generator.integers(-12, 14, (rows, 3))
    values[generator.random((rows, 3)) < 0.1] = np.nan
    values[generator.random((rows, 3)) < 0.05] = np.inf
    return torch.tensor(values, dtype=torch.float32)


def both_rounds(rows: Tensor, weights: np.ndarray | None, noise: HistogramNoise) -> np.ndarray:
    """The counts of both rounds in units in which each cell has the noise σ: the sum that the proof is about."""
    first = count_octaves(rows, [0, 1, 2], weights) / noise.std(SHARES[0])
    second = count_spans(rows, [0, 1, 2], SPANS, weights) / noise.std(SHARES[1])
    return noise.sigma * np.concatenate([first.ravel(), second.ravel()])


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(ADJACENCIES))
def test_one_row_moves_both_rounds_together_by_one_sensitivity_at_most(seed: int, adjacency: str) -> None:
    rows, other = table(9, seed), table(1, seed + 1)
    noise = HistogramNoise(3.0, 0.0, adjacency, 3)
    near = {"add-remove": rows[:-1], "replace": torch.cat([rows[:-1], other])}.get(adjacency)
    if near is None:
        near = torch.cat([rows[:-1], torch.full((1, 3), math.nan)])
    moved = np.linalg.norm(both_rounds(rows, None, noise) - both_rounds(near, None, noise))
    assert moved <= 1.0


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_sensitivity_is_attained_and_a_twin_without_the_columns_is_too_small(adjacency: str) -> None:
    rows, other = torch.tensor([[0.5, 3.0, 2e5]]), torch.tensor([[0.01, -3.0, 9e5]])
    near = {"add-remove": rows[:0], "replace": other}.get(adjacency, torch.full((1, 3), math.nan))
    noise = HistogramNoise(3.0, 0.0, adjacency, 3)
    moved = np.linalg.norm(both_rounds(rows, None, noise) - both_rounds(near, None, noise))
    assert moved == pytest.approx(1.0, rel=1e-9)
    twin = HistogramNoise(3.0, 0.0, adjacency, 1)  # as if a row had one number
    assert np.linalg.norm(both_rounds(rows, None, twin) - both_rounds(near, None, twin)) > 1.7


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(ADJACENCIES), st.integers(1, 40))
def test_one_whole_unit_moves_both_rounds_by_one_sensitivity_at_most(seed: int, adjacency: str, own: int) -> None:
    others, mine, new = table(9, seed), table(own, seed + 1), table(own + 3, seed + 2)
    units = [0, 0, 1, 1, 1, 2, 3, 3, 4]
    noise = HistogramNoise(3.0, 0.0, adjacency, 3)

    def count(more: Tensor) -> np.ndarray:
        ids = units + [9] * len(more)
        return both_rounds(torch.cat([others, more]), weigh_units(ids), noise)

    near = {"add-remove": mine[:0], "replace": new}.get(adjacency, torch.full_like(mine, math.nan))
    assert np.linalg.norm(count(mine) - count(near)) <= 1.0
    forgets = HistogramNoise(3.0, 0.0, adjacency, 3)
    plain = [both_rounds(torch.cat([others, more]), None, forgets) for more in (mine[:0], mine.nan_to_num(5.0, 5.0))]
    assert own < 2 or np.linalg.norm(plain[1] - plain[0]) > 0.9 * math.sqrt(own) / math.sqrt(2)  # a twin per row


def test_the_weights_of_a_unit_add_up_to_at_most_one_and_are_exact() -> None:
    ids = np.repeat(np.arange(50), np.arange(1, 51))
    weights = weigh_units(ids)
    totals = np.bincount(ids, weights)
    assert totals.max() <= 1.0
    assert totals.min() > 1 - 60 * FINEST
    assert np.array_equal(weights / FINEST, np.round(weights / FINEST))


def test_cells_are_what_they_are_said_to_be() -> None:
    values = np.array([0.0, 1.0, 1.999, 2.0, -1.0, -4.0, 1e-12, 2.0**-30, 1e30, -np.inf, np.nan])
    middle = COARSE // 2
    assert find_octaves(values).tolist() == [middle, 103, 103, 104, 41, 39, middle, 73, COARSE - 1, 0, -1]
    assert count_cells(np.array([1, -1, 1]), 3).tolist() == [0, 2, 0]
    with pytest.raises(InvalidInputError, match="3.*3"):
        count_cells(np.array([3]), 3)


def standardised(noise: HistogramNoise, share: float, step: int) -> np.ndarray:
    """Noise alone, many draws, in units of what the cell should have."""
    counts = np.full((noise.columns, 20000), 7.0)
    noisy = add_cell_noise(counts, noise, Secret.from_seed(3, "histograms"), step, share)
    return np.asarray((noisy - counts) / (noise.sigma * noise.sensitivity / math.sqrt(share))).ravel()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("step", [0, 1])
def test_the_noise_has_its_distribution_and_a_twin_of_another_scale_does_not_pass(adjacency: str, step: int) -> None:
    noise = HistogramNoise(2.5, 0.0, adjacency, 3)
    drawn = standardised(noise, SHARES[step], step)
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert stats.kstest(drawn * 1.05, "norm").pvalue < 1e-4  # five in a hundred more is noticed
    assert stats.kstest(drawn / math.sqrt(2), "norm").pvalue < 1e-10


def test_rounds_share_no_noise_and_every_cell_lies_on_the_grid() -> None:
    noise = HistogramNoise(2.5, 0.0, "add-remove", 3)
    first, second = standardised(noise, 0.5, 0), standardised(noise, 0.5, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    exact = np.full((3, 4), 1 / 3)
    spacing = grid(noise.std(0.5))
    noisy = add_cell_noise(exact, noise, Secret.from_seed(1), 0, 0.5)
    assert np.array_equal(noisy / spacing, np.round(noisy / spacing))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_noise_is_calibrated_to_its_epsilon(adjacency: str) -> None:
    noise = calibrate_ranges(0.3, 1e-6, columns=6, adjacency=adjacency)
    assert noise.sigma == pytest.approx(analytic_sigma(0.3, 1e-6), rel=2e-3)
    assert noise.sensitivity == pytest.approx(math.sqrt(12 if adjacency == "replace" else 6))
    assert 0 < noise.lost <= 1e-9
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    rounds = [dp_event.GaussianDpEvent(noise.sigma / math.sqrt(share)) for share in SHARES]
    assert accountant.compose(dp_event.ComposedDpEvent(rounds)).get_epsilon(1e-6) == pytest.approx(0.3, rel=5e-3)
    assert sum(SHARES) == 1.0


def test_more_rounds_and_columns_of_noise_are_charged_for() -> None:
    one = calibrate_histograms(1.0, 1e-6, columns=1, cells=10)
    assert calibrate_histograms(1.0, 1e-6, columns=1, cells=10, rounds=2).lost > 1.9 * one.lost
    with pytest.raises(InvalidInputError, match="1.*2"):
        add_cell_noise(np.zeros((2, 3)), one, Secret.from_seed(1), 0)


def people(rows: int) -> Tensor:
    generator = np.random.default_rng(5)
    ages = generator.normal(45, 12, rows).clip(18, 90)
    gains = np.where(generator.random(rows) < 0.9, 0, generator.lognormal(8.5, 0.6, rows))
    years = generator.integers(1990, 2021, rows)
    return torch.tensor(np.stack([ages, gains, years], 1), dtype=torch.float32)


@pytest.mark.parametrize("seed", range(4))
def test_ranges_hold_most_of_a_column_and_little_else(seed: int) -> None:
    rows = people(20_000)
    noise = calibrate_ranges(0.2, 1e-6, columns=3)
    found = find_ranges(rows, [0, 1, 2], noise, Secret.from_seed(seed, "accuracy"), population=20_000)
    for column, (low, high) in enumerate(found):
        inside = (rows[:, column] >= low) & (rows[:, column] <= high)
        assert inside.double().mean() > 0.9, (column, low, high)
    (young, old), (least, most), (early, late) = found
    assert 8 <= young < 30
    assert 60 < old < 110
    assert least == 0.0
    assert 3_000 < most < 70_000
    assert 1900 < early <= 1990
    assert 2015 < late <= 2048


def test_missing_values_do_not_contribute() -> None:
    rows, noise = people(500), calibrate_ranges(1.0, 1e-6, columns=3)
    with_gaps = torch.cat([rows, torch.full((300, 3), math.nan)])
    first, second = (
        find_ranges(r, [0, 1, 2], noise, Secret.from_seed(1, "gaps"), population=500) for r in (rows, with_gaps)
    )
    assert first == second


def test_columns_in_pieces_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = people(1000), weigh_units(np.arange(1000) // 3)
    whole = count_octaves(rows, [0, 2], weights), count_spans(rows, [0], [(0.0, 100.0)], weights)
    monkeypatch.setattr("hush.statistics.ranges.CHUNK", 7)
    assert np.array_equal(whole[0], count_octaves(rows, [0, 2], weights))
    assert np.array_equal(whole[1], count_spans(rows, [0], [(0.0, 100.0)], weights))
    assert whole[1].shape == (1, FINE)


def test_units_that_are_not_as_many_as_the_rows_are_refused() -> None:
    for ids in (np.arange(4), np.arange(9)):
        with pytest.raises(InvalidInputError, match="rows"):
            count_octaves(people(5)[:, :1], [0], weigh_units(ids)[:4] if len(ids) < 5 else weigh_units(ids))


def test_no_column_is_one_sentence() -> None:
    with pytest.raises(InvalidInputError, match="--private-ranges"):
        plan_ranges(people(5), [], calibrate_ranges(1.0, 1e-6, columns=1), population=5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-500, 5000), min_size=2, max_size=6), st.floats(0.1, 300))
def test_class_weights_are_finite_and_floored_by_public_numbers(noisy: list[float], std: float) -> None:
    weights = weigh_classes(np.array(noisy), std, 3000)
    assert np.isfinite(weights).all()
    assert (weights > 0).all()
    floor = max(0.02 * 3000 / len(noisy), 2 * std, 1.0)
    counts = np.maximum(noisy, floor)
    assert weights * counts == pytest.approx(np.full(len(noisy), counts.mean()))


def test_class_counts_have_one_sensitivity_a_unit() -> None:
    rows = torch.zeros(100, 3), torch.tensor([0] * 90 + [1] * 10)
    noise = calibrate_class_counts(2.0, 1e-6, classes=2)
    part = plan_class_weights(rows, 2, noise, population=20, units=np.arange(100) // 5)
    found = part.release(Secret.from_seed(2, "classes"))
    expected = add_cell_noise(np.array([[18.0, 2.0]]), noise, Secret.from_seed(2, "classes"), 0)[0]
    assert found["counts"].tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert part.composed.event == dp_event.GaussianDpEvent(noise.sigma)
    assert noise.sensitivity == 1.0
    assert calibrate_class_counts(2.0, 1e-6, classes=2, adjacency="replace").sensitivity == math.sqrt(2)
