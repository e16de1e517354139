"""The rows of a table's files, some thousands at a time: .csv and .parquet of any length, one file or several.

Errors go to terminals, logs and public records, so they quote no cell. They name a column and the number of a row: that
tells whoever has the file where to look, and whoever has not nothing of what is there. A first line without names is a
row like any other, and is not quoted either.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from hush.data.parts import PACKED, Names, check_agreement, find_parts
from hush.data.streaming import NEEDS_ARROW, Words, has_arrow, read_parquet_schema, stream_parquet, stream_text
from hush.errors import BadInput
from hush.files import explain

Cells = Sequence[str] | np.ndarray[Any, np.dtype[np.float64]]
Piece = dict[str, Cells]
"""Some rows, by column: text, or numbers where the file has types of its own."""
Count = Callable[[int], None]

ROWS = 20_000
MOST_COLUMNS = 10_000
LONG = 1 << 24  # bytes of a text file from which on pyarrow reads it, where it is installed
_DELIMITERS = ",;\t|"


def pieces(place: Path, count: Count = lambda rows: None) -> Iterator[Piece]:
    """The rows of a table, some thousands at a time: of a .csv or .parquet file, or of all files of a folder or pattern
    in the order of their names. ``count`` is told the number of rows of each piece when they are done with."""
    for _, piece in pieces_by_part(place):
        yield piece
        count(count_rows(piece))


def pieces_by_part(place: Path) -> Iterator[tuple[Path, Piece]]:
    """The same, each with the file it is from; parts that differ in their columns are refused before any is read."""
    parts = find_parts(place)
    check_agreement(parts, read_names)
    for part in parts:
        for piece in _parquet(part) if part.suffix == ".parquet" else _text(part):
            yield part, piece


def read_names(path: Path) -> Names:
    """The columns of one file, and what a typed one holds in each: numbers, text or dates and the like."""
    if path.suffix == ".parquet":
        return _read_parquet_names(path)
    with _opened(path) as file:
        return dict.fromkeys(_read_header(file, path)[0])


def count_rows(piece: Piece) -> int:
    """How many rows a piece has."""
    return len(next(iter(piece.values())))


def _text(path: Path) -> Iterator[Piece]:
    """A file of text: a short one by Python's csv, a long one by pyarrow. Where pyarrow stops, at a row of another
    width or one that is longer than its room, Python goes on from the same row: it reads on or says what is wrong."""
    done = 0
    if _is_long(path):
        import pyarrow as pa

        with contextlib.suppress(pa.ArrowInvalid), _opened(path) as file:
            names, delimiter = _read_header(file, path)
            for columns in stream_text(path, names, delimiter):
                yield dict(zip(names, columns, strict=True))
                done += len(columns[0])
            return
    yield from _csv(path, done)


def _is_long(path: Path) -> bool:
    try:
        return path.stat().st_size >= LONG and has_arrow()
    except OSError:
        return False


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """A file of text, packed or not; whatever is wrong with it, now or while it is read, is one sentence."""
    how: dict[str, Any] = {"newline": "", "encoding": "utf-8-sig"}
    try:
        with gzip.open(path, "rt", **how) if path.suffix == PACKED else path.open("r", **how) as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"'{path}' is not a whole .gz file") from error
    except OSError as error:
        raise BadInput(f"'{path}' cannot be read: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"'{path}' is not a text table in UTF-8") from error
    except csv.Error as error:
        raise BadInput(f"'{path}' is not a text table: a cell is too long, or a quote is not closed") from error


def _read_header(file: IO[str], path: Path) -> tuple[list[str], str]:
    """The names in the first line, and what stands between them."""
    first = file.readline()
    delimiter = max(_DELIMITERS, key=first.count)
    return _header(next(csv.reader([first], delimiter=delimiter), []), path), delimiter


def _csv(path: Path, skipped: int = 0) -> Iterator[Piece]:
    """All rows but the first ``skipped``."""
    with _opened(path) as file:
        names, delimiter = _read_header(file, path)
        reader, done = csv.reader(file, delimiter=delimiter), 0
        while rows := _next(reader):
            done += len(rows)
            rows = _same_width(rows, len(names), done - len(rows), path)
            rows, skipped = rows[skipped:], max(0, skipped - len(rows))
            if rows:
                yield dict(zip(names, zip(*rows, strict=True), strict=True))


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
    with _arrow_errors(path) as pa:
        for batch in stream_parquet(path, ROWS):
            _check_count(len(batch.schema.names), path)
            yield {name: _arrow(name, batch.column(name), pa, path) for name in batch.schema.names}


def _read_parquet_names(path: Path) -> Names:
    with _arrow_errors(path) as pa:
        columns = read_parquet_schema(path)
        _check_count(len(columns.names), path)
        return {field.name: _name_type(field.type, pa) for field in columns}


def _name_type(kind: Any, pa: Any) -> str | None:
    """What a typed column holds, where parts of a table must agree; None where it holds nothing."""
    if pa.types.is_null(kind):
        return None
    if _is_number(kind, pa):
        return "numbers"
    return "dates" if pa.types.is_temporal(kind) else "truth values" if pa.types.is_boolean(kind) else "text"


@contextmanager
def _arrow_errors(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise BadInput(NEEDS_ARROW) from error
    try:
        yield pa
    except pa.ArrowException as error:
        raise BadInput(f"'{path}' is not a whole parquet file of numbers and text") from error
    except OSError as error:
        raise BadInput(f"'{path}' cannot be read: {explain(error)}") from error


def _is_number(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _arrow(name: str, column: Any, pa: Any, path: Path) -> Cells:
    kind = column.type
    if _is_number(kind, pa):
        values: np.ndarray[Any, np.dtype[np.float64]] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return values
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise BadInput(f"column '{name}' of '{path}' has the type {kind}, where numbers or text were expected")
    if pa.types.is_string(kind):
        return Words(column)
    return ["" if value is None else str(value) for value in column.to_pylist()]
