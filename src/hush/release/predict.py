"""Apply a released model to a file of rows, some at a time: write predictions to a file, or compute metrics.

Memory holds a few thousand rows of a table or a few hundred images, for a file of any size; an .npz of arrays is read
as a whole. Labels are read only for metrics. Errors name a column and the number of a row, and quote no cell.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hush._internal.storage import atomic_writer, explain
from hush.errors import InvalidInputError
from hush.release.description import Description
from hush.release.load import Predictions, ReleasedModel, load
from hush.release.rows import Part, iterate_parts
from hush.statistics.metrics import ClassificationMetrics, RegressionMetrics, judge_classes, judge_values

# Columns of results as a .csv or .parquet file, written some rows at a time, and there as a whole or not at all.

Columns = dict[str, list[Any]]
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class WriteResult:
    """The number of rows written, and the names of the columns."""

    path: Path
    rows: int
    columns: tuple[str, ...]


def write_rows(path: Path, parts: Iterable[Columns], *, overwrite: bool = False) -> WriteResult:
    """Write parts, all with the same columns, one after the other."""
    check_new_file(path, overwrite=overwrite)
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(
            f"'{path}' must end in {' or '.join(SUFFIXES)}, which selects the format: give another name"
        )
    rows = 0
    columns: tuple[str, ...] = ()
    with atomic_writer(path) as partial, _open_writer(path, partial) as write:
        for part in parts:
            write(part)
            columns = tuple(part)
            rows += len(next(iter(part.values())))
    return WriteResult(path, rows, columns)


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """Raise for an existing file that may not be overwritten, and for a missing folder."""
    if path.is_dir():
        raise InvalidInputError(f"'{path}' is a folder: give the name of a file")
    if path.exists() and not overwrite:
        raise InvalidInputError(f"'{path}' is there already: add --overwrite, or give another --out")
    if not path.resolve().parent.is_dir():
        raise InvalidInputError(f"there is no folder '{path.parent}' to write '{path.name}' to")


@contextmanager
def _open_writer(path: Path, partial: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that writes one part; errors between two parts are passed on unchanged."""
    with ExitStack() as stack:
        with _say_where(path):
            write = stack.enter_context((_open_csv if path.suffix == ".csv" else _open_parquet)(partial))
        yield _say_where(path)(write)


@contextmanager
def _say_where(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise InvalidInputError(f"cannot write to '{path}': {explain(error)}") from error


@contextmanager
def _open_csv(partial: Path) -> Iterator[Callable[[Columns], None]]:
    with partial.open("w", newline="", encoding="utf-8") as file:
        table, begun = csv.writer(file), False

        def write(part: Columns) -> None:
            nonlocal begun
            if not begun:
                table.writerow(part)
            begun = True
            table.writerows(zip(*(map(_spell, column) for column in part.values()), strict=True))

        yield write


def _spell(value: Any) -> Any:
    """A 32-bit number in nine digits, which identify it."""
    return f"{value:.9g}" if isinstance(value, float) else value


@contextmanager
def _open_parquet(partial: Path) -> Iterator[Callable[[Columns], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def write(part: Columns) -> None:
        nonlocal writer
        table = pa.table(part)
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


Notify = Callable[[str], None]


def predict_file(
    model: ReleasedModel, path: Path, out: Path, *, overwrite: bool = False, notify: Notify = lambda _: None
) -> WriteResult:
    """Write predictions for every row of ``path`` to ``out`` (.csv or .parquet), atomically."""
    description = _check_task(model)
    _check_out(out, path, model.folder)
    images = description.inputs is not None and description.inputs.kind == "images"
    first = "file" if path.is_dir() and images else "row"
    lines = (_tabulate(model, part, first) for part in _report(iterate_parts(path, description), notify))
    return write_rows(out, lines, overwrite=overwrite)


def judge_file(
    model: ReleasedModel, path: Path, *, notify: Notify = lambda _: None
) -> ClassificationMetrics | RegressionMetrics:
    """The metrics of the model on rows with labels: exact, and not covered by the release's guarantee."""
    description = _check_task(model)
    said, truth = [], []
    for part in _report(iterate_parts(path, description, labelled=True), notify):
        found = model.predict(part.inputs)
        given = found.values if found.probabilities is None else found.probabilities
        if given is None or part.labels is None:
            raise InvalidInputError("this model gives neither classes nor numbers")
        said.append(given.numpy())
        truth.append(part.labels.numpy())
    judge = judge_values if description.task == "regression" else judge_classes
    return judge(np.concatenate(said), np.concatenate(truth))


def _tabulate(model: ReleasedModel, part: Part, first: str) -> dict[str, Any]:
    """The predictions of some rows as columns of a file."""
    found = model.predict(part.inputs)
    if found.probabilities is None:
        return {first: list(part.names), "prediction": [] if found.values is None else found.values.double().tolist()}
    columns = zip(found.classes, found.probabilities.T.tolist(), strict=True)
    shares = {f"probability_{name}": column for name, column in columns}
    return {first: list(part.names), "prediction": found.names, **shares}


def _report(parts: Iterator[Part], notify: Notify) -> Iterator[Part]:
    done = 0
    for part in parts:
        yield part
        done += len(part.inputs)
        notify(f"{done} rows")


def _check_task(model: ReleasedModel) -> Description:
    description = model.description
    if description.task == "other":
        raise InvalidInputError(f"the model in '{model.folder}' is no classifier and no regression: use it from Python")
    return description


def _check_out(out: Path, path: Path, release: Path) -> None:
    if out.resolve() == path.resolve():
        raise InvalidInputError(f"the predictions cannot take the place of the rows in '{path}': give another --out")
    if release.resolve() in out.resolve().parents:
        raise InvalidInputError(
            f"'{out}' lies in the release, which holds what was released and nothing else: give another --out"
        )


def predict(release: str | Path | ReleasedModel, rows: Any, *, trust_code: bool = False) -> Predictions:
    """The predictions of a release for rows without labels.

    >>> hush.predict("run/release", "new.csv").names[:2]  # doctest: +SKIP
    ['yes', 'no']

    ``rows`` is the path of a table (.csv, .parquet), of arrays (.npz) or of images, a data frame, a list of dicts, a
    dict of columns, or a tensor that is encoded already. ``trust_code`` permits the release's own model code to run.
    """
    model = release if isinstance(release, ReleasedModel) else load(release, trust_code=trust_code)
    return model.predict(rows)


def evaluate(
    release: str | Path | ReleasedModel, path: str | Path, *, trust_code: bool = False
) -> ClassificationMetrics | RegressionMetrics:
    """The metrics of a release on the labels in a file: accuracy, AUC, log-loss and more, or errors of numbers.

    >>> hush.evaluate("run/release", "test.csv").accuracy  # doctest: +SKIP
    0.91

    The metrics are exact and not covered by ε: do not publish them unless the rows are public."""
    if not isinstance(path, (str, Path)):
        raise InvalidInputError("evaluate reads the rows and their labels from a file: give its path")
    model = release if isinstance(release, ReleasedModel) else load(release, trust_code=trust_code)
    return judge_file(model, Path(path))
