"""Tables of one's own as numbers: what a cell is, and rows encoded by a schema, a piece of them in memory at a time.

A first pass finds what each column is, a second turns rows into numbers. Errors quote no cell: they name a column and
the number of a row.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.data.columns import GAP, LARGEST, Column
from hush.data.mapped import Encoded
from hush.data.numerals import LONGEST_NUMBER as LONGEST_NUMBER
from hush.data.numerals import MISSING as MISSING
from hush.data.numerals import POINT, is_missing, is_written_plainly, parse_number
from hush.data.plain_dates import find_dates
from hush.data.reading import Cells, Count, Piece, count_rows, pieces_by_part
from hush.data.schema import Schema
from hush.data.streaming import FEW, WITH_COMMA, Words
from hush.errors import BadInput


def numbers(cells: Cells) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The cells as numbers, missing ones as NaN; None if some cell is neither a number nor missing."""
    if isinstance(cells, np.ndarray):
        return cells
    if isinstance(cells, Words):
        return _long_numbers(cells)
    if max(map(len, cells), default=0) > LONGEST_NUMBER:  # numpy gives every cell the room of the longest
        return None
    found = _convert(cells)
    if found is None:
        found = _convert(["nan" if is_missing(cell) else cell for cell in cells])
    return found if found is not None and all(map(is_written_plainly, cells)) else None


def _convert(cells: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """What numpy makes of the cells, which reads them as Python does."""
    try:
        return np.array(cells, dtype=np.str_).astype(np.float64)
    except ValueError:
        return None


def read_numbers(cells: Cells, decimal: str = POINT) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The cells as numbers, written with this decimal sign; NaN where there is none."""
    found = numbers(cells) if decimal == POINT or isinstance(cells, np.ndarray) else None
    if found is not None:
        return found

    def parse(words: Iterable[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One by one, in this column's own spelling."""
        parsed = (parse_number(str(word), decimal) for word in words)
        return np.array([np.nan if value is None else value for value in parsed], dtype=np.float64)

    def parse_long(words: Words) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The same, plain ones together."""
        found, others = words.plain if decimal == POINT else words.read_commas(WITH_COMMA)
        values = found.copy()
        values[others] = parse(words.pick(others))
        return values

    return cells.map(parse_long) if isinstance(cells, Words) else parse(cells)


def texts(cells: Cells) -> list[str]:
    """The cells as text; whole numbers without their ".0"."""
    if isinstance(cells, np.ndarray):
        return [str(int(v)) if float(v).is_integer() else ("" if np.isnan(v) else repr(float(v))) for v in cells]
    return [cell.strip() for cell in cells]


def _long_numbers(cells: Words) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The same of a column of a long file: what Arrow takes for no number is looked at as in a short one, once for
    every different word. A word among the first cells says what all together would."""
    if len(cells) > FEW and _long_numbers(cells.take_first(FEW)) is None:
        return None
    found = cells.cast()
    if found is not None:
        return found
    words = cells.different
    plain, places = words.plain
    others = numbers(list(words.pick(places)))
    if others is None:
        return None
    values = plain.copy()
    values[places] = others
    return cells.map(lambda _: values)


def map_texts(cells: Cells, function: Callable[[str], float]) -> np.ndarray[Any, Any]:
    """``function`` of every cell's text; of a long file's column, once for every different text of a piece."""
    if isinstance(cells, Words):
        return cells.map(lambda words: np.array([function(word.strip()) for word in words]))
    return np.array([function(text) for text in texts(cells)])


def list_different(cells: Cells) -> Collection[str]:
    """The different texts among the cells."""
    return {word.strip() for word in cells.different} if isinstance(cells, Words) else texts(cells)


def count_texts(cells: Cells) -> Counter[str]:
    """How often each text stands among the cells."""
    if not isinstance(cells, Words):
        return Counter(texts(cells))
    total: Counter[str] = Counter()
    for word, count in zip(cells.different, cells.count_different().tolist(), strict=True):
        total[word.strip()] += count
    return total


def find_first(cells: Cells, which: Callable[[str], bool]) -> int | None:
    """The place of the first cell of whose text ``which`` is true."""
    if isinstance(cells, Words):
        return cells.find_first(lambda word: which(word.strip()))
    return next((place for place, text in enumerate(texts(cells)) if which(text)), None)


def read_table(path: Path, schema: Schema, count: Count = lambda rows: None) -> tuple[Tensor, Tensor]:
    """(columns as numbers and category codes (n, columns), labels (n,)) of a whole table, by its schema; in place of
    labels the numbers to predict, where the schema has a range of them."""
    rows, labels = zip(*encode_table(path, schema, count), strict=True)
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels))


def encode_table(place: Path, schema: Schema, count: Count = lambda rows: None) -> Iterator[Encoded]:
    """The same, piece by piece; ``count`` is told how many rows each has. Errors name the file and its row."""
    part, done, total = place, 0, 0
    classes = {name: at for at, name in enumerate(schema.classes)}
    for path, piece in pieces_by_part(place):
        part, done = path, done if path == part else 0
        if schema.target not in piece:
            raise no_column(schema.target, piece, path)
        rows = encode_piece(piece, schema, done, path)
        labels = (
            _labels(piece[schema.target], classes, done, path)
            if schema.target_range is None
            else _targets(piece[schema.target], schema.target, done, path)
        )
        yield rows, labels
        done += len(rows)
        total += len(rows)
        count(len(rows))
    if not total:
        raise BadInput(f"'{place}' holds no rows")


def encode_piece(piece: Piece, schema: Schema, done: int, path: Path | str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Some rows, of which ``done`` went before, as numbers and category codes (n, columns); ``path`` is for errors."""
    for column in schema.features:
        if column.name not in piece:
            raise no_column(column.name, piece, path)
    out = np.empty((count_rows(piece), len(schema.features)), dtype=np.float32)
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
        return map_texts(cells, column.code)
    if column.kind != "number":
        return _parse_cells(cells, column)
    if column.missing:
        values = read_numbers(cells, column.decimal)
        return np.where(np.abs(values) < LARGEST, values, GAP)
    found = numbers(cells) if column.decimal == POINT else read_numbers(cells, column.decimal)
    if found is None:
        raise holds_text(column.name, path)
    return _filled(found, column.fill)


def _parse_cells(cells: Cells, column: Column) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The cells of a flag or a date."""

    def parse(text: str) -> float:
        """One of them."""
        value = column.parse(text)
        return GAP if value is None else value

    if column.kind != "date" or not isinstance(cells, Words):
        return map_texts(cells, parse)
    plain = find_dates(cells, column.form)
    values = np.full(len(cells), np.nan)
    values[plain.places] = plain.days if column.time else np.floor(plain.days)
    others = np.flatnonzero(np.isnan(values))
    values[others] = map_texts(cells.pick(others), parse)
    return values


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
    found = map_texts(cells, lambda text: places.get(text, -1)).astype(np.int64)
    if (found < 0).any():
        row = int(np.argmin(found))
        raise BadInput(f"row {done + row + 1} of '{path}' has a label that is none of the {len(places)} classes")
    return found


def _targets(cells: Cells, name: str, done: int, path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = numbers(cells)
    if found is None:
        raise BadInput(f"column '{name}' of '{path}' is to be predicted as a number and holds text")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise BadInput(f"column '{name}' of '{path}' has no finite number in row {done + int(bad[0]) + 1}: remove it")
    return found


def no_column(name: str, there: Collection[str], path: Path | str) -> BadInput:
    """The error of a missing column; of the names that are there it offers one that is nearly the same, and no other:
    where a file begins without names, they are cells of its first row. A ``path`` that is none is what rows given in
    Python are called."""
    close = difflib.get_close_matches(name, there, n=1, cutoff=0.7)
    if not isinstance(path, Path):
        hint = f"did you mean '{close[0]}'?" if close else f"none of their {len(there)} columns has that name"
        return BadInput(f"{path} have no column '{name}': {hint}")
    hint = f"none of its {len(there)} columns has that name, or its first line does not name them"
    hint = f"did you mean '{close[0]}'?" if close else hint
    return BadInput(f"'{path}' has no column '{name}': {hint}")
