"""Class weights from a noisy histogram of the classes (`hush.statistics.histogram`, one column, one round).

The counts n_c are released with noise. What follows is post-processing with public numbers: a count below a floor
counts as the floor, which is a share of what a class would have if all were alike, and at least twice the noise; and
w_c = Σ n / (C·n_c), so that all classes together weigh alike. Weights multiply an example's loss before its gradient is
clipped, so they change no sensitivity (`hush.datasets.problem.Weighted`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from hush.accounting.accountant import Adjacency
from hush.accounting.guarantee import PRECISE
from hush.data_release import ComposedRelease, DataRelease, Values
from hush.data_source import as_source
from hush.randomness import Secret
from hush.statistics.histogram import (
    PIECE,
    Cells,
    HistogramNoise,
    Numbers,
    add_cell_noise,
    calibrate_histograms,
    count_cells,
    weigh_units,
)

NAME = "the noisy counts of the classes"
KEY = "class-counts"
FLOOR = 0.02  # of population / classes
ABOVE = 2.0  # standard deviations of the noise


def calibrate_class_counts(
    epsilon: float, delta: float, *, classes: int, adjacency: Adjacency = "add-remove"
) -> HistogramNoise:
    """The noise with which the counts of this number of classes are (ε, δ)-private."""
    return calibrate_histograms(epsilon, delta, columns=1, cells=classes, adjacency=adjacency)


def plan_class_weights(
    rows: Any, classes: int, noise: HistogramNoise, *, population: int, units: ArrayLike | None = None
) -> DataRelease:
    """The release before training of the classes' noisy ``counts``, and of the ``weights`` that follow from them. Rows
    are data as a plan takes them, the labels last.

    ``population`` is the public number of units (rows, without ``units``, which gives the unit of every row)."""

    def release(secret: Secret) -> Values:
        weights = None if units is None else weigh_units(units)
        counts = count_cells(_read_labels(rows), classes, weights)
        noisy = add_cell_noise(counts[None], noise, secret, 0)[0]
        return {"counts": torch.tensor(noisy), "weights": torch.tensor(weigh_classes(noisy, noise.std(), population))}

    def content() -> Iterator[bytes]:
        yield repr((classes, population)).encode()
        yield _read_labels(rows).tobytes()
        if units is not None:
            yield weigh_units(units).tobytes()

    return DataRelease(
        KEY,
        ComposedRelease(NAME, noise.event, noise.adjacency, noise.lost, (PRECISE,)),
        release,
        content,
        units is not None,
    )


def _read_labels(rows: Any) -> Cells:
    source = as_source(rows)
    starts = range(0, len(source), PIECE)
    found = [source.take(torch.arange(s, min(s + PIECE, len(source))))[-1].cpu().numpy() for s in starts]
    return np.concatenate(found).astype(np.int64)


def weigh_classes(noisy: Numbers, std: float, population: int) -> Numbers:
    """The weights of the classes, by noisy counts that are floored by a public number."""
    floor = max(FLOOR * population / len(noisy), ABOVE * std, 1.0)
    counts = np.maximum(noisy, floor)
    return np.asarray(counts.sum() / (len(counts) * counts))
