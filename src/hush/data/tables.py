"""Tables of one's own, read in pieces: .csv and .parquet of any length in the memory of their numbers alone.

A first pass finds what each column is, a second turns rows into numbers; a piece of rows is in memory at a time.

Errors go to terminals, logs and public records, so they quote no cell. They name a column and the number of a row: that
tells whoever has the file where to look, and whoever has not nothing of what is there. A first line without names is a
row like any other, and is not quoted either.
"""

from __future__ import annotations

import csv
import difflib
import gc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.data.columns import GAP, LARGEST, Column
from hush.data.numerals import LONGEST_NUMBER as LONGEST_NUMBER
from hush.data.numerals import MISSING as MISSING
from hush.data.numerals import POINT, parse_number
from hush.data.schema import Schema
from hush.errors import BadInput
from hush.files import explain

Cells = Sequence[str] | np.ndarray[Any, np.dtype[np.float64]]
Piece = dict[str, Cells]
"""Some rows, by column: text, or numbers where the file has types of its own."""

ROWS = 20_000
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MOST_COLUMNS = 10_000
_DELIMITERS = ",;\t|"


def pieces(path: Path) -> Iterator[Piece]:
    """The rows of a .csv or .parquet file, some thousands at a time."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        yield from _csv(path)


def numbers(cells: Cells) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The cells as numbers, missing ones as NaN; None if some cell is neither a number nor missing."""
    if isinstance(cells, np.ndarray):
        return cells
    if max(map(len, cells), default=0) > LONGEST_NUMBER:  # numpy gives every cell the room of the longest
        return None
    try:
        return np.array(cells, dtype=np.str_).astype(np.float64)
    except ValueError:
        pass
    try:
        return np.array(["nan" if c.strip().lower() in MISSING else c for c in cells], dtype=np.str_).astype(np.float64)
    except ValueError:
        return None


def read_numbers(cells: Cells, decimal: str = POINT) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The cells as numbers, written with this decimal sign; NaN where there is none."""
    found = numbers(cells) if decimal == POINT or isinstance(cells, np.ndarray) else None
    if found is not None:
        return found
    parsed = (parse_number(str(cell), decimal) for cell in cells)
    return np.array([np.nan if value is None else value for value in parsed], dtype=np.float64)


def texts(cells: Cells) -> list[str]:
    """The cells as text; whole numbers without their ".0"."""
    if isinstance(cells, np.ndarray):
        return [str(int(v)) if float(v).is_integer() else ("" if np.isnan(v) else repr(float(v))) for v in cells]
    return [cell.strip() for cell in cells]


def read_table(path: Path, schema: Schema) -> tuple[Tensor, Tensor]:
    """(columns as numbers and category codes (n, columns), labels (n,)) of a whole file, by its schema; in place of
    labels the numbers to predict, where the schema has a range of them."""
    rows: list[np.ndarray[Any, Any]] = []
    labels: list[np.ndarray[Any, Any]] = []
    done = 0
    places = {name: place for place, name in enumerate(schema.classes)}
    for piece in pieces(path):
        if schema.target not in piece:
            raise no_column(schema.target, piece, path)
        rows.append(encode_piece(piece, schema, done, path))
        labels.append(
            _labels(piece[schema.target], places, done, path)
            if schema.target_range is None
            else _targets(piece[schema.target], schema.target, done, path)
        )
        done += len(labels[-1])
    if not done:
        raise BadInput(f"'{path}' holds no rows")
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels))


def read_features(path: Path, schema: Schema) -> Tensor:
    """The columns of a whole file, as `read_table` gives them; the target is not needed and not looked at."""
    rows: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    for piece in pieces(path):
        rows.append(encode_piece(piece, schema, sum(map(len, rows)), path))
    if not rows:
        raise BadInput(f"'{path}' holds no rows")
    return torch.from_numpy(np.concatenate(rows))


def encode_piece(piece: Piece, schema: Schema, done: int, path: Path | str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Some rows, of which ``done`` went before, as numbers and category codes (n, columns); ``path`` is for errors."""
    for column in schema.features:
        if column.name not in piece:
            raise no_column(column.name, piece, path)
    out = np.empty((_length(piece), len(schema.features)), dtype=np.float32)
    for place, column in enumerate(schema.features):
        with np.errstate(over="ignore"):  # too large for 32 bits: reported below
            out[:, place] = _encode_cells(piece[column.name], column, path)
        bad = np.flatnonzero(~np.isfinite(out[:, place]))
        if len(bad):
            raise no_number(column.name, done + int(bad[0]) + 1, path)
    return out


def _encode_cells(cells: Cells, column: Column, path: Path | str) -> Any:
    """The cells of one column as numbers or category codes; GAP for a missing value, where the column has it."""
    if column.kind == "category":
        return [column.code(text) for text in texts(cells)]
    if column.kind != "number":
        return [GAP if (value := column.parse(text)) is None else value for text in texts(cells)]
    if column.missing:
        values = read_numbers(cells, column.decimal)
        return np.where(np.abs(values) < LARGEST, values, GAP)
    found = numbers(cells) if column.decimal == POINT else read_numbers(cells, column.decimal)
    if found is None:
        raise holds_text(column.name, path)
    return _filled(found, column.fill)


def holds_text(name: str, path: Path | str) -> BadInput:
    """The error of words among numbers where a column does not provide for them."""
    return BadInput(
        f"column '{name}' of '{path}' is said to be a number and holds text: 'missing = true' in the schema takes a "
        "stray word for a missing value"
    )


def no_number(name: str, row: int, path: Path | str) -> BadInput:
    """The error of a number that is missing where a column does not provide for it."""
    return BadInput(
        f"column '{name}' of '{path}' has no finite number in row {row}: remove such rows, or give the column a public "
        "'fill' or 'missing = true' in the schema"
    )


def _filled(values: np.ndarray[Any, Any], fill: float | None) -> np.ndarray[Any, Any]:
    return values if fill is None else np.where(np.isnan(values), fill, values)


def _labels(cells: Cells, places: Mapping[str, int], done: int, path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = [places.get(text, -1) for text in texts(cells)]
    if -1 in found:
        row = found.index(-1)
        raise BadInput(f"row {done + row + 1} of '{path}' has a label that is none of the {len(places)} classes")
    return np.array(found, dtype=np.int64)


def _targets(cells: Cells, name: str, done: int, path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = numbers(cells)
    if found is None:
        raise BadInput(f"column '{name}' of '{path}' is to be predicted as a number and holds text")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise BadInput(f"column '{name}' of '{path}' has no finite number in row {done + int(bad[0]) + 1}: remove it")
    return found


def no_column(name: str, there: Collection[str], path: Path | str) -> BadInput:
    """The error of a missing column; of the names that are there it offers one that is nearly the same."""
    close = difflib.get_close_matches(name, there, n=1, cutoff=0.7)
    hint = f"did you mean '{close[0]}'?" if close else f"its first line must name its {len(there)} columns"
    return BadInput(f"'{path}' has no column '{name}': {hint}")


def _length(piece: Piece) -> int:
    return len(next(iter(piece.values())))


def _csv(path: Path) -> Iterator[Piece]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            names = _header(next(csv.reader([first], delimiter=delimiter), []), path)
            reader, done = csv.reader(file, delimiter=delimiter), 0
            while rows := _next(reader):
                done += len(rows)
                rows = _same_width(rows, len(names), done - len(rows), path)
                if rows:
                    yield dict(zip(names, zip(*rows, strict=True), strict=True))
    except OSError as error:
        raise BadInput(f"'{path}' cannot be read: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"'{path}' is not a text table in UTF-8") from error
    except csv.Error as error:
        raise BadInput(f"'{path}' is not a text table: a cell is too long, or a quote is not closed") from error


def _next(reader: Iterator[list[str]]) -> list[list[str]]:
    """The next rows. Python's cycle collector would look at every new row again and again, for four times the price
    of reading it, and rows of text hold no cycles: it is switched off while they are read."""
    running = gc.isenabled()
    gc.disable()
    try:
        return list(islice(reader, ROWS))
    finally:
        if running:
            gc.enable()


def _same_width(rows: list[list[str]], width: int, done: int, path: Path) -> list[list[str]]:
    """The rows that are not blank, after checking that each has as many cells as the header."""
    if set(map(len, rows)) == {width}:
        return rows
    for number, row in enumerate(rows, start=done + 1):
        if len(row) not in (0, width):
            raise BadInput(f"row {number} of '{path}' has {len(row)} cells where the header has {width}")
    return [row for row in rows if row]


def _header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise BadInput(f"the first line of '{path}' must name every column")
    _check_count(len(names), path)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        first = names.index(name)
        second = names.index(name, first + 1)
        raise BadInput(f"columns {first + 1} and {second + 1} of '{path}' have the same name in its first line")
    return names


def _check_count(columns: int, path: Path) -> None:
    if columns > MOST_COLUMNS:
        raise BadInput(f"'{path}' has {columns} columns, and a table may have {MOST_COLUMNS}: use an .npz of arrays")


def _parquet(path: Path) -> Iterator[Piece]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadInput("reading .parquet needs pyarrow: pip install 'hush-dp[files]'") from error
    try:
        with pq.ParquetFile(path) as file:
            _check_count(len(file.schema_arrow.names), path)
            for batch in file.iter_batches(batch_size=ROWS):
                yield {name: _arrow(name, batch.column(name), pa, path) for name in batch.schema.names}
    except pa.ArrowException as error:
        raise BadInput(f"'{path}' is not a whole parquet file of numbers and text") from error
    except OSError as error:
        raise BadInput(f"'{path}' cannot be read: {explain(error)}") from error


def _arrow(name: str, column: Any, pa: Any, path: Path) -> Cells:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values: np.ndarray[Any, np.dtype[np.float64]] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return values
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise BadInput(f"column '{name}' of '{path}' has the type {kind}, where numbers or text were expected")
    return ["" if value is None else str(value) for value in column.to_pylist()]
