"""The likelihood ratio of a run's releases along the canary's direction: with it against without it.

The values are y = c·x + noise, with x the steps in which the canary takes part, c what it adds, and noise s·MZ (M of
the noise's structure). The whitened values are P·y with P = (MMᵀ)⁻¹, which is CᵀC for a square C. A pattern x then has

    ℓ(x) = (c·xᵀPy − ½c²·xᵀPx)/s²,

summed over all numbers that the canary moves at the same steps (`Observation`), each with its own c and s; and what is
unknown of x is averaged over, as the sampler draws it:

- each step by its own coin of rate q: Σ_t log(1 − q + q·e^ℓ(t)), for independent noise Σ log(1 − q + q·e^{(x − ½)/σ²});
- once every b steps, in the same place: the logarithm of the mean of e^ℓ over the b places;
- once an epoch in a new place: that logarithm for each epoch by itself, summed;
- in every visit to a fixed group by a coin: the sum over the visits, averaged over the groups.

Under `replace` the canary's opposite takes its place: the ratio is that of c against −c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from hush import sampling
from hush.errors import NotProvenError
from hush.plan import Plan
from hush.sampling import Participation

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observation:
    """One released number of every step: its values, the noise in each of them, and what the canary adds to it where it
    takes part."""

    values: Vector
    stds: Vector
    adds: float


def log_ratio(plan: Plan, readings: Sequence[Observation], participation: Participation | None = None) -> float:
    """How much likelier these readings are with the canary; the participation is the sampler's own unless another is
    suspected."""
    steps = len(readings[0].values)
    rows = plan.noise.structure.noise_map()[:steps]
    whitened: Vector = np.asarray(np.linalg.inv(rows @ rows.T), dtype=np.float64)
    gains, costs = np.zeros(steps), np.zeros((steps, steps))
    for reading in readings:
        precision = whitened * float(np.linalg.norm(rows[0]) / reading.stds[0]) ** 2
        gains += reading.adds * (precision @ reading.values)
        costs += reading.adds**2 * precision
    part = participation or plan.sampler.participation
    ratio = _mixed(part, gains, costs)
    return ratio - _mixed(part, -gains, costs) if plan.neighbours == "replace" else ratio


def _mixed(part: Participation, gains: Vector, costs: Vector) -> float:
    """The logarithm of the mean of e^ℓ over what the sampler may have drawn."""
    steps = len(gains)
    alone = gains - 0.5 * np.diag(costs)
    match part:
        case sampling.PoissonSampled(rate=rate):
            return _coins(alone, rate)
        case sampling.WithoutReplacement(examples=n, size=size):
            return _coins(alone, size / n)
        case sampling.CyclicPoissonSampled(groups=groups, rate=rate):
            return _mean([_coins(alone[group::groups], rate) for group in range(groups)])
        case sampling.OnePass():
            return _mean(list(alone))
        case sampling.SameOrder(per_epoch=b):
            return _mean([_pattern(np.arange(first, steps, b), gains, costs) for first in range(b)])
        case sampling.Reshuffled(per_epoch=b):
            return sum(_mean(list(alone[first : first + b])) for first in range(0, steps, b))
    raise NotProvenError(f"there is no likelihood for {type(part).__name__} batches: audit a plan with other batches")


def _coins(alone: Vector, rate: float) -> float:
    if rate >= 1:
        return float(alone.sum())
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + alone).sum())


def _pattern(taken: NDArray[np.int64], gains: Vector, costs: Vector) -> float:
    return float(gains[taken].sum() - 0.5 * costs[np.ix_(taken, taken)].sum())


def _mean(logs: list[float]) -> float:
    return float(logsumexp(logs)) - math.log(len(logs))
