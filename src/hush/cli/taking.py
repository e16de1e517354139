"""The steps of `hush train`, with progress: to their end, or to where they are stopped."""

from __future__ import annotations

import typer

from hush.cli.console import say, show_progress
from hush.cli.early import Watch
from hush.cli.keeper import Keeper
from hush.cli.stopping import Interruption, note_interrupts
from hush.cli.together import Interrupted, stop_together
from hush.ledger.account import BudgetSpent
from hush.loop import train as take_steps
from hush.printable import make_printable
from hush.ranks import LostRank
from hush.run import Run
from hush.stepping import Stopped


def take_all(name: str, run: Run, keeper: Keeper, watch: Watch, *, every: int, quiet: bool) -> None:
    """Train to the end or to where ``watch`` says so, or leave cleanly: asked to (exit 130), out of budget or without a
    process (exit 1)."""
    stopped: str | None = None
    asked_for = False
    with note_interrupts() as asked, show_progress(quiet) as bar:
        shown = bar.add_task(
            f"training {make_printable(name)} with {run.plan.method}", total=run.plan.steps, completed=run.next
        )
        stop_together(run, keeper, asked)
        try:
            steps = () if watch.after else take_steps(run, checkpoints=keeper.checkpoints, every=every)
            for record in steps:
                bar.advance(shown)
                if watch.rule is not None and watch.hear([record.numbers()]):
                    break
                if run.ranks.world == 1 and asked() and run.next < run.plan.steps:
                    stopped, asked_for = "as asked", True
                    break
            if watch.after is not None:
                keeper.end(run)
        except (BudgetSpent, LostRank, Stopped) as why:
            stopped = f"{why}"
        except Interrupted as why:
            stopped, asked_for = f"{why}", True
        if stopped is not None:
            keeper.save(run)
    if stopped is not None:
        told = f"stopped at step {run.next} of {run.plan.steps}: {stopped}; {keeper.how_to_go_on(run)}"
        if asked_for:
            raise Interruption(told)
        say(told)
        raise typer.Exit(1)
