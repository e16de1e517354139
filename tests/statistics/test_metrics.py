"""Metrics against scikit-learn, from rows and from counts, and the verdict against the most common class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from classification import example
from hush.errors import InvalidInputError
from hush.statistics.metrics import Counts, count_rows, from_counts, judge_classes, judge_values, verdict


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_every_figure_is_the_oracle_s(classes: int) -> None:
    shares, labels = example(500, classes)
    said = shares.argmax(1)
    found = judge_classes(torch.tensor(shares), torch.tensor(labels))
    assert found.rows == 500
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, said), abs=1e-12)
    assert found.commonest == pytest.approx(np.bincount(labels).max() / 500, abs=1e-12)
    assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(labels, said), abs=1e-12)
    recalls = metrics.recall_score(labels, said, average=None)
    np.testing.assert_allclose(np.array(found.recall, dtype=float), recalls, atol=1e-12)
    np.testing.assert_array_equal(np.array(found.confusion), metrics.confusion_matrix(labels, said))
    assert found.log_loss == pytest.approx(metrics.log_loss(labels, shares), rel=1e-12)
    area = (
        metrics.roc_auc_score(labels, shares[:, 1])
        if classes == 2
        else metrics.roc_auc_score(labels, shares, multi_class="ovr", average="macro")
    )
    assert found.auc == pytest.approx(area, abs=1e-12)
    assert found.approximate == ()


@pytest.mark.parametrize("classes", [2, 4])
def test_counts_give_the_same_figures_and_name_what_is_binned(classes: int) -> None:
    shares, labels = example(3000, classes)
    exact, found = judge_classes(shares, labels), from_counts(count_rows(shares, labels, bins=200))
    for name in ("rows", "accuracy", "commonest", "balanced_accuracy"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), abs=1e-12)
    assert found.recall == pytest.approx(exact.recall)
    assert found.confusion == exact.confusion
    assert found.approximate == ("auc", "log_loss")
    assert found.auc == pytest.approx(exact.auc, abs=2e-3)
    assert found.log_loss == pytest.approx(exact.log_loss, rel=5e-3)
    rough = from_counts(count_rows(shares, labels, bins=3))
    assert abs(rough.log_loss - exact.log_loss) > abs(found.log_loss - exact.log_loss)


def test_the_area_of_a_histogram_is_that_of_rounded_scores() -> None:
    shares, labels = example(400, 2)
    middle = (np.floor(shares[:, 1] * 20) + 0.5) / 20
    found = from_counts(count_rows(shares, labels, bins=20))
    assert found.auc == pytest.approx(metrics.roc_auc_score(labels, middle), abs=1e-12)
    assert found.log_loss == pytest.approx(metrics.log_loss(labels, np.stack([1 - middle, middle], 1)), rel=1e-12)


def test_a_row_adds_to_one_cell_and_one_bin_of_each_score() -> None:
    counts = count_rows([[0.2, 0.8], [math.nan, 1.0]], [0, 1], bins=4)
    assert counts.confusion.tolist() == [[0, 1], [0, 0]]  # the row that is not finite adds nothing
    assert counts.histograms.tolist() == [[[0, 0, 0, 1]], [[0, 0, 0, 0]]]
    three = count_rows([[0.0, 0.0, 1.0]], [1], bins=2)
    assert three.histograms[1].tolist() == [[1, 0], [1, 0], [0, 1]]


def test_a_model_worse_than_the_commonest_class_is_called_that() -> None:
    labels = np.array([0] * 8 + [1] * 2)
    said = np.array([0] * 5 + [1] * 3 + [1] * 2)
    bad = judge_classes(np.eye(2)[said], labels)
    assert (bad.accuracy, bad.commonest) == (0.7, 0.8)
    assert verdict(bad) == (
        "Worse than always saying the commonest class: right in 70.0% of the rows, where that gives 80.0%."
    )
    same = judge_classes(np.tile([0.9, 0.1], (10, 1)), labels)
    assert verdict(same).startswith("No better than always saying the commonest class")
    assert same.balanced_accuracy == 0.5
    good = judge_classes(np.eye(2)[labels], labels)
    assert verdict(good).startswith("Right in 100.0% of the rows")
    assert good.to_json()["verdict"] == verdict(good)
    noisy = from_counts(Counts(np.array([[5.0, 3.0], [0.0, 2.0]]), np.ones((2, 1, 4)), noisy=True))
    assert verdict(noisy).startswith("By noisy counts, worse than")


def test_classes_without_rows_have_no_recall_and_do_not_count() -> None:
    found = judge_classes(np.eye(3)[[0, 0, 1, 2]], [0, 0, 1, 1])
    assert found.recall == (1.0, 0.5, None)
    assert found.balanced_accuracy == 0.75
    one = judge_classes([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    assert one.auc is None
    assert one.recall == (0.5, None)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 4), st.integers(0, 1000), st.floats(0.1, 1000.0))
def test_noisy_counts_always_give_figures_within_their_range(classes: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    scores = 1 if classes == 2 else classes
    noise = Counts(rng.normal(0, scale, (classes, classes)), rng.normal(0, scale, (classes, scores, 5)), noisy=True)
    found = from_counts(noise, least=3.0)
    assert found.rows >= 3.0
    assert all(0 <= x <= 1 for x in (found.accuracy, found.commonest, found.balanced_accuracy))
    assert all(x is None or 0 <= x <= 1 for x in (*found.recall, found.auc))
    assert found.log_loss >= 0
    assert min(min(row) for row in found.confusion) >= 0
    assert "noisy" in found.approximate[0]


def test_sums_over_noisy_cells_stay_unbiased() -> None:
    """Cells that are floored one by one would add their noise to the total: the twin is 100 rows too high."""
    rng = np.random.default_rng(1)
    truth = np.diag([200.0] * 6)
    draws = [truth + rng.normal(0, 10.0, truth.shape) for _ in range(200)]
    rows = [from_counts(Counts(noisy, np.ones((6, 6, 2)), noisy=True)).rows for noisy in draws]
    assert np.mean(rows) == pytest.approx(1200.0, abs=5 * 60 / math.sqrt(200))
    assert np.mean([np.maximum(noisy, 0).sum() for noisy in draws]) > 1300 - 5 * 60 / math.sqrt(200)


def test_numbers_have_the_oracle_s_figures() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(size=50)
    predictions = targets + 0.3 * rng.normal(size=50)
    found = judge_values(torch.tensor(predictions), targets)
    assert found.mae == pytest.approx(metrics.mean_absolute_error(targets, predictions))
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(targets, predictions))
    assert found.r2 == pytest.approx(metrics.r2_score(targets, predictions))
    assert judge_values([1.0, 3.0], [2.0, 2.0]).r2 is None
    with pytest.raises(InvalidInputError):
        judge_values([math.nan], [1.0])
    with pytest.raises(InvalidInputError):
        judge_values([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("shares", "labels", "words"),
    [
        ([[2.0, -1.0]], [0], "apply softmax"),
        ([[0.5, 0.5]], [2], "not one of the classes 0 … 1"),
        ([[0.5, 0.5]], [0.5], "not one of the classes"),
        ([[0.5, 0.5]], [math.nan], "not one of the classes"),
        ([[0.5, 0.5]], ["yes"], "not one of the classes"),
        ([[0.5, 0.5]], [-1], "not one of the classes"),
        ([[0.5, 0.5]], [0, 1], "as many labels"),
        ([[1.0]], [0], "two classes or more"),
        (np.zeros((0, 2)), [], "at least one row"),
    ],
)
def test_what_cannot_be_judged_is_refused(shares: list, labels: list, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        judge_classes(shares, labels)
