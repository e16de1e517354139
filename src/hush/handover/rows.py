"""Rows to predict on, without labels, as a model takes them: encoded by the release's public facts, as in training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hush.artefact.description import Inputs
from hush.data.pictures import read_image_files, read_unlabelled
from hush.data.reading import Cells, Piece, pieces
from hush.data.tables import encode_piece
from hush.errors import BadInput

ROWS = "the rows"  # what errors call rows that come from no file


@runtime_checkable
class Frame(Protocol):
    """A table in memory, such as pandas and polars have: the names of its columns, and each by its name."""

    @property
    def columns(self) -> Any:
        """The names."""
        ...

    def __getitem__(self, name: Any) -> Any:
        """The cells of a column."""
        ...


def encode_rows(rows: Any, inputs: Inputs | None, *, target: str | None = None) -> Tensor:
    """Rows as the network takes them.

    ``rows`` is the path of a file (a table: .csv or .parquet; images: .npz, a folder, an image; arrays: .npz), a list
    of one dict for each row, a dict of columns, a data frame, or a tensor that is encoded already.
    ``target`` is what the labels are called: an array of that name in an .npz is not taken for the rows."""
    if isinstance(rows, Tensor):
        return rows
    if inputs is None:
        raise BadInput("this release says nothing about its inputs: give a tensor, as the module takes it")
    encoded = list(iterate_encoded(rows, inputs, target=target))
    if not encoded:
        raise BadInput("there are no rows to predict on")
    return torch.cat(encoded)


def iterate_encoded(rows: Any, inputs: Inputs, *, target: str | None = None) -> Iterator[Tensor]:
    """The same, some thousands of rows of a file at a time."""
    if inputs.schema is not None and not _is_npz(rows):
        done, where = 0, Path(rows) if isinstance(rows, str | Path) else ROWS
        for piece in _list_pieces(rows):
            encoded = encode_piece(piece, inputs.schema, done, where)
            done += len(encoded)
            yield torch.from_numpy(encoded)
        return
    yield encode_features(_read_features(rows, target), inputs)


def encode_features(features: Tensor, inputs: Inputs) -> Tensor:
    """Images or arrays, as an .npz has them, as the network takes them."""
    if tuple(features.shape[1:]) != inputs.shape:
        raise BadInput(f"an example here has the shape {tuple(features.shape[1:])}, and the model's {inputs.shape}")
    if inputs.schema is not None and any(column.kind != "number" for column in inputs.schema.features):
        raise BadInput("the model is for a table with more than numbers, which an .npz does not have")
    return map_range(features, inputs) if inputs.kind == "images" else features.float()


def map_range(pixels: Tensor, inputs: Inputs) -> Tensor:
    """Images from their public range to what the network takes: x′ = (x − low)·(b − a)/(high − low) + a."""
    low, high = inputs.low, inputs.high
    if low is None or high is None:
        raise BadInput("this release does not say the range of a pixel: give a tensor, as the module takes it")
    values = pixels.float()
    if len(values) and not (float(values.min()) >= low and float(values.max()) <= high):
        raise BadInput(f"pixels must lie in [{low:g}, {high:g}], as those did that the model was trained on")
    first, last = inputs.onto
    return (values - low).mul_((last - first) / (high - low)).add_(first)


def _is_npz(rows: Any) -> bool:
    return isinstance(rows, str | Path) and Path(rows).suffix == ".npz"


def _read_features(rows: Any, target: str | None) -> Tensor:
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows)
    if not isinstance(rows, str | Path):
        raise BadInput(f"rows of images or arrays are a file, an array or a tensor, and not a {type(rows).__name__}")
    if not Path(rows).exists():
        raise BadInput(f"there is no file or folder '{rows}'")
    return read_unlabelled(Path(rows), target) if _is_npz(rows) else read_image_files(Path(rows))[0]


def _list_pieces(rows: Any) -> Iterator[Piece]:
    """Rows of a table by column, in pieces where they come from a file."""
    if isinstance(rows, str | Path):
        if not Path(rows).is_file():
            raise BadInput(f"there is no file '{rows}'")
        yield from pieces(Path(rows))
        return
    columns = _list_columns(rows)
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) > 1:
        raise BadInput("the columns of the rows have different lengths")
    if lengths - {0}:
        yield columns


def _list_columns(rows: Any) -> Piece:
    if isinstance(rows, Mapping):
        return {str(name): _list_cells(list(rows[name])) for name in rows}
    if isinstance(rows, Frame) and not isinstance(rows, Sequence):
        return {str(name): _list_cells(list(rows[name])) for name in rows.columns}
    if isinstance(rows, Sequence) and not isinstance(rows, str) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        return {str(name): _list_cells([row.get(name) for row in rows]) for name in names}
    raise BadInput(f"rows are a file, a list of dicts, a dict of columns or a tensor, and not a {type(rows).__name__}")


def _list_cells(values: list[Any]) -> Cells:
    """A column as a file would give it: numbers as numbers, all else as text, and nothing for what is missing."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in plain):
        return np.array([math.nan if value is None else float(value) for value in plain], dtype=np.float64)
    return ["" if _is_missing(value) else str(value) for value in plain]


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
