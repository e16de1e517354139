"""What `hush train` releases with noise before it trains: ranges of columns, weights of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hush.before import Before, make_releases
from hush.cli.console import say
from hush.cli.keeper import Keeper
from hush.cli.task import TaskOptions, read_weight_share
from hush.cli.together import release_first
from hush.plan import Plan
from hush.problems import Problem
from hush.problems.released import check_shares, plan_releases, take_releases
from hush.run import Run


def asks_for_releases(given: TaskOptions) -> bool:
    """Whether anything is to be released before training."""
    shares = given.private_ranges, read_weight_share(given.class_weights)
    check_shares(*shares)
    return any(share is not None for share in shares)


def plan_before(plan: Plan, task: Problem, given: TaskOptions, total: float | None) -> tuple[Plan, tuple[Before, ...]]:
    """The plan with the releases before training, and these; σ such that all stays within the ``total`` ε, if there is
    one. Without one they cost their share of what training alone costs, and come on top of it."""
    if not asks_for_releases(given):
        return plan, ()
    parts = plan_releases(
        task,
        plan,
        plan.guarantee().epsilon if total is None else total,
        range_share=given.private_ranges,
        weight_share=read_weight_share(given.class_weights),
        units=task.whose,
    )
    both = replace(plan, beside=(*plan.beside, *(part.beside for part in parts)))
    return both if total is None else both.calibrated(total), parts


def release_before(
    run: Run, task: Problem, parts: Sequence[Before], keeper: Keeper
) -> tuple[Problem, dict[str, dict[str, Any]]]:
    """Charge and make the releases, or read them where the run goes on; the problem with them, and what is told."""
    if not parts:
        return task, {}
    folder = None if keeper.checkpoints is None else keeper.checkpoints.directory
    values = release_first(run.ranks, lambda: make_releases(run, parts, folder))
    task, told = take_releases(task, run, values)
    for name, (low, high) in told.get("private_ranges", {}).items():
        say(f"column '{name}': range {low:.4g} … {high:.4g}, released with noise")
    for name, weight in told.get("private_class_weights", {}).items():
        say(f"class '{name}': weight {weight:.3g}, by a count released with noise")
    return task, told
