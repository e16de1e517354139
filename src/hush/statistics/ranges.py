"""Ranges of numeric columns with noise, for encoding them: two rounds of histograms (`hush.statistics.histogram`).

Round 1 counts every column on one public grid: a cell for each octave [2^k, 2^(k+1)) of either sign, k from −30 to 41,
and one for smaller values; larger values are counted in the last cell. The span of a column is from the first to the
last cell whose noisy count is above what noise alone reaches in any cell of any column (with probability 0.99), and
from there outwards as long as the next cell is probably not empty. Round 2 divides every span into equal cells, counts
values outside it in the outermost cells, and trims the cells at both ends that hold at most a small share of the units.
Everything after the counts is post-processing: only the Gaussian of the counts costs privacy, and a bad range costs
only accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtri
from torch import Tensor

from hush.accounting.accountant import Adjacency
from hush.data_release import DataRelease, Values
from hush.data_source import as_source
from hush.errors import InvalidInputError
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

NAME = "the noisy ranges of the columns"
KEY = "ranges"
LOWEST, HIGHEST = -30, 41  # octaves
OCTAVES = HIGHEST - LOWEST + 1
COARSE, FINE = 2 * OCTAVES + 1, 32  # cells
SHARES = (0.6, 0.4)  # of 1/σ² for the two rounds
FALSE_ALARM = 0.01  # probability that an empty cell is taken for the end of some column's span
NEXT = 1.5  # standard deviations that a cell next to the span must have to belong to it
SURE = 2.5  # standard deviations of noise that a sum from an end of a span must have to count as not empty
ALONE = 3.5  # standard deviations of noise that a few cells must have to be significant
LENGTHS = (1, 2, 4)  # of such cells
TAIL = 0.01  # of the units, at either end of a range
LEAST_COVERED = 0.2  # by a range before it is widened
GAP = -0.9e38  # tables mark a missing value by a number below this one
WINDOW = 5  # cells of the span if none is significant


def calibrate_ranges(
    epsilon: float, delta: float, *, columns: int, adjacency: Adjacency = "add-remove"
) -> HistogramNoise:
    """The noise with which the ranges of this number of columns are (ε, δ)-private."""
    return calibrate_histograms(epsilon, delta, columns=columns, cells=COARSE, rounds=len(SHARES), adjacency=adjacency)


def plan_ranges(
    rows: Any,
    columns: Sequence[int],
    noise: HistogramNoise,
    *,
    population: int,
    units: ArrayLike | None = None,
) -> DataRelease:
    """The release before training of the ranges of these columns of ``rows``, as ``limits`` (columns, 2). Rows are a
    tensor, or data as a plan takes them, the features first.

    ``population`` is the public number of units (rows, without ``units``, which gives the unit of every row)."""
    if not columns:
        raise InvalidInputError("every numeric column has a range already: leave --private-ranges out")

    def release(secret: Secret) -> Values:
        found = find_ranges(rows, columns, noise, secret, population=population, units=units)
        return {"limits": torch.tensor(found, dtype=torch.float64)}

    def content() -> Iterator[bytes]:
        yield repr((tuple(columns), population)).encode()
        for chunk in _read_chunks(rows, columns):
            yield chunk.tobytes()

    return plan_histograms(KEY, NAME, noise, release, content, units)


def find_ranges(
    rows: Any,
    columns: Sequence[int],
    noise: HistogramNoise,
    secret: Secret,
    *,
    population: int,
    units: ArrayLike | None = None,
) -> list[tuple[float, float]]:
    """(low, high) of each column, with noise of this secret: one release, to be made once."""
    weights = None if units is None else weigh_units(units)
    first, second = (noise.std(share) for share in SHARES)
    coarse = add_cell_noise(count_octaves(rows, columns, weights), noise, secret, 0, SHARES[0])
    spans = [_find_span(noisy, first, len(columns)) for noisy in coarse]
    fine = add_cell_noise(count_spans(rows, columns, spans, weights), noise, secret, 1, SHARES[1])
    return [_trim_span(noisy, second, population, span) for noisy, span in zip(fine, spans, strict=True)]


def count_octaves(rows: Any, columns: Sequence[int], weights: Numbers | None = None) -> Numbers:
    """Round 1: (columns, cells) on the grid of octaves."""
    return _count(rows, columns, [find_octaves] * len(columns), COARSE, weights)


def count_spans(
    rows: Any, columns: Sequence[int], spans: Sequence[tuple[float, float]], weights: Numbers | None = None
) -> Numbers:
    """Round 2: (columns, cells) on each column's own span."""
    return _count(rows, columns, [partial(_cut_span, span=span) for span in spans], FINE, weights)


def _count(
    rows: Any,
    columns: Sequence[int],
    find_cells: Sequence[Callable[[Numbers], Cells]],
    size: int,
    weights: Numbers | None,
) -> Numbers:
    found, start = np.zeros((len(columns), size)), 0
    for chunk in _read_chunks(rows, columns):
        own = None if weights is None else weights[start : start + len(chunk)]
        for total, values, cells_of in zip(found, chunk.T, find_cells, strict=True):
            total += count_cells(cells_of(values), size, own)
        start += len(chunk)
    if weights is not None and len(weights) != start:
        raise InvalidInputError("the number of units differs from the number of rows: give the unit of every row")
    return found


def find_octaves(values: Numbers) -> Cells:
    """The cell of each value on the grid of octaves, and −1 for what is missing."""
    with np.errstate(invalid="ignore"):
        near = np.clip(values, -(2.0 ** (HIGHEST + 0.5)), 2.0 ** (HIGHEST + 0.5))
    octave = np.frexp(near)[1].astype(np.int64) - 1 - LOWEST  # |x| in [2^k, 2^(k+1)) has the exponent k + 1
    apart = np.where((near == 0) | (octave < 0), 0, octave + 1)
    cells = OCTAVES + np.where(near < 0, -apart, apart)
    return np.where(np.isnan(values), -1, cells).astype(np.int64)


def _cut_span(values: Numbers, span: tuple[float, float], size: int = FINE) -> Cells:
    """The cell of each value, of ``size`` equal cells of a span; the outermost extend to infinity."""
    low, high = span
    place = np.clip(np.nan_to_num(values, nan=low), low, high)
    cells = np.minimum(((place - low) / (high - low) * size).astype(np.int64), size - 1)
    return np.where(np.isnan(values), -1, cells)


def _find_span(noisy: Numbers, std: float, columns: int) -> tuple[float, float]:
    """From the first to the last octave whose count noise alone would not reach, and neighbours that are probably not
    empty."""
    beyond = float(ndtri(1 - FALSE_ALARM / (len(noisy) * columns))) * std
    sure = np.flatnonzero(noisy >= beyond)
    if len(sure):
        first, last = int(sure[0]), int(sure[-1])
    else:
        first = int(np.argmax(np.convolve(noisy, np.ones(WINDOW), "valid")))
        last = first + WINDOW - 1
    first, last = _widen(noisy, std, first, last)
    return _edges(first)[0], _edges(last)[1]


def _trim_span(noisy: Numbers, std: float, population: int, span: tuple[float, float]) -> tuple[float, float]:
    """The span without the cells at either end that together hold at most the share ``TAIL``, as far as noise shows.

    If the noise hides shares below q, the range is widened by 2q of what it covers on that side: cells that are not
    empty were trimmed."""
    skipped, share = _skip(noisy, std, population)
    skipped_above, share_above = _skip(noisy[::-1], std, population)
    if skipped + skipped_above >= len(noisy):
        return _without_zero(span)
    first, last = _widen(noisy, std, skipped, len(noisy) - 1 - skipped_above)
    cell = (span[1] - span[0]) / len(noisy)
    more = 2 * (last + 1 - first) / max(1 - share - share_above, LEAST_COVERED)
    low = max(span[0], span[0] + (first - more * share) * cell)
    high = span[1] if last == len(noisy) - 1 else min(span[1], span[0] + (last + 1 + more * share_above) * cell)
    return _without_zero((low, high))


def _skip(noisy: Numbers, std: float, population: int) -> tuple[int, float]:
    """How many cells from the start hold at most the tail, as far as noise permits; and the smallest share of the units
    that is detectable, beyond the tail's.

    They end where the sum of all cells from the start exceeds both the tail and the noise, or where the sum of a few
    neighbours does, none of which exceeds the noise alone."""
    noise = SURE * std * np.sqrt(np.arange(1, len(noisy) + 1))
    found = [_find_above(np.cumsum(noisy), np.maximum(TAIL * population, noise))]
    alone = max(TAIL * population, ALONE * std)
    for length in LENGTHS:
        sums = np.convolve(np.minimum(noisy, alone), np.ones(length), "valid")
        start, least = _find_above(sums, np.full(len(sums), 0.999 * alone * math.sqrt(length)))
        while start < len(sums) and noisy[start] < NEXT * std:  # a neighbour of a significant cell
            start += 1
        found.append((start, least))
    skipped, least = min(found, key=lambda each: each[0] if math.isfinite(each[1]) else len(noisy))
    return skipped, min(max(0.0, least / population - TAIL), 0.5)


def _find_above(sums: Numbers, least: Numbers) -> tuple[int, float]:
    """The index of the first sum above its bound, and that bound; infinity if there is none."""
    more = np.flatnonzero(sums > least)
    return (int(more[0]), float(least[more[0]])) if len(more) else (0, math.inf)


def _widen(noisy: Numbers, std: float, first: int, last: int) -> tuple[int, int]:
    """Extend the cells to neighbours that are probably not empty."""
    while first > 0 and noisy[first - 1] >= NEXT * std:
        first -= 1
    while last < len(noisy) - 1 and noisy[last + 1] >= NEXT * std:
        last += 1
    return first, last


def _without_zero(limits: tuple[float, float]) -> tuple[float, float]:
    """Replace an end that is the edge of the cell around zero by 0, if the other end is far from it."""
    low, high = limits
    least = math.ldexp(1, LOWEST)
    if low == -least and high > 2 * least:
        return 0.0, high
    return (low, 0.0) if high == least and low < -2 * least else limits


def _edges(cell: int) -> tuple[float, float]:
    """The limits of a cell of the grid of octaves."""
    apart = abs(cell - OCTAVES)
    if apart == 0:
        return -math.ldexp(1, LOWEST), math.ldexp(1, LOWEST)
    near, far = math.ldexp(1, LOWEST + apart - 1), math.ldexp(1, LOWEST + apart)
    return (near, far) if cell > OCTAVES else (-far, -near)


def _read_chunks(rows: Any, columns: Sequence[int]) -> Iterator[Numbers]:
    """The columns of some rows at a time: of a tensor, or of the first part of what a source gives."""
    if isinstance(rows, Tensor):  # unchanged: a source cannot hold missing values
        parts: Iterator[Any] = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    else:
        source = as_source(rows)
        parts = (source.take(torch.arange(s, min(s + CHUNK, len(source)))) for s in range(0, len(source), CHUNK))
    for part in parts:
        features = part if isinstance(part, Tensor) else part[0]
        values = features[:, list(columns)].double().cpu().numpy()
        yield np.where(values <= GAP, np.nan, values)
