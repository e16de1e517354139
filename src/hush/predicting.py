"""A released model on a file of rows, some at a time: predictions into a file, or figures on rows with labels.

Memory holds a few thousand rows of a table or a few hundred images, whatever the file holds; an .npz of arrays is read
as a whole. Labels are read only for figures. Errors name a column and the number of a row, and quote no cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.artefact import Description, Inputs
from hush.data.parts import holds_table, is_pattern
from hush.data.pictures import DEFAULT_LABELS, iterate_images, list_images, read_arrays, read_unlabelled
from hush.data.reading import Cells, pieces
from hush.data.splits import Arrays
from hush.data.tables import encode_piece, no_column, numbers, texts
from hush.errors import BadInput
from hush.figures import Figures, ValueFigures, judge_classes, judge_values
from hush.handover import Loaded
from hush.handover.rows import encode_features, map_range
from hush.prediction_file import Written, write_rows

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
    model: Loaded, path: Path, out: Path, *, overwrite: bool = False, tell: Tell = lambda _: None
) -> Written:
    """Predictions for every row of ``path``, written to ``out`` (.csv or .parquet), whole or not at all."""
    description = _check_task(model)
    _check_out(out, path, model.folder)
    images = description.inputs is not None and description.inputs.kind == "images"
    first = "file" if path.is_dir() and images else "row"
    lines = (_tabulate(model, part, first) for part in _report(iterate_parts(path, description), tell))
    return write_rows(out, lines, overwrite=overwrite)


def judge_file(model: Loaded, path: Path, *, tell: Tell = lambda _: None) -> Figures | ValueFigures:
    """The figures of the model on rows with labels: exact, and not covered by the release's guarantee."""
    description = _check_task(model)
    said, truth = [], []
    for part in _report(iterate_parts(path, description, labelled=True), tell):
        found = model.predict(part.inputs)
        given = found.values if found.probabilities is None else found.probabilities
        if given is None or part.labels is None:
            raise BadInput("this model gives neither classes nor numbers")
        said.append(given.numpy())
        truth.append(part.labels.numpy())
    judge = judge_values if description.task == "regression" else judge_classes
    return judge(np.concatenate(said), np.concatenate(truth))


def iterate_parts(path: Path, description: Description, *, labelled: bool = False) -> Iterator[Part]:
    """The rows of a file or folder as the model takes them, some at a time, with their labels if they are asked for."""
    inputs = description.inputs
    if inputs is None:
        raise BadInput("this release does not say what its inputs are: use hush.load(…).predict on a tensor in Python")
    if not path.exists() and not is_pattern(path):
        raise BadInput(f"there is no file or folder '{path}'")
    if path.suffix == ".npz":
        parts = _iterate_arrays(path, description, inputs, labelled)
    elif inputs.kind == "table" and holds_table(path):
        parts = _iterate_table(path, description, labelled)
    elif path.is_dir() and inputs.kind == "images":
        parts = _iterate_folder(path, description, inputs, labelled)
    else:
        raise BadInput(f"'{path}' cannot be read by this model, which is for {WANTED[inputs.kind]}")
    done = 0
    for part in parts:
        done += len(part.inputs)
        yield part
    if not done:
        raise BadInput(f"'{path}' holds no rows")


def _iterate_table(path: Path, description: Description, labelled: bool) -> Iterator[Part]:
    schema, done = description.schema, 0
    if schema is None:
        raise BadInput("this release has no schema of its columns")
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
            raise BadInput(f"column '{description.target}' of '{path}' must hold a finite number in every row")
        return torch.from_numpy(np.asarray(found))
    known = {name: place for place, name in enumerate(description.classes)}
    places = [known.get(text, -1) for text in texts(cells)]
    if -1 in places:
        row = done + places.index(-1) + 1
        raise BadInput(f"row {row} of '{path}' has a label that is none of the model's {len(known)} classes")
    return torch.tensor(places)


def _iterate_arrays(path: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    labels: Tensor | None = None
    if labelled:
        features, labels = _read_labelled(path, description)
    else:
        features = read_unlabelled(path, description.target)
    rows = encode_features(features, inputs)
    if not bool(torch.isfinite(rows).all()):
        raise BadInput(f"the features of '{path}' hold values that are not finite (NaN or infinity)")
    yield Part(range(1, len(rows) + 1), rows, labels)


def _read_labelled(path: Path, description: Description) -> Arrays:
    """Features and labels, which are in the array that training took them from."""
    target = None if description.target == DEFAULT_LABELS else description.target
    found = read_arrays(path, target, regression=description.task == "regression")
    if "test" in found.parts:
        raise BadInput(f"'{path}' has a training and a test part of its own: give a file with one part")
    features, labels = found.parts["train"]
    return features, _check_places(labels, description, path)


def _check_places(labels: Tensor, description: Description, path: Path) -> Tensor:
    if description.task == "classification" and int(labels.max()) >= len(description.classes):
        raise BadInput(f"'{path}' holds a label that is none of the {len(description.classes)} classes")
    return labels


def _iterate_folder(root: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    paths = list_images(root)
    labels = torch.tensor(_label_by_folder(root, paths, description.classes)) if labelled else None
    done = 0
    for images in iterate_images(root, paths):
        if tuple(images.shape[1:]) != inputs.shape:
            raise BadInput(
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
            raise BadInput(
                f"'{root}' must hold one folder of images for each class, named like those of the model: "
                f"{', '.join(classes[:5])}{' …' * (len(classes) > 5)}"
            )
    return [places[folder] for folder in folders]


def _tabulate(model: Loaded, part: Part, first: str) -> dict[str, Any]:
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


def _check_task(model: Loaded) -> Description:
    description = model.description
    if description.task == "other":
        raise BadInput(f"the model in '{model.folder}' is no classifier and no regression: use it from Python")
    return description


def _check_out(out: Path, path: Path, release: Path) -> None:
    if out.resolve() == path.resolve():
        raise BadInput(f"the predictions cannot take the place of the rows in '{path}': give another --out")
    if release.resolve() in out.resolve().parents:
        raise BadInput(
            f"'{out}' lies in the release, which holds what was released and nothing else: give another --out"
        )
