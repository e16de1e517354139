"""The table and the advice of `hush plan` in words."""

from __future__ import annotations

from collections.abc import Sequence

from hush.methods.auto import MARGIN
from hush.report.prospects import CORRELATED, ENOUGH, NEAR, Outlook, Prospect


def name_columns(row: Prospect) -> tuple[list[str], str]:
    """The columns of the table, and what the noise in them means."""
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
            f"Noise beside the signal, over {row.weights} weights. Of a batch: length of the noise on the mean "
            "gradient, where the mean of clipped gradients is at most 1 long. Of the run: length of the noise that "
            f"has added up {run}"
        )
    return (columns, meaning) if row.minutes is None else ([*columns, "min"], f"{meaning} Minutes are on one core.")


def explain_row(best: Prospect, rows: Sequence[Prospect]) -> str:
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


def explain_outlook(outlook: Outlook) -> list[str]:
    """What doubling the batch or ε buys, and from which ε on correlated noise wins."""
    now, wide, strong = outlook.chosen, outlook.double_batch, outlook.double_epsilon
    told = f"Doubling ε to {strong.epsilon:g} leaves {strong.run_noise / now.run_noise:.2f} of the noise of the run."
    if wide is not None:
        batch, run = wide.step_noise / now.step_noise, wide.run_noise / now.run_noise
        told = (
            f"Doubling the batch to {wide.batch_size} leaves {batch:.2f} of the noise of a batch and {run:.2f} of that "
            f"of the run, in half the steps. {told}"
        )
    return [told, _tell_crossing(outlook)]


def _tell_crossing(outlook: Outlook) -> str:
    """From where on noise that cancels over steps leaves clearly less than this method's."""
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
