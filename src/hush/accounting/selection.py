"""The privacy cost of selecting the best of many private runs, which is more than the cost of the winner alone.

A fixed grid costs the plain composition of its runs. Papernot and Steinke 2022 is cheaper: the number of trials is
random and secret (truncated negative binomial with a given mean and shape: 1 is geometric, 0 logarithmic, ∞ Poisson),
every trial draws its hyperparameters independently, and only the best is released. Every trial needs its own secret:
with one secret across a grid, the difference of two results is the difference of their gradients without noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event

from hush._internal.validate import positive, positive_int
from hush.accounting.accountant import Accountant, Adjacency, default_accountant, epsilon
from hush.accounting.accountant import delta as delta_of
from hush.accounting.events import FinitePrecisionDpEvent
from hush.accounting.guarantee import Guarantee
from hush.accounting.noise_tails import SHARE
from hush.errors import HushError, InvalidInputError

INDEPENDENT = (
    "each trial drew its own settings and secret; the number of trials, the losing ones and the search's time stay "
    "private"
)


@dataclass(frozen=True)
class SelectionCost:
    """The ε of the winning run by itself, as papers print it, and the ε of everything done to find it."""

    winner: Guarantee
    selection: Guarantee


@dataclass(frozen=True)
class Trials:
    """A random, secret number of trials of which only the best is released, with this mean and shape.

    What a trial loses of δ beyond its event (an accident of probability p in which it is another mechanism) happens in
    some trial with a probability of at most mean · p, on either of two neighbours; so it costs (1 + e^ε) · mean · p,
    counted for every ε up to ``ceiling``, and the search by itself has no guarantee of more than that.

    Composed with other releases it may be asked about a larger ε, for which this is enough too. Let accidents have
    probability p on both neighbours, and trials without one diverge by no more than their event. That no trial has one
    has the same probability 1 − τ on both, τ = 1 − E[(1 − p)^K] ≤ mean · p, and given that, trials are independent and
    K has a distribution of the same family and shape with a smaller mean, whose price is lower. So P ≤ τ + (1 − τ)P₀
    for the one, (1 − τ)P₀' ≤ P' for the other, and τ is lost once, at every ε and in every composition."""

    mean: float
    shape: float = 1.0
    ceiling: float = 10.0

    def __post_init__(self) -> None:
        _check_trials(self.mean, self.shape)
        positive(ceiling=self.ceiling)
        gamma = 1.0 if self.shape == math.inf else _find_gamma(self.mean, self.shape)
        if (self.mean if self.shape == math.inf else -self.shape * math.log(gamma)) > LARGEST_EXPONENT:
            raise InvalidInputError(
                f"a number of trials of mean {self.mean:g} and shape {self.shape:g} cannot be drawn in floating point: "
                "give a smaller mean or shape"
            )

    def event(self, run: Any) -> Any:
        """The event of the whole selection, of runs that each cost this at most."""
        return random_trials(run, self.mean, self.shape)

    @property
    def loss_factor(self) -> float:
        """The largest multiple of one trial's lost δ that the selection loses."""
        return self.mean * (1.0 + math.exp(min(self.ceiling, 500.0)))

    def imprecise(self, each: FinitePrecisionDpEvent) -> FinitePrecisionDpEvent:
        """The finite precision of all trials together, where that of one is ``each``.

        Given their number K, log-ratios and δ₂ add up. There are more than ``most`` trials with a probability of 1e-12
        (2e-12 with the rounding of the sum), and the mean of K·δ₂ is the mean of K times δ₂."""
        most = self.count(1 - 1e-12) * each.log_ratio
        return FinitePrecisionDpEvent(most, math.exp(most) * self.mean * each.delta + 2e-12)

    def declared(self, scope: Any) -> dict[str, float]:
        """Its fields."""
        return {"mean": self.mean, "shape": self.shape, "ceiling": self.ceiling}

    def count(self, uniform: float) -> int:
        """The number of trials that belongs to a uniform random number in [0, 1), by the inverse of its distribution:
        truncated negative binomial (at least one), or Poisson (perhaps none)."""
        number, chance = _first_chance(self.mean, self.shape)
        gamma = 0.0 if self.shape == math.inf else _find_gamma(self.mean, self.shape)
        below = chance
        while uniform >= below and number < MOST_TRIALS:
            if self.shape == math.inf:
                chance *= self.mean / (number + 1)
            else:
                chance *= (1.0 - gamma) * (number + self.shape) / (number + 1)
            number, below = number + 1, below + chance
        return number


MOST_TRIALS = 10**6
LARGEST_EXPONENT = 700.0  # the smallest number has a probability of about e to minus this, which must not be zero


def _find_gamma(mean: float, shape: float) -> float:
    """γ of the truncated negative binomial distribution of this mean: η(1 − γ)/(γ(1 − γ^η)), for η = 0 its limit
    (1/γ − 1)/ln(1/γ), by bisection. Papernot and Steinke 2022, definition 1."""
    if mean <= 1.0:
        return 1.0
    low, high = -745.0, 0.0  # of ln γ
    for _ in range(200):
        middle = (low + high) / 2
        gamma = math.exp(middle)
        norm = -middle if shape == 0 else -math.expm1(shape * middle) / shape
        low, high = (middle, high) if (1.0 - gamma) / (gamma * norm) > mean else (low, middle)
    return math.exp(high)


def _first_chance(mean: float, shape: float) -> tuple[int, float]:
    """The smallest number of trials, and its probability."""
    if shape == math.inf:
        return 0, math.exp(-mean)
    gamma = _find_gamma(mean, shape)
    if gamma == 1.0:
        return 1, 1.0
    norm = -math.log(gamma) if shape == 0 else math.expm1(-shape * math.log(gamma)) / shape
    return 1, (1.0 - gamma) / norm


def _check_trials(mean: float, shape: float) -> None:
    if not (math.isfinite(mean) and mean >= 1):
        raise InvalidInputError(f"mean must be a finite number of trials of at least 1, got {mean}")
    if math.isnan(shape) or shape < 0:
        raise InvalidInputError(f"shape must be zero or above (inf: Poisson), got {shape}")


def fixed_grid(run: Any, runs: int) -> Any:
    """The event of running a fixed grid of ``runs`` settings and looking at all of them."""
    positive_int(runs=runs)
    return dp_event.SelfComposedDpEvent(run, runs)


def random_trials(run: Any, mean: float, shape: float = 1.0) -> Any:
    """The event of releasing the best of a random, secret number of trials with this mean and shape."""
    _check_trials(mean, shape)
    return dp_event.RepeatAndSelectDpEvent(run, float(mean), float(shape))


def price(
    run: Any, selection: Any, delta: float, *, adjacency: Adjacency = "add-remove", unit: str = "example"
) -> SelectionCost:
    """Both guarantees, each by the tightest accountant that can prove it."""

    def guarantee(event: Any, assumptions: tuple[str, ...]) -> Guarantee:
        accountant = default_accountant(event, adjacency)
        spent = epsilon(event, delta, adjacency=adjacency, accountant=accountant)
        return Guarantee(spent, delta, adjacency, unit, "proven", event, accountant, assumptions)

    alone = "the run was not chosen by looking at the data through other runs"
    secrets = "every trial had a secret of its own"
    return SelectionCost(guarantee(run, (alone,)), guarantee(selection, (secrets,)))


def find_lost_delta(
    run: Any, spent: float, delta: float, *, adjacency: Adjacency, accountant: Accountant | None = None
) -> float:
    """At most this much of δ is not in the event of a run whose (ε, δ) alone is on record.

    Batches that do not fit and the end of the noise's tails take their part of δ before the event is accounted. It is
    δ less what the event has left of it at the run's ε, and the share that tails may take where they were counted for
    that ε alone; all of δ where the event cannot be accounted.
    """
    try:
        left = delta_of(run, spent, adjacency=adjacency, accountant=accountant or default_accountant(run, adjacency))
    except HushError:
        return delta
    return max(0.0, delta - left) + SHARE * delta
