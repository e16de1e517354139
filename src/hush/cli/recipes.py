"""`--recipe NAME`: settings that are known to work, from a file that ships with hush; flags given beside it win."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated, Any

import typer

from hush import validate


def recipes() -> dict[str, dict[str, Any]]:
    """Every recipe by name."""
    return tomllib.loads(resources.files("hush.cli").joinpath("recipes.toml").read_text(encoding="utf-8"))


def use(context: typer.Context, name: str | None) -> str | None:
    """Make the recipe's settings the defaults of the options that follow."""
    if name is not None:
        validate.one_of(recipes(), recipe=name)
        context.default_map = {**(context.default_map or {}), **recipes()[name]}
    return name


Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help=f"Settings that are known to work: {', '.join(recipes())}. Flags given beside it win.",
        is_eager=True,
        callback=use,
    ),
]
