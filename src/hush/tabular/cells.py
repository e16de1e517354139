"""Cells of a table in Arrow's buffers: columns of text, of which only what is asked for becomes Python objects.

Each cell is parsed by itself: its meaning never depends on another cell. Arrow parses plain decimals and ISO dates many
at a time, with the bits that Python gives; every other cell is parsed once for each *different* text of a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
LONGEST_NUMBER = 400  # characters
PLAIN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"  # a plain decimal
SAMPLE = 32  # cells that are examined before all others
WORDS_AT_A_TIME = 8192  # that become Python objects


def is_missing(text: str) -> bool:
    """Whether a cell is a word for a missing value."""
    return text.strip().lower() in MISSING


class TextColumn(Sequence[str]):
    """A column of text in some rows, as a sequence of str that is made only when it is read."""

    def __init__(self, column: Any) -> None:
        self._column = column

    @classmethod
    def of(cls, words: Iterable[str]) -> TextColumn:
        """Words in memory; a lone surrogate, which is not valid text, becomes a replacement character."""
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

    @cached_property
    def _filled(self) -> Any:
        return self._column.fill_null("") if self._column.null_count else self._column

    @cached_property
    def _coded(self) -> tuple[TextColumn, Places]:
        """(every different text once, in the order of appearance; the place of each cell's text among them)."""
        coded = self._filled.dictionary_encode()
        return TextColumn(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @property
    def different(self) -> TextColumn:
        """Every different text once, in the order of appearance."""
        return self._coded[0]

    def count_different(self) -> NDArray[np.int64]:
        """The number of occurrences of each different text."""
        words, places = self._coded
        return np.bincount(places, minlength=len(words))

    def take_first(self, count: int) -> TextColumn:
        """The first cells alone."""
        return self if count >= len(self) else TextColumn(self._column.slice(0, count))

    def pick(self, places: Places) -> TextColumn:
        """The cells with these indices."""
        return self if len(places) == len(self) else TextColumn(self._column.take(pa.array(places, pa.int64())))

    def map(self, function: Callable[[TextColumn], NDArray[Any]]) -> NDArray[Any]:
        """``function`` of every cell. It takes some words and gives one value for each, by looking at that word alone;
        here it sees each different word once."""
        words, places = self._coded
        return np.asarray(function(words))[places]

    @cached_property
    def plain(self) -> tuple[Floats, Places]:
        """(the cells that are plain finite decimals as numbers, NaN elsewhere; the places of all other cells).

        Whether a cell is one is decided by the cell alone. Arrow reads all cells at once where it can; it takes no
        finite number for another one than `parse_number` does, and what it reads as infinite or as no number, and
        cells that are too long, are left to that function."""
        values = self.cast(pa.float64())
        if values is None:
            words, places = self._coded
            chosen, found = np.flatnonzero(words.match(PLAIN)), np.full(len(words), np.nan)
            found[chosen] = as_doubles(words.pick(chosen)._column.cast(pa.float64()))
            found[words.lengths > LONGEST_NUMBER] = np.nan
            numbers = found[places]
        else:
            numbers = as_doubles(values)
            if self.length_range[1] > LONGEST_NUMBER:
                numbers[self.lengths > LONGEST_NUMBER] = np.nan
        finite = np.isfinite(numbers)
        if finite.all():
            return numbers, np.empty(0, np.int64)
        numbers[~finite] = np.nan
        return numbers, np.flatnonzero(~finite)

    def cast(self, kind: Any) -> Any:
        """All cells as this Arrow type, or None where some cell cannot be read so. The first cells are tried alone:
        Arrow composes a message for each cell that fails."""
        try:
            self._column.slice(0, SAMPLE).cast(kind)
            return self._column.cast(kind)
        except pa.ArrowInvalid:
            return None

    def match(self, pattern: str) -> NDArray[np.bool_]:
        """Which cells match a pattern."""
        return pc.match_substring_regex(self._filled, pattern).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    @property
    def length_range(self) -> tuple[int, int]:
        """The smallest and the largest number of bytes of the cells that are not null."""
        ends = pc.min_max(pc.binary_length(self._column)).as_py()
        return ends["min"] or 0, ends["max"] or 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each cell has."""
        return np.asarray(pc.binary_length(self._filled).to_numpy(zero_copy_only=False), dtype=np.int64)

    def read_commas(self, pattern: str) -> tuple[Floats, Places]:
        """(the cells of a pattern, which must be digits around a decimal comma, as numbers, NaN elsewhere; the places
        of all other cells)."""
        fits = self.match(pattern)
        chosen, values = np.flatnonzero(fits), np.full(len(self), np.nan)
        kept = pc.replace_substring(self._filled.take(pa.array(chosen)), ",", ".")
        values[chosen] = as_doubles(kept.cast(pa.float64()))
        return values, np.flatnonzero(~fits)

    def _buffers(self) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """(where each cell begins, and the last one ends; the bytes of all)."""
        _, ends, text = self._filled.buffers()
        found = np.frombuffer(ends, np.int32)[self._filled.offset : self._filled.offset + len(self) + 1]
        return found, np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)

    def has_sign(self, sign: str, place: int) -> NDArray[np.bool_]:
        """Which cells have this ASCII sign at this place from their end, and more before it."""
        ends, letters = self._buffers()
        found = np.diff(ends) > place
        found[found] = letters[ends[1:][found] - place] == ord(sign)
        return found

    def list_bytes(self, width: int) -> tuple[Places, NDArray[np.uint8]]:
        """(The indices of the cells of this length in bytes; their bytes, of shape (n, width))."""
        ends, letters = self._buffers()
        places = np.flatnonzero(np.diff(ends) == width)
        if not len(places):
            return places, np.zeros((0, width), np.uint8)
        if len(places) * width == ends[-1] - ends[0]:  # all others are empty
            return places, letters[ends[0] : ends[-1]].reshape(-1, width)
        return places, letters[ends[places][:, None] + np.arange(width)]


def as_doubles(found: Any) -> Floats:
    """An Arrow array of numbers as a NumPy array, with NaN for null."""
    return np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)


class WordCounts:
    """Counts each word over many batches; the words stay in Arrow's buffers until `drain`."""

    def __init__(self) -> None:
        self._words: list[Any] = []
        self._counts: list[NDArray[np.int64]] = []
        self.size = 0  # bytes

    def add(self, cells: TextColumn) -> None:
        """Count the words of some rows."""
        if len(cells):
            self._words.append(cells.different._column)
            self._counts.append(cells.count_different())
            self.size += self._words[-1].nbytes + self._counts[-1].nbytes

    def drain(self) -> Iterator[tuple[str, int]]:
        """Every word that was counted and its count; then the counts are reset."""
        if not self._words:
            return
        words, places = TextColumn(pa.concat_arrays(self._words))._coded
        counts = np.zeros(len(words), np.int64)
        np.add.at(counts, places, np.concatenate(self._counts))
        self._words, self._counts, self.size = [], [], 0
        for start in range(0, len(words), WORDS_AT_A_TIME):
            part = TextColumn(words._column.slice(start, WORDS_AT_A_TIME))
            yield from zip(part, counts[start : start + WORDS_AT_A_TIME].tolist(), strict=True)


Cells = TextColumn | Floats
"""A column of some rows: text, or numbers if the file has types."""


def spell(value: float) -> str:
    """A number of a typed file as text: a whole one without its ".0", a missing one as an empty text."""
    return str(int(value)) if value.is_integer() else "" if math.isnan(value) else repr(value)


def _list_texts(cells: Cells) -> tuple[list[str], Places]:
    """(every different text of the cells without white space at its ends, maybe several times; each cell's place)."""
    if isinstance(cells, TextColumn):
        words, places = cells._coded
        return [word.strip() for word in words], places
    values, places = np.unique(cells, return_inverse=True)
    return [spell(float(value)) for value in values], places.reshape(-1)


def map_texts(cells: Cells, function: Callable[[str], float]) -> NDArray[Any]:
    """``function`` of every cell's text, called once for every different text."""
    words, places = _list_texts(cells)
    return np.array([function(word) for word in words])[places] if words else np.empty(0)


def list_different(cells: Cells) -> Collection[str]:
    """The different texts among the cells."""
    return set(_list_texts(cells)[0])


def count_texts(cells: Cells) -> Counter[str]:
    """The number of cells with each text."""
    words, places = _list_texts(cells)
    total: Counter[str] = Counter()
    for word, count in zip(words, np.bincount(places, minlength=len(words)).tolist(), strict=True):
        total[word] += count
    return total


def find_first(cells: Cells, which: Callable[[str], bool]) -> int | None:
    """The index of the first cell for whose text ``which`` is true."""
    if len(cells) > SAMPLE and (near := find_first(take_first(cells, SAMPLE), which)) is not None:
        return near
    found = np.flatnonzero(map_texts(cells, which))
    return int(found[0]) if len(found) else None


def take_first(cells: Cells, count: int) -> Cells:
    """The first cells alone."""
    return cells.take_first(count) if isinstance(cells, TextColumn) else cells[:count]
