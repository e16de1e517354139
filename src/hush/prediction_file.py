"""Columns of results as a .csv or .parquet file, written some rows at a time, and there as a whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.errors import BadInput
from hush.files import explain, write_beside

Columns = dict[str, list[Any]]
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Written:
    """What was written: how many rows, and the names of the columns."""

    path: Path
    rows: int
    columns: tuple[str, ...]


def write_rows(path: Path, parts: Iterable[Columns], *, overwrite: bool = False) -> Written:
    """Write parts, all with the same columns, one after the other."""
    check_new_file(path, overwrite=overwrite)
    if path.suffix not in SUFFIXES:
        raise BadInput(f"'{path}' must end in {' or '.join(SUFFIXES)}, which says how the predictions are written")
    rows = 0
    columns: tuple[str, ...] = ()
    with write_beside(path) as beside, _open_writer(path, beside) as write:
        for part in parts:
            write(part)
            columns = tuple(part)
            rows += len(next(iter(part.values())))
    return Written(path, rows, columns)


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that is there unless it may be overwritten, and a folder that is not."""
    if path.is_dir():
        raise BadInput(f"'{path}' is a folder: give the name of a file")
    if path.exists() and not overwrite:
        raise BadInput(f"'{path}' is there already: add --overwrite, or give another --out")
    if not path.resolve().parent.is_dir():
        raise BadInput(f"there is no folder '{path.parent}' to write '{path.name}' to")


@contextmanager
def _open_writer(path: Path, beside: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that writes one part. What goes wrong between two parts is its caller's own."""
    with ExitStack() as stack:
        with _say_where(path):
            write = stack.enter_context((_open_csv if path.suffix == ".csv" else _open_parquet)(beside))
        yield _say_where(path)(write)


@contextmanager
def _say_where(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise BadInput(f"cannot write to '{path}': {explain(error)}") from error


@contextmanager
def _open_csv(beside: Path) -> Iterator[Callable[[Columns], None]]:
    with beside.open("x", newline="", encoding="utf-8") as file:
        table, begun = csv.writer(file), False

        def write(part: Columns) -> None:
            nonlocal begun
            if not begun:
                table.writerow(part)
            begun = True
            table.writerows(zip(*(map(_spell, column) for column in part.values()), strict=True))

        yield write


def _spell(value: Any) -> Any:
    """Nine digits say a number of 32 bits."""
    return f"{value:.9g}" if isinstance(value, float) else value


@contextmanager
def _open_parquet(beside: Path) -> Iterator[Callable[[Columns], None]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadInput("writing .parquet needs pyarrow: pip install 'hush-dp[files]'") from error
    writer: Any = None

    def write(part: Columns) -> None:
        nonlocal writer
        table = pa.table(part)
        writer = writer or pq.ParquetWriter(beside, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
