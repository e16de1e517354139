"""A table's default numbers in `hush train` and `hush tune`: filled in where nobody gave others, and said."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from hush.cli.console import say
from hush.cli.planning import DEFAULT_EPSILON, default_to_three
from hush.cli.shell import Given
from hush.problems import Problem
from hush.problems.table_defaults import LOGISTIC, choose_numbers

if TYPE_CHECKING:
    from hush.cli.train import Training

METHOD = "dp-sgd"
CHOSEN = ("batch_size", "lr", "average", "microbatch")
FOR_RATE = ("clip", "clip_mode", "settings")  # a learning rate is one for its clipping and momentum
Same = TypeVar("Same", bound="Training")


def note_open(given: Given) -> Given:
    """What was given, with the names of the numbers that are left open."""
    blocked = {"lr"} if any(name in given for name in FOR_RATE) else set()
    blocked |= {"batch_size"} if "sample_rate" in given else set()
    return {**given, "left_open": frozenset(CHOSEN) - given.keys() - blocked}


def fill_in(given: Same, task: Problem) -> Same:
    """The model's name, and a table's numbers where nobody gave others: a run keeps what it began with."""
    if given.data is None:
        return given
    asked = default_to_three(given).epsilon
    epsilon = DEFAULT_EPSILON if asked is None else asked
    chosen = choose_for_table(task, given.method, epsilon, given.left_open)
    return replace(given, **{"model": name_model(task), **chosen})


def choose_for_table(task: Problem, method: str, epsilon: float, left_open: Collection[str]) -> dict[str, Any]:
    """The numbers that are left open, for a table's classes, DP-SGD and a model that comes with hush; nothing for any
    other data, method or model."""
    known = task.schema is not None and task.classes is not None and task.architecture.source == "shipped"
    if not known or method != METHOD or not left_open or not 0 < epsilon < math.inf:  # refused with the plan
        return {}
    numbers = choose_numbers(task.examples, epsilon, linear=task.architecture.name == LOGISTIC)
    filled = {name: value for name, value in vars(numbers).items() if name in left_open}
    words = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in filled.items())
    say(f"chosen for {task.examples} examples at ε = {epsilon:g}: {words}")
    return filled


def name_model(task: Problem) -> str:
    """How `--model` calls the architecture, so that a run keeps it whatever the defaults are later."""
    shown = task.architecture
    if shown.name != "mlp" or shown.source != "shipped":
        return shown.name
    return "-".join(["mlp", *map(str, shown.arguments["widths"][1:-1])])
