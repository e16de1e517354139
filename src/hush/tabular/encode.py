"""Encodes the rows of a table as numbers by a schema, one chunk of rows in memory at a time.

A first pass infers the type of each column, a second encodes the rows. Errors quote no cell: they name a column and
the number of a row.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush._internal.storage import (
    PRIVATE,
    explain,
    find_cache,
    lock_file,
    move_atomic,
    remove_temporaries,
    sync_directory,
    sync_file,
)
from hush.errors import InvalidInputError
from hush.tabular.columns import GAP, LARGEST, Column
from hush.tabular.reader import (
    POINT,
    WITH_COMMA,
    Cells,
    Count,
    Piece,
    TextColumn,
    count_rows,
    find_dates,
    is_missing,
    pieces_by_part,
    read_number,
)
from hush.tabular.schema import Schema

# Encoded rows of a long table in files that are mapped into memory, and the rows of them that a part of the data is.
#
# The files are private: they hold everybody's rows. They lie in the folder ``tables`` of hush's cache (`find_cache`),
# which only its owner may open (0700, the files 0600), under a digest of the table's bytes, of its schema and of the
# version of the encoding, so that a second run on the same table finds them. A folder gets its name when all of it is
# on the disk: whatever was interrupted is never trusted. One that was not used for a week is removed by the next long
# table.

ENCODING_VERSION = 2
"""Raise it when a column's profile or the encoding of a row changes: tables stored by another version are not used."""
FOLDER = "tables"
FILES = ("rows.npy", "labels.npy")
WEEK = 7 * 24 * 3600.0  # seconds
CHUNK = 1 << 24  # bytes that are digested at a time
SETTLED = 10.0  # seconds, longer than the clock of any file system takes from one mark to the next
Encoded = tuple[NDArray[np.float32], NDArray[Any]]
"""Some rows: (n, columns), and their labels (n,)."""


@dataclass(frozen=True, eq=False)
class RowSubset:
    """Some rows of tensors that stay where they are, in this order: a `hush.data_source.Source` whose parts may be
    larger than memory, as only the rows that are asked for are copied."""

    tensors: tuple[Tensor, ...]
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The content of these examples."""
        rows = self.rows[indices]
        return tuple(tensor[rows] for tensor in self.tensors)

    def pick(self, places: Tensor) -> RowSubset:
        """Those of the rows at these places."""
        return RowSubset(self.tensors, self.rows[places])

    def change_last(self, change: Callable[[Tensor], Tensor]) -> RowSubset:
        """The same rows with other labels; ``change`` must look at each label alone."""
        return RowSubset((*self.tensors[:-1], change(self.tensors[-1])), self.rows)


def pick_all(tensors: tuple[Tensor, ...]) -> RowSubset:
    """Every row, in the order of the file."""
    return RowSubset(tensors, torch.arange(len(tensors[0])))


def digest_table(parts: Sequence[Path], facts: Any) -> str:
    """A key for what is computed from a table: the bytes of its parts, the facts (plain data), the encoding version."""
    key = {"encoding": ENCODING_VERSION, "facts": facts}
    total = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16)
    for path in parts:
        total.update(_digest_file(path))
    return total.hexdigest()


def _digest_file(path: Path) -> bytes:
    """Of the bytes of a file. One that was left alone for some seconds is read once by a process: whatever changes it
    later gives it another time of change, which no program can set back."""
    state = path.stat()
    marks = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    if time.time() - max(state.st_mtime, state.st_ctime) < SETTLED:
        return _digest_bytes(path)
    return _digest_settled(path, marks)


@lru_cache(maxsize=1024)
def _digest_settled(path: Path, marks: tuple[int, ...]) -> bytes:
    return _digest_bytes(path)


def _digest_bytes(path: Path) -> bytes:
    each = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            each.update(chunk)
    return each.digest()


def map_rows(name: str, encode: Callable[[], Iterator[Encoded]]) -> tuple[Tensor, Tensor]:
    """The rows and labels that are kept under ``name``, or those that ``encode`` gives, which are kept from now on."""
    place = open_private(FOLDER)
    target = place / name
    forget_old(place, target)
    found = _load(target)
    if found is None:
        try:
            _write(target, encode())
        except OSError as error:
            why = "there is no room" if error.errno == errno.ENOSPC else explain(error)
            raise InvalidInputError(
                f"a long table's encoded rows cannot be kept in '{place}': {why}; name another folder in HUSH_CACHE"
            ) from error
        found = _load(target)
    if found is None:
        raise InvalidInputError(
            f"the encoded rows in '{target}' cannot be read back: name another folder in HUSH_CACHE"
        )
    with contextlib.suppress(OSError):
        os.utime(target)
    return found


def open_private(name: str) -> Path:
    """A folder of hush's cache that only its owner may open."""
    place = find_cache() / name
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.chmod(0o700)
    except OSError as error:
        raise InvalidInputError(
            f"a long table needs a folder to write to, and '{place}' is none: {explain(error)}"
        ) from error
    return place


def forget_old(place: Path, kept: Path) -> None:
    """Remove what was not used for a week, but for one; a run that still has it mapped keeps its rows."""
    for each in place.iterdir():
        with contextlib.suppress(OSError):
            if each != kept and time.time() - each.stat().st_mtime > WEEK:
                shutil.rmtree(each) if each.is_dir() else each.unlink()


def _load(folder: Path) -> tuple[Tensor, Tensor] | None:
    """The mapped files; None where there are none or they do not fit. They are mapped copy-on-write: whatever a program
    does to the tensors, the files stay as they are."""
    try:
        rows, labels = (np.load(folder / name, mmap_mode="c", allow_pickle=False) for name in FILES)
    except (OSError, ValueError):
        return None
    if rows.ndim != 2 or labels.ndim != 1 or len(rows) != len(labels) or rows.dtype != np.float32:
        return None
    return torch.from_numpy(rows), torch.from_numpy(labels)


def _write(target: Path, pieces: Iterator[Encoded]) -> None:
    """Write all chunks into a temporary folder and rename it to the target, unless another process was faster."""
    with _begin_beside(target) as beside:
        _write_files(beside, pieces)
        sync_directory(beside)
        with _take_turn(target.parent):
            if _load(target) is None:
                if target.exists():  # not whole
                    shutil.rmtree(target)
                move_atomic(beside, target)


@contextmanager
def _begin_beside(target: Path) -> Iterator[Path]:
    """A folder to write to, gone at the end unless it was moved; its lock says to others that it is being written."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    with _take_turn(target.parent):  # else another process might clear what is made and not locked yet
        remove_temporaries(target)
        beside.mkdir(mode=0o700)
        held = _open_locked(beside)
    try:
        yield beside
    finally:
        os.close(held)
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _take_turn(folder: Path) -> Iterator[None]:
    """One process at a time in here, where the disk has locks."""
    held = _open_locked(folder)
    try:
        yield
    finally:
        os.close(held)


def _open_locked(folder: Path) -> int:
    held = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a disk without locks still holds the rows of one process at a time
        lock_file(held)
    return held


def _write_files(folder: Path, pieces: Iterator[Encoded]) -> None:
    files = [NpyAppender(folder / name) for name in FILES]
    try:
        for piece in pieces:
            for file, array in zip(files, piece, strict=True):
                file.add(array)
        for file in files:
            file.finish()
    finally:
        for file in files:
            file.close()


class NpyAppender:
    """An .npy file of which rows are written before their number is known: its header is written twice, and numpy
    leaves room in it for a length of any number of digits."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")
        self._like: NDArray[Any] | None = None
        self._rows = 0

    def add(self, array: NDArray[Any]) -> None:
        if self._like is None:
            self._like = array[:0]
            self._write_header()
        self._file.write(np.ascontiguousarray(array).data)
        self._rows += len(array)

    def finish(self) -> None:
        start = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(start)
        self._file.flush()
        sync_file(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        if self._like is None:
            raise ValueError("a table without rows has no file")
        shape = (self._rows, *self._like.shape[1:])
        described = {"descr": self._like.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)


def numbers(cells: Cells) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The cells as numbers, missing ones as NaN; None if some cell is neither a number nor missing."""
    found = read_numbers(cells)
    if not isinstance(cells, TextColumn):
        return found
    empty = np.flatnonzero(np.isnan(found))
    return found if all(map(is_missing, cells.pick(empty).different)) else None


def read_numbers(cells: Cells, decimal: str = POINT) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The cells as numbers, written with this decimal sign; NaN where there is none. Each is read by itself."""
    if not isinstance(cells, TextColumn):
        return cells
    found, others = cells.plain if decimal == POINT else cells.read_commas(WITH_COMMA)
    values = found.copy()

    def parse(words: TextColumn) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One by one, in this column's own spelling."""
        return np.array([read_number(word, decimal) for word in words], dtype=np.float64)

    if len(others):
        values[others] = cells.pick(others).map(parse)
    return values


def texts(cells: Cells) -> list[str]:
    """The cells as text; whole numbers without their ".0"."""
    if isinstance(cells, np.ndarray):
        return [str(int(v)) if float(v).is_integer() else ("" if np.isnan(v) else repr(float(v))) for v in cells]
    return [cell.strip() for cell in cells]


def map_texts(cells: Cells, function: Callable[[str], float]) -> np.ndarray[Any, Any]:
    """``function`` of every cell's text; of a long file's column, once for every different text of a piece."""
    if isinstance(cells, TextColumn):
        return cells.map(lambda words: np.array([function(word.strip()) for word in words]))
    return np.array([function(text) for text in texts(cells)])


def list_different(cells: Cells) -> Collection[str]:
    """The different texts among the cells."""
    return {word.strip() for word in cells.different} if isinstance(cells, TextColumn) else texts(cells)


def count_texts(cells: Cells) -> Counter[str]:
    """The number of cells with each text."""
    if not isinstance(cells, TextColumn):
        return Counter(texts(cells))
    total: Counter[str] = Counter()
    for word, count in zip(cells.different, cells.count_different().tolist(), strict=True):
        total[word.strip()] += count
    return total


def find_first(cells: Cells, which: Callable[[str], bool]) -> int | None:
    """The place of the first cell of whose text ``which`` is true."""
    if isinstance(cells, TextColumn):
        return cells.find_first(lambda word: which(word.strip()))
    return next((place for place, text in enumerate(texts(cells)) if which(text)), None)


def read_table(path: Path, schema: Schema, count: Count = lambda rows: None) -> tuple[Tensor, Tensor]:
    """(columns as numbers and category codes (n, columns), labels (n,)) of a whole table, by its schema; in place of
    labels the numbers to predict, where the schema has a range of them."""
    rows, labels = zip(*encode_table(path, schema, count), strict=True)
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels))


def encode_table(place: Path, schema: Schema, count: Count = lambda rows: None) -> Iterator[Encoded]:
    """The same in chunks; ``count`` is called with the number of rows of each. Errors name the file and its row."""
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
        raise InvalidInputError(f"'{place}' holds no rows")


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

    if column.kind != "date" or not isinstance(cells, TextColumn):
        return map_texts(cells, parse)
    plain = find_dates(cells, column.form)
    values = np.full(len(cells), np.nan)
    values[plain.places] = plain.days if column.time else np.floor(plain.days)
    others = np.flatnonzero(np.isnan(values))
    values[others] = map_texts(cells.pick(others), parse)
    return values


def holds_text(name: str, path: Path | str) -> InvalidInputError:
    """The error of words among numbers where a column does not provide for them."""
    return InvalidInputError(
        f"column '{name}' of '{path}' is said to be a number and holds text: 'missing = true' in the schema takes a "
        "stray word for a missing value"
    )


def no_number(name: str, row: int, path: Path | str) -> InvalidInputError:
    """The error of a number that is missing where a column does not provide for it."""
    return InvalidInputError(
        f"column '{name}' of '{path}' has no finite number in row {row}: remove such rows, or give the column a public "
        "'fill' or 'missing = true' in the schema"
    )


def _filled(values: np.ndarray[Any, Any], fill: float | None) -> np.ndarray[Any, Any]:
    return values if fill is None else np.where(np.isnan(values), fill, values)


def _labels(cells: Cells, places: Mapping[str, int], done: int, path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = map_texts(cells, lambda text: places.get(text, -1)).astype(np.int64)
    if (found < 0).any():
        row = int(np.argmin(found))
        raise InvalidInputError(
            f"row {done + row + 1} of '{path}' has a label that is none of the {len(places)} classes"
        )
    return found


def _targets(cells: Cells, name: str, done: int, path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = numbers(cells)
    if found is None:
        raise InvalidInputError(f"column '{name}' of '{path}' is to be predicted as a number and holds text")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InvalidInputError(
            f"column '{name}' of '{path}' has no finite number in row {done + int(bad[0]) + 1}: remove it"
        )
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
