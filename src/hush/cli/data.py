"""`hush data list|verify|fetch|inspect`: what data there is, whether its bytes are the official ones, and one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import say, show_json, show_table
from hush.cli.inspecting import inspect
from hush.cli.shell import AsJson
from hush.data.dataset import Dataset
from hush.data.shelf import fetch, list_datasets, progress_on_stderr, verify
from hush.validate import one_of

app = typer.Typer(help="List, verify and fetch the public datasets; inspect a table of your own.", no_args_is_help=True)
Place = Annotated[
    Path | None, typer.Option("--data-dir", help="Where they lie; HUSH_DATA, then the cache, by default.")
]
app.command("inspect")(inspect)


@app.command("list")
def list_(data_dir: Place = None, as_json: AsJson = False) -> None:
    """List the datasets, their licences, and where each lies."""
    rows = list_datasets(_known().values(), data_dir)
    if as_json:
        show_json(rows)
        return
    cells = ((r["name"], r["summary"], r["licence"], r["where"] or "not here yet: hush data fetch") for r in rows)
    show_table("", ("dataset", "what it is", "licence", "where"), cells)


@app.command("verify")
def verify_(
    name: Annotated[str | None, typer.Argument(help="One dataset; all of them by default.")] = None,
    data_dir: Place = None,
    as_json: AsJson = False,
) -> None:
    """Read every file and compare its unpacked bytes with the official ones; exit 1 if any is altered or unreadable."""
    wanted = _known().values() if name is None else [_find(name)]
    rows = verify(wanted, data_dir)
    _show(rows, as_json)
    bad = [row for row in rows if row["status"] not in ("ok", "missing")]
    absent = [row for row in rows if row["status"] == "missing"]
    for row in bad:
        say(f"error: {row['problem']}")
    if bad or (absent and name is not None):
        raise typer.Exit(1)


@app.command("fetch")
def fetch_(
    name: Annotated[str, typer.Argument(help="The dataset to get.")], data_dir: Place = None, as_json: AsJson = False
) -> None:
    """Download what is missing from a public mirror, resuming where an earlier try broke off, and verify it."""
    with progress_on_stderr() as progress:
        rows = fetch(_find(name), data_dir=data_dir, progress=progress)
    _show(rows, as_json)


def _known() -> dict[str, Dataset]:
    """By name; imported here, because other commands have no use for the table."""
    from hush.problems.table import list_datasets_read

    return list_datasets_read()


def _find(name: str) -> Dataset:
    known = _known()
    one_of(known, dataset=name)
    return known[name]


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    show_table("", ("dataset", "file", "status"), ((r["dataset"], r["file"], r["status"]) for r in rows))
