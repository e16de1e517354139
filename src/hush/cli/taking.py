"""The steps of `hush train`, with progress: to their end, or to where they are stopped."""

from __future__ import annotations

import typer

from hush.cli.console import say, show_progress
from hush.cli.early import Watch
from hush.cli.keeper import Keeper
from hush.cli.stopping import note_interrupts
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
    code = 130
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
                    stopped = "as asked"
                    break
            if watch.after is not None:
                keeper.end(run)
        except (BudgetSpent, LostRank, Stopped) as why:
            stopped, code = f"{why}", 1
        except Interrupted as why:
            stopped = f"{why}"
        if stopped is not None:
            keeper.save(run)
    if stopped is not None:
        say(f"stopped at step {run.next} of {run.plan.steps}: {stopped}; {keeper.how_to_go_on(run)}")
        raise typer.Exit(code)
