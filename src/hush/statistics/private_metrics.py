"""Noisy metrics of held-out private rows: a confusion matrix and score histograms, from which the others are computed.

**Sensitivity.** Let a row with label y and prediction ŷ add the vector

    v = a·e[y, ŷ] + b·Σ_s e[y, s, bin of score s],   a = 1/√2,  b = 1/√(2S),

to the matrix and the S histograms of its class together (S = 1 for two classes, else one score per class). Its
cells are distinct, so ‖v‖² = a² + S·b² = 1; a row whose probabilities are not finite adds 0. The sum over rows then
moves, in the L2 norm,

- by ‖v‖ ≤ 1 when a row is added, removed or zeroed (add-remove, zero-out);
- by ‖v − v'‖ = √(‖v‖² + ‖v'‖² − 2⟨v, v'⟩) ≤ √2 when it is replaced, as all entries are zero or above and so is ⟨v, v'⟩;
  rows of two labels share no cell and attain it.

The counts are released, that is the sum with each cell divided by its weight: noise of σ·Δ on the sum is noise of σ·Δ/a
on a cell of the matrix and σ·Δ/b on a bin. With Δ = 1 or √2 the release is Gaussian(σ) under its adjacency. If a unit
has m rows, each has the weight 1/m: the unit's vector is then a mean of such v, its norm at most 1 and its entries zero
or above, so all of this holds for units.

Weights are rounded down and sums of them are exact, as in `hush.statistics.histogram`: no rounding depends on other
rows. Noisy counts are rounded to the public grid of their noise (`hush.noise.base`).
The number of rows is released only as the sum of noisy cells.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from dp_accounting import dp_event
from numpy.typing import ArrayLike

from hush._internal.validate import positive, positive_int
from hush.accounting.accountant import Adjacency
from hush.accounting.events import DpEvent
from hush.accounting.guarantee import PRECISE
from hush.accounting.noise_tails import check_std, grid
from hush.data_release import ComposedRelease
from hush.errors import InvalidInputError
from hush.noise.base import add_noise
from hush.randomness import Secret, normal, streams
from hush.statistics.histogram import calibrate_cells, weigh_units
from hush.statistics.metrics import BINS, Counts, count_rows, from_counts

if TYPE_CHECKING:
    from hush.datasets.evaluation import Evaluation
    from hush.datasets.problem import Problem
    from hush.plan import Plan

SENSITIVITY: Mapping[Adjacency, float] = {"add-remove": 1.0, "zero-out": 1.0, "replace": math.sqrt(2.0)}
ROUNDED = 1 + 2.0**-40  # more than the products of the standard deviations can lose
NAME = "figures with noise of the held-out rows"
SHARE = 0.1  # share of δ at which the ε of these metrics is stated; their joint cost with training is accounted exactly
ASSUMPTIONS = (
    "the held-out rows were set apart without looking at them, and the classes and bins are public",
    "the noise is unpredictable",
    PRECISE,
)


@dataclass(frozen=True)
class CountNoise:
    """The noise of the counts: σ of the event, and the part of δ that the event does not include, at any ε."""

    sigma: float
    lost: float
    adjacency: Adjacency

    @property
    def event(self) -> DpEvent:
        """One Gaussian."""
        return dp_event.GaussianDpEvent(self.sigma)


def _calibrate_counts(
    epsilon: float, delta: float, *, classes: int, adjacency: Adjacency = "add-remove", bins: int = BINS
) -> CountNoise:
    """The noise with which counts of this number of classes are (ε, δ)-private; it does not depend on rows."""
    positive_int(classes=classes, bins=bins)
    scores = 1 if classes == 2 else classes
    cells = classes * classes + classes * scores * bins
    sigma, lost = calibrate_cells(epsilon, delta, cells=cells, adjacency=adjacency)
    return CountNoise(sigma, lost, adjacency)


def add_count_noise(
    probabilities: ArrayLike,
    labels: ArrayLike,
    noise: CountNoise,
    *,
    bins: int = BINS,
    units: ArrayLike | None = None,
    secret: Secret | None = None,
) -> Counts:
    """The counts of these rows with noise: one release, to be made once.

    Without ``secret`` the noise comes from one that is thrown away. With it, the noise is a function of the secret, the
    counts and the noise's scale: the same counts get the same noise again, and other counts get independent noise."""
    weights = None if units is None else weigh_units(units)
    counts = count_rows(probabilities, labels, bins=bins, weights=weights)
    own = Secret.fresh() if secret is None else secret.child(streams.private_metrics(_digest(secret, counts, noise)))
    return _with_noise(counts, *noise_stds(noise.sigma, noise.adjacency, counts.histograms.shape[1]), own)


def _digest(secret: Secret, counts: Counts, noise: CountNoise) -> str:
    """Of the exact counts and of how much noise they get, keyed with the secret."""
    found = hashlib.blake2b(key=secret.derive(streams.METRICS_CONTENT, 0, size=32), digest_size=32)
    found.update(f"{noise.sigma!r}\0{noise.adjacency}\0{counts.confusion.shape}\0{counts.histograms.shape}\0".encode())
    for cells in (counts.confusion, counts.histograms):
        found.update(np.ascontiguousarray(cells, dtype=np.float64).tobytes())
    return found.hexdigest()


def noise_stds(sigma: float, adjacency: Adjacency, scores: int) -> tuple[float, float]:
    """Standard deviations in a cell of the matrix and in a bin, for ``scores`` histograms a class."""
    total = sigma * SENSITIVITY[adjacency] * ROUNDED
    stds = total * math.sqrt(2.0), total * math.sqrt(2.0 * scores)
    for std in stds:
        check_std(std)
    return stds


def _with_noise(counts: Counts, matrix_std: float, bin_std: float, secret: Secret) -> Counts:
    """Counts plus noise on the grid; a secret is for one release and no more."""
    noisy = []
    for part, exact, std in (
        ("matrix", counts.confusion, matrix_std),
        ("histograms", counts.histograms, bin_std),
    ):
        total = torch.tensor(exact, dtype=torch.float64)
        add_noise([total], [normal(secret, streams.private_metrics(part), 0, total)], std, grid(std), 1.0)
        noisy.append(total.numpy())
    return Counts(noisy[0], noisy[1], noisy=True)


# The noisy metrics of a problem's test rows, composed with training.


def plan_metrics(plan: Plan, problem: Problem, epsilon: float, total: float | None) -> Plan:
    """The plan composed with noisy metrics of ``epsilon``, with σ such that both stay within the ``total`` ε, if given.

    Rows without units are split by position, so that one more or fewer row would move others between the parts. So the
    two are composed, also if units are split by identity: parallel composition is not claimed."""
    positive(private_metrics=epsilon)
    if problem.classes is None:
        raise InvalidInputError(f"--private-metrics counts classes, but '{problem.name}' has none: leave it out")
    if total is not None and epsilon >= total:
        raise InvalidInputError(
            f"--private-metrics {epsilon:g} leaves nothing of --epsilon {total:g} for training: give less to the "
            "metrics, or a larger --epsilon"
        )
    noise = _calibrate_counts(epsilon, SHARE * plan.delta, classes=problem.classes, adjacency=plan.neighbours)
    release = ComposedRelease(NAME, noise.event, plan.neighbours, noise.lost, ASSUMPTIONS)
    both = replace(plan, composed=(*plan.composed, release))
    return both if total is None else both.with_epsilon(total)


def find_metrics(plan: Plan) -> ComposedRelease | None:
    """The release of `plan_metrics` in a plan; None if the plan has none."""
    return next((release for release in plan.composed if release.name == NAME), None)


def draw_metrics(problem: Problem, evaluation: Evaluation, release: ComposedRelease, secret: Secret) -> dict[str, Any]:
    """The noisy metrics of an evaluation for `plan_metrics`' release, as plain data: one release, to be made once."""
    if evaluation.probabilities is None or evaluation.labels is None:
        raise InvalidInputError(f"--private-metrics counts classes, but '{problem.name}' has none: leave it out")
    noise = CountNoise(release.event.noise_multiplier, release.lost, release.adjacency)
    units = None if problem.owners is None else problem.owners.test
    counts = add_count_noise(evaluation.probabilities, evaluation.labels, noise, units=units, secret=secret)
    there = evaluation.examples if units is None else len(np.unique(units))
    known = None if release.adjacency == "add-remove" else there  # add-remove hides the number of examples
    found = _describe_counts(counts, noise, problem.classes_by_name, known)
    return found if problem.owners is None else {**found, "weighed": f"each {problem.unit} counts 1, whatever its rows"}


def _describe_counts(counts: Counts, noise: CountNoise, classes: tuple[str, ...], rows: int | None) -> dict[str, Any]:
    """Noisy counts, their noise, and every metric derived from them, as plain data.

    ``rows`` is the number of rows if that is public, or of units if each counts 1. The accuracy is a sum over the
    diagonal, so it has the noise of that many cells."""
    matrix, each_bin = noise_stds(noise.sigma, noise.adjacency, counts.histograms.shape[1])
    metrics = from_counts(counts, rows=rows)
    return {
        "classes": list(classes),
        "figures": metrics.to_json(),
        "accuracy_std": matrix * math.sqrt(len(classes)) / metrics.rows,
        "noisy_confusion": counts.confusion.tolist(),
        "noisy_histograms": counts.histograms.tolist(),
        "noise_std": {"confusion": matrix, "histograms": each_bin},
        "noise_multiplier": noise.sigma,
    }
