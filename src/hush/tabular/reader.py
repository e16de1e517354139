"""Reads the rows of a table in chunks of some thousands: .csv and .parquet of any length, one file or several.

Errors go to terminals, logs and public records, so they quote no cell. They name a column and the number of a row: a
reader who has the file can find the cell, and one who has not learns nothing about it. A first line without names is a
row like any other, and is not quoted either.
"""

from __future__ import annotations

import csv
import glob
import gzip
import math
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hush._internal.storage import explain
from hush.errors import DataError, InvalidInputError

# Rows of files as pyarrow streams them: text stays in Arrow's buffers, and only what is asked for becomes Python.
#
# A column of a batch is numbers (a float64 array, where the file has types) or a `TextColumn`. Each cell is parsed by
# itself: what it means never depends on another cell. A plain decimal is read by Arrow, which rounds correctly as
# Python does, so both give the same bits; every other cell is parsed once for every *different* cell of the batch.

BLOCK = 1 << 22  # bytes of a text file that are parsed at a time
PLAIN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
WITH_COMMA = r"^-?[0-9]{1,15}(,[0-9]{1,15})?$"
ONLY_COMMA = r"^-?[0-9]{1,15},([0-9]{1,2}|[0-9]{4,15})$"  # which can be no sign of thousands
FEW = 32  # cells that are looked at before all others
FEW_WORDS = 8192  # that are Python's own at a time
PADDING = "\x00 \t\r\n\f\v"  # trimmed from cells of files that hold NUL bytes


class TextColumn(Sequence[str]):
    """A column of text in some rows, as a sequence of str that is made only when it is read."""

    def __init__(self, column: Any) -> None:
        self._column = column

    @classmethod
    def of(cls, words: Iterable[str]) -> TextColumn:
        """Words that are in memory; a lone surrogate, which is no text, becomes a replacement character."""
        listed = list(words)
        try:
            return cls(pa.array(listed, pa.string()))
        except UnicodeEncodeError:
            whole = [word.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for word in listed]
            return cls(pa.array(whole, pa.string()))

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._listed[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    @cached_property
    def _listed(self) -> list[str]:
        return ["" if word is None else word for word in self._column.to_pylist()]

    def take_first(self, count: int) -> TextColumn:
        """The first cells alone."""
        return self if count >= len(self) else TextColumn(self._column.slice(0, count))

    def pick(self, places: NDArray[np.int64]) -> TextColumn:
        """The cells at these places."""
        return TextColumn(self._column.take(pa.array(places, pa.int64())))

    @cached_property
    def _coded(self) -> tuple[TextColumn, NDArray[np.int64]]:
        coded = self._column.fill_null("").dictionary_encode()
        return TextColumn(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @property
    def different(self) -> TextColumn:
        """Every word of the column once, in the order in which they come."""
        return self._coded[0]

    def count_different(self) -> NDArray[np.int64]:
        """The number of occurrences of each word in the column."""
        words, places = self._coded
        return np.bincount(places, minlength=len(words))

    def find_first(self, which: Callable[[str], bool]) -> int | None:
        """The place of the first cell of which ``which`` is true; it must look at the word alone."""
        if len(self) > FEW and (near := self.take_first(FEW).find_first(which)) is not None:
            return near
        words, places = self._coded
        chosen = next((place for place, word in enumerate(words) if which(word)), None)
        return None if chosen is None else int(np.argmax(places == chosen))

    def map(self, function: Callable[[TextColumn], NDArray[Any]]) -> NDArray[Any]:
        """``function`` of every cell. It takes some words and gives one value for each, by looking at that word alone;
        here it sees each different word once."""
        words, places = self._coded
        return np.asarray(function(words))[places]

    @cached_property
    def plain(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(the cells that are plain finite decimals as numbers, NaN elsewhere; the places of all other cells).

        Whether a cell is one is decided by the cell alone. Arrow reads all cells at once where it can; it takes no
        finite number for another one than `parse_number` does, and what it reads as infinite or as no number, and
        cells that are too long, are left to that function."""
        try:
            values = _as_doubles(self._column.cast(pa.float64()))
            short = self.lengths <= LONGEST_NUMBER
        except pa.ArrowInvalid:
            words, places = self._coded
            fits = pc.match_substring_regex(words._column, PLAIN).to_numpy(zero_copy_only=False)
            chosen, found = np.flatnonzero(fits), np.full(len(words), np.nan)
            found[chosen] = _as_doubles(words._column.take(pa.array(chosen)).cast(pa.float64()))
            values, short = found[places], (words.lengths <= LONGEST_NUMBER)[places]
        plain = np.isfinite(values) & short
        values[~plain] = np.nan
        return values, np.flatnonzero(~plain)

    def match(self, pattern: str) -> NDArray[np.bool_]:
        """Which cells hold a pattern."""
        found = pc.match_substring_regex(self._column.fill_null(""), pattern)
        return found.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each cell has."""
        found = pc.binary_length(self._column.fill_null("")).to_numpy(zero_copy_only=False)
        return np.asarray(found, dtype=np.int64)

    def read_commas(self, pattern: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(the cells of a pattern, which must be digits around a decimal comma, as numbers, NaN elsewhere; the places
        of all other cells)."""
        filled = self._column.fill_null("")
        fits = pc.match_substring_regex(filled, pattern).to_numpy(zero_copy_only=False)
        chosen, values = np.flatnonzero(fits), np.full(len(self), np.nan)
        kept = pc.replace_substring(filled.take(pa.array(chosen)), ",", ".")
        values[chosen] = _as_doubles(kept.cast(pa.float64()))
        return values, np.flatnonzero(~fits)

    def list_bytes(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(The indices of the cells of this length in bytes; their bytes, of shape (n, width))."""
        filled = self._column.fill_null("")
        _, ends, text = filled.buffers()
        ends = np.frombuffer(ends, np.int32)[filled.offset : filled.offset + len(self) + 1]
        places = np.flatnonzero(np.diff(ends) == width)
        if text is None or not len(places):
            return places, np.zeros((0, width), np.uint8)
        letters = np.frombuffer(text, np.uint8)
        if len(places) * width == ends[-1] - ends[0]:  # all others are empty
            return places, letters[ends[0] : ends[-1]].reshape(-1, width)
        return places, letters[ends[places][:, None] + np.arange(width)]


class WordCounts:
    """How often each word came, over many pieces; the words stay in Arrow's buffers until they are asked for."""

    def __init__(self) -> None:
        self._words: list[Any] = []
        self._counts: list[NDArray[np.int64]] = []
        self.size = 0  # bytes

    def add(self, cells: TextColumn) -> None:
        """Count the words of some rows."""
        self._words.append(cells.different._column)
        self._counts.append(cells.count_different())
        self.size += self._words[-1].nbytes + self._counts[-1].nbytes

    def drain(self) -> Iterator[tuple[str, int]]:
        """Every word that was counted and how often it came; then all is forgotten."""
        if not self._words:
            return
        words, places = TextColumn(pa.concat_arrays(self._words))._coded
        counts = np.zeros(len(words), np.int64)
        np.add.at(counts, places, np.concatenate(self._counts))
        self._words, self._counts, self.size = [], [], 0
        for start in range(0, len(words), FEW_WORDS):
            part = TextColumn(words._column.slice(start, FEW_WORDS))
            yield from zip(part, counts[start : start + FEW_WORDS].tolist(), strict=True)


def _as_doubles(found: Any) -> NDArray[np.float64]:
    return np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)


def _trim_padding(column: Any) -> Any:
    """Text without NUL bytes and white space at the ends of a cell, where a column has NUL bytes: tables of fixed width
    are padded with them."""
    text = column.buffers()[2]
    if text is None or not (np.frombuffer(text, np.uint8) == 0).any():
        return column
    return pc.utf8_trim(column, PADDING)


# One table in several files: which they are, that they agree in their columns, and about how long they are together.
#
# A table is a file, a folder of files, or a pattern such as ``parts/*.parquet``. Its parts are read in the order of
# their names. A folder is a table if it holds tables and no folders; with folders in it, it is one of images.

TABLES = (".csv", ".tsv", ".txt", ".parquet")
PACKED = ".gz"  # text may be packed; a parquet file is, inside
SAMPLE = 1 << 20  # bytes of a text file that are looked at to guess its rows
UNPACKED = 4  # bytes of text in a byte of .gz, about
Names = Mapping[str, str | None]
"""The columns of a part: the kind of content that a typed file gives each, or None."""


def is_table(path: Path) -> bool:
    """Whether a file has the name of a table."""
    plain = path.with_suffix("") if path.suffix == PACKED else path
    return plain.suffix in TABLES and (plain == path or plain.suffix != ".parquet")


def is_pattern(place: Path) -> bool:
    """Whether a place that does not exist is a pattern of names."""
    return glob.has_magic(str(place)) and not place.exists()


def holds_table(place: Path) -> bool:
    """Whether this is a table: a file of that name, a pattern, or a folder of such files and no folders."""
    if is_pattern(place):
        return True
    return any(map(is_table, _list_folder(place))) and not _has_folders(place) if place.is_dir() else is_table(place)


def name_table(place: Path) -> str:
    """What a table is called: its file or folder without endings; of a pattern, the folder that it looks in."""
    if is_pattern(place):
        return place.parent.name or "table"
    return place.with_suffix("").stem if place.suffix == PACKED else place.stem


def find_parts(place: Path) -> tuple[Path, ...]:
    """The files of a table in the order of their names; one file is its own part."""
    if is_pattern(place):
        found = sorted(Path(name) for name in glob.glob(str(place)))
        where = f"the pattern '{place}'"
        if not found:
            raise InvalidInputError(f"{where} fits no file: put it in quotation marks, and look at the folder's name")
    elif place.is_dir():
        found, where = _list_folder(place), f"the folder '{place}'"
    else:
        return (place,)
    for path in found:
        if not path.is_file() or not is_table(path):
            raise InvalidInputError(
                f"{where} holds '{path.name}', which is no table: give a pattern such as 'parts/*.csv'"
            )
    if not found:
        raise InvalidInputError(f"{where} holds no table")
    return tuple(found)


def check_agreement(parts: Sequence[Path], read_names: Callable[[Path], Names]) -> None:
    """Refuse parts of which one has other columns than the first, or text where the first has numbers."""
    if len(parts) < 2:
        return
    first = read_names(parts[0])
    for part in parts[1:]:
        _compare(first, read_names(part), parts[0], part)


def _compare(first: Names, other: Names, one: Path, two: Path) -> None:
    for name in first:
        if name not in other:
            raise InvalidInputError(
                f"'{two}' lacks the column '{name}' that '{one}' has: parts of a table need the same columns"
            )
    for name, kind in other.items():
        if name not in first:
            raise InvalidInputError(
                f"'{two}' has the column '{name}', and '{one}' has not: parts of a table need the same columns"
            )
        known = first[name]
        if None not in (kind, known) and kind != known:
            raise InvalidInputError(
                f"column '{name}' holds {kind} in '{two}' and {known} in '{one}': write the parts with the same types"
            )


def estimate_rows(parts: Sequence[Path]) -> int:
    """About how many rows the parts have: what parquet files say, and of text its length by that of its first rows."""
    return sum(map(_estimate, parts))


def _estimate(part: Path) -> int:
    if part.suffix == ".parquet":
        return _count_parquet(part)
    try:
        size = part.stat().st_size
        if part.suffix == PACKED:
            return size * UNPACKED // 100
        with part.open("rb") as file:
            sample = file.read(SAMPLE)
    except OSError as error:
        raise InvalidInputError(f"'{part}' cannot be read: {explain(error)}") from error
    return round(size * sample.count(b"\n") / len(sample)) if sample else 0


def _count_parquet(part: Path) -> int:
    try:
        return int(pq.read_metadata(part).num_rows)
    except (OSError, ValueError):  # reading the file says in a sentence what is wrong
        return 0


def _list_folder(folder: Path) -> list[Path]:
    """What lies in a folder, without what programs leave there (``_SUCCESS``, ``.part-0.crc``)."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def _has_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in _list_folder(folder))


Cells = TextColumn | np.ndarray[Any, np.dtype[np.float64]]
Piece = Mapping[str, Cells]
"""Some rows, by column: text, or numbers where the file has types of its own."""
Count = Callable[[int], None]

ROWS = 20_000
MOST_COLUMNS = 10_000
_DELIMITERS = ",;\t|"


class ArrowPiece(Mapping[str, Cells]):
    """Some rows as Arrow has them; a column becomes cells when it is asked for, and only then can its type be refused.
    The column ``exact`` is read as exact text, whatever its type."""

    def __init__(self, batch: Any, path: Path, exact: str = "") -> None:
        self._batch, self._path, self._exact = batch, path, exact
        self._read: dict[str, Cells] = {}

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self._batch.num_rows)

    def __getitem__(self, name: str) -> Cells:
        if name not in self._read:
            if name not in self:
                raise KeyError(name)
            column = self._batch.column(self._batch.schema.names.index(name))
            with _arrow_errors(self._path):
                self._read[name] = (
                    TextColumn(spell_exactly(column, name, self._path))
                    if name == self._exact
                    else _read_column(name, column, self._path)
                )
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.schema.names)

    def __len__(self) -> int:
        return len(self._batch.schema.names)

    def __contains__(self, name: object) -> bool:
        return name in self._batch.schema.names


def pieces(place: Path, count: Count = lambda rows: None, *, exact: str = "") -> Iterator[Piece]:
    """The rows of a table in chunks of some thousands: of a .csv or .parquet file, or of all files of a folder or
    pattern in the order of their names. ``count`` is called with the number of rows of each chunk after it is used; the
    column ``exact`` is read as exact text."""
    for _, piece in pieces_by_part(place, exact=exact):
        yield piece
        count(count_rows(piece))


def pieces_by_part(place: Path, *, exact: str = "") -> Iterator[tuple[Path, Piece]]:
    """The same, each with the file it is from; parts that differ in their columns are refused before any is read."""
    parts = find_parts(place)
    check_agreement(parts, read_names)
    for part in parts:
        for piece in _read_parquet(part, exact) if part.suffix == ".parquet" else _read_csv(part, exact):
            yield part, piece


def read_names(path: Path) -> Names:
    """The columns of one file, and the type of each typed column: numbers, text, dates or others."""
    if path.suffix == ".parquet":
        return _read_parquet_names(path)
    with _opened(path) as file:
        return dict.fromkeys(_read_header(file, path)[0])


def count_rows(piece: Piece) -> int:
    """How many rows a piece has."""
    return piece.rows if isinstance(piece, ArrowPiece) else len(next(iter(piece.values())))


def _read_csv(path: Path, exact: str = "") -> Iterator[Piece]:
    """A file of text with one line of names: every column as text, a block at a time."""
    with _opened(path) as file:
        names, delimiter = _read_header(file, path)
        if not file.readline():
            return
    packed = "gzip" if path.suffix == PACKED else None
    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "error"

    try:
        with (
            pa.input_stream(path, compression=packed) as stream,
            pa_csv.open_csv(
                stream,
                read_options=pa_csv.ReadOptions(
                    column_names=names, skip_rows=1, block_size=BLOCK, use_threads=False
                ),  # with threads Arrow does not number the rows
                parse_options=pa_csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types={name: pa.string() for name in names}, strings_can_be_null=True, null_values=[""]
                ),
            ) as reader,
        ):
            for batch in reader:
                if batch.num_rows:
                    yield ArrowPiece(batch, path, exact)
    except pa.ArrowInvalid as error:
        raise _explain_csv(path, wrong, str(error)) from error
    except OSError as error:
        packing = f"'{path}' is not a whole .gz file" if packed else f"'{path}' cannot be read: {explain(error)}"
        raise DataError(packing) from error


def _explain_csv(path: Path, wrong: Sequence[Any], said: str) -> DataError:
    """What is wrong with a file that Arrow does not read; its own words may quote a cell."""
    if wrong:
        row = wrong[-1]
        found = f"has {row.actual_columns} cells where the header has {row.expected_columns}"
        return DataError(f"row {row.number - 1} of '{path}' {found}")
    if "UTF8" in said:
        return DataError(f"'{path}' is not a text table in UTF-8")
    return DataError(f"'{path}' is not a text table: a row is longer than {BLOCK >> 20} MB, or a quote is not closed")


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """A file of text, packed or not; whatever is wrong with it, now or while it is read, is one sentence."""
    how: dict[str, Any] = {"newline": "", "encoding": "utf-8-sig"}
    try:
        with gzip.open(path, "rt", **how) if path.suffix == PACKED else path.open("r", **how) as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInputError(f"'{path}' is not a whole .gz file") from error
    except OSError as error:
        raise InvalidInputError(f"'{path}' cannot be read: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"'{path}' is not a text table in UTF-8") from error
    except csv.Error as error:
        raise InvalidInputError(
            f"'{path}' is not a text table: a cell is too long, or a quote is not closed"
        ) from error


def _read_header(file: IO[str], path: Path) -> tuple[list[str], str]:
    """The names in the first line, and the separator between them."""
    first = file.readline()
    delimiter = max(_DELIMITERS, key=first.count)
    return _header(next(csv.reader([first], delimiter=delimiter), []), path), delimiter


def _header(names: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise InvalidInputError(f"the first line of '{path}' must name every column")
    _check_count(len(names), path)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        first = names.index(name)
        second = names.index(name, first + 1)
        raise InvalidInputError(
            f"columns {first + 1} and {second + 1} of '{path}' have the same name in its first line"
        )
    return names


def _check_count(columns: int, path: Path) -> None:
    if columns > MOST_COLUMNS:
        raise InvalidInputError(
            f"'{path}' has {columns} columns, and a table may have {MOST_COLUMNS}: use an .npz of arrays"
        )


def _read_parquet(path: Path, exact: str = "") -> Iterator[Piece]:
    with _arrow_errors(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            _check_typed_names(batch.schema.names, path)
            yield ArrowPiece(batch, path, exact)


def _check_typed_names(names: list[str], path: Path) -> None:
    _check_count(len(names), path)
    if len(set(names)) < len(names):
        raise DataError(f"several columns of '{path}' have the same name: give every column its own")


def _read_parquet_names(path: Path) -> Names:
    with _arrow_errors(path):
        columns = pq.read_schema(path)
        _check_typed_names(columns.names, path)
        return {field.name: _name_type(field.type) for field in columns}


def _name_type(kind: Any) -> str | None:
    """What a typed column holds, where parts of a table must agree; None where it holds nothing."""
    if pa.types.is_null(kind):
        return None
    if _is_number(kind):
        return "numbers"
    return "dates" if pa.types.is_temporal(kind) else "truth values" if pa.types.is_boolean(kind) else "text"


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise DataError(f"'{path}' is not a whole parquet file of numbers and text") from error
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {explain(error)}") from error


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _read_column(name: str, column: Any, path: Path) -> Cells:
    """A column's cells: numbers as float64, each rounded by itself, and all else as text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _read_column(name, column.dictionary_decode(), path)
    if _is_number(kind):
        values: np.ndarray[Any, np.dtype[np.float64]] = column.cast(pa.float64(), safe=False).to_numpy(
            zero_copy_only=False
        )
        return values
    if pa.types.is_nested(kind) or _is_bytes(kind):
        raise DataError(f"column '{name}' of '{path}' has the type {kind}, where numbers or text were expected")
    if _is_text(kind):
        return TextColumn(_trim_padding(column.cast(pa.string())))
    if pa.types.is_timestamp(kind) and kind.unit == "ns":  # Python's own have microseconds
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    return TextColumn.of("" if value is None else str(value) for value in column.to_pylist())


MOST_EXACT = {2: 2**11, 4: 2**24, 8: 2**53}  # by size in bytes: all integers up to this are exact


def spell_exactly(column: Any, name: str, path: Path | str) -> Any:
    """A column as text that differs whenever the values differ, for any Arrow type; missing values are null.

    Whole numbers are digits, decimals have all their digits, bytes are hexadecimal and timestamps have every digit of
    their unit. Types without such a text are rejected, and so are floating-point numbers too large to represent every
    whole number: the program that wrote them may have merged ids."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return spell_exactly(column.dictionary_decode(), name, path)
    if _is_text(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        if pa.types.is_duration(kind):
            column = column.cast(pa.int64())
        return column.cast(pa.string())
    coded = column.dictionary_encode()
    words = [_spell_value(value, name, path, kind) for value in coded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(coded.indices)


def _spell_value(value: Any, name: str, path: Path | str, kind: Any) -> str | None:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return spell_float(value, kind.bit_width // 8, f"column '{name}' of '{path}'")
    if value is None:
        return None
    raise DataError(f"column '{name}' of '{path}' has the type {kind}, which cannot name the unit of a row")


def spell_float(value: float, size: int, what: str) -> str | None:
    """A floating-point number of this size in bytes as the exact text of an id: a whole one without a fraction, None
    if it is not finite. An error if the type cannot represent all whole numbers of this size."""
    if not math.isfinite(value):
        return None
    if abs(value) >= MOST_EXACT[size]:
        raise DataError(
            f"{what} names the unit of each row and holds floating-point numbers beyond {MOST_EXACT[size]}, where "
            "different ids become one number: write the ids as whole numbers or text"
        )
    return str(int(value)) if value.is_integer() else repr(value)


# Numbers as people write them: 1234.5, 1,234.5, 1'234.5, 1 234.5, or with a decimal comma 1234,5 and 1.234,5.
#
# Which of the two signs is the decimal one is a fact of a column and never of a cell: "1,234" alone may be either, and
# a column that has nothing else is refused until a schema says which. Signs of thousands stand before every three
# digits or nowhere.

POINT, COMMA = ".", ","
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
LONGEST_NUMBER = 400  # characters
_THOUSANDS = {POINT: ",' \u00a0\u202f", COMMA: ".' \u00a0\u202f"}
_GROUPED = {
    decimal: re.compile(rf"[+-]?[0-9]{{1,3}}([{re.escape(signs)}])[0-9]{{3}}(?:\1[0-9]{{3}})*(?:[{decimal}][0-9]+)?")
    for decimal, signs in _THOUSANDS.items()
}
_WITH_COMMA = re.compile(r"[+-]?(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_missing(text: str) -> bool:
    """Whether a cell says that there is nothing in it."""
    return text.strip().lower() in MISSING


def is_written_plainly(text: str) -> bool:
    """Whether a cell has none of the signs that Python alone takes for parts of a number: underscores between digits,
    and the digits of other scripts. A cell with one of them is no number."""
    return "_" not in text and text.strip().isascii()


def read_number(text: str, decimal: str = POINT) -> float:
    """The number that a cell holds, an infinite or too large one included; NaN where it holds none."""
    value = parse_number(text, decimal)
    if value is not None:
        return value
    try:
        found = float(text) if decimal == POINT and is_written_plainly(text) else math.nan
    except ValueError:
        return math.nan
    return found if math.isinf(found) else math.nan


@lru_cache(maxsize=65536)
def parse_number(text: str, decimal: str = POINT) -> float | None:
    """The finite number that a cell holds, or None."""
    text = text.strip()
    if len(text) > LONGEST_NUMBER:
        return None
    found = _GROUPED[decimal].fullmatch(text)
    if found is not None:
        text = text.replace(found.group(1), "")
    elif decimal == COMMA and not _WITH_COMMA.fullmatch(text):
        return None
    if not is_written_plainly(text):
        return None
    try:
        value = float(text.replace(COMMA, POINT) if decimal == COMMA else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# Columns of two words for yes and no, in the words that need no schema.

PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("f", "t"),
    ("0", "1"),
    ("off", "on"),
    ("nein", "ja"),
    ("falsch", "wahr"),
    ("non", "oui"),
    ("faux", "vrai"),
    ("no", "si"),
    ("no", "sí"),
    ("nee", "ja"),
    ("não", "sim"),
    ("nej", "ja"),
)
_MEANING = {word: float(place) for pair in PAIRS for place, word in enumerate(pair)}


def parse_flag(text: str, values: tuple[str, ...] = ()) -> float | None:
    """0 for no, 1 for yes, None for anything else; by the column's own two words where it has them."""
    if values:
        return float(values.index(text.strip())) if text.strip() in values else None
    return _MEANING.get(text.strip().lower())


# Dates as people write them, as days since 1 January 1970, a part of a day for the time.
#
# A date is read by the format of its column alone, or as ISO 8601, which cannot be taken for another. "03/04/2020" is a
# day in March or in April: a column of such dates is refused until a schema says which. A time zone is not looked at:
# the time of day is the one that stands there.

ISO = "yyyy-mm-dd"
DOTTED = "dd.mm.yyyy"
DAY_FIRST, MONTH_FIRST = "dd/mm/yyyy", "mm/dd/yyyy"
FORMATS = (ISO, "yyyy/mm/dd", DOTTED, DAY_FIRST, MONTH_FIRST)
UNAMBIGUOUS = (ISO, "yyyy/mm/dd", DOTTED)
FIRST_YEAR, LAST_YEAR = 1900.0, 2100.0  # the public range of a date that has none of its own
DAYS_IN_YEAR = 365.2425  # on average, in the Gregorian calendar
LONGEST_DATE = 40  # characters
_EPOCH = date(1970, 1, 1).toordinal()
_TIME = (
    r"(?:[T ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]{1,9})?)?"
    r"(?: ?(?:Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_PART = {"yyyy": "(?P<year>[0-9]{4})", "mm": "(?P<month>[0-9]{1,2})", "dd": "(?P<day>[0-9]{1,2})"}


def _compile(form: str) -> re.Pattern[str]:
    pattern = re.escape(form)
    for part, found in _PART.items():
        pattern = pattern.replace(part, found)
    return re.compile(pattern + _TIME)


_PATTERNS = {form: _compile(form) for form in FORMATS}


@lru_cache(maxsize=65536)
def parse_date(text: str, form: str) -> float | None:
    """Days since the first of January 1970, or None where the cell is no date of that format."""
    text = text.strip()
    if len(text) > LONGEST_DATE:
        return None
    found = _PATTERNS[form].fullmatch(text)
    if found is None:
        return None if form == ISO else parse_date(text, ISO)
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 60:
        return None
    try:
        day = date(int(found["year"]), int(found["month"]), int(found["day"])).toordinal() - _EPOCH
    except ValueError:
        return None
    return day + (hour * 3600 + minute * 60 + second) / 86_400


def has_time(text: str) -> bool:
    """Whether a date is written with a time of day."""
    return ":" in text


def is_written_with_slashes(text: str) -> bool:
    """Whether this is a date of the form 3/4/2020, in which the order of day and month is ambiguous."""
    return any(
        _PATTERNS[form].fullmatch(text.strip()) for form in (DAY_FIRST, MONTH_FIRST) if len(text) <= LONGEST_DATE
    )


# Dates of a long column that are written with all their digits, many at a time: 2009-06-24, 24.06.2009 10:30:00.
#
# They are what `hush.tabular.reader.parse_date` says of each. What is written in another way, or is no date, is left
# out here and goes to that function.

CLOCK = "Thh:nn:ss"  # what may follow a day, as far as the minutes or the seconds
WIDTHS = (10, 16, 19)  # bytes of a day, and with minutes and seconds
Bytes = NDArray[np.uint8]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class PlainDates:
    """Those cells of a column that are plain dates of a format: their places, the days since 1970, whether each has a
    time, and whether it is one word."""

    places: Whole
    days: NDArray[np.float64]
    timed: NDArray[np.bool_]
    unspaced: NDArray[np.bool_]


def find_dates(cells: TextColumn, form: str) -> PlainDates:
    """The plain dates of a format among the cells."""
    found = [_find_of_width(cells, form, width) for width in WIDTHS]
    return PlainDates(
        np.concatenate([each.places for each in found]),
        np.concatenate([each.days for each in found]),
        np.concatenate([each.timed for each in found]),
        np.concatenate([each.unspaced for each in found]),
    )


def _find_of_width(cells: TextColumn, form: str, width: int) -> PlainDates:
    places, written = cells.list_bytes(width)
    pattern = (form + CLOCK)[:width]
    fits = np.flatnonzero(_fit(written, pattern))
    places, digits = places[fits], written[fits] - ord("0")
    whole, good = _count_days(digits, pattern)
    days = whole.astype(np.float64)
    if width > len(form):
        hours, minutes, seconds = (_join(digits, pattern, part) for part in ("hh", "nn", "ss"))
        good &= (hours <= 23) & (minutes <= 59) & (seconds <= 60)
        days = days + (hours * 3600 + minutes * 60 + seconds) / 86_400
    unspaced = written[fits, len(form)] == ord("T") if width > len(form) else np.ones(len(fits), np.bool_)
    return PlainDates(places[good], days[good], np.full(int(good.sum()), width > len(form)), unspaced[good])


def _fit(written: Bytes, pattern: str) -> NDArray[np.bool_]:
    """Which rows have a digit wherever the pattern has a small letter, and its signs elsewhere."""
    fits = np.ones(len(written), np.bool_)
    for place, letter in sorted(enumerate(pattern), key=lambda found: found[1].islower()):  # signs first
        if not fits.any():
            return fits
        column = written[:, place]
        if letter.islower():
            fits &= column - ord("0") <= 9  # of unsigned bytes: whatever is below "0" is large
        elif letter == "T":
            fits &= (column == ord("T")) | (column == ord(" "))
        else:
            fits &= column == ord(letter)
    return fits


def _join(digits: Bytes, pattern: str, part: str) -> Whole:
    """The number at a part of the pattern; 0 if the pattern does not have the part."""
    total = np.zeros(len(digits), np.int64)
    start = pattern.find(part)
    for place in range(start, start + len(part) if start >= 0 else start):
        total = 10 * total + digits[:, place]
    return total


def _count_days(digits: Bytes, pattern: str) -> tuple[Whole, NDArray[np.bool_]]:
    """(days since 1970, whether there is such a day) by the calendar of Gregory."""
    year, month, day = (_join(digits, pattern, part) for part in ("yyyy", "mm", "dd"))
    first = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    start, end = (each.astype("M8[D]").astype(np.int64) for each in (first, first + 1))
    good = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= end - start)
    return start + day - 1, good


# What is said while a long table is read: nothing for two seconds, then how far it is, then how long it took.

Tell = Callable[[str], None]
PATIENCE = 2.0  # seconds of silence
PAUSE = 10.0  # seconds from one line to the next


def keep_silent(text: str) -> None:
    """Say nothing."""


class ReadProgress:
    """Counts rows as they are read, in one pass or several, and reports progress if that takes long."""

    def __init__(self, name: str, expected: int, tell: Tell, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._expected, self._tell, self._now = name, expected, tell, now
        self._began = now()
        self._due = self._began + PATIENCE
        self._doing, self._rows = "", 0

    def begin(self, doing: str) -> None:
        """A pass begins: what is being done."""
        self._doing, self._rows = doing, 0

    def count(self, rows: int) -> None:
        """Count this number of rows as read."""
        self._rows += rows
        if self._now() >= self._due:
            self._due = self._now() + PAUSE
            total = max(self._expected, self._rows)
            self._tell(f"{self._doing} '{self._name}': {_group(self._rows)} of about {_group(total)} rows …")

    def finish(self, rows: int, columns: int) -> None:
        """All is read; said if it took long."""
        seconds = self._now() - self._began
        if seconds >= PATIENCE:
            self._tell(f"read {_group(rows)} rows of {columns} columns in {seconds:.0f} s")


def _group(number: int) -> str:
    return f"{number:,}".replace(",", " ")
