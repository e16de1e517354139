"""The likelihood ratio of a run's releases along the canary's direction: with it against without it.

The values are y = c·x + noise, with x the steps in which the canary takes part, c what it adds, and noise s·MZ (M of
the noise's structure). The whitened values are P·y with P = (MMᵀ)⁻¹, which is CᵀC for a square C. A pattern x then has

    ℓ(x) = (c·xᵀPy − ½c²·xᵀPx)/s²,

and what is unknown of x is averaged over, as the sampler draws it:

- each step by its own coin of rate q: Σ_t log(1 − q + q·e^ℓ(t)), for independent noise Σ log(1 − q + q·e^{(x − ½)/σ²});
- once every b steps, in the same place: the logarithm of the mean of e^ℓ over the b places;
- once an epoch in a new place: that logarithm for each epoch by itself, summed;
- in every visit to a fixed group by a coin: the sum over the visits, averaged over the groups.

Under `replace` the canary's opposite takes its place: the ratio is that of c against −c.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from hush import sampling
from hush.errors import Refused
from hush.plan import Plan
from hush.sampling import Participation

Vector = NDArray[np.float64]


def log_ratio(
    plan: Plan, values: Iterable[float], stds: Iterable[float], participation: Participation | None = None
) -> float:
    """How much likelier these values are with the canary; ``stds`` is the noise in each of them, and the participation
    the sampler's own unless another is suspected."""
    seen, noise = np.fromiter(values, dtype=np.float64), np.fromiter(stds, dtype=np.float64)
    rows = plan.noise.structure.noise_map()[: len(seen)]
    scale = float(noise[0] / np.linalg.norm(rows[0]))
    precision: Vector = np.asarray(np.linalg.inv(rows @ rows.T) / scale**2, dtype=np.float64)
    bound = plan.query.channels["gradient"].bound
    part = participation or plan.sampler.participation
    ratio = _mixed(part, bound * (precision @ seen), bound**2 * precision)
    if plan.neighbours == "replace":
        ratio -= _mixed(part, -bound * (precision @ seen), bound**2 * precision)
    return ratio


def _mixed(part: Participation, gains: Vector, costs: Vector) -> float:
    """The logarithm of the mean of e^ℓ over what the sampler may have drawn."""
    steps = len(gains)
    alone = gains - 0.5 * np.diag(costs)
    match part:
        case sampling.PoissonSampled(rate=rate):
            return _coins(alone, rate)
        case sampling.WithoutReplacement(examples=n, size=size):
            return _coins(alone, size / n)
        case sampling.CyclicPoisson(groups=groups, rate=rate):
            return _mean([_coins(alone[group::groups], rate) for group in range(groups)])
        case sampling.OnePass():
            return _mean(list(alone))
        case sampling.SameOrder(per_epoch=b):
            return _mean([_pattern(np.arange(first, steps, b), gains, costs) for first in range(b)])
        case sampling.Reshuffled(per_epoch=b):
            return sum(_mean(list(alone[first : first + b])) for first in range(0, steps, b))
    raise Refused(f"there is no likelihood for {type(part).__name__} batches: audit a plan with other batches")


def _coins(alone: Vector, rate: float) -> float:
    if rate >= 1:
        return float(alone.sum())
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + alone).sum())


def _pattern(taken: NDArray[np.int64], gains: Vector, costs: Vector) -> float:
    return float(gains[taken].sum() - 0.5 * costs[np.ix_(taken, taken)].sum())


def _mean(logs: list[float]) -> float:
    return float(logsumexp(logs)) - math.log(len(logs))
