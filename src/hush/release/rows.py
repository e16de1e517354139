"""Rows as inputs of a released model, encoded by the release's public facts as in training: one iterator for
prediction and evaluation, on files and on rows in memory.

Memory holds a few thousand rows of a table or a few hundred images, for a file of any size; an .npz of arrays is read
as a whole. Labels are read only if requested. Errors name a column and the number of a row, and quote no cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hush.datasets.images import (
    DEFAULT_LABELS,
    iterate_images,
    list_images,
    read_arrays,
    read_image_files,
    read_unlabelled,
)
from hush.errors import InvalidInputError
from hush.release.description import Description, Inputs
from hush.tabular.cells import Cells, TextColumn
from hush.tabular.columns import Number
from hush.tabular.reader import Chunk, holds_table, is_pattern
from hush.tabular.rows import encode_chunk, encode_table
from hush.tabular.schema import Schema

ROWS = "the rows"  # the name in errors of rows that are not from a file
WANTED = {
    "table": "a table: give a .csv or .parquet file",
    "images": "images: give a folder of images or an .npz of arrays",
    "arrays": "arrays: give an .npz",
}


@runtime_checkable
class Frame(Protocol):
    """A table in memory, such as a data frame of pandas or polars: its column names, and each column by its name."""

    @property
    def columns(self) -> Any:
        """The names."""
        ...

    def __getitem__(self, name: Any) -> Any:
        """The cells of a column."""
        ...


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows: their names (numbers, or names of files), the encoded inputs of the network, and their labels (indices
    of classes, or numbers) if requested."""

    names: Sequence[str | int]
    inputs: Tensor
    labels: Tensor | None = None


def encode_rows(rows: Any, description: Description) -> Tensor:
    """Encode rows as inputs of the network.

    ``rows`` is the path of a file (a table: .csv or .parquet; images: .npz, a folder, an image; arrays: .npz), a list
    of one dict for each row, a dict of columns, a data frame, or a tensor that is encoded already."""
    if isinstance(rows, Tensor):
        return rows
    return torch.cat([part.inputs for part in iterate_parts(rows, description)])


def iterate_parts(rows: Any, description: Description, *, labelled: bool = False) -> Iterator[Part]:
    """Encode some rows at a time, with their labels if ``labelled``; labels are read only from files."""
    inputs = description.inputs
    if inputs is None:
        raise InvalidInputError(
            "this release does not describe its inputs: use hush.load(…).predict on a tensor in Python"
        )
    if isinstance(rows, str | Path):
        parts = _iterate_file(Path(rows), description, inputs, labelled)
        what = f"'{rows}' holds no rows"
    else:
        parts = iter([_take_memory(rows, inputs)])
        what = "there are no rows to predict on"
    done = 0
    for part in parts:
        done += len(part.inputs)
        yield part
    if not done:
        raise InvalidInputError(what)


def _iterate_file(path: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    if not path.exists() and not is_pattern(path):
        raise InvalidInputError(f"there is no file or folder '{path}'")
    if path.suffix == ".npz":
        return iter([_read_npz(path, description, inputs, labelled)])
    if inputs.kind == "table" and inputs.schema is not None and holds_table(path):
        return _iterate_table(path, replace(inputs.schema, classes=description.classes), labelled)
    if path.is_dir() and inputs.kind == "images":
        return _iterate_folder(path, description, inputs, labelled)
    if inputs.kind == "images" and not labelled and not holds_table(path):
        images = _check_shape(read_image_files(path)[0], inputs)
        return iter([Part([path.name] * len(images), _map_range(images, inputs))])
    raise InvalidInputError(f"'{path}' cannot be read by this model, which is for {WANTED[inputs.kind]}")


def _iterate_table(path: Path, schema: Schema, labelled: bool) -> Iterator[Part]:
    done = 0
    for rows, labels in encode_table(path, schema, labelled=labelled):
        names = range(done + 1, done + len(rows) + 1)
        yield Part(names, torch.from_numpy(rows), None if labels is None else torch.from_numpy(labels))
        done += len(rows)


def _read_npz(path: Path, description: Description, inputs: Inputs, labelled: bool) -> Part:
    features, labels = read_unlabelled(path, description.target) if not labelled else None, None
    if features is None:
        target = None if description.target == DEFAULT_LABELS else description.target
        found = read_arrays(path, target, regression=description.task == "regression")
        if "test" in found.parts:
            raise InvalidInputError(f"'{path}' has a training and a test part of its own: give a file with one part")
        features, labels = found.parts["train"]
        if description.task == "classification" and int(labels.max()) >= len(description.classes):
            raise InvalidInputError(f"'{path}' holds a label that is none of the {len(description.classes)} classes")
    rows = _encode_features(features, inputs)
    if not bool(torch.isfinite(rows).all()):
        raise InvalidInputError(f"the features of '{path}' hold values that are not finite (NaN or infinity)")
    return Part(range(1, len(rows) + 1), rows, labels)


def _iterate_folder(root: Path, description: Description, inputs: Inputs, labelled: bool) -> Iterator[Part]:
    paths = list_images(root)
    labels = torch.tensor(_label_by_folder(root, paths, description.classes)) if labelled else None
    done = 0
    for images in iterate_images(root, paths):
        end = done + len(images)
        names = [path.relative_to(root).as_posix() for path in paths[done:end]]
        pixels = _map_range(_check_shape(images, inputs), inputs)
        yield Part(names, pixels, None if labels is None else labels[done:end])
        done = end


def _label_by_folder(root: Path, paths: list[Path], classes: tuple[str, ...]) -> list[int]:
    """The index of every image's class, which is the name of its folder in ``root``."""
    places = {name: place for place, name in enumerate(classes)}
    folders = [path.relative_to(root).parts[0] for path in paths]
    for folder in dict.fromkeys(folders):
        if folder not in places or not (root / folder).is_dir():
            raise InvalidInputError(
                f"'{root}' must hold one folder of images for each class, named like those of the model: "
                f"{', '.join(classes[:5])}{' …' * (len(classes) > 5)}"
            )
    return [places[folder] for folder in folders]


def _encode_features(features: Tensor, inputs: Inputs) -> Tensor:
    """Encode the images or arrays of an .npz as inputs of the network."""
    _check_shape(features, inputs)
    if inputs.schema is not None and not all(isinstance(column, Number) for column in inputs.schema.features):
        raise InvalidInputError("the model is for a table with more than numbers, which an .npz does not have")
    return _map_range(features, inputs) if inputs.kind == "images" else features.float()


def _check_shape(features: Tensor, inputs: Inputs) -> Tensor:
    if tuple(features.shape[1:]) != inputs.shape:
        raise InvalidInputError(
            f"an example here has the shape {tuple(features.shape[1:])}, and the model's {inputs.shape}"
        )
    return features


def _map_range(pixels: Tensor, inputs: Inputs) -> Tensor:
    """Map images from their public range to the network's: x′ = (x − low)·(b − a)/(high − low) + a."""
    low, high = inputs.low, inputs.high
    if low is None or high is None:
        raise InvalidInputError("this release does not state the range of a pixel: give a tensor of encoded inputs")
    values = pixels.float()
    if len(values) and not (float(values.min()) >= low and float(values.max()) <= high):
        raise InvalidInputError(f"pixels must lie in [{low:g}, {high:g}], as those did that the model was trained on")
    first, last = inputs.onto
    return (values - low).mul_((last - first) / (high - low)).add_(first)


def _take_memory(rows: Any, inputs: Inputs) -> Part:
    if inputs.schema is None:
        if not isinstance(rows, np.ndarray):
            raise InvalidInputError(
                f"rows of images or arrays are a file, an array or a tensor, and not a {type(rows).__name__}"
            )
        encoded = _encode_features(torch.from_numpy(rows), inputs)
    else:
        columns = _list_columns(rows)
        lengths = {len(cells) for cells in columns.values()}
        if len(lengths) > 1:
            raise InvalidInputError("the columns of the rows have different lengths")
        empty = torch.empty(0, len(inputs.schema.features))
        encoded = torch.from_numpy(encode_chunk(columns, inputs.schema, 0, ROWS)) if lengths - {0} else empty
    return Part(range(1, len(encoded) + 1), encoded)


def _list_columns(rows: Any) -> Chunk:
    if isinstance(rows, Mapping):
        return {str(name): _list_cells(list(rows[name])) for name in rows}
    if isinstance(rows, Frame) and not isinstance(rows, Sequence):
        return {str(name): _list_cells(list(rows[name])) for name in rows.columns}
    if isinstance(rows, Sequence) and not isinstance(rows, str) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        return {str(name): _list_cells([row.get(name) for row in rows]) for name in names}
    raise InvalidInputError(
        f"rows are a file, a list of dicts, a dict of columns or a tensor, and not a {type(rows).__name__}"
    )


def _list_cells(values: list[Any]) -> Cells:
    """A column as read from a file: numbers as numbers, other values as text, and None for missing values."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in plain):
        return np.array([math.nan if value is None else float(value) for value in plain], dtype=np.float64)
    missing = (value is None or (isinstance(value, float) and math.isnan(value)) for value in plain)
    return TextColumn.of("" if gone else str(value) for gone, value in zip(missing, plain, strict=True))
