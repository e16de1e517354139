"""Rows of long files as pyarrow streams them: text stays in Arrow's buffers, and only what is asked for becomes Python.

A column of a batch is numbers (a float64 array) or `Words`. Two properties make long tables cheap. A cell that is a
plain decimal is read by Arrow, which rounds correctly as Python does, so both give the same bits; and a function of a
cell alone is computed once for every *different* cell of the batch. What Arrow does not take for a number is left to
the caller's own parser, so kinds of columns are decided in one place for short and long files alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 22  # bytes of a text file that are parsed at a time
PLAIN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
NEEDS_ARROW = "reading .parquet needs pyarrow: pip install 'hush-dp[files]'"


class Words(Sequence[str]):
    """A column of text in some rows, as a sequence of str that is made only when it is read."""

    def __init__(self, column: Any) -> None:
        self._column = column

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

    @cached_property
    def _coded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The different words, and the place of each cell's word among them."""
        coded = self._column.fill_null("").dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @property
    def different(self) -> list[str]:
        """Every word of the column once, in the order in which they come."""
        return self._coded[0]

    def count_words(self) -> dict[str, int]:
        """How often each different word stands in the column."""
        words, places = self._coded
        return dict(zip(words, np.bincount(places, minlength=len(words)).tolist(), strict=True))

    def list_at(self, places: NDArray[np.int64]) -> list[str]:
        """The words of some cells."""
        import pyarrow as pa

        return self._column.fill_null("").take(pa.array(places)).to_pylist()  # type: ignore[no-any-return]

    def map(self, function: Callable[[list[str]], NDArray[Any]]) -> NDArray[Any]:
        """``function`` of every cell. It takes some words and gives one value for each, by looking at that word alone;
        here it sees each different word once."""
        words, places = self._coded
        return np.asarray(function(words))[places]

    def read_plain(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(the cells that are plain decimals as numbers, NaN elsewhere; the places of all other cells)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        filled = self._column.fill_null("")
        for choose in (None, _choose_filled, _choose_plain):  # each is dearer than the one before
            plain = None if choose is None else choose(filled, pc)
            kept = filled if plain is None else pc.if_else(plain, filled, pa.scalar(None, pa.string()))
            try:
                found = kept.cast(pa.float64())
            except pa.ArrowInvalid:
                continue
            values = np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)
            rest = np.zeros(0, np.int64) if plain is None else np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
            return values, rest
        return np.full(len(self), np.nan), np.arange(len(self))


def _choose_filled(cells: Any, pc: Any) -> Any:
    return pc.not_equal(cells, "")


def _choose_plain(cells: Any, pc: Any) -> Any:
    return pc.match_substring_regex(cells, PLAIN)


def has_arrow() -> bool:
    """Whether pyarrow is installed."""
    try:
        import pyarrow.csv  # noqa: F401
    except ImportError:
        return False
    return True


def stream_text(path: Path, names: Sequence[str], delimiter: str, *, block: int | None = None) -> Iterator[list[Words]]:
    """The columns of some rows at a time, all as text, of a file with one line of names; a `pyarrow.ArrowInvalid` says
    that a row has another width or that the file is no text."""
    import pyarrow as pa
    from pyarrow import csv

    packed = "gzip" if path.suffix == ".gz" else None
    with (
        pa.input_stream(path, compression=packed) as stream,
        csv.open_csv(
            stream,
            read_options=csv.ReadOptions(column_names=list(names), skip_rows=1, block_size=block or BLOCK),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        ) as reader,
    ):
        for batch in reader:
            yield [Words(batch.column(place)) for place in range(len(names))]


def stream_parquet(path: Path, rows: int) -> Iterator[Any]:
    """Record batches of at most so many rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=rows)


def read_parquet_schema(path: Path) -> Any:
    """The names and types of a file's columns."""
    import pyarrow.parquet as pq

    return pq.read_schema(path)
