"""A released model on a file of rows, some at a time: predictions into a file, or figures on rows with labels.

Memory holds a few thousand rows of a table or a few hundred images, whatever the file holds; an .npz of arrays is read
as a whole. Labels are read only for figures. Errors name a column and the number of a row, and quote no cell.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush._internal.storage import atomic_writer, explain
from hush.datasets.images import DEFAULT_LABELS, iterate_images, list_images, read_arrays, read_unlabelled
from hush.datasets.splits import Arrays
from hush.errors import InvalidInputError
from hush.release.description import Description, Inputs
from hush.release.load import Predictions, ReleasedModel, encode_features, load, map_range
from hush.statistics.metrics import Figures, ValueFigures, judge_classes, judge_values
from hush.tabular.encode import encode_piece, no_column, numbers, texts
from hush.tabular.reader import Cells, holds_table, is_pattern, pieces

# Columns of results as a .csv or .parquet file, written some rows at a time, and there as a whole or not at all.

Columns = dict[str, list[Any]]
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class WriteResult:
    """What was written: how many rows, and the names of the columns."""

    path: Path
    rows: int
    columns: tuple[str, ...]


def write_rows(path: Path, parts: Iterable[Columns], *, overwrite: bool = False) -> WriteResult:
    """Write parts, all with the same columns, one after the other."""
    check_new_file(path, overwrite=overwrite)
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(
            f"'{path}' must end in {' or '.join(SUFFIXES)}, which says how the predictions are written"
        )
    rows = 0
    columns: tuple[str, ...] = ()
    with atomic_writer(path) as beside, _open_writer(path, beside) as write:
        for part in parts:
            write(part)
            columns = tuple(part)
            rows += len(next(iter(part.values())))
    return WriteResult(path, rows, columns)


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there unless it may be overwritten, and a folder that is not."""
    if path.is_dir():
        raise InvalidInputError(f"'{path}' is a folder: give the name of a file")
    if path.exists() and not overwrite:
        raise InvalidInputError(f"'{path}' is there already: add --overwrite, or give another --out")
    if not path.resolve().parent.is_dir():
        raise InvalidInputError(f"there is no folder '{path.parent}' to write '{path.name}' to")


@contextmanager
def _open_writer(path: Path, beside: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that writes one part. What goes wrong between two parts is its caller's own."""
    with ExitStack() as stack:
        with _say_where(path):
            write = stack.enter_context((_open_csv if path.suffix == ".csv" else _open_parquet)(beside))
        yield _say_where(path)(write)


@contextmanager
def _say_where(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise InvalidInputError(f"cannot write to '{path}': {explain(error)}") from error


@contextmanager
def _open_csv(beside: Path) -> Iterator[Callable[[Columns], None]]:
    with beside.open("w", newline="", encoding="utf-8") as file:
        table, begun = csv.writer(file), False

        def write(part: Columns) -> None:
            nonlocal begun
            if not begun:
                table.writerow(part)
            begun = True
            table.writerows(zip(*(map(_spell, column) for column in part.values()), strict=True))

        yield write


def _spell(value: Any) -> Any:
    """Nine digits say a number of 32 bits."""
    return f"{value:.9g}" if isinstance(value, float) else value


@contextmanager
def _open_parquet(beside: Path) -> Iterator[Callable[[Columns], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def write(part: Columns) -> None:
        nonlocal writer
        table = pa.table(part)
        writer = writer or pq.ParquetWriter(beside, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


Tell = Callable[[str], None]
WANTED = {
    "table": "a table: give a .csv or .parquet file",
    "images": "images: give a folder of images or an .npz of arrays",
    "arrays": "arrays: give an .npz",
}


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows: what they are called (their numbers, or names of files), as the network takes them, and their labels
    (places of classes, or numbers) where they were asked for."""

    names: Sequence[str | int]
    inputs: Tensor
    labels: Tensor | None = None


def predict_file(
    model: ReleasedModel, path: Path, out: Path, *, overwrite: bool = False, tell: Tell = lambda _: None
) -> WriteResult:
    """Predictions for every row of ``path``, written to ``out`` (.csv or .parquet), whole or not at all."""
    description = _check_task(model)
    _check_out(out, path, model.folder)
    images = description.inputs is not None and description.inputs.kind == "images"
    first = "file" if path.is_dir() and images else "row"
    lines = (_tabulate(model, part, first) for part in _report(iterate_parts(path, description), tell))
    return write_rows(out, lines, overwrite=overwrite)


def judge_file(model: ReleasedModel, path: Path, *, tell: Tell = lambda _: None) -> Figures | ValueFigures:
    """The figures of the model on rows with labels: exact, and not covered by the release's guarantee."""
    description = _check_task(model)
    said, truth = [], []
    for part in _report(iterate_parts(path, description, labelled=True), tell):
        found = model.predict(part.inputs)
        given = found.values if found.probabilities is None else found.probabilities
        if given is None or part.labels is None:
            raise InvalidInputError("this model gives neither classes nor numbers")
        said.append(given.numpy())
        truth.append(part.labels.numpy())
    judge = judge_values if description.task == "regression" else judge_classes
    return judge(np.concatenate(said), np.concatenate(truth))


def iterate_parts(path: Path, description: Description, *, labelled: bool = False) -> Iterator[Part]:
    """The rows of a file or folder as the model takes them, some at a time, with their labels if they are asked for."""
    inputs = description.inputs
    if inputs is None:
        raise InvalidInputError(
            "this release does not say what its inputs are: use hush.load(…).predict on a tensor in Python"
        )
    if not path.exists() and not is_pattern(path):
        raise InvalidInputError(f"there is no file or folder '{path}'")
    if path.suffix == ".npz":
        parts = _iterate_arrays(path, description, inputs, labelled)
    elif inputs.kind == "table" and holds_table(path):
        parts = _iterate_table(path, description, labelled)
    elif path.is_dir() and inputs.kind == "images":
        parts = _iterate_folder(path, description, inputs, labelled)
    else:
        raise InvalidInputError(f"'{path}' cannot be read by this model, which is for {WANTED[inputs.kind]}")
    done = 0
    for part in parts:
        done += len(part.inputs)
        yield part
    if not done:
        raise InvalidInputError(f"'{path}' holds no rows")


def _iterate_table(path: Path, description: Description, labelled: bool) -> Iterator[Part]:
    schema, done = description.schema, 0
    if schema is None:
        raise InvalidInputError("this release has no schema of its columns")
    for piece in pieces(path):
        inputs, labels = torch.from_numpy(encode_piece(piece, schema, done, path)), None
        if labelled:
            if schema.target not in piece:
                raise no_column(schema.target, piece, path)
            labels = _read_labels(piece[schema.target], description, done, path)
        yield Part(range(done + 1, done + len(inputs) + 1), inputs, labels)
        done += len(inputs)


def _read_labels(cells: Cells, description: Description, done: int, path: Path) -> Tensor:
    """Places of classes, or the numbers that a regression predicts."""
    if description.task == "regression":
        found = numbers(cells)
        if found is None or not np.isfinite(found).all():
            raise InvalidInputError(f"column '{description.target}' of '{path}' must hold a finite number in every row")
        return torch.from_numpy(np.asarray(found))
    known = {name: place for place, name in enumerate(description.classes)}
    places = [known.get(text, -1) for text in texts(cells)]
    if -1 in places:
        row = done + places.index(-1) + 1
        raise InvalidInputError(f"row {row} of '{path}' has a label that is none of the model's {len(known)} classes")
    return torch.tensor(places)


def _iterate_arrays(path: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    labels: Tensor | None = None
    if labelled:
        features, labels = _read_labelled(path, description)
    else:
        features = read_unlabelled(path, description.target)
    rows = encode_features(features, inputs)
    if not bool(torch.isfinite(rows).all()):
        raise InvalidInputError(f"the features of '{path}' hold values that are not finite (NaN or infinity)")
    yield Part(range(1, len(rows) + 1), rows, labels)


def _read_labelled(path: Path, description: Description) -> Arrays:
    """Features and labels, which are in the array that training took them from."""
    target = None if description.target == DEFAULT_LABELS else description.target
    found = read_arrays(path, target, regression=description.task == "regression")
    if "test" in found.parts:
        raise InvalidInputError(f"'{path}' has a training and a test part of its own: give a file with one part")
    features, labels = found.parts["train"]
    return features, _check_places(labels, description, path)


def _check_places(labels: Tensor, description: Description, path: Path) -> Tensor:
    if description.task == "classification" and int(labels.max()) >= len(description.classes):
        raise InvalidInputError(f"'{path}' holds a label that is none of the {len(description.classes)} classes")
    return labels


def _iterate_folder(root: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    paths = list_images(root)
    labels = torch.tensor(_label_by_folder(root, paths, description.classes)) if labelled else None
    done = 0
    for images in iterate_images(root, paths):
        if tuple(images.shape[1:]) != inputs.shape:
            raise InvalidInputError(
                f"the images in '{root}' have the shape {tuple(images.shape[1:])}, the model's {inputs.shape}"
            )
        end = done + len(images)
        names = [path.relative_to(root).as_posix() for path in paths[done:end]]
        yield Part(names, map_range(images, inputs), None if labels is None else labels[done:end])
        done = end


def _label_by_folder(root: Path, paths: list[Path], classes: tuple[str, ...]) -> list[int]:
    """The place of every image's class, which is the name of its folder in ``root``."""
    places = {name: place for place, name in enumerate(classes)}
    folders = [path.relative_to(root).parts[0] for path in paths]
    for folder in dict.fromkeys(folders):
        if folder not in places or not (root / folder).is_dir():
            raise InvalidInputError(
                f"'{root}' must hold one folder of images for each class, named like those of the model: "
                f"{', '.join(classes[:5])}{' …' * (len(classes) > 5)}"
            )
    return [places[folder] for folder in folders]


def _tabulate(model: ReleasedModel, part: Part, first: str) -> dict[str, Any]:
    """The predictions of some rows as columns of a file."""
    found = model.predict(part.inputs)
    if found.probabilities is None:
        return {first: list(part.names), "prediction": [] if found.values is None else found.values.double().tolist()}
    columns = zip(found.classes, found.probabilities.T.tolist(), strict=True)
    shares = {f"probability_{name}": column for name, column in columns}
    return {first: list(part.names), "prediction": found.names, **shares}


def _report(parts: Iterator[Part], tell: Tell) -> Iterator[Part]:
    done = 0
    for part in parts:
        yield part
        done += len(part.inputs)
        tell(f"{done} rows")


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
) -> Figures | ValueFigures:
    """How well a release predicts the labels in a file: accuracy, AUC, log-loss and more, or errors of numbers.

    >>> hush.evaluate("run/release", "test.csv").accuracy  # doctest: +SKIP
    0.91

    The figures are exact and not covered by ε: keep them to yourself unless the rows are public."""
    model = release if isinstance(release, ReleasedModel) else load(release, trust_code=trust_code)
    return judge_file(model, Path(path))
