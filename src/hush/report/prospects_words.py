"""The table and the advice of `hush plan` in words."""

from __future__ import annotations

from collections.abc import Sequence

from hush.report.prospects import CORRELATED, ENOUGH, Outlook, Prospect


def name_columns(row: Prospect) -> tuple[list[str], str]:
    """The columns of the table, and what the noise in them means."""
    columns = ["", "ε", "batch", "epochs", "steps", "σ", "noise of a batch", "of the run"]
    if row.weights is None:
        meaning = (
            "Noise in one weight, where the clip is 1. Of a batch: standard deviation of the noise on the mean gradient, "
            "which is itself at most 1 long over all d weights (times √d it is the length of the noise; --parameters "
            "gives d). Of the run: noise that has added up over the steps, root mean square, as a share of the most "
            "that the gradients can add up to."
        )
    else:
        meaning = (
            f"Noise beside the signal, over {row.weights} weights. Of a batch: length of the noise on the mean gradient, "
            "where the mean of clipped gradients is at most 1 long. Of the run: length of the noise that has added up "
            "over the steps, root mean square, as a share of the most that the gradients can add up to."
        )
    return (columns, meaning) if row.minutes is None else ([*columns, "min"], f"{meaning} Minutes are on one core.")


def explain_row(best: Prospect, rows: Sequence[Prospect]) -> str:
    """Which row is recommended, and why."""
    same = [row for row in rows if row.epsilon == best.epsilon]
    least, most = min(row.run_noise for row in same), max(row.run_noise for row in same)
    choice = f"→ At ε = {best.epsilon:g}: batch size {best.batch_size}, {best.epochs:g} epochs."
    over = 100 * (best.run_noise / least - 1)
    near = "no row leaves less noise over the run" if over < 0.5 else f"its noise over the run is {over:.0f} % above the least"
    spread = f" (the worst is {100 * (most / least - 1):.0f} % above)" if most > 1.005 * least else ""
    if best.plan.steps >= ENOUGH:
        return f"{choice} Why: {near}{spread}, and of the rows like that it has the fewest epochs, then the most steps."
    return f"{choice} Why: {near}{spread}, and it has the most steps of such rows; fewer than {ENOUGH} steps are few."


def explain_outlook(outlook: Outlook) -> list[str]:
    """What doubling the batch or ε buys, and from which ε on correlated noise wins."""
    now = outlook.chosen
    told = []
    if outlook.double_batch is not None:
        twice = outlook.double_batch
        told.append(
            f"Doubling the batch to {twice.batch_size} makes the noise of a batch {_ratio(twice.step_noise, now.step_noise)} "
            f"and of the run {_ratio(twice.run_noise, now.run_noise)} of what it is, in half the steps."
        )
    twice = outlook.double_epsilon
    told.append(
        f"Doubling ε to {twice.epsilon:g} makes the noise of the run {_ratio(twice.run_noise, now.run_noise)} of what it is."
    )
    return [" ".join(told), _tell_crossing(outlook)]


def _ratio(new: float, old: float) -> str:
    return f"{new / old:.2f}"


def _tell_crossing(outlook: Outlook) -> str:
    """From where on noise that cancels over steps leaves less than this method's."""
    name, at = outlook.chosen.plan.method, f"{outlook.chosen.batch_size} examples a batch and {outlook.chosen.epochs:g} epochs"
    low, high = outlook.curve[0][0], outlook.curve[-1][0]
    if name == CORRELATED:
        return f"{CORRELATED} is itself noise that cancels over steps."
    if outlook.crossing is None:
        return f"Noise that cancels over steps ({CORRELATED}) does not win at {at}: {name} leaves less up to ε = {high:g}."
    if outlook.crossing == low:
        return f"Noise that cancels over steps ({CORRELATED}) leaves less than {name} at {at} from ε = {low:g} on."
    return (
        f"Noise that cancels over steps ({CORRELATED}) leaves less than {name} at {at} from ε = {outlook.crossing:g} on; "
        "`hush account --method auto` compares all of them."
    )
