"""`hush reproduce`: the published experiments, from a checkout of hush.

Records and pages are in the checkout, and so is the code that makes the one from the other (`benchmarks/published`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import AsJson, say, say_when_interrupted, show, show_json
from hush.errors import InvalidInputError

MAP = Path("benchmarks", "published", "experiments.toml")


def _find_checkout() -> Path:
    """The checkout of hush: the current directory, or what this hush was imported from."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / MAP).is_file() and (root / "results").is_dir():
            return root
    raise InvalidInputError(
        f"the published results are not part of the package: change to a checkout of hush, which has '{MAP}'"
    )


def _load(name: str) -> Any:
    """A module of the checkout."""
    path = str(_find_checkout() / "benchmarks")
    if path not in sys.path:
        sys.path.insert(0, path)
    return import_module(f"published.{name}")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="What to run: a name of the list, or a publication such as 002.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Folder for the runs; runs/reproduce in the checkout.")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at a time; by default one per core.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Run the published size where the list has less.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is missing and how long it takes.")] = False,
    render: Annotated[bool, typer.Option("--render", help="Write the pages from the records.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the pages with the records.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every table and figure of the published experiments, or run what is missing of one of them.

    Example: `hush reproduce 000-table-3`
    """
    experiments = _load("experiments")
    if name is not None:
        folder = store or _find_checkout() / "runs" / "reproduce"
        with say_when_interrupted("stopped: run the same command again to continue"):
            times = experiments.run(name, folder, workers=workers, full=full, dry=dry_run, notify=say)
        chosen = [one.to_json() for one in experiments.choose(name)]
        if not dry_run:
            chosen = [one | {"written": [str(path) for path in _load("page").write_page()]} for one in chosen]
        _answer([one | {"estimated_seconds": times} for one in chosen], as_json)
    elif check or render:
        changed = [str(path) for path in (_load("page").find_changes() if check else _load("page").write_page())]
        if as_json:
            show_json({"changed" if check else "written": changed})
        for path in () if as_json else changed:
            show(f"{'differs from the records' if check else 'written'}: {path}")
        if check and changed:
            raise typer.Exit(1)
    else:
        _answer([one.to_json() for one in experiments.read_map()[1]], as_json)


def _answer(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json({"experiments": found})
        return
    from hush.bench.sweep import format_duration

    for one in found:
        time = "" if one["seconds"] is None else f", {format_duration(one['seconds'])} on one core"
        time += f", published size {format_duration(one['full_seconds'])}" if one["full_seconds"] else ""
        runs = f", {one['runs']} of {one['planned']} runs" if one["planned"] else ""
        show(f"{one['name']}: {one['item']}, {one['shows']}")
        reason = f" ({one['reason']})" if one["reason"] else ""
        show(f"  {one['state']}{reason}{runs}{time}")
        show("  " + "; ".join(part for part in (one["command"], one["page"]) if part))
