"""Private class names: sensitivity, noise, threshold, accounting, and rows with other labels."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri
from torch import nn

from hush.accounting.noise_tails import grid
from hush.data_release import make_releases
from hush.datasets.problem import PendingClasses, PendingLosses, cross_entropy
from hush.errors import DataError, InvalidInputError
from hush.methods import make_plan
from hush.randomness import Secret
from hush.statistics.classes import (
    ClassNoise,
    calibrate_class_names,
    choose_classes,
    count_labels,
    pack_classes,
    plan_class_names,
    unpack_classes,
)
from hush.statistics.histogram import HistogramNoise, add_cell_noise
from hush.statistics.releases import plan_releases, take_releases
from hush.tabular.problem import from_files
from hush.textbook.gaussian import analytic_sigma

DRAWS = 20_000


def noise(std: float, alone: float, adjacency: str = "add-remove") -> ClassNoise:
    return ClassNoise(HistogramNoise(std, 0.0, adjacency, 1), alone)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_unit_moves_the_counts_by_one_and_a_replaced_one_by_the_root_of_two(seed: int, many: bool) -> None:
    draw = np.random.default_rng(seed)
    units = draw.integers(0, 6, 30) if many else np.arange(30)
    codes, other = draw.integers(0, 5, 30), draw.integers(0, 5, 30)
    left, own = units != units[0], units == units[0]
    whole = count_labels(codes, 5, units)
    assert whole.sum() == len(set(units.tolist()))
    assert np.linalg.norm(whole - count_labels(codes[left], 5, units[left])) == 1.0
    replaced = count_labels(np.where(own, other, codes), 5, units)
    assert np.linalg.norm(whole - replaced) in (0.0, math.sqrt(2))


def test_a_unit_counts_its_commonest_label_and_by_ties_the_first() -> None:
    units, codes = np.array([7, 7, 7, 8, 8, 9]), np.array([2, 2, 0, 1, 0, 1])
    assert count_labels(codes, 3, units).tolist() == [1.0, 1.0, 1.0]
    assert count_labels(codes, 4).tolist() == [2.0, 2.0, 2.0, 0.0]


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace"])
def test_noise_and_threshold_are_those_of_the_formula(adjacency: str) -> None:
    """σ is the analytic Gaussian mechanism's (Balle and Wang 2018), τ = 1 + sΦ⁻¹(1 − δ′) + g."""
    found = calibrate_class_names(0.6, 1e-6, alone=1e-6, adjacency=adjacency)
    assert found.counts.event == dp_event.GaussianDpEvent(found.counts.sigma)
    assert found.counts.sigma == pytest.approx(analytic_sigma(0.6, 1e-6, 1.0), rel=1e-3)
    std = found.counts.sigma * (math.sqrt(2) if adjacency == "replace" else 1.0)
    assert found.threshold == pytest.approx(1 + std * 4.753424308822899 + grid(std), rel=1e-9)  # Φ⁻¹(1 − 1e-6)
    assert found.lost == found.counts.lost + 1e-6


@pytest.mark.parametrize("std", [3.0, 20.0])
def test_the_noise_of_a_count_is_gaussian_and_a_twin_at_another_scale_is_not(std: float) -> None:
    drawn = add_cell_noise(
        np.full((1, DRAWS), 50.0), HistogramNoise(std, 0.0, "add-remove", 1), Secret.from_seed(3), 0
    )[0]
    assert stats.kstest((drawn - 50.0) / std, "norm").pvalue > 1e-3
    assert stats.kstest((drawn - 50.0) / (1.05 * std), "norm").pvalue < 1e-3


def test_a_label_of_one_unit_is_released_as_rarely_as_promised_and_a_lower_threshold_is_too_low() -> None:
    alone = 0.02
    for scale, kept in ((1.0, True), (0.8, False)):
        made = noise(5.0, alone)
        threshold = made.threshold if kept else 1 + scale * (made.threshold - 1)
        drawn = add_cell_noise(np.ones((1, DRAWS)), made.counts, Secret.from_seed(5), 0)[0]
        often = int((drawn >= threshold).sum())
        assert bool(stats.binomtest(often, DRAWS, alone, alternative="greater").pvalue > 1e-4) is kept


def test_the_threshold_leaves_room_for_the_grid() -> None:
    """Rounding up by half a cell of the grid does not take a count of 1 beyond the threshold."""
    made = noise(5.0, 1e-6)
    exact = 1 - 5.0 * float(ndtri(1e-6))
    assert made.threshold - exact >= grid(made.counts.std()) / 2


def test_classes_are_sorted_and_the_largest() -> None:
    assert list(choose_classes(["10", "9", "x"], np.array([50.0, 60.0, 1.0]), 20.0)) == ["9", "10"]
    assert list(choose_classes(["a", "b", "c"], np.array([50.0, 10.0, 60.0]), 20.0)) == ["a", "c"]
    many = [f"{i:03}" for i in range(100)]
    assert list(choose_classes(many, np.arange(100.0) + 100, 20.0)) == many[-32:]
    with pytest.raises(DataError):
        choose_classes(["a", "b"], np.array([50.0, 10.0]), 20.0)
    classes = {"é": 3.25, "b": 7.0}
    assert unpack_classes(pack_classes(classes)) == classes


def test_too_few_examples_are_refused_before_anything_is_drawn() -> None:
    rows = (torch.zeros(50, 1), torch.arange(50) % 2)
    with pytest.raises(DataError):
        plan_class_names(rows, ["a", "b"], noise(30.0, 1e-6), population=50)
    with pytest.raises(InvalidInputError):
        plan_class_names(rows, ["b", "a"], noise(1.0, 1e-6), population=50)


def test_rows_of_other_labels_have_no_loss_and_no_gradient() -> None:
    torch.manual_seed(0)
    model, pending = nn.Linear(3, 4), PendingClasses.of(("a", "b", "rare"), 4, lambda classes, schema: None)  # type: ignore[arg-type,return-value]
    losses, x = PendingLosses(pending.slots, pending.used), torch.randn(5, 3)
    labels = torch.tensor([0, 2, 1, 2, 0])
    assert losses(model, (x, labels)).tolist() == [0.0] * 5
    pending.mark_updated(["a", "b"])
    found = losses(model, (x, labels))
    for place in range(5):
        (gradient,) = torch.autograd.grad(found[place], [model.weight], retain_graph=True)
        if labels[place] == 2:
            assert found[place] == 0
            assert not gradient.any()
        else:
            assert not gradient[2:].any()
            assert gradient[:2].any()
    two = nn.Linear(3, 2)
    with torch.no_grad():
        two.weight.copy_(model.weight[:2])
        two.bias.copy_(model.bias[:2])
    kept = labels < 2
    assert torch.allclose(found[kept], cross_entropy(two, (x[kept], labels[kept])))


def write(path: Path, rows: int, rare: str | None) -> Path:
    draw = np.random.default_rng(1)
    x = draw.normal(size=rows)
    labels = np.where(x > 0, "pos", "neg").astype(object)
    if rare is not None:
        labels[rows // 3] = rare
    path.write_text("x,y\n" + "".join(f"{a:.4f},{b}\n" for a, b in zip(x, labels, strict=True)))
    return path


def test_from_files_asks_where_the_classes_come_from(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 200, None)
    with pytest.raises(DataError):
        from_files(path, target="y")
    assert from_files(path, target="y", public=("classes",)).class_names == ("neg", "pos")
    assert from_files(path, target="y", schema={"classes": ["pos", "neg"]}).class_names == ("pos", "neg")
    assert from_files(path, target="y", private_classes=True).class_names is None
    given = {"classes": ["pos", "neg"]}
    assert from_files(path, target="y", private_classes=True, schema=given).pending_classes is None


def test_the_event_holds_the_release_and_the_rare_label_is_nowhere(tmp_path: Path) -> None:
    problem = from_files(write(tmp_path / "t.csv", 2000, "onlyone"), target="y", private_classes=True)
    assert problem.classes == 32
    setting = {
        "examples": problem.examples,
        "counted": True,
        "batch_size": 200,
        "epochs": 1,
        "epsilon": 3,
        "delta": 1e-5,
    }
    alone = make_plan("dp-sgd", **setting)
    parts = plan_releases(problem, alone, 3, class_share=0.2)
    plan = make_plan("dp-sgd", **setting, composed=tuple(part.composed for part in parts))
    assert plan.sigma > alone.sigma
    assert plan.guarantee().epsilon <= 3
    (release,) = plan.composed
    sigma = calibrate_class_names(0.6, 1e-6, alone=1e-6).counts.sigma
    assert release.event.noise_multiplier == pytest.approx(sigma, rel=1e-9)
    assert release.lost >= 0.1 * plan.delta
    run = plan.start(problem.model(), problem.training_losses, problem.train, secret=4)
    settled, told = take_releases(problem, run, make_releases(run, parts))
    assert settled.class_names == ("neg", "pos")
    assert list(told["private_classes"]) == ["neg", "pos"]
    assert len(settled.train[0]) == len(problem.train[0]) == problem.examples
    for batch in run.batches():
        run.step(batch)
    model = settled.trim(run.model)
    assert model(settled.test[0]).shape == (len(settled.test[0]), 2)
    run.release(tmp_path / "out", description=settled.describe(), model=model, metrics=told)
    for file in (tmp_path / "out").rglob("*"):
        assert b"onlyone" not in file.read_bytes()
    assert json.loads((tmp_path / "out" / "model.json").read_text())["classes"] == ["neg", "pos"]


def test_plans_without_the_release_are_refused(tmp_path: Path) -> None:
    problem = from_files(write(tmp_path / "t.csv", 2000, None), target="y", private_classes=True)
    plan = make_plan("dp-sgd", examples=problem.examples, counted=True, batch_size=200, epochs=1, epsilon=3, delta=1e-5)
    with pytest.raises(InvalidInputError):
        plan_releases(problem, plan, 3, range_share=0.1)
    with pytest.raises(InvalidInputError):
        plan_releases(problem, plan, 3, class_share=0.1, weight_share=0.1)
