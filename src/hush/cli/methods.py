"""`hush methods` and `hush problems`: what there is to choose from."""

from __future__ import annotations

import inspect

import typer

from hush.cli.console import show_json, show_table
from hush.methods import catalogue, options


def methods(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the methods, with what can be set on each by `--set key=value`."""
    rows = [
        {
            "method": name,
            "summary": (inspect.getdoc(factory) or "").splitlines()[0],
            "options": {key: parameter.default for key, parameter in options(factory).items()},
        }
        for name, factory in catalogue().items()
    ]
    if as_json:
        show_json(rows)
        return
    cells = ([r["method"], r["summary"], ", ".join(f"{k}={v}" for k, v in r["options"].items())] for r in rows)  # type: ignore[attr-defined]
    show_table("", ("method", "what it is", "options and their defaults"), cells)


def problems(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the problems: data, model and metric together."""
    from hush.problems import names

    rows = names()
    if as_json:
        show_json([{"problem": name, "summary": summary} for name, summary in rows])
        return
    show_table("", ("problem", "what it is"), rows)
