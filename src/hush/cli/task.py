"""What to train on: a problem by name, or data of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hush import problems, validate
from hush.cli.console import say
from hush.cli.shell import MACHINE
from hush.data.views import View, mirrored, shifted
from hush.errors import BadInput
from hush.gradients import Augmented
from hush.named import Losses
from hush.problems import Problem
from hush.problems.own_data import TEST, from_files
from hush.settings import DATA, option
from hush.source import as_source


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What to train on, and what to make of it."""

    problem: str | None = field(
        default=None,
        metadata=option("One of `hush problems`, or your own as `module:factory`; digits by default.", DATA),
    )
    data: Path | None = field(
        default=None,
        metadata=option("Your own data: .csv, .parquet, .npz, or a folder of class folders of images.", DATA),
    )
    target: str | None = field(
        default=None, metadata=option("Your own data: the column or array that holds the labels.", DATA)
    )
    model: str | None = field(
        default=None,
        metadata=option("Your own data: mlp, logistic, lenet, cnn, or your own as `module:factory`.", DATA),
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
    seed: int = field(default=0, metadata=option("Fixes initial weights and splits (public).", MACHINE))


def load_task(given: TaskOptions) -> Problem:
    """The problem of that name, or one made from files; what was inferred about the files is said on stderr."""
    if given.data is None:
        described = (given.target, given.model, given.schema, given.test_data, given.public)
        if any(value is not None for value in described):
            own = "--target, --model, --schema, --test-data and --public"
            raise BadInput(f"{own} describe your own data: give it with --data")
        return problems.load(given.problem or problems.DEFAULT, seed=given.seed, validation=given.validation)
    if given.problem is not None:
        raise BadInput("give --problem or --data, not both")
    found = from_files(
        given.data,
        target=given.target,
        model=given.model,
        schema=given.schema,
        public=tuple(given.public.split("+")) if given.public is not None else (),
        test=TEST if given.test_data is None else given.test_data,
        seed=given.seed,
        validation=given.validation,
    )
    say(found.summary)
    if found.schema is not None:
        for line in found.schema.lines():
            say(f"  {line}")
    return found


def with_views(task: Problem, augment: str | None, views: int | None) -> Losses:
    """The problem's losses, averaged over views of each image where that was asked for."""
    if augment is None:
        if views is not None:
            raise BadInput("--views counts the views that --augment makes: give both")
        return task.losses
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

    return Augmented(task.losses, augmented, 4 if views is None else views)
