"""The smallest noise, or the largest number of steps, that stays within (ε, δ); always on the safe side.

The accountant checks the returned value: its ε is at most the target. The search for σ is regula falsi on ln ε against
ln σ, which is nearly linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hush._internal.validate import positive, probability
from hush.accounting.accountant import Accountant, Adjacency
from hush.accounting.accountant import epsilon as epsilon_of
from hush.errors import InvalidInputError, NotProvenError

TOLERANCE = 1e-5  # relative: how closely the smallest σ is found
MARGIN = 2.8e-4  # relative, added to σ for the grid of the accountant that checks it; published tables made on the
# common grid of 1e-4 are then reproduced to the last digit
SMALLEST, LARGEST = 1e-4, 1e9  # of σ
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-100, 1e4
MOST_STEPS = 10**9


def smallest_sigma(
    event_of: Callable[[float], Any],
    epsilon: float,
    delta: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "pld",
) -> float:
    """The smallest σ for which ``event_of(σ)`` is proven (ε, δ)-private: at most 0.1 % above it, and never below.

    ``event_of`` must cost less for a larger σ. Raises `NotProvenError` if no σ is enough or hardly any noise is needed.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise InvalidInputError(
            f"noise is calibrated for an epsilon between {SMALLEST_EPSILON:g} and {LARGEST_EPSILON:g}, got {epsilon:g}"
        )

    def cost(sigma: float) -> float:
        return epsilon_of(event_of(sigma), delta, adjacency=adjacency, accountant=accountant)

    bracket = _bracket(cost, epsilon, delta)
    sigma = _narrow(cost, epsilon, *bracket) * (1 + MARGIN)
    for _ in range(3):
        if cost(sigma) <= epsilon:
            return sigma
        sigma *= 1 + MARGIN / 2  # only if the accountant's ε is not monotone to the last digit
    raise NotProvenError(
        f"the ε of these events does not fall steadily with σ near {sigma:.4g}: σ cannot be calibrated"
    )


def largest_steps(
    event_of_steps: Callable[[int], Any],
    epsilon: float,
    delta: float,
    *,
    adjacency: Adjacency = "add-remove",
    accountant: Accountant = "pld",
) -> int:
    """The largest T for which ``event_of_steps(T)`` is proven (ε, δ)-private; raises if there is none.

    ``event_of_steps`` must not cost less for a larger T.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)

    def cost(steps: int) -> float:
        return epsilon_of(event_of_steps(steps), delta, adjacency=adjacency, accountant=accountant)

    low, high, at_low, at_high = 1, 1, cost(1), math.nan
    if at_low > epsilon:
        raise NotProvenError(f"not even one step stays within ε = {epsilon:g} at δ = {delta:g}: more noise is needed")
    while not at_high > epsilon:
        low, at_low = high, (at_low if math.isnan(at_high) else at_high)
        high, at_high = 4 * high, cost(4 * high)
        if high > MOST_STEPS:
            raise NotProvenError(
                f"more than {MOST_STEPS} steps stay within ε = {epsilon:g} at δ = {delta:g}: choose any number"
            )
    return _narrow_steps(cost, epsilon, low, at_low, high, at_high)


def _narrow_steps(
    cost: Callable[[int], float], target: float, low: int, at_low: float, high: int, at_high: float
) -> int:
    """The largest whole number that fits, between low (which does) and high (which does not)."""
    under, over, side = _log(at_low, target), _log(at_high, target), 0
    while high - low > 1:
        guess = round(low * (high / low) ** min(max(under / (under - over), 0.02), 0.98))
        guess = min(max(guess, low + 1), high - 1)
        found = cost(guess)
        if found <= target:
            low, under = guess, _log(found, target)
            over, side = (over / 2 if side < 0 else over), -1
        else:
            high, over = guess, _log(found, target)
            under, side = (under / 2 if side > 0 else under), 1
    return low


def _bracket(cost: Callable[[float], float], target: float, delta: float) -> tuple[float, float, float, float]:
    """(low, cost(low), high, cost(high)) with cost(low) > target ≥ cost(high), four apart."""
    sigma, found = 1.0, cost(1.0)
    factor = 4.0 if found > target else 0.25
    while SMALLEST <= sigma <= LARGEST:
        before, last = sigma, found
        sigma, found = sigma * factor, cost(sigma * factor)
        if factor > 1 and found <= target:
            return before, last, sigma, found
        if factor < 1 and found > target:
            return sigma, found, before, last
    if factor > 1:
        raise NotProvenError(
            f"no noise reaches ε = {target:g} at δ = {delta:g}: at σ = {sigma:.3g} it is still {found:.4g}; "
            "a part of the event does not depend on σ"
        )
    raise NotProvenError(f"ε = {target:g} at δ = {delta:g} needs hardly any noise: it holds even at σ = {sigma:.3g}")


def _narrow(
    cost: Callable[[float], float], target: float, low: float, at_low: float, high: float, at_high: float
) -> float:
    """Shrinks [low, high], with cost(low) > target ≥ cost(high), to the tolerance; the upper end."""
    over, under, side = _log(at_low, target), _log(at_high, target), 0
    while high > low * (1 + TOLERANCE):
        share = min(max(over / (over - under), 0.02), 0.98)  # where the straight line crosses
        aim = 0.4 * TOLERANCE * (-side if side else 1)  # slightly beyond it, so that the far end moves too
        guess = low * math.exp(math.log(high / low) * share + aim)
        if not low < guess < high:
            guess = math.sqrt(low * high)
        found = cost(guess)
        if found > target:
            low, over = guess, _log(found, target)
            under, side = (under / 2 if side < 0 else under), -1  # Illinois: an end that stays gets less weight
        else:
            high, under = guess, _log(found, target)
            over, side = (over / 2 if side > 0 else over), 1
    return high


def _log(value: float, target: float) -> float:
    """ln(value/target), bounded so that interpolation works if value is 0 or infinite."""
    return math.log(min(max(value, target * 1e-6), target * 1e6) / target) or -1e-12
