"""The price of choosing the best of many private runs: the winner alone costs less than the choice did.

A fixed grid is the plain composition of its runs. Papernot and Steinke 2022 is cheaper: the number of trials is random
and secret (truncated negative binomial of a given mean and shape: 1 geometric, 0 logarithmic; ∞ stands for Poisson),
hyperparameters are drawn anew for each trial, and only the best is released. Every trial needs a secret of its own:
with one secret across a grid, two results subtract to the difference of their gradients without noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event

from hush.errors import BadInput
from hush.privacy.accounting import Adjacency, default_accountant, epsilon
from hush.privacy.guarantee import Guarantee
from hush.validate import whole


@dataclass(frozen=True)
class Price:
    """The ε of the winning run by itself, as papers print it, and the ε of everything done to find it."""

    winner: Guarantee
    selection: Guarantee


def fixed_grid(run: Any, runs: int) -> Any:
    """The event of running a fixed grid of ``runs`` settings and looking at all of them."""
    whole(runs=runs)
    return dp_event.SelfComposedDpEvent(run, runs)


def random_trials(run: Any, mean: float, shape: float = 1.0) -> Any:
    """The event of releasing the best of a random, secret number of trials with this mean and shape."""
    if not (math.isfinite(mean) and mean >= 1):
        raise BadInput(f"mean must be a finite number of trials of at least 1, got {mean}")
    if math.isnan(shape) or shape < 0:
        raise BadInput(f"shape must be zero or above (inf: Poisson), got {shape}")
    return dp_event.RepeatAndSelectDpEvent(run, float(mean), float(shape))


def price(
    run: Any, selection: Any, delta: float, *, adjacency: Adjacency = "add-remove", unit: str = "example"
) -> Price:
    """Both guarantees, each by the tightest accountant that can prove it."""

    def guarantee(event: Any, assumptions: tuple[str, ...]) -> Guarantee:
        accountant = default_accountant(event, adjacency)
        spent = epsilon(event, delta, adjacency=adjacency, accountant=accountant)
        return Guarantee(spent, delta, adjacency, unit, "proven", event, accountant, assumptions)

    alone = "the run was not chosen by looking at the data through other runs"
    secrets = "every trial had a secret of its own"
    return Price(guarantee(run, (alone,)), guarantee(selection, (secrets,)))
