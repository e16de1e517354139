"""What to train on: a problem by name, or data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush import problems
from hush.cli.console import say
from hush.errors import BadInput
from hush.problems import Problem
from hush.problems.own import from_files

ProblemName = Annotated[
    str | None,
    typer.Option("--problem", help="One of `hush problems`, or `package.module:factory`; digits by default."),
]
DataPath = Annotated[
    Path | None,
    typer.Option("--data", help="Your own data: .csv, .parquet, .npz, or a folder of class folders of images."),
]
Target = Annotated[str | None, typer.Option(help="Your own data: the column or array that holds the labels.")]
Model = Annotated[
    str | None, typer.Option(help="Your own data: mlp, logistic, lenet, cnn, or `package.module:factory`.")
]
SchemaPath = Annotated[
    Path | None,
    typer.Option("--schema", help="Your own data: public facts (types, ranges, categories), .toml or .json."),
]
Validation = Annotated[float, typer.Option(help="Fraction of the training data to hold out.")]


def load_task(
    problem: str | None,
    data: Path | None,
    target: str | None,
    model: str | None,
    schema: Path | None,
    *,
    seed: int,
    validation: float,
) -> Problem:
    """The problem of that name, or one made from files; what was inferred about the files is said on stderr."""
    if data is None:
        if target is not None or model is not None or schema is not None:
            raise BadInput("--target, --model and --schema describe your own data: give it with --data")
        return problems.load(problem or problems.DEFAULT, seed=seed, validation=validation)
    if problem is not None:
        raise BadInput("give --problem or --data, not both")
    found = from_files(data, target=target, model=model, schema=schema, seed=seed, validation=validation)
    say(found.summary)
    if found.schema is not None:
        for line in found.schema.lines():
            say(f"  {line}")
    return found
