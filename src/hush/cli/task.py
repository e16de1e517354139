"""What to train on: a problem by name, or data of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hush import problems, validate
from hush.cli.console import say
from hush.cli.shell import MACHINE
from hush.data.views import View, mirrored, shifted
from hush.errors import BadInput, nearest
from hush.gradients import Augmented
from hush.named import Losses
from hush.problems import Problem
from hush.problems.own_data import EARLIER, HELD, TASKS, TEST, from_files
from hush.settings import DATA, PRIVACY, option
from hush.source import as_source
from hush.units import ROWS_PER_UNIT

PUBLIC_ROWS = "the rows that were tested on are public"
EXACT = "figures of rows held out for testing that carry no noise stay private: those with noise are covered"


WEIGHT_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What to train on, and what to make of it."""

    problem: str | None = field(
        default=None,
        metadata=option("One of `hush problems`, or your own as `module:factory`; digits by default.", DATA),
    )
    data: Path | None = field(
        default=None,
        metadata=option(
            "Your own data: .csv, .parquet, a folder or 'pattern*' of them, .npz, or class folders of images.", DATA
        ),
    )
    target: str | None = field(
        default=None, metadata=option("Your own data: the column or array that holds the labels.", DATA)
    )
    model: str | None = field(
        default=None,
        metadata=option(
            "Your own data: mlp, mlp-64-32 (widths of hidden layers), logistic, lenet, cnn, or your own as "
            "`module:factory`. By default cnn for images; for a table logistic below 5000 examples, else mlp-32.",
            DATA,
        ),
    )
    schema: Path | None = field(
        default=None,
        metadata=option("Your own data: public facts (types, ranges, categories), .toml or .json.", DATA),
    )
    test_data: Path | None = field(
        default=None,
        metadata=option(
            "Your own data: a file of the same kind to test on; else a fifth of the rows is held out.", DATA
        ),
    )
    public: str | None = field(
        default=None,
        metadata=option(
            "Your own data: what may be read off the rows, as it is public: ranges, categories or ranges+categories.",
            DATA,
        ),
    )
    task: str = field(
        default=TASKS[0],
        metadata=option("Your own data: classification, or regression (--target is a number with a range).", DATA),
    )
    target_range: tuple[float, float] | None = field(
        default=None,
        metadata=option(
            "Regression: the public range of the target, to which targets are cut.", DATA, metavar="LOW HIGH"
        ),
    )
    loss: str | None = field(
        default=None, metadata=option("Regression: squared (the default) or huber, which minds outliers less.", DATA)
    )
    class_weights: str | None = field(
        default=None,
        metadata=option(
            "Public weights of the classes, a,b,c or name=weight,… (others 1). They multiply an example's loss before "
            "its gradient is clipped, so ε stays; gradients that are cut to the clip lose them. Or 'private': by noisy "
            "counts of the classes, which alone cost a share of --epsilon, 0.05 or as in 'private:0.1'.",
            DATA,
            metavar="WEIGHTS",
        ),
    )
    public_test: bool = field(
        default=False,
        metadata=option(
            "The rows to test on are public: exact figures of them go into the release.", DATA, flag="--public-test"
        ),
    )
    private_metrics: float | None = field(
        default=None,
        metadata=option(
            "Release figures of the held-out rows with noise: so much of --epsilon is spent on them.",
            PRIVACY,
            metavar="EPS",
        ),
    )
    private_ranges: float | None = field(
        default=None,
        metadata=option(
            "Your own data: release ranges of the numeric columns that have none with noise before training, which "
            "alone costs this share of --epsilon.",
            PRIVACY,
            metavar="EPS_SHARE",
        ),
    )
    unit: str | None = field(
        default=None,
        metadata=option(
            "Your own data: the column or array that says whose each row is. All rows of one are one example, and the "
            "guarantee is for it.",
            PRIVACY,
            metavar="COLUMN",
        ),
    )
    rows_per_unit: int | None = field(
        default=None,
        metadata=option(
            f"At most so many rows of a unit, chosen anew each time, are averaged before clipping; {ROWS_PER_UNIT} by "
            "default. It changes time and accuracy, not ε.",
            PRIVACY,
            metavar="M",
        ),
    )
    augment: str | None = field(
        default=None,
        metadata=option("Train on views of each image: shift, mirror or shift+mirror; free of privacy cost.", DATA),
    )
    views: int | None = field(
        default=None,
        metadata=option("How many views of an image are averaged before clipping; 4 by default.", DATA),
    )
    validation: float = field(
        default=0.0,
        metadata=option("Fraction of the training data to hold out; neither trained on nor reported.", DATA),
    )
    resumed: bool = False  # its settings are those that a run has kept
    seed: int = field(default=0, metadata=option("Fixes initial weights and splits (public).", MACHINE))


def load_task(given: TaskOptions) -> Problem:
    """The problem of that name, or one made from files, with class weights and with what is said of its test rows."""
    if given.unit is None and given.rows_per_unit is not None:
        raise BadInput("--rows-per-unit counts the rows of a unit: say with --unit which column it is")
    if given.rows_per_unit is not None:
        validate.whole(rows_per_unit=given.rows_per_unit)
    found = _load(given)
    if read_weight_share(given.class_weights) is not None:
        found = found.awaiting_weights()
    elif given.class_weights is not None:
        found = found.with_class_weights(read_weights(given.class_weights, found))
    return replace(found, assumptions=_say_of_test_rows(given, found.assumptions))


def read_weight_share(text: str | None) -> float | None:
    """Which share of ε noisy counts of the classes get, where `--class-weights` asks for them."""
    word, colon, share = (text or "").partition(":")
    if word.strip() != "private":
        return None
    try:
        return float(share) if colon else WEIGHT_SHARE
    except ValueError as error:
        raise BadInput(f"--class-weights private:SHARE takes a share of ε such as 0.05, got '{share}'") from error


def read_weights(text: str, task: Problem) -> list[float]:
    """The weights of a problem's classes: one each in their order, or some by name and 1 for the others."""
    names = task.classes_by_name
    pairs = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = [float(number) for _, _, number in pairs]
    except ValueError as error:
        raise BadInput(f"--class-weights takes numbers, 1,2.5 or name=2.5, got '{text}'") from error
    if all(not equals for _, equals, _ in pairs):
        return weights
    for name, _, _ in pairs:
        if name.strip() not in names:
            raise BadInput(f"--class-weights names a class that '{task.name}' does not have: {nearest(name, names)}")
    chosen = {name.strip(): weight for (name, _, _), weight in zip(pairs, weights, strict=True)}
    return [chosen.get(name, 1.0) for name in names]


def _say_of_test_rows(given: TaskOptions, assumptions: tuple[str, ...]) -> tuple[str, ...]:
    if given.public_test and given.private_metrics is not None:
        raise BadInput("--public-test says that nothing of the test rows is private: leave --private-metrics out")
    others = tuple(text for text in assumptions if text != HELD)
    if given.public_test:
        return (*others, PUBLIC_ROWS)
    return assumptions if given.private_metrics is None else (*others, EXACT)


def check_described(given: TaskOptions) -> None:
    """Refuse what describes data of one's own where there are none."""
    described = (given.target, given.model, given.schema, given.test_data, given.public)
    numbers = (given.target_range, given.loss, None if given.task == TASKS[0] else given.task, given.unit)
    if any(value is not None for value in (*described, *numbers, given.private_ranges)):
        own = "--target, --model, --schema, --test-data, --public, --private-ranges, --task, --target-range, --loss"
        raise BadInput(f"{own} and --unit describe your own data: give it with --data")


def _load(given: TaskOptions) -> Problem:
    """The problem of that name, or one made from files; what was inferred about the files is said on stderr."""
    if given.data is None:
        check_described(given)
        return problems.load(given.problem or problems.DEFAULT, seed=given.seed, validation=given.validation)
    if given.problem is not None:
        raise BadInput("give --problem or --data, not both")
    found = from_files(
        given.data,
        target=given.target,
        model=EARLIER if given.model is None and given.resumed else given.model,
        schema=given.schema,
        public=tuple(given.public.split("+")) if given.public is not None else (),
        test=TEST if given.test_data is None else given.test_data,
        seed=given.seed,
        validation=given.validation,
        task=given.task,
        target_range=given.target_range,
        loss=given.loss,
        private_ranges=given.private_ranges is not None,
        unit=given.unit,
        tell=say,
    )
    say(found.summary)
    _say_whose(given)
    if found.schema is not None:
        for line in found.schema.lines():
            say(f"  {line}")
    if found.notes is not None:
        warnings = found.notes.warnings if given.unit is None else ()  # they are of ids that repeat
        for line in (*found.notes.private, *(f"warning: {text}" for text in warnings)):
            say(line)
    return found


def _say_whose(given: TaskOptions) -> None:
    """What one example is, where that was said."""
    if given.unit is not None:
        most = given.rows_per_unit or ROWS_PER_UNIT
        say(f"one example is all rows of one {given.unit}, at most {most} of them at a time (--rows-per-unit)")


def with_views(task: Problem, augment: str | None, views: int | None) -> Losses:
    """The problem's losses, averaged over views of each image where that was asked for."""
    if augment is None:
        if views is not None:
            raise BadInput("--views counts the views that --augment makes: give both")
        return task.training_losses
    known: dict[str, View] = {"shift": shifted(), "mirror": mirrored}
    kinds = augment.split("+")
    for kind in kinds:
        validate.one_of(known, augment=kind)
    images = as_source(task.train).take(torch.tensor([0]))[0]
    if images.dim() != 4:
        raise BadInput(
            f"--augment works on images, and an example of '{task.name}' has shape {tuple(images.shape[1:])}"
        )

    def augmented(content: Any) -> Any:
        first, *rest = content
        for kind in kinds:
            first = known[kind](first)
        return (first, *rest)

    return Augmented(task.training_losses, augmented, 4 if views is None else views)
