"""The rows of a table as numbers by a schema: in memory if it is short, in a mapped file if it is long.

One batch of rows is encoded at a time, each row by itself. The mapped file holds every row, so it is private: it has no
name (it is unlinked when it is created, in the folder of the run or that of temporary files), only its owner may open
it, and it disappears with the process that reads the table, however that ends. Errors quote no cell: they name a column
and the number of a row.
"""

from __future__ import annotations

import difflib
import errno
import mmap
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush._internal.storage import explain, find_temporary, open_unnamed
from hush.errors import InvalidInputError
from hush.tabular.cells import Cells, map_texts
from hush.tabular.columns.number import lacks_number, numbers
from hush.tabular.reader import Chunk, Count, ReadProgress, count_rows, estimate_rows, find_parts, read_chunks_by_part
from hush.tabular.schema import Schema

MAPPED = 1 << 28  # bytes of encoded rows (4 per cell) from which on a table is mapped
Encoded = tuple[NDArray[np.float32], NDArray[Any] | None]
"""Some rows: (n, columns), and their labels (n,) if they were asked for."""


@dataclass(frozen=True, eq=False)
class RowSubset:
    """Some rows of tensors, in this order, without a copy of the tensors: a `hush.data_source.Source` whose parts may
    be larger than memory, because only the requested rows are copied."""

    tensors: tuple[Tensor, ...]
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The content of these examples."""
        rows = self.rows[indices]
        return tuple(tensor[rows] for tensor in self.tensors)

    def pick(self, places: Tensor) -> RowSubset:
        """The rows with these indices."""
        return RowSubset(self.tensors, self.rows[places])

    def change_last(self, change: Callable[[Tensor], Tensor]) -> RowSubset:
        """The same rows with other labels; ``change`` must look at each label alone."""
        return RowSubset((*self.tensors[:-1], change(self.tensors[-1])), self.rows)


def pick_all(tensors: tuple[Tensor, ...]) -> RowSubset:
    """Every row, in the order of the file."""
    return RowSubset(tensors, torch.arange(len(tensors[0])))


def load_rows(
    place: Path, schema: Schema, progress: ReadProgress, folder: Path | None = None
) -> tuple[Tensor, Tensor] | RowSubset:
    """The rows and labels of a table by its schema; those of a long one stay on the disk, in a file without a name in
    ``folder`` (by default that of temporary files)."""
    progress.begin("encoding")
    if estimate_rows(find_parts(place)) * max(1, len(schema.features)) * 4 < MAPPED:
        return read_table(place, schema, progress.count)
    return pick_all(map_rows(encode_table(place, schema, progress.count), folder))


def read_table(path: Path, schema: Schema, count: Count = lambda rows: None) -> tuple[Tensor, Tensor]:
    """(columns as numbers and category codes (n, columns), labels (n,)) of a whole table, by its schema; in place of
    labels the numbers to predict, where the schema has no classes."""
    rows, labels = zip(*encode_table(path, schema, count), strict=True)
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels))


def map_rows(chunks: Iterator[Encoded], folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """The rows in a private file without a name, mapped copy-on-write; labels stay in memory."""
    labels: list[NDArray[Any]] = []
    shape: tuple[int, ...] = ()
    count = 0
    where = find_temporary() if folder is None else folder
    try:
        with open_unnamed(where) as file:
            for rows, each in chunks:
                file.write(np.ascontiguousarray(rows).data)
                labels.append(np.empty(0) if each is None else each)
                shape, count = rows.shape[1:], count + len(rows)
            file.flush()
            mapped = _map_file(file, (count, *shape))
    except OSError as error:
        why = "there is no room" if error.errno == errno.ENOSPC else explain(error)
        raise InvalidInputError(
            f"the encoded rows of a long table cannot be written to '{where}': {why}; give another --out, or another "
            "TMPDIR"
        ) from error
    return mapped, torch.from_numpy(np.concatenate(labels))


def _map_file(file: IO[bytes], shape: tuple[int, ...]) -> Tensor:
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(content, dtype=torch.float32).reshape(shape)


def encode_table(
    place: Path, schema: Schema, count: Count = lambda rows: None, *, labelled: bool = True
) -> Iterator[Encoded]:
    """The rows of a table in batches, with their labels unless ``labelled`` is false; ``count`` is called with the
    number of rows of each. Training, prediction and evaluation all read rows by this iterator."""
    part, done, total = place, 0, 0
    wanted = [column.name for column in schema.features] + [schema.target] * labelled
    for path, chunk in read_chunks_by_part(place, columns=wanted):
        part, done = path, done if path == part else 0
        rows = encode_chunk(chunk, schema, done, path)
        yield rows, read_labels(chunk, schema, done, path) if labelled else None
        done += len(rows)
        total += len(rows)
        count(len(rows))
    if not total:
        raise InvalidInputError(f"'{place}' holds no rows")


def encode_chunk(chunk: Chunk, schema: Schema, done: int, path: Path | str) -> NDArray[np.float32]:
    """Some rows, after ``done`` others, as numbers and category codes (n, columns); ``path`` is for errors."""
    for column in schema.features:
        if column.name not in chunk:
            raise no_column(column.name, chunk, path)
    out = np.empty((len(schema.features), count_rows(chunk)), dtype=np.float32)
    for place, column in enumerate(schema.features):
        what = f"column '{column.name}' of '{path}'"
        with np.errstate(over="ignore"):  # too large for 32 bits: reported below
            out[place] = column.encode(chunk[column.name], what)
        bad = np.flatnonzero(~np.isfinite(out[place]))
        if len(bad):
            raise InvalidInputError(lacks_number(what, done + int(bad[0]) + 1))
    return np.ascontiguousarray(out.T)


def read_labels(chunk: Chunk, schema: Schema, done: int, path: Path | str) -> NDArray[Any]:
    """The indices of the rows' classes, or the numbers to predict if the schema has no classes."""
    if schema.target not in chunk:
        raise no_column(schema.target, chunk, path)
    cells = chunk[schema.target]
    return _places(cells, schema, done, path) if schema.classes else _targets(cells, schema, done, path)


def _places(cells: Cells, schema: Schema, done: int, path: Path | str) -> NDArray[np.int64]:
    classes = {name: at for at, name in enumerate(schema.classes)}
    found = map_texts(cells, lambda text: classes.get(text, -1)).astype(np.int64)
    if (found < 0).any():
        row = done + int(np.argmin(found)) + 1
        raise InvalidInputError(f"row {row} of '{path}' has a label that is none of the {len(classes)} classes")
    return found


def _targets(cells: Cells, schema: Schema, done: int, path: Path | str) -> NDArray[np.float64]:
    what, found = f"column '{schema.target}' of '{path}'", numbers(cells)
    if found is None:
        raise InvalidInputError(f"{what} is to be predicted as a number and holds text")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InvalidInputError(f"{what} has no finite number in row {done + int(bad[0]) + 1}: remove it")
    return found


def no_column(name: str, there: Collection[str], path: Path | str) -> InvalidInputError:
    """The error of a missing column; of the names that are there it offers one that is nearly the same, and no other:
    where a file begins without names, they are cells of its first row. A ``path`` that is none is what rows given in
    Python are called."""
    close = difflib.get_close_matches(name, there, n=1, cutoff=0.7)
    if not isinstance(path, Path):
        hint = f"did you mean '{close[0]}'?" if close else f"none of their {len(there)} columns has that name"
        return InvalidInputError(f"{path} have no column '{name}': {hint}")
    hint = f"none of its {len(there)} columns has that name, or its first line does not name them"
    hint = f"did you mean '{close[0]}'?" if close else hint
    return InvalidInputError(f"'{path}' has no column '{name}': {hint}")
