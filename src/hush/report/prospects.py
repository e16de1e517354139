"""What a private run would be up against, before any data is touched: noise over ε × batch size × epochs, and time.

In units of the clip c, the mean gradient of a batch is at most 1 long, which is its signal; the noise on it has
standard deviation σ·sens/L in every weight, and so the length σ·sens·√d/L with d weights. What one step cannot see the
steps together can: added up over the run the signal is at most T long, and the noise is, root mean square over steps,
σ·sens·rmse(A C⁻¹)/L in a weight, with A the prefix sums (rmse is √((T + 1)/2) for independent noise).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hush.bench.accounts import Accounts
from hush.bench.timing import one_thread, time_steps
from hush.errors import BadInput, HushError
from hush.files import find_cache
from hush.methods import Setting, make_plan
from hush.methods.auto import MARGIN
from hush.plan import Plan
from hush.problems import Problem
from hush.randomness import seeded

CORRELATED = "dp-blt"  # of the methods that need no sampling, the one that is quickly made for any number of steps
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the curve that compares the two
NEAR = 1.1  # noise within a tenth of the least counts as no more
ENOUGH = 100  # steps without which a model has hardly moved
REPORT = 10  # rows between two reports of progress
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Prospect:
    """One (ε, batch size, epochs): its plan, and the noise in a weight in units of the clip."""

    epsilon: float
    epochs: float
    plan: Plan
    weights: int | None = None  # of the model, where it is known
    minutes: float | None = None

    @property
    def batch_size(self) -> int:
        """Examples a step, in expectation."""
        return int(self.plan.divisor)

    @property
    def spread(self) -> float:
        """√d where the number of weights is known; else one weight stands for itself."""
        return math.sqrt(self.weights or 1)

    @property
    def step_noise(self) -> float:
        """Noise on the mean gradient of a batch, in clips: its length, or in one weight where d is not known."""
        return self.plan.noise_std * self.spread / self.plan.divisor

    @property
    def run_noise(self) -> float:
        """The same over the run: noise that has added up, as a share of the most that the signal can add up to."""
        return self.step_noise * self.plan.noise.structure.rmse() / self.plan.steps


def look_ahead(
    method: str,
    setting: Setting,
    grid: Iterable[tuple[float, int, float]],
    tell: Tell = lambda text: None,
    **chosen: Any,
) -> Iterator[Prospect]:
    """A prospect for every (ε, batch size, epochs) that the method can do; refused only where it can do none."""
    accounts, refusal, found = Accounts(find_cache() / "accounts"), None, False
    rows = list(grid)
    for number, (epsilon, batch, epochs) in enumerate(rows):
        if number % REPORT == 0:
            tell(f"row {number + 1} of {len(rows)}")
        try:
            at = replace(setting, epsilon=epsilon, batch_size=batch, epochs=epochs)
            plan = make_plan(method, at, calibrate=False, **chosen)
            if not plan.private:
                raise BadInput(f"method '{method}' adds no noise: there is nothing to plan")
            yield Prospect(epsilon, epochs, accounts.calibrated(plan, epsilon))
            found = True
        except HushError as error:
            refusal = error
    if not found and refusal is not None:
        raise refusal


def count_weights(problem: Problem) -> int:
    """How many numbers of the problem's model are trained."""
    with seeded(0):
        return sum(p.numel() for p in problem.model().parameters() if p.requires_grad)


def with_minutes(prospects: Sequence[Prospect], problem: Problem, short: Callable[[int], Plan]) -> list[Prospect]:
    """The prospects with minutes on one core, from a few steps of ``short`` plans at the smallest and largest batch."""
    sizes = sorted({p.batch_size for p in prospects})
    with one_thread():
        small, large = (time_steps(short(size), problem) for size in (sizes[0], sizes[-1]))
    growth = max(0.0, large.step - small.step) / max(1, sizes[-1] - sizes[0])

    def minutes(prospect: Prospect) -> float:
        step = small.step + growth * (prospect.batch_size - sizes[0])
        return (small.first + prospect.plan.steps * step) / 60

    return [replace(p, minutes=minutes(p)) for p in prospects]


def choose(prospects: Sequence[Prospect], epsilon: float) -> Prospect:
    """The recommended one at ε. Of those with at least ``ENOUGH`` steps (of all, where none has as many), those within
    a tenth of the least noise over the run; of these the fewest epochs, which cost time, and then the most steps."""
    same = [p for p in prospects if p.epsilon == epsilon]
    long = [p for p in same if p.plan.steps >= ENOUGH]
    least = min(p.run_noise for p in long or same)
    near = [p for p in long or same if p.run_noise <= NEAR * least]
    return min(near, key=lambda p: (p.epochs if long else 0, -p.plan.steps))


@dataclass(frozen=True)
class Outlook:
    """What changing one thing at the recommended row buys: run noise as it is, and after the change."""

    chosen: Prospect
    double_batch: Prospect | None  # None where the data have no room for it
    double_epsilon: Prospect
    curve: tuple[tuple[float, float, float], ...]  # (ε, run noise of the method, run noise of correlated noise)

    @property
    def crossing(self) -> float | None:
        """The smallest ε of the curve from which on correlated noise wins by the margin; None where it never does."""
        wins = [MARGIN * correlated < own for _, own, correlated in self.curve]
        first = next((i for i in range(len(wins)) if all(wins[i:])), None)
        return None if first is None else self.curve[first][0]


def look_around(
    method: str,
    setting: Setting,
    chosen: Prospect,
    tell: Tell = lambda text: None,
    *,
    charge: Callable[[Prospect], Prospect] = lambda prospect: prospect,
    **options: Any,
) -> Outlook:
    """The recommended row beside its neighbours, and beside correlated noise over ε; ``charge`` gives each the noise
    that it has where something else is released within the same ε."""

    def at(epsilon: float, batch: int, name: str = method) -> Prospect:
        grid, given = [(epsilon, batch, chosen.epochs)], options if name == method else {}
        return charge(replace(next(look_ahead(name, setting, grid, **given)), weights=chosen.weights))

    tell("beside the recommended row")
    batch, wide = chosen.batch_size, 2 * chosen.batch_size <= setting.examples
    curve = tuple(
        (epsilon, at(epsilon, batch).run_noise, at(epsilon, batch, CORRELATED).run_noise) for epsilon in EPSILONS
    )
    double = at(chosen.epsilon, 2 * batch) if wide else None
    return Outlook(chosen, double, at(2 * chosen.epsilon, batch), curve)
