"""What to train on: a problem by name, or data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from hush import problems, validate
from hush.cli.console import say
from hush.data.views import View, mirrored, shifted
from hush.errors import BadInput
from hush.gradients import Augmented
from hush.named import Losses
from hush.problems import Problem
from hush.problems.own_data import TEST, from_files
from hush.source import as_source

ProblemName = Annotated[
    str | None,
    typer.Option("--problem", help="One of `hush problems`, or your own as `module:factory`; digits by default."),
]
DataPath = Annotated[
    Path | None,
    typer.Option("--data", help="Your own data: .csv, .parquet, .npz, or a folder of class folders of images."),
]
Target = Annotated[str | None, typer.Option(help="Your own data: the column or array that holds the labels.")]
Model = Annotated[
    str | None, typer.Option(help="Your own data: mlp, logistic, lenet, cnn, or your own as `module:factory`.")
]
SchemaPath = Annotated[
    Path | None,
    typer.Option("--schema", help="Your own data: public facts (types, ranges, categories), .toml or .json."),
]
TestData = Annotated[
    Path | None,
    typer.Option(help="Your own data: a file of the same kind to test on; else a fifth of the rows is held out."),
]
Public = Annotated[
    str | None,
    typer.Option(
        help="Your own data: what may be read off the rows, as it is public: ranges, categories or ranges+categories."
    ),
]
Augment = Annotated[
    str | None, typer.Option(help="Train on views of each image: shift, mirror or shift+mirror; free of privacy cost.")
]
Views = Annotated[
    int | None, typer.Option(help="How many views of an image are averaged before clipping; 4 by default.")
]
Validation = Annotated[
    float, typer.Option(help="Fraction of the training data to hold out; neither trained on nor reported.")
]


def load_task(
    problem: str | None,
    data: Path | None,
    target: str | None,
    model: str | None,
    schema: Path | None,
    test_data: Path | None = None,
    public: str | None = None,
    *,
    seed: int,
    validation: float,
) -> Problem:
    """The problem of that name, or one made from files; what was inferred about the files is said on stderr."""
    if data is None:
        if any(given is not None for given in (target, model, schema, test_data, public)):
            own = "--target, --model, --schema, --test-data and --public"
            raise BadInput(f"{own} describe your own data: give it with --data")
        return problems.load(problem or problems.DEFAULT, seed=seed, validation=validation)
    if problem is not None:
        raise BadInput("give --problem or --data, not both")
    facts = tuple(public.split("+")) if public is not None else ()
    test: float | Path = TEST if test_data is None else test_data
    found = from_files(
        data, target=target, model=model, schema=schema, public=facts, test=test, seed=seed, validation=validation
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
