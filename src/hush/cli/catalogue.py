"""`hush methods`, `hush problems` and `hush data`: list what is available."""

from __future__ import annotations

import inspect as inspect_methods
import typing
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush._internal.settings import TASKS
from hush._internal.storage import write_atomic
from hush._internal.validate import choice
from hush.cli.console import AsJson, say, show, show_block, show_json, show_table
from hush.cli.options import check_exists
from hush.errors import InvalidInputError

if TYPE_CHECKING:
    from hush.datasets.download import Dataset
    from hush.methods import Method
    from hush.tabular.inspect import Inspection
    from hush.tabular.schema import Schema

SMALL: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 1, "accept_claimed": True}  # a plan to inspect
NOISE = {"none": "no noise", "chosen": "the noise that fits the setting"}
PROTECTED = {
    "nothing": "nothing",
    "features": "features only; labels and membership in the data are assumed to be public",
    "labels": "labels only; features and membership in the data are assumed to be public",
    "example": "both: the whole example",
}
STATUS = {
    "proven": "proven ε",
    "none": "no guarantee",
    "proven or claimed": "ε proven, or claimed by its paper",
    "proven or refuted": "ε proven; that of its paper is refuted",
    "refuted": "no guarantee; the ε of its paper is refuted",
}


def methods(as_json: AsJson = False) -> None:
    """List the methods: their noise, what they are for, and the options that `--set key=value` sets on each."""
    from hush.methods import catalogue, find

    rows = [_row(name, find(name)) for name in ("auto", *catalogue())]
    if as_json:
        show_json(rows)
        return
    show("Options shared by methods, set by --set key=value, with their defaults:")
    for names, shared in _shared(rows):
        show()
        show_block(names, indent=2)
        show_block(shared, indent=6)
    show()
    show("The methods, each with its other options:")
    for row in rows:
        _show_method(row)
    show()
    show("What they protect:")
    for what, words in PROTECTED.items():
        show()
        show_block(words, indent=2)
        show_block(", ".join(row["method"] for row in rows if _find_protected(row) == what) or "no method", indent=6)


def _find_protected(row: dict[str, Any]) -> str:
    """What is actually protected: nothing if the ε is refuted."""
    return "nothing" if row["status"] == "refuted" else str(row["protects"])


def _show_method(row: dict[str, Any]) -> None:
    show()
    noise = NOISE.get(row["noise"], f"{row['noise']} noise")
    status = STATUS.get(row["status"], row["status"])
    show_block(f"{row['method']}: {noise}, {status}", indent=2)
    show_block(f"{row['summary']} {row['purpose']}".strip(), indent=6)
    if own := _own_options(row):
        show_block(_shown(row, own), indent=6)


def _row(name: str, method: Method) -> dict[str, Any]:
    from hush.methods import options, purpose

    known = options(method)
    words = {key: _words(parameter.annotation) for key, parameter in known.items()}
    return {
        "method": name,
        "summary": (inspect_methods.getdoc(method) or "").split("\n\n")[0].replace("\n", " "),
        "options": {key: parameter.default for key, parameter in known.items()},
        "words": {key: allowed for key, allowed in words.items() if allowed},
        "purpose": purpose(method),
        **_noise(name),
    }


def _noise(name: str) -> dict[str, str]:
    """From a small plan: whether noise is independent over steps, the status of its ε, and which part of an example
    it protects."""
    if name == "auto":  # every candidate is a proven method that protects the whole example
        return {"noise": "chosen", "status": "proven", "protects": "example"}
    if name == "sgd":
        return {"noise": "none", "status": "none", "protects": "nothing"}
    from hush.methods import make_plan

    plan = make_plan(name, **SMALL, noise_multiplier=4.0)
    claims = plan.claims()
    status = " or ".join(dict.fromkeys(claim.status for claim in claims))
    noise = "independent" if plan.noise.structure.bands == 1 else "correlated"
    return {"noise": noise, "status": status, "protects": claims[0].protects}


def _words(hint: Any) -> list[str]:
    """The values that an option accepts, if they are limited."""
    if typing.get_origin(hint) is typing.Literal:
        return [word for word in typing.get_args(hint) if isinstance(word, str)]
    return [word for part in typing.get_args(hint) for word in _words(part)]


def _shared(rows: list[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """(Methods, options) for every group of options, the most common one first."""
    from hush.methods import find, option_groups

    sharing: dict[type, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for kind in option_groups(find(row["method"])).values():
            sharing[kind].append(row)
    for kind, theirs in sorted(sharing.items(), key=lambda item: -len(item[1])):
        yield _name_all(theirs, rows), _shown(theirs[0], [f.name for f in fields(kind)])


def _own_options(row: dict[str, Any]) -> list[str]:
    from hush.methods import find, option_groups

    shared = {f.name for kind in option_groups(find(row["method"])).values() for f in fields(kind)}
    return [key for key in row["options"] if key not in shared]


def _name_all(some: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The names of these methods, or "all but …" if that is shorter."""
    names = [row["method"] for row in some]
    others = [row["method"] for row in rows if row["method"] not in names]
    return ", ".join(names) if len(names) <= len(others) else f"all but {', '.join(others)}"


def _shown(row: dict[str, Any], keys: Iterable[str]) -> str:
    words, defaults = row["words"], row["options"]
    return ", ".join(f"{k}={defaults[k]}" + (f" (of {' '.join(words[k])})" if k in words else "") for k in keys)


def problems(as_json: AsJson = False) -> None:
    """List the problems: each combines data, a model and a metric."""
    from hush.datasets.catalogue import names

    rows = names()
    if as_json:
        show_json([{"problem": name, "summary": summary} for name, summary in rows])
        return
    show_table("", ("problem", "what it is"), rows)


# `hush data inspect`: the columns of the user's table, and every problem that prevents training on it.

LOOKED = "kinds of columns and the format of their cells were read from the rows: they are assumed to be public"
Table = Annotated[Path, typer.Argument(metavar="FILE", help="The table: .csv, .tsv, .txt or .parquet.")]
Target = Annotated[str | None, typer.Option("--target", help="The column to predict.")]
Unit = Annotated[str, typer.Option("--unit", help="The column with the privacy unit of each row, such as a patient.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write a schema for editing to this .toml file.")]
Given = Annotated[Path | None, typer.Option("--schema", help="A schema with what is already known, .toml or .json.")]
Public = Annotated[
    str | None, typer.Option("--public", help="What may be read from the rows: ranges, categories, ranges+categories.")
]
TaskName = Annotated[str, typer.Option("--task", help="classification or regression.")]
TargetRange = Annotated[
    tuple[float, float] | None, typer.Option("--target-range", metavar="LOW HIGH", help="Regression: its public range.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]


@dataclass(frozen=True)
class _Looked:
    """The findings, all problems, and the schema if there are none."""

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
    """Inspect your own table: the kind of every column, how it will be encoded, and every problem; exit code 1 if there
    is one.

    The output is for the owner of the data: it shows kinds of columns, never a cell. Counts of missing values go to
    stderr only. --out writes a schema for editing; it holds classes, categories and ranges only with --public.

    Example: `hush data inspect my.csv --target y --out schema.toml`
    """
    if out is not None:
        _check_out(out, path, overwrite)
    check_exists(path, "table")
    facts = tuple(public.split("+")) if public is not None else ()
    from hush.tabular.rows import no_column
    from hush.tabular.schema import read_range, read_schema

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
    _show_inspecting(looked, target, out, as_json)
    if looked.problems:
        raise typer.Exit(1)


def _look(
    path: Path, given: dict[str, Any], public: tuple[str, ...], target: str | None, unit: str, task: str
) -> _Looked:
    from hush.tabular.inspect import FACTS, infer, inspect_table
    from hush.tabular.reader import TABLES, holds_table, is_pattern

    choice(TASKS, task=task)
    for fact in public:
        choice(FACTS, public_fact=fact)
    if not (path.exists() or is_pattern(path)) or not holds_table(path):
        raise InvalidInputError(f"there is no table '{path}': give a {', '.join(TABLES[:-1])} or {TABLES[-1]} file")
    if target is None:
        found = inspect_table(path, given, public, unit=unit)
        return _Looked(found, found.problems)
    inferred = infer(path, target, given, public, regression=task == "regression", unit=unit)
    return _Looked(inferred.inspection, inferred.problems, inferred.schema)


def _check_out(out: Path, path: Path, overwrite: bool) -> None:
    from hush.release.predict import check_new_file

    if out.suffix != ".toml":
        raise InvalidInputError(f"'{out}' must end in .toml, the format of a schema")
    if out.resolve() == path.resolve():
        raise InvalidInputError(f"the schema cannot replace '{path}': give another --out")
    check_new_file(out, overwrite=overwrite)


def _write(looked: _Looked, target: str | None, public: tuple[str, ...]) -> str:
    from hush.tabular.inspect import write_toml

    schema = looked.schema
    classes = schema.classes if schema is not None and {"categories", "classes"} & {*public} else ()
    limits = schema.target_range if schema is not None and schema.target_range is not None else ()
    return write_toml(looked.found, target=target, classes=classes, target_range=limits, public=public)


def _show_inspecting(looked: _Looked, target: str | None, out: Path | None, as_json: bool) -> None:
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
        show(f"schema for editing: {out}")


# `hush data list|verify|fetch|inspect`: the public datasets, their digests, and the user's own table.

app = typer.Typer(help="List, verify and fetch the public datasets; inspect a table of your own.", no_args_is_help=True)
Place = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the datasets; by default HUSH_DATA, then the cache.")
]
app.command("inspect")(inspect)


@app.command("list")
def list_(data_dir: Place = None, as_json: AsJson = False) -> None:
    """List the datasets, their licences, and where each is stored."""
    from hush.datasets.download import list_datasets
    from hush.datasets.sources import DATASETS

    rows = list_datasets(DATASETS.values(), data_dir)
    if as_json:
        show_json(rows)
        return
    cells = ((r["name"], r["summary"], r["licence"], r["where"] or "not here yet: hush data fetch") for r in rows)
    show_table("", ("dataset", "what it is", "licence", "where"), cells)


@app.command("verify")
def verify_(
    name: Annotated[str | None, typer.Argument(help="The dataset to verify; all by default.")] = None,
    data_dir: Place = None,
    as_json: AsJson = False,
) -> None:
    """Compare the unpacked bytes of every file with the official ones; exit code 1 if any is altered or unreadable."""
    from hush.datasets.download import verify
    from hush.datasets.sources import DATASETS

    wanted = DATASETS.values() if name is None else [_find(name)]
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
    name: Annotated[str, typer.Argument(help="The dataset to download.")],
    data_dir: Place = None,
    as_json: AsJson = False,
) -> None:
    """Download missing files from a public mirror, resuming an interrupted download, and verify them."""
    from hush.datasets.download import fetch, progress_on_stderr

    with progress_on_stderr() as progress:
        rows = fetch(_find(name), data_dir=data_dir, progress=progress)
    _show(rows, as_json)


def _find(name: str) -> Dataset:
    from hush.datasets.sources import DATASETS

    choice(DATASETS, dataset=name)
    return DATASETS[name]


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    show_table("", ("dataset", "file", "status"), ((r["dataset"], r["file"], r["status"]) for r in rows))
