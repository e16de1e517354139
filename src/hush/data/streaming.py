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
WITH_COMMA = r"^-?[0-9]{1,15}(,[0-9]{1,15})?$"
ONLY_COMMA = r"^-?[0-9]{1,15},([0-9]{1,2}|[0-9]{4,15})$"  # which can be no sign of thousands
FEW = 32  # cells that are looked at before all others
FEW_WORDS = 8192  # that are Python's own at a time
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

    def take_first(self, count: int) -> Words:
        """The first cells alone."""
        return self if count >= len(self) else Words(self._column.slice(0, count))

    def pick(self, places: NDArray[np.int64]) -> Words:
        """The cells at these places."""
        import pyarrow as pa

        return Words(self._column.take(pa.array(places)))

    @cached_property
    def _coded(self) -> tuple[Words, NDArray[np.int64]]:
        coded = self._column.fill_null("").dictionary_encode()
        return Words(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @property
    def different(self) -> Words:
        """Every word of the column once, in the order in which they come."""
        return self._coded[0]

    def count_different(self) -> NDArray[np.int64]:
        """How often each of the different words stands in the column."""
        words, places = self._coded
        return np.bincount(places, minlength=len(words))

    def find_first(self, which: Callable[[str], bool]) -> int | None:
        """The place of the first cell of which ``which`` is true; it must look at the word alone."""
        if len(self) > FEW and (near := self.take_first(FEW).find_first(which)) is not None:
            return near
        words, places = self._coded
        chosen = next((place for place, word in enumerate(words) if which(word)), None)
        return None if chosen is None else int(np.argmax(places == chosen))

    def map(self, function: Callable[[Words], NDArray[Any]]) -> NDArray[Any]:
        """``function`` of every cell. It takes some words and gives one value for each, by looking at that word alone;
        here it sees each different word once."""
        words, places = self._coded
        return np.asarray(function(words))[places]

    def cast(self) -> NDArray[np.float64] | None:
        """The cells as numbers, NaN for those that are empty, if Arrow takes all others for numbers."""
        import pyarrow as pa

        try:
            return _as_doubles(self._column.cast(pa.float64()))
        except pa.ArrowInvalid:
            return None

    @cached_property
    def plain(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(the cells that are plain decimals as numbers, NaN elsewhere; the places of all other cells)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        filled = self._column.fill_null("")
        for choose in (_choose_all, _choose_filled, _choose_plain):  # each is dearer than the one before
            plain = choose(filled, pc)
            chosen, values = np.flatnonzero(plain), np.full(len(self), np.nan)
            try:
                values[chosen] = _as_doubles(filled.take(pa.array(chosen)).cast(pa.float64()))
            except pa.ArrowInvalid:
                continue
            return values, np.flatnonzero(~plain)
        return np.full(len(self), np.nan), np.arange(len(self))

    def read_commas(self, pattern: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(the cells of a pattern, which must be digits around a decimal comma, as numbers, NaN elsewhere; the places
        of all other cells)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        filled = self._column.fill_null("")
        fits = pc.match_substring_regex(filled, pattern).to_numpy(zero_copy_only=False)
        chosen, values = np.flatnonzero(fits), np.full(len(self), np.nan)
        kept = pc.replace_substring(filled.take(pa.array(chosen)), ",", ".")
        values[chosen] = _as_doubles(kept.cast(pa.float64()))
        return values, np.flatnonzero(~fits)

    def list_bytes(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(the places of the cells that are so many bytes long; the bytes (n, width) of these)."""
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


class Tally:
    """How often each word came, over many pieces; the words stay in Arrow's buffers until they are asked for."""

    def __init__(self) -> None:
        self._words: list[Any] = []
        self._counts: list[NDArray[np.int64]] = []
        self.size = 0  # bytes

    def add(self, cells: Words) -> None:
        """Count the words of some rows."""
        self._words.append(cells.different._column)
        self._counts.append(cells.count_different())
        self.size += self._words[-1].nbytes + self._counts[-1].nbytes

    def drain(self) -> Iterator[tuple[str, int]]:
        """Every word that was counted and how often it came; then all is forgotten."""
        import pyarrow as pa

        if not self._words:
            return
        words, places = Words(pa.concat_arrays(self._words))._coded
        counts = np.zeros(len(words), np.int64)
        np.add.at(counts, places, np.concatenate(self._counts))
        self._words, self._counts, self.size = [], [], 0
        for start in range(0, len(words), FEW_WORDS):
            part = Words(words._column.slice(start, FEW_WORDS))
            yield from zip(part, counts[start : start + FEW_WORDS].tolist(), strict=True)


def _as_doubles(found: Any) -> NDArray[np.float64]:
    return np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)


def _choose_all(cells: Any, pc: Any) -> NDArray[np.bool_]:
    return np.ones(len(cells), np.bool_)


def _choose_filled(cells: Any, pc: Any) -> NDArray[np.bool_]:
    return pc.not_equal(cells, "").to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _choose_plain(cells: Any, pc: Any) -> NDArray[np.bool_]:
    return pc.match_substring_regex(cells, PLAIN).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


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
                column_types={name: pa.string() for name in names}, strings_can_be_null=True, null_values=[""]
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
