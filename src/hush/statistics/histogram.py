"""Noisy histograms of several columns at once: how often the values of each column fall into each public cell.

**Sensitivity.** A row adds to each of K columns one count in the cell that its value falls into, or nothing where the
value is missing. Its vector v over all cells of all columns is zero or above, and has at most K entries of 1, so
‖v‖ ≤ √K. Where a unit has m rows, each has the weight 1/m: the unit's vector is a mean of such v, so its norm is at
most √K by convexity, and its entries are zero or above. The sum over units then moves, in the L2 norm,

- by ‖v‖ ≤ √K when a unit is added, removed or zeroed (add-remove, zero-out);
- by ‖v − v'‖ = √(‖v‖² + ‖v'‖² − 2⟨v, v'⟩) ≤ √(2K) when it is replaced, as ⟨v, v'⟩ ≥ 0; two rows that share no cell
  attain it.

With Δ = √K or √(2K) and noise of standard deviation σ·Δ in every cell, the release is Gaussian(σ) under its adjacency:
events are written for the sensitivity of the adjacency that they are accounted under.

**Rounds.** Cells may be chosen by what was released before: any function from a value to one cell (or none) has this
sensitivity. Rounds r with noise σ_r, fixed beforehand, compose adaptively to μ² = Σ 1/σ_r² (Dong, Roth and Su 2022,
corollary 3.3), the trade-off of one Gaussian(σ) with 1/σ² = Σ 1/σ_r². Round r takes a public share s_r of 1/σ²,
Σ s_r = 1, and so has σ_r = σ/√s_r.

**Arithmetic.** Weights are rounded down to multiples of 2⁻²⁴, so a unit's weights add up to at most 1, and sums of
them over up to 2²⁸ units are exact in float64: no rounding depends on other rows, and no order does. Noisy counts are
rounded to the public grid of their noise (`hush.noise.base`). What the noise's end costs in δ is charged for all rounds
(`hush.accounting.noise_tails`), at any ε, so that the event may be composed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from dp_accounting import dp_event
from numpy.typing import ArrayLike, NDArray

from hush._internal.validate import choice, positive, positive_int, probability
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.calibration import smallest_sigma
from hush.accounting.events import DpEvent
from hush.accounting.guarantee import PRECISE
from hush.accounting.noise_tails import Tails, check_std, grid
from hush.data_release import ComposedRelease, DataRelease, Values
from hush.errors import InvalidInputError
from hush.noise.base import add_noise
from hush.randomness import Secret, normal, streams

PER_COLUMN: Mapping[Adjacency, float] = {"add-remove": 1.0, "zero-out": 1.0, "replace": 2.0}  # of Δ²
ROUNDED = 1 + 2.0**-40  # more than the products of the standard deviations can lose
FINEST = 2.0**-24  # of a weight
MOST_UNITS = 2**28
CHUNK = 1 << 20  # rows at a time

Cells = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class HistogramNoise:
    """The noise of the cells: σ of the event of all rounds together, over this number of columns; and the part of δ
    that the event does not include, at any ε."""

    sigma: float
    lost: float
    adjacency: Adjacency
    columns: int

    @property
    def event(self) -> DpEvent:
        """One Gaussian."""
        return dp_event.GaussianDpEvent(self.sigma)

    @property
    def sensitivity(self) -> float:
        """Δ: how far one unit moves all cells together."""
        return math.sqrt(PER_COLUMN[self.adjacency] * self.columns)

    def std(self, share: float = 1.0) -> float:
        """The noise in a cell, in a round that takes a share of 1/σ²."""
        found = self.sigma * self.sensitivity / math.sqrt(share) * ROUNDED
        check_std(found)
        return found


def calibrate_histograms(
    epsilon: float, delta: float, *, columns: int, cells: int, rounds: int = 1, adjacency: Adjacency = "add-remove"
) -> HistogramNoise:
    """The smallest noise with which this number of rounds of at most ``cells`` cells per column are (ε, δ)-private
    together; it does not depend on rows."""
    positive_int(columns=columns, cells=cells, rounds=rounds)
    sigma, lost = calibrate_cells(epsilon, delta, cells=columns * cells, rounds=rounds, adjacency=adjacency)
    return HistogramNoise(sigma, lost, adjacency, columns)


def calibrate_cells(
    epsilon: float, delta: float, *, cells: int, rounds: int = 1, adjacency: Adjacency
) -> tuple[float, float]:
    """The smallest σ of one Gaussian over this number of cells for (ε, δ), and the part of δ that its truncated tails
    take: at any ε, so that it may be composed, and in each round as if the round took all of it."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    choice(ADJACENCIES, adjacency=adjacency)

    def smallest(left: float) -> float:
        return smallest_sigma(dp_event.GaussianDpEvent, epsilon, left, adjacency=adjacency, accountant="gdp")

    lost = Tails(cells, rounds, 1 / smallest(delta)).check(delta)
    return smallest(delta - lost), lost  # more noise, whose tails take less


def weigh_units(units: ArrayLike) -> Numbers:
    """1/m for each row of a unit with m rows, rounded down so that sums of them are exact."""
    _, whose, rows = np.unique(np.asarray(units), return_inverse=True, return_counts=True)
    if len(rows) > MOST_UNITS:
        raise InvalidInputError(f"more than {MOST_UNITS} units cannot be counted exactly: take a random part of them")
    return np.asarray(np.floor(1 / (rows * FINEST))[whose.reshape(-1)] * FINEST, dtype=np.float64)


def count_cells(cells: Cells, size: int, weights: Numbers | None = None) -> Numbers:
    """The weight in each of ``size`` cells; a cell of −1 is ignored."""
    if weights is not None and len(weights) != len(cells):
        raise InvalidInputError("the number of units differs from the number of rows: give the unit of every row")
    counted = cells >= 0
    if not counted.all():
        cells, weights = cells[counted], None if weights is None else weights[counted]
    if len(cells) and int(cells.max()) >= size:
        raise InvalidInputError(f"a cell has the number {int(cells.max())}, and there are {size}")
    return np.bincount(cells, weights, size).astype(np.float64)


def add_cell_noise(counts: Numbers, noise: HistogramNoise, secret: Secret, step: int, share: float = 1.0) -> Numbers:
    """Counts (columns, cells) plus noise on the grid: round ``step``, which takes this share of 1/σ². A secret's step
    is for one release and no more."""
    if len(counts) != noise.columns:
        raise InvalidInputError(f"the noise is for {noise.columns} columns, and {len(counts)} are counted")
    total, std = torch.tensor(counts, dtype=torch.float64), noise.std(share)
    add_noise([total], [normal(secret, streams.HISTOGRAMS, step, total)], std, grid(std), 1.0)
    return np.asarray(total.numpy())


def plan_histograms(
    key: str,
    name: str,
    noise: HistogramNoise,
    draw: Callable[[Secret], Values],
    content: Callable[[], Iterator[bytes]],
    units: ArrayLike | None,
) -> DataRelease:
    """The release before training of what ``draw`` computes from noisy histograms; ``content`` and the units of the
    rows are what the release depends on."""

    def digested() -> Iterator[bytes]:
        yield from content()
        if units is not None:
            yield weigh_units(units).tobytes()

    composed = ComposedRelease(name, noise.event, noise.adjacency, noise.lost, (PRECISE,))
    return DataRelease(key, composed, draw, digested, units is not None)
