"""Read the rows of a table in chunks of a few thousand: .csv and .parquet of any length, one file or several.

Errors go to terminals, logs and public records, so they quote no cell. They name a column and the number of a row: a
reader who has the file can find the cell, and one who has not learns nothing about it. A first line without names is a
row like any other, and is not quoted either.
"""

from __future__ import annotations

import csv
import glob
import gzip
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hush._internal.storage import explain
from hush.errors import DataError, InvalidInputError
from hush.tabular.cells import Cells, TextColumn, as_doubles

BLOCK = 1 << 22  # bytes of a text file that are parsed at a time
PADDING = "\x00 \t\r\n\f\v"  # trimmed from cells of files that hold NUL bytes


def _trim_padding(column: Any) -> Any:
    """Strip NUL bytes and white space from the cells of a column with NUL bytes, which pad tables of fixed width."""
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


def _is_table(path: Path) -> bool:
    """Whether the file's name has an ending of a table."""
    plain = path.with_suffix("") if path.suffix == PACKED else path
    return plain.suffix in TABLES and (plain == path or plain.suffix != ".parquet")


def is_pattern(place: Path) -> bool:
    """Whether a path that does not exist is a pattern of names."""
    return glob.has_magic(str(place)) and not place.exists()


def holds_table(place: Path) -> bool:
    """Whether this is a table: a file of that name, a pattern, or a folder of such files and no folders."""
    if is_pattern(place):
        return True
    return any(map(_is_table, _list_folder(place))) and not _has_folders(place) if place.is_dir() else _is_table(place)


def name_table(place: Path) -> str:
    """The name of a table: that of its file or folder without endings; of a pattern, its folder."""
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
        if not path.is_file() or not _is_table(path):
            raise InvalidInputError(
                f"{where} holds '{path.name}', which is no table: give a pattern such as 'parts/*.csv'"
            )
    if not found:
        raise InvalidInputError(f"{where} holds no table")
    return tuple(found)


def _check_agreement(parts: Sequence[Path], read_names: Callable[[Path], Names]) -> None:
    """Raise for a part that has other columns than the first, or text where the first has numbers."""
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
    """The approximate number of rows: from the metadata of parquet files, and from the first rows of text."""
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
    """The entries of a folder, without the marker files of other programs (``_SUCCESS``, ``.part-0.crc``)."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def _has_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in _list_folder(folder))


Chunk = Mapping[str, Cells]
"""Some rows, by column."""
Count = Callable[[int], None]

ROWS = 20_000
MOST_COLUMNS = 10_000
_DELIMITERS = ",;\t|"


class ArrowChunk(Mapping[str, Cells]):
    """Some rows as Arrow has them; a column becomes cells when it is asked for, and only then can its type be refused.
    The column ``exact`` of any type is read as exact text. ``names`` are those of all columns of the file, of
    which some may not have been read."""

    def __init__(self, batch: Any, path: Path, exact: str = "", names: Sequence[str] = ()) -> None:
        self._batch, self._path, self._exact = batch, path, exact
        self._names = names or batch.schema.names
        self._read: dict[str, Cells] = {}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._batch.num_rows)

    def __getitem__(self, name: str) -> Cells:
        if name not in self._read:
            column = self._batch.column(self._batch.schema.names.index(name))
            with _arrow_errors(self._path):
                self._read[name] = (
                    TextColumn(spell_exactly(column, name, self._path))
                    if name == self._exact
                    else _read_column(name, column, self._path)
                )
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def read_chunks(place: Path, count: Count = lambda rows: None, *, exact: str = "") -> Iterator[Chunk]:
    """The rows of a table in chunks of some thousands: of a .csv or .parquet file, or of all files of a folder or
    pattern in the order of their names. ``count`` is called with the number of rows of each chunk after it is used; the
    column ``exact`` is read as exact text."""
    for _, chunk in read_chunks_by_part(place, exact=exact):
        yield chunk
        count(count_rows(chunk))


def read_chunks_by_part(
    place: Path, *, exact: str = "", columns: Collection[str] | None = None
) -> Iterator[tuple[Path, Chunk]]:
    """The same, each with the file it is from; parts that differ in their columns are refused before any is read. Only
    ``columns`` are read, if they are given."""
    parts = find_parts(place)
    _check_agreement(parts, read_names)
    for part in parts:
        read = _read_parquet if part.suffix == ".parquet" else _read_csv
        for chunk in read(part, exact, columns):
            yield part, chunk


def read_names(path: Path) -> Names:
    """The columns of one file, and the type of each typed column: numbers, text, dates or others."""
    if path.suffix == ".parquet":
        return _read_parquet_names(path)
    with _opened(path) as file:
        return dict.fromkeys(_read_header(file, path)[0])


def count_rows(chunk: Chunk) -> int:
    """How many rows a chunk has."""
    return chunk.rows if isinstance(chunk, ArrowChunk) else len(next(iter(chunk.values())))


def _read_csv(path: Path, exact: str, columns: Collection[str] | None) -> Iterator[Chunk]:
    """A file of text with one line of names: every column as text, a block at a time."""
    with _opened(path) as file:
        names, delimiter = _read_header(file, path)
        if not file.readline():
            return
    packed = "gzip" if path.suffix == PACKED else None
    wanted = names if columns is None else [name for name in names if name in columns] or names[:1]
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
                    column_types={name: pa.string() for name in names},
                    strings_can_be_null=True,
                    null_values=[""],
                    include_columns=wanted,
                ),
            ) as reader,
        ):
            for batch in reader:
                if batch.num_rows:
                    yield ArrowChunk(batch, path, exact, names)
    except pa.ArrowInvalid as error:
        raise _explain_csv(path, wrong, str(error)) from error
    except OSError as error:
        packing = f"'{path}' is not a whole .gz file" if packed else f"'{path}' cannot be read: {explain(error)}"
        raise DataError(packing) from error


def _explain_csv(path: Path, wrong: Sequence[Any], said: str) -> DataError:
    """The error of a file that Arrow cannot read, without Arrow's message, which may quote a cell."""
    if wrong:
        row = wrong[-1]
        found = f"has {row.actual_columns} cells where the header has {row.expected_columns}"
        return DataError(f"row {row.number - 1} of '{path}' {found}")
    if "UTF8" in said:
        return DataError(f"'{path}' is not a text table in UTF-8")
    return DataError(f"'{path}' is not a text table: a row is longer than {BLOCK >> 20} MB, or a quote is not closed")


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a file of text, packed or not; any error of opening or reading it is raised as one sentence."""
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
        where = names.index("") + 1 if names else 1
        raise InvalidInputError(
            f"the first line of '{path}' must name every column, and column {where} has no name (with pandas, write "
            "the file by to_csv(…, index=False))"
        )
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


def _read_parquet(path: Path, exact: str, columns: Collection[str] | None) -> Iterator[Chunk]:
    with _arrow_errors(path), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        _check_typed_names(names, path)
        wanted = None if columns is None else [name for name in names if name in columns] or names[:1]
        for batch in file.iter_batches(batch_size=ROWS, columns=wanted):
            yield ArrowChunk(batch, path, exact, names)


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
    """The type of a typed column, in which all parts of a table must agree; None for an empty column."""
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
    """A column's cells: numbers as float64, each rounded alone, and other values as text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _read_column(name, column.dictionary_decode(), path)
    if _is_number(kind):
        return as_doubles(column.cast(pa.float64(), safe=False))
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


# Progress while a long table is read: after two seconds the number of rows, at the end the time.

Notify = Callable[[str], None]
PATIENCE = 2.0  # seconds of silence
PAUSE = 10.0  # seconds from one line to the next


def keep_silent(text: str) -> None:
    """Say nothing."""


class ReadProgress:
    """Counts rows as they are read, in one pass or several, and reports progress if that takes long."""

    def __init__(self, name: str, expected: int, notify: Notify, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._expected, self._notify, self._now = name, expected, notify, now
        self._began = now()
        self._due = self._began + PATIENCE
        self._doing, self._rows = "", 0

    def begin(self, doing: str) -> None:
        """Begin a pass with this description."""
        self._doing, self._rows = doing, 0

    def count(self, rows: int) -> None:
        """Count this number of rows as read."""
        self._rows += rows
        if self._now() >= self._due:
            self._due = self._now() + PAUSE
            total = max(self._expected, self._rows)
            self._notify(f"{self._doing} '{self._name}': {_group(self._rows)} of about {_group(total)} rows …")

    def finish(self, rows: int, columns: int) -> None:
        """End the pass; report it if it took long."""
        seconds = self._now() - self._began
        if seconds >= PATIENCE:
            self._notify(f"read {_group(rows)} rows of {columns} columns in {seconds:.0f} s")


def _group(number: int) -> str:
    return f"{number:,}".replace(",", " ")
