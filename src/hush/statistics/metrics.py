"""Metrics of predictions on rows that were not trained on; pure functions of arrays.

Accuracy alone can mislead. So it comes with the accuracy of always predicting the most common class, balanced accuracy
(the mean recall), AUC (for several classes: the mean over one against the rest), log-loss, recall per class, the
confusion matrix and a short verdict. For numbers: MAE, RMSE, R². They are scikit-learn's where it has them.

All metrics of classes can also be computed from *counts* (`from_counts`): a confusion matrix, and for each true class
histograms of the scores. So noise on the counts is enough to release every metric privately. Sums over noisy cells are
not clipped, so they are unbiased; a total is floored at a public number before dividing by it, and a share is clipped
to [0, 1]. Metrics from histograms (AUC and log-loss) use scores only up to a bin: they are listed in ``approximate``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush._internal.validate import positive, positive_int
from hush.errors import InvalidInputError

Vector = NDArray[np.float64]
BINS = 20  # of a score, all of one width


@dataclass(frozen=True)
class ClassificationMetrics:
    """Metrics of a classifier; None where a metric does not exist (a class without rows, a single class).

    ``confusion[i][j]`` counts rows of class i that were predicted as j.
    """

    rows: float
    accuracy: float
    commonest: float  # the accuracy of always predicting the most frequent class
    balanced_accuracy: float
    auc: float | None
    log_loss: float
    recall: tuple[float | None, ...]
    confusion: tuple[tuple[float, ...], ...]
    approximate: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the verdict."""
        lists = {"recall": list(self.recall), "confusion": [list(row) for row in self.confusion]}
        return {**vars(self), **lists, "approximate": list(self.approximate), "verdict": verdict(self)}


NO_USE = "Worse than always saying the mean of these rows: R² is below 0."


@dataclass(frozen=True)
class RegressionMetrics:
    """How far predicted numbers lie from the true ones; R² is None where all true ones are equal."""

    rows: int
    mae: float
    rmse: float
    r2: float | None


@dataclass(frozen=True, eq=False)
class Counts:
    """A confusion matrix, and ``histograms[true class, score, bin]``; a score of two classes is the probability of the
    second, of more classes each one's probability in turn. ``noisy`` where noise was added."""

    confusion: Vector
    histograms: Vector
    noisy: bool = False

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.confusion)

    @property
    def middles(self) -> Vector:
        """The middle of every bin."""
        bins = self.histograms.shape[2]
        return np.asarray((np.arange(bins) + 0.5) / bins, dtype=np.float64)


def judge_classes(probabilities: ArrayLike, labels: ArrayLike) -> ClassificationMetrics:
    """All figures from a row of class probabilities and a label for each row, exactly."""
    from sklearn import metrics  # importing takes a second

    shares, truth = _checked(probabilities, labels)
    if len(truth) == 0:
        raise InvalidInputError("figures need at least one row")
    if not bool(np.isfinite(shares).all() and (shares >= 0).all() and np.allclose(shares.sum(1), 1.0, atol=1e-3)):
        raise InvalidInputError(
            "every row of probabilities must be finite, not negative, and sum to 1: apply softmax to logits"
        )
    shares = shares / shares.sum(1, keepdims=True)
    classes = list(range(shares.shape[1]))
    confusion = count_confusion(shares, truth)
    scores = [1] if len(classes) == 2 else classes
    areas = [float(metrics.roc_auc_score(truth == k, shares[:, k])) for k in scores if 0 < (truth == k).mean() < 1]
    loss = float(metrics.log_loss(truth, shares, labels=classes))
    return _figures(confusion, _mean(areas), loss, least=1.0)


def judge_values(predictions: ArrayLike, targets: ArrayLike) -> RegressionMetrics:
    """MAE, RMSE and R² of predicted numbers."""
    from sklearn import metrics

    found, truth = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (predictions, targets))
    if len(found) != len(truth) or len(truth) == 0:
        raise InvalidInputError(
            f"{len(found)} predictions cannot be compared with {len(truth)} targets: give one for each"
        )
    if not bool(np.isfinite(found).all() and np.isfinite(truth).all()):
        raise InvalidInputError("predictions and targets must be finite numbers")
    squared = float(metrics.mean_squared_error(truth, found))
    varied = len(truth) > 1 and bool(np.ptp(truth) > 0)
    r2 = float(metrics.r2_score(truth, found)) if varied else None
    return RegressionMetrics(len(truth), float(metrics.mean_absolute_error(truth, found)), math.sqrt(squared), r2)


def count_rows(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = BINS, weights: ArrayLike | None = None
) -> Counts:
    """The counts of these rows: each adds 1, or its weight, to one cell of the matrix and one bin of every histogram.

    A row whose probabilities are not all finite adds nothing anywhere. Scores are cut to [0, 1]; the prediction is the
    first of the largest probabilities.
    """
    positive_int(bins=bins)
    shares, truth = _checked(probabilities, labels)
    each = np.ones(len(truth)) if weights is None else np.asarray(weights, dtype=np.float64)
    if each.shape != truth.shape:
        raise InvalidInputError(f"{len(truth)} rows need as many weights, not an array of shape {each.shape}")
    kept = np.isfinite(shares).all(1)
    shares, truth, each, classes = shares[kept], truth[kept], each[kept], shares.shape[1]
    confusion = count_confusion(shares, truth, each)
    scores = shares[:, 1:] if classes == 2 else shares
    cells = np.minimum((np.clip(scores, 0.0, 1.0) * bins).astype(np.int64), bins - 1)
    histograms = np.zeros((classes, scores.shape[1], bins))
    for score in range(scores.shape[1]):
        np.add.at(histograms[:, score], (truth, cells[:, score]), each)
    return Counts(confusion, histograms)


def count_confusion(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Vector:
    """The confusion matrix of scores of any scale, of which the first of the largest is the prediction; each row counts
    1, or its weight."""
    found, truth = _checked(scores, labels)
    confusion = np.zeros((found.shape[1], found.shape[1]))
    np.add.at(confusion, (truth, found.argmax(1)), 1.0 if weights is None else np.asarray(weights))
    return confusion


def from_counts(counts: Counts, *, least: float = 1.0, rows: int | None = None) -> ClassificationMetrics:
    """All figures from counts alone; totals are floored at the public number ``least``. Where the number of ``rows`` is
    public, it takes the place of the sum of all cells, and with it of all their noise."""
    positive(least=least)
    if rows is not None:
        positive_int(rows=rows)
    scores = [1] if counts.classes == 2 else list(range(counts.classes))
    areas = [_area(counts.histograms[:, at], k, least) for at, k in enumerate(scores)]
    loss = _binned_loss(counts, least)
    named = ("auc", "log_loss") if not counts.noisy else ("all figures: of noisy counts", "auc", "log_loss")
    auc = _mean([a for a in areas if a is not None])
    return _figures(counts.confusion, auc, loss, least, named, known=rows)


def verdict(metrics: ClassificationMetrics) -> str:
    """One sentence: whether the model is of use at all."""
    reached, plain = f"{metrics.accuracy:.1%}", f"{metrics.commonest:.1%}"
    about = "by noisy counts, " if any("noisy" in name for name in metrics.approximate) else ""
    if metrics.accuracy < metrics.commonest:
        text = f"worse than always saying the commonest class: right in {reached} of the rows, where that gives {plain}"
    elif metrics.accuracy == metrics.commonest:
        text = f"no better than always saying the commonest class, which is right in {plain} of the rows"
    else:
        text = f"right in {reached} of the rows, where always saying the commonest class gives {plain}"
    return f"{about}{text}."[0].upper() + f"{about}{text}."[1:]


def _figures(
    confusion: Vector,
    auc: float | None,
    loss: float,
    least: float,
    approximate: tuple[str, ...] = (),
    *,
    known: int | None = None,
) -> ClassificationMetrics:
    have, right = confusion.sum(1), confusion.diagonal()
    rows = max(float(confusion.sum()), least) if known is None else float(known)
    recall = tuple(
        None if of <= 0 else _share(float(hit), max(float(of), least)) for hit, of in zip(right, have, strict=True)
    )
    return ClassificationMetrics(
        rows=rows,
        accuracy=_share(float(right.sum()), rows),
        commonest=_share(float(have.max()), rows),
        balanced_accuracy=_mean([r for r in recall if r is not None]) or 0.0,
        auc=auc,
        log_loss=loss,
        recall=recall,
        confusion=tuple(tuple(row) for row in np.maximum(confusion, 0.0).tolist()),
        approximate=approximate,
    )


def _area(histogram: Vector, member: int, least: float) -> float | None:
    """P(score of a member > score of another) + ½·P(same bin), from one score's histogram by true class."""
    inside, outside = histogram[member], histogram.sum(0) - histogram[member]
    members, others = float(inside.sum()), float(outside.sum())
    if members <= 0 or others <= 0:
        return None
    below = np.cumsum(outside) - 0.5 * outside
    return _share(float(inside @ below), max(members, least) * max(others, least))


def _binned_loss(counts: Counts, least: float) -> float:
    """−ln of the probability of the true class, taken at the middle of its bin."""
    middles, own = counts.middles, range(counts.classes)
    if counts.classes == 2:
        total = counts.histograms[0, 0] @ -np.log(1 - middles) + counts.histograms[1, 0] @ -np.log(middles)
        rows = counts.histograms.sum()
    else:
        mine = sum((counts.histograms[k, k] for k in own), np.zeros(len(middles)))
        total, rows = mine @ -np.log(middles), mine.sum()
    return max(float(total), 0.0) / max(float(rows), least)


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Vector, NDArray[np.int64]]:
    shares, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if shares.ndim != 2 or shares.shape[1] < 2:
        raise InvalidInputError(
            f"probabilities must have the shape (rows, classes) with two classes or more, not {shares.shape}"
        )
    if truth.shape != shares.shape[:1]:
        raise InvalidInputError(
            f"{len(shares)} rows of probabilities need as many labels, not an array of shape {truth.shape}"
        )
    known = np.arange(shares.shape[1])
    if truth.dtype.kind not in "iuf" or not bool(np.isin(truth, known).all()):
        raise InvalidInputError(f"a label is not one of the classes 0 … {shares.shape[1] - 1}")
    return shares, truth.astype(np.int64)


def _share(part: float, of: float) -> float:
    return min(max(part / of, 0.0), 1.0)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
