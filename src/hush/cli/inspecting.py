"""`hush data inspect`: what a table of one's own looks like, and all that keeps it from being trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import say, show, show_json, show_table
from hush.cli.shell import AsJson
from hush.data.infer import FACTS, infer
from hush.data.inspection import Inspection, inspect_table
from hush.data.parts import TABLES, holds_table, is_pattern
from hush.data.schema import Schema, read_range, read_schema
from hush.data.schema_file import write_toml
from hush.data.tables import no_column
from hush.errors import BadInput
from hush.files import write_atomic
from hush.prediction_file import check_new_file
from hush.problems.own_data import TASKS
from hush.validate import one_of

LOOKED = (
    "kinds of columns, and how their cells are written, were read off the rows: a guarantee takes them to be public"
)
Table = Annotated[Path, typer.Argument(metavar="FILE", help="The table: .csv, .tsv, .txt or .parquet.")]
Target = Annotated[str | None, typer.Option("--target", help="The column to predict.")]
Unit = Annotated[str, typer.Option("--unit", help="The column that says who a row is about.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write a schema to edit: a .toml file.")]
Given = Annotated[Path | None, typer.Option("--schema", help="What is known already, .toml or .json.")]
Public = Annotated[
    str | None, typer.Option("--public", help="What may be read off the rows: ranges, categories, ranges+categories.")
]
TaskName = Annotated[str, typer.Option("--task", help="classification or regression.")]
TargetRange = Annotated[
    tuple[float, float] | None, typer.Option("--target-range", metavar="LOW HIGH", help="Regression: its public range.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")]


@dataclass(frozen=True)
class _Looked:
    """What was found, all problems, and the schema if there is none of them."""

    found: Inspection
    problems: tuple[str, ...]
    schema: Schema | None = None


def inspect(
    path: Table,
    target: Target = None,
    unit: Unit = "",
    out: Out = None,
    schema: Given = None,
    public: Public = None,
    task: TaskName = TASKS[0],
    target_range: TargetRange = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Look at a table of your own: the kind of every column, what will become of it, and every problem; exit 1 if there
    is one.

    It looks at private rows. What it shows is for their owner: kinds, never a cell. How many values are missing goes to
    stderr alone. --out writes a schema to edit; classes, categories and ranges are in it with --public only.

    Example: `hush data inspect my.csv --target y --out schema.toml`
    """
    if out is not None:
        _check_out(out, path, overwrite)
    facts = tuple(public.split("+")) if public is not None else ()
    given = read_schema(schema)
    if target_range is not None:
        given["target_range"] = read_range(target_range, "the target's range")
    target = target or given.get("target")
    looked = _look(path, given, facts, target, unit, task)
    for name in filter(None, (target, unit)):
        if name not in looked.found.seen:
            raise no_column(name, looked.found.seen, path)
    for line in (*looked.found.count_strays(), *(f"warning: {text}" for text in looked.found.list_repeating())):
        say(line)
    if out is not None:
        write_atomic(out, _write(looked, target, facts).encode())
    _show(looked, target, out, as_json)
    if looked.problems:
        raise typer.Exit(1)


def _look(
    path: Path, given: dict[str, Any], public: tuple[str, ...], target: str | None, unit: str, task: str
) -> _Looked:
    one_of(TASKS, task=task)
    for fact in public:
        one_of(FACTS, public_fact=fact)
    if not (path.exists() or is_pattern(path)) or not holds_table(path):
        raise BadInput(f"there is no table '{path}': give a {', '.join(TABLES[:-1])} or {TABLES[-1]} file")
    if target is None:
        found = inspect_table(path, given, public, unit=unit)
        return _Looked(found, found.problems)
    inferred = infer(path, target, given, public, regression=task == "regression", unit=unit)
    return _Looked(inferred.inspection, inferred.problems, inferred.schema)


def _check_out(out: Path, path: Path, overwrite: bool) -> None:
    if out.suffix != ".toml":
        raise BadInput(f"'{out}' must end in .toml, in which a schema is written")
    if out.resolve() == path.resolve():
        raise BadInput(f"the schema cannot take the place of '{path}': give another --out")
    check_new_file(out, overwrite=overwrite)


def _write(looked: _Looked, target: str | None, public: tuple[str, ...]) -> str:
    schema = looked.schema
    classes = schema.classes if schema is not None and "categories" in public else ()
    limits = schema.target_range if schema is not None and schema.target_range is not None else ()
    return write_toml(looked.found, target=target, classes=classes, target_range=limits, public=public)


def _show(looked: _Looked, target: str | None, out: Path | None, as_json: bool) -> None:
    columns = [{**finding.describe(), "target": finding.column.name == target} for finding in looked.found.findings]
    if as_json:
        written = None if out is None else str(out)
        facts = {"columns": columns, "problems": list(looked.problems), "assumption": LOOKED, "out": written}
        show_json({"file": str(looked.found.path), "target": target, **facts})
        return
    cells = (
        (c["column"], c["kind"], c["why"], "the target" if c["target"] else c["happens"], "yes" if c["problem"] else "")
        for c in columns
    )
    show_table("", ("column", "kind", "why", "what will happen", "problem"), cells)
    for problem in looked.problems:
        show(f"problem: {problem}")
    show(LOOKED)
    if out is not None:
        show(f"schema to edit: {out}")
