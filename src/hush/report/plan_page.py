"""The page of `hush plan --out`: the effect of batch size, epochs and ε. A figure is a function in `FIGURES` below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hush._internal.storage import find_cache
from hush.bench.timing import one_thread, time_steps
from hush.bench.trial import Accounts
from hush.datasets.problem import Problem
from hush.errors import HushError, InvalidInputError
from hush.methods import PlanConfig, make_plan
from hush.methods.auto import MARGIN
from hush.plan import Plan
from hush.randomness import seeded
from hush.report.page import Chart, DownloadTable, Page, Section, TableCell, TableRow, compare_lines, render_report
from hush.report.svg import Axis, Dot, Series, draw_lines

# What a private run would be up against, before any data is touched: noise over ε × batch size × epochs, and time.
#
# In units of the clip c, the mean gradient of a batch is at most 1 long, which is its signal; the noise on it has
# standard deviation σ·sens/L in every weight, and so the length σ·sens·√d/L with d weights. What one step cannot see
# the steps together can: added up over the run the signal is at most T long, and the noise is, root mean square over
# steps, σ·sens·rmse(A C⁻¹)/L in a weight, with A the prefix sums (rmse is √((T + 1)/2) for independent noise).

CORRELATED = "dp-blt"  # of the methods that need no sampling, the one that is quickly made for any number of steps
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the curve that compares the two
NEAR = 1.1  # noise within a tenth of the least counts as no more
ENOUGH = 100  # steps without which a model has hardly moved
REPORT = 10  # rows between two reports of progress
Notify = Callable[[str], None]


@dataclass(frozen=True)
class PlanRow:
    """One (ε, batch size, epochs): its plan, and the noise in a weight in units of the clip."""

    epsilon: float
    epochs: float
    plan: Plan
    weights: int | None = None  # number of weights of the model, if known
    minutes: float | None = None

    @property
    def batch_size(self) -> int:
        """Examples a step, in expectation."""
        return int(self.plan.divisor)

    @property
    def spread(self) -> float:
        """√d if the number of weights is known, else 1."""
        return math.sqrt(self.weights or 1)

    @property
    def step_noise(self) -> float:
        """Noise on the mean gradient of a batch in units of the clip: its length, or in one weight if d is unknown."""
        return self.plan.noise_std * self.spread / self.plan.divisor

    @property
    def run_noise(self) -> float:
        """The same over the run: noise that has added up, as a share of the most that the signal can add up to."""
        return self.step_noise * self.plan.noise.structure.rmse() / self.plan.steps


def plan_grid(
    method: str,
    setting: PlanConfig,
    grid: Iterable[tuple[float, int, float]],
    notify: Notify = lambda text: None,
    **chosen: Any,
) -> Iterator[PlanRow]:
    """A row for every (ε, batch size, epochs) that the method supports; raises if it supports none."""
    accounts, refusal, found = Accounts(find_cache() / "accounts"), None, False
    rows = list(grid)
    for number, (epsilon, batch, epochs) in enumerate(rows):
        if number % REPORT == 0:
            notify(f"row {number + 1} of {len(rows)}")
        try:
            at = replace(setting, epsilon=epsilon, batch_size=batch, epochs=epochs)
            plan = make_plan(method, at, calibrate=False, **chosen)
            if not plan.has_guarantee:
                raise InvalidInputError(f"method '{method}' adds no noise: there is nothing to plan")
            yield PlanRow(epsilon, epochs, accounts.calibrated(plan, epsilon))
            found = True
        except HushError as error:
            refusal = error
    if not found and refusal is not None:
        raise refusal


def count_weights(problem: Problem) -> int:
    """How many numbers of the problem's model are trained."""
    with seeded(0):
        return sum(p.numel() for p in problem.model().parameters() if p.requires_grad)


def with_minutes(prospects: Sequence[PlanRow], problem: Problem, short: Callable[[int], Plan]) -> list[PlanRow]:
    """The prospects with minutes on one core, from a few steps of ``short`` plans at the smallest and largest batch."""
    sizes = sorted({p.batch_size for p in prospects})
    with one_thread():
        small, large = (time_steps(short(size), problem) for size in (sizes[0], sizes[-1]))
    growth = max(0.0, large.step - small.step) / max(1, sizes[-1] - sizes[0])

    def minutes(prospect: PlanRow) -> float:
        step = small.step + growth * (prospect.batch_size - sizes[0])
        return (small.first + prospect.plan.steps * step) / 60

    return [replace(p, minutes=minutes(p)) for p in prospects]


def choose(prospects: Sequence[PlanRow], epsilon: float) -> PlanRow:
    """The recommended one at ε. Of those with at least ``ENOUGH`` steps (of all, where none has as many), those within
    a tenth of the least noise over the run; of these the fewest epochs, which cost time, and then the most steps."""
    same = [p for p in prospects if p.epsilon == epsilon]
    long = [p for p in same if p.plan.steps >= ENOUGH]
    least = min(p.run_noise for p in long or same)
    near = [p for p in long or same if p.run_noise <= NEAR * least]
    return min(near, key=lambda p: (p.epochs if long else 0, -p.plan.steps))


@dataclass(frozen=True)
class Sensitivity:
    """The noise of the run at the recommended row, and after changing one thing."""

    chosen: PlanRow
    double_batch: PlanRow | None  # None if the data are too few for it
    double_epsilon: PlanRow
    curve: tuple[tuple[float, float, float], ...]  # (ε, run noise of the method, run noise of correlated noise)

    @property
    def crossing(self) -> float | None:
        """The smallest ε of the curve above which correlated noise is better by the margin; None if it never is."""
        wins = [MARGIN * correlated < own for _, own, correlated in self.curve]
        first = next((i for i in range(len(wins)) if all(wins[i:])), None)
        return None if first is None else self.curve[first][0]


def nearby_plans(
    method: str,
    setting: PlanConfig,
    chosen: PlanRow,
    notify: Notify = lambda text: None,
    *,
    charge: Callable[[PlanRow], PlanRow] = lambda prospect: prospect,
    **options: Any,
) -> Sensitivity:
    """The recommended row, its neighbours, and correlated noise over ε; ``charge`` gives each the noise that it has if
    something else is released within the same ε."""

    def at(epsilon: float, batch: int, name: str = method) -> PlanRow:
        grid, given = [(epsilon, batch, chosen.epochs)], options if name == method else {}
        return charge(replace(next(plan_grid(name, setting, grid, **given)), weights=chosen.weights))

    notify("comparing with the recommended row")
    batch, wide = chosen.batch_size, 2 * chosen.batch_size <= setting.examples
    curve = tuple(
        (epsilon, at(epsilon, batch).run_noise, at(epsilon, batch, CORRELATED).run_noise) for epsilon in EPSILONS
    )
    double = at(chosen.epsilon, 2 * batch) if wide else None
    return Sensitivity(chosen, double, at(2 * chosen.epsilon, batch), curve)


# The table and the advice of `hush plan` as text.


def name_columns(row: PlanRow) -> tuple[list[str], str]:
    """The columns of the table, and the definition of the noise in them."""
    columns = ["", "ε", "batch", "epochs", "steps", "σ", "noise of a batch", "of the run"]
    run = (
        "over the steps, root mean square, as a share of the most that the gradients can add up to, which is one clip "
        "a step."
    )
    if row.weights is None:
        meaning = (
            "Noise in one weight, where the clip is 1. Of a batch: standard deviation of the noise on the mean "
            "gradient, which is itself at most 1 long over all d weights (times √d it is the length of the noise; "
            f"--parameters gives d). Of the run: noise that has added up {run}"
        )
    else:
        meaning = (
            f"Noise compared with the signal, over {row.weights} weights. Of a batch: length of the noise on the mean "
            "gradient, where the mean of clipped gradients is at most 1 long. Of the run: length of the noise that "
            f"has added up {run}"
        )
    return (columns, meaning) if row.minutes is None else ([*columns, "min"], f"{meaning} Minutes are on one core.")


def explain_row(best: PlanRow, rows: Sequence[PlanRow]) -> str:
    """Which row is recommended, and why."""
    same = [row for row in rows if row.epsilon == best.epsilon]
    long = [row for row in same if row.plan.steps >= ENOUGH]
    noises = [row.run_noise for row in long or same]
    over, worst = (100 * (value / min(noises) - 1) for value in (best.run_noise, max(noises)))
    which = f"of the rows with at least {ENOUGH} steps" if long else f"no row has {ENOUGH} steps; of all"
    above = "it leaves the least noise over the run"
    if over >= 0.5:
        above = f"its noise over the run is {over:.0f} % above the least"
    spread = f" (the worst is {worst:.0f} % above)" if worst > 0.5 else ""
    rest = "the fewest epochs, then the most steps" if long else "the most steps"
    choice = f"→ At ε = {best.epsilon:g}: batch size {best.batch_size}, {best.epochs:g} epochs."
    return f"{choice} Why: {which}, {above}{spread}, and within {100 * (NEAR - 1):.0f} % of the least it has {rest}."


def explain_outlook(outlook: Sensitivity) -> list[str]:
    """What doubling the batch or ε buys, and from which ε on correlated noise wins."""
    now, wide, strong = outlook.chosen, outlook.double_batch, outlook.double_epsilon
    sentence = (
        f"Doubling ε to {strong.epsilon:g} leaves {strong.run_noise / now.run_noise:.2f} of the noise of the run."
    )
    if wide is not None:
        batch, run = wide.step_noise / now.step_noise, wide.run_noise / now.run_noise
        sentence = (
            f"Doubling the batch to {wide.batch_size} leaves {batch:.2f} of the noise of a batch and {run:.2f} of that "
            f"of the run, in half the steps. {sentence}"
        )
    return [sentence, _describe_crossing(outlook)]


def _describe_crossing(outlook: Sensitivity) -> str:
    """The ε above which correlated noise is clearly smaller than this method's."""
    name = outlook.chosen.plan.method
    if name == CORRELATED:
        return f"{CORRELATED} is itself noise that cancels over steps."
    at = f"At {outlook.chosen.batch_size} examples a batch and {outlook.chosen.epochs:g} epochs"
    method = f"noise that cancels over steps ({CORRELATED})"
    if outlook.crossing is None:
        high = outlook.curve[-1][0]
        return f"{at}, {method} does not win up to ε = {high:g}: it never leaves {MARGIN:g} times less than {name}."
    return (
        f"{at}, {method} wins from ε = {outlook.crossing:g} on: there it leaves {MARGIN:g} times less than {name}, and "
        "a smaller gain may be none, as training forgets old noise. `hush account --method auto` compares all methods."
    )


def list_cells(row: PlanRow, best: PlanRow) -> list[str]:
    """A row of the table, for `name_columns`; an arrow marks the recommended one."""
    cells = ["→" if row is best else "", f"{row.epsilon:g}", str(row.batch_size), f"{row.epochs:g}"]
    cells += [str(row.plan.steps), *(f"{value:.3g}" for value in (row.plan.sigma, row.step_noise, row.run_noise))]
    return cells if row.minutes is None else [*cells, f"{row.minutes:.2g}"]


# The page.


def render_plan(rows: Sequence[PlanRow], outlook: Sensitivity, setting: PlanConfig) -> str:
    """The whole page."""
    best = outlook.chosen
    (_, *columns), meaning = name_columns(best)
    examples = f"{setting.examples:,}".replace(",", "\u2009")
    table = [list_cells(row, best)[1:] for row in rows]
    page = Page(
        title=f"Before training: {examples} examples with {best.plan.method}",
        findings=[explain_row(best, rows).removeprefix("→ "), *explain_outlook(outlook)],
        sections=[
            Section(
                "figures",
                "What ε, batch size and epochs buy",
                "A ring marks the recommended row; the title of a point shows its numbers.",
                tuple(draw(rows, outlook) for draw in FIGURES),
            )
        ],
        command="hush plan",
        table_title="All rows",
        table_say=f"{meaning} δ = {setting.delta:g}.",
        table_columns=columns,
        table=[
            TableRow((TableCell(cells[0], "recommended" if row is best else ""), *map(TableCell, cells[1:])))
            for row, cells in zip(rows, table, strict=True)
        ],
        overview=DownloadTable(tuple(columns), tuple(map(tuple, table)), (("", (), ()),) * len(rows)),
        table_last=True,
    )
    return render_report(page)


def _draw_run_noise(rows: Sequence[PlanRow], outlook: Sensitivity) -> Chart:
    say = (
        "The distance of two lines of one colour is the effect of epochs; a step to the right doubles the "
        "batch. Where a line is flat, a larger batch has no further effect."
    )
    return _draw_over_batches("Noise of the whole run", rows, outlook.chosen, "run_noise", _name_share(outlook), say)


def _draw_batch_noise(rows: Sequence[PlanRow], outlook: Sensitivity) -> Chart:
    say = (
        "More epochs at the same ε mean more noise at every step; a larger batch means less. The mean of clipped "
        "gradients is at most 1 long."
    )
    unit = "length of the noise, in clips" if outlook.chosen.weights else "noise in a weight, in clips"
    return _draw_over_batches("Noise of a single batch", rows, outlook.chosen, "step_noise", unit, say)


def _draw_over_batches(title: str, rows: Sequence[PlanRow], best: PlanRow, value: str, unit: str, say: str) -> Chart:
    """A colour for each ε, a dash for each number of epochs; the recommended row is marked."""
    epsilons, epochs = sorted({r.epsilon for r in rows}), sorted({r.epochs for r in rows})
    series = []
    for i, epsilon in enumerate(epsilons):
        for j, passes in enumerate(epochs):
            name = f"ε = {epsilon:g}, {passes:g} epochs"
            some = [row for row in rows if (row.epsilon, row.epochs) == (epsilon, passes)]
            points = [(row.batch_size, getattr(row, value)) for row in some]
            sentence = [Dot(x, y, f"{name}, batch size {x}: {y:.3g}") for x, y in points]
            series.append(Series(name, sentence, look=i, dash=j))
    series.append(_mark(best.batch_size, getattr(best, value)))
    marks = tuple(sorted({float(row.batch_size) for row in rows}))
    across = Axis("batch size, examples a step (log scale)", log=True, marks=marks)
    svg = draw_lines(title, across, Axis(f"{unit}, log", log=True), series)
    data = tuple((row.epsilon, row.epochs, row.batch_size, getattr(row, value)) for row in rows)
    return Chart(title, svg, ("epsilon", "epochs", "batch_size", value), data, say)


def _draw_correlated(rows: Sequence[PlanRow], outlook: Sensitivity) -> Chart:
    method = outlook.chosen.plan.method
    epsilons, own, correlated = zip(*outlook.curve, strict=True)
    lines = {method: own, f"noise that cancels over steps ({CORRELATED})": correlated}
    title = "When correlated noise wins"
    say = (
        "At the recommended batch size and epochs, over ε. Noise that cancels over steps gives up the sampling that "
        f"protects {method}; where its line lies lower it leaves less noise in the weights, and where it lies lower by "
        "half it is the better choice."
    )
    across, up = Axis("ε (log scale)", log=True, marks=epsilons), Axis(f"{_name_share(outlook)}, log", log=True)
    best = _mark(outlook.chosen.epsilon, outlook.chosen.run_noise)
    return compare_lines(title, ("epsilon", across), up, epsilons, lines, best, say=say, dashes=(0, 0), dots=True)


def _name_share(outlook: Sensitivity) -> str:
    return "noise of the run / signal" if outlook.chosen.weights else "run noise in a weight / signal"


def _mark(x: float, y: float) -> Series:
    return Series("recommended", [Dot(x, y, f"recommended: {y:.3g}")], "ring", line=False, look=7)


FIGURES = (_draw_run_noise, _draw_batch_noise, _draw_correlated)
