"""The classes of a table, released with noise before training: their names, and weights from their counts.

**Class weights** come from a noisy histogram of the classes (`hush.statistics.histogram`, one column, one round). The
counts n_c are released with noise. What follows is post-processing with public numbers: a count below a floor counts as
the floor, which is a share of the count of each class if all were equally frequent, and at least twice the noise; and
w_c = Σ n / (C·n_c), so that all classes have the same total weight. Weights multiply an example's loss before its
gradient is clipped, so they change no sensitivity (`hush.datasets.problem.Weighted`).

**Class names** come from a stability histogram, whose proof follows.

The set of labels is a statistic of the rows: a label that only one person has must not become a class of a released
model. So the labels are counted, the counts get Gaussian noise, and only labels whose noisy count is above a threshold
are classes (Korolova, Kenthapadi, Mishra and Ntoulas, WWW 2009; Wilkins, Kifer, Zhang and Karrer, "Exact
privacy analysis of the Gaussian sparse histogram mechanism", 2024).

**Contribution.** Every unit counts one label with weight 1: the most frequent of its rows, the first in the order of
the text if several are equally frequent. It depends on no other unit.

**Noise.** Only labels that occur are counted, and each count gets independent noise of standard deviation s = σΔ, with
Δ = 1 under add-remove and zero-out adjacency and Δ = √2 under replace (`hush.statistics.histogram` with one column).
A label is released if its noisy count is at least

    τ = 1 + s·Φ⁻¹(1 − δ′) + g,

where g is the spacing of the grid that noisy counts are rounded to. Then a label that a single unit has is released
with probability p = P(1 + sZ + rounding ≥ τ) ≤ P(Z ≥ Φ⁻¹(1 − δ′)) = δ′.

**Guarantee.** Let D′ be D and one unit more, with label ℓ.

1. ℓ occurs in D. Then the same labels are counted in both, the counts differ by 1 in one place, and what is released is
   a function of the noisy counts: Gaussian(σ).
2. ℓ does not occur in D. Let P and Q be the outputs on D′ and D, with everything computed from them that is
   (ε, δ)-private in itself (training), and P̃ that of D′ given that ℓ is not released. The other counts are the same, so
   P̃(S) ≤ e^ε Q(S) + δ and Q(S) ≤ e^ε P̃(S) + δ. As P(S) ≤ p + (1 − p)·P̃(S), P(S) ≤ e^ε Q(S) + δ + p. As
   P(S) ≥ (1 − p)·P̃(S) and e^ε P̃(S) ≥ Q(S) − δ, Q(S) − e^ε P(S) ≤ Q(S) − (1 − p)(Q(S) − δ) ≤ p + δ.

Under replace adjacency one label may be removed and another added. Labels that occur in both change the counts by at
most √2, and the two others are left out with the same probability 1 − p on either side, so that the same inequality
holds with p once. In every case the release is Gaussian(σ) and loses δ′ at any ε: the event of the plan includes the
first, its δ the second. Training composes with it: the classes are one more output.

Rows whose label is no class stay in the data with a loss of zero. The number of examples N, the sampling rate q and the
divisor do not change, so none of them depends on what was released.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from hush._internal.validate import probability
from hush.accounting.accountant import Adjacency
from hush.accounting.guarantee import PRECISE
from hush.accounting.noise_tails import grid
from hush.data_release import ComposedRelease, DataRelease, Values
from hush.data_source import as_source
from hush.errors import DataError, InvalidInputError
from hush.randomness import Secret
from hush.statistics.histogram import (
    CHUNK,
    Cells,
    HistogramNoise,
    Numbers,
    add_cell_noise,
    calibrate_histograms,
    count_cells,
    plan_histograms,
    weigh_units,
)
from hush.tabular.columns.category import MOST_CLASSES
from hush.tabular.columns.number import parse_number
from hush.tabular.problem import MOST_RELEASED

NAMES, NAMES_KEY = "the classes with a noisy count above a threshold", "classes"
COUNTS, COUNTS_KEY = "the noisy counts of the classes", "class-counts"
FLOOR = 0.02  # of population / classes
ABOVE = 2.0  # standard deviations of the noise


# Class weights.


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
        counts = count_cells(_read_codes(rows), classes, weights)
        noisy = add_cell_noise(counts[None], noise, secret, 0)[0]
        return {"counts": torch.tensor(noisy), "weights": torch.tensor(weigh_classes(noisy, noise.std(), population))}

    def content() -> Iterator[bytes]:
        yield repr((classes, population)).encode()
        yield _read_codes(rows).tobytes()

    return plan_histograms(COUNTS_KEY, COUNTS, noise, release, content, units)


def weigh_classes(noisy: Numbers, std: float, population: int) -> Numbers:
    """The weights of the classes, by noisy counts that are floored by a public number."""
    floor = max(FLOOR * population / len(noisy), ABOVE * std, 1.0)
    counts = np.maximum(noisy, floor)
    return np.asarray(counts.sum() / (len(counts) * counts))


# Class names.


@dataclass(frozen=True)
class ClassNoise:
    """The noise of the counts, and δ′: the largest probability with which a label of one unit is released."""

    counts: HistogramNoise
    alone: float

    @property
    def threshold(self) -> float:
        """τ, from which on a noisy count is a class."""
        std = self.counts.std()
        return 1.0 - std * float(ndtri(self.alone)) + grid(std)

    @property
    def lost(self) -> float:
        """The part of δ that the event does not include: δ′ and the end of the noise's tails."""
        return self.counts.lost + self.alone


def calibrate_class_names(
    epsilon: float, delta: float, *, alone: float, adjacency: Adjacency = "add-remove"
) -> ClassNoise:
    """The noise with which the counts are (ε, δ)-private, and the threshold for δ′ = ``alone``, which is lost in
    addition; neither depends on rows."""
    probability(alone=alone)
    return ClassNoise(calibrate_histograms(epsilon, delta, columns=1, cells=MOST_CLASSES, adjacency=adjacency), alone)


def plan_class_names(
    rows: Any, labels: Sequence[str], noise: ClassNoise, *, population: int, units: ArrayLike | None = None
) -> DataRelease:
    """The release before training of the ``names`` of the classes (JSON in bytes) and of their noisy ``counts``. Rows
    are data as a plan takes them; the last part of an example is the place of its label in ``labels``, which are
    private and in the order of their text. ``population`` is the public number of units."""
    if population < 2 * noise.threshold:
        raise DataError(
            f"{population} examples are too few to release classes with noise, as a class needs about "
            f"{noise.threshold:.0f}: name the classes in a schema (classes = […]), say that they are public (--public "
            "classes), or give --private-classes a larger share of ε"
        )
    if list(labels) != sorted(set(labels)):
        raise InvalidInputError("the labels of the rows must be different and in the order of their text")

    def release(secret: Secret) -> Values:
        counts = count_labels(_read_codes(rows), len(labels), units)
        noisy = add_cell_noise(counts[None], noise.counts, secret, 0)[0]
        return pack_classes(choose_classes(labels, noisy, noise.threshold))

    def content() -> Iterator[bytes]:
        yield json.dumps([list(labels), population, noise.threshold]).encode()
        yield _read_codes(rows).tobytes()
        if units is not None:
            yield np.ascontiguousarray(np.asarray(units)).tobytes()

    composed = ComposedRelease(NAMES, noise.counts.event, noise.counts.adjacency, noise.lost, (PRECISE,))
    return DataRelease(NAMES_KEY, composed, release, content, units is not None)


def count_labels(codes: Cells, size: int, units: ArrayLike | None = None) -> Numbers:
    """The number of units with each label: each unit counts the most frequent label of its rows, by ties the first."""
    if units is None:
        return np.bincount(codes, minlength=size).astype(np.float64)
    _, unit = np.unique(np.asarray(units), return_inverse=True)
    if len(unit) != len(codes):
        raise InvalidInputError("the number of units differs from the number of rows: give the unit of every row")
    pairs, often = np.unique(np.stack([unit.reshape(-1), codes]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -often, pairs[0]))  # by unit, the commonest label first, then by its place
    chosen = order[np.unique(pairs[0][order], return_index=True)[1]]
    return np.bincount(pairs[1][chosen], minlength=size).astype(np.float64)


def choose_classes(labels: Sequence[str], noisy: Numbers, threshold: float) -> dict[str, float]:
    """The labels whose noisy count reaches the threshold, the ``MOST_RELEASED`` with the largest; in the order of their
    numbers where all are numbers, else of their text. All of it follows from what is released."""
    found = [(-count, label) for label, count in zip(labels, noisy.tolist(), strict=True) if count >= threshold]
    chosen = {label: -count for count, label in sorted(found)[:MOST_RELEASED]}
    if len(chosen) < 2:
        raise DataError(
            "fewer than two classes have enough examples to be released with noise: name the classes in a schema "
            "(classes = […]), or say that they are public (--public classes)"
        )
    values = {label: parse_number(label) for label in chosen}
    if any(value is None for value in values.values()):
        return {label: chosen[label] for label in sorted(chosen)}
    return {label: chosen[label] for label in sorted(chosen, key=lambda label: (values[label], label))}


def pack_classes(classes: dict[str, float]) -> Values:
    """Names and noisy counts as tensors."""
    names = np.frombuffer(json.dumps(list(classes)).encode(), np.uint8).copy()
    return {"names": torch.from_numpy(names), "counts": torch.tensor(list(classes.values()), dtype=torch.float64)}


def unpack_classes(values: Values) -> dict[str, float]:
    """The inverse of `pack_classes`."""
    names = json.loads(values["names"].numpy().tobytes())
    return dict(zip(names, values["counts"].tolist(), strict=True))


def _read_codes(rows: Any) -> NDArray[np.int64]:
    source = as_source(rows)
    starts = range(0, len(source), CHUNK)
    found = [source.take(torch.arange(s, min(s + CHUNK, len(source))))[-1].cpu().numpy() for s in starts]
    return np.concatenate(found).astype(np.int64)
