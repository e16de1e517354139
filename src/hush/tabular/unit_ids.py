"""Whose each row of a file is: the column or array that names the unit of privacy.

A name becomes a number of 64 bits, by BLAKE2b. Should two names have the same number, their rows are one unit: it is
protected as a whole, and so is each of them. So spellings that may mean one unit are one name: a whole number is the
same with and without ".0", as tables have it whose ids were once read as fractions, in whatever type it is kept.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hush.datasets.images import read_array
from hush.datasets.splits import Identities
from hush.errors import InvalidInputError
from hush.tabular.encode import map_texts, no_column, texts
from hush.tabular.reader import Cells, TextColumn, count_rows, is_missing, pieces_by_part

_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


def identify(text: str) -> int:
    """The number of a name."""
    found = _WHOLE.fullmatch(text)
    name = text if found is None else found[1]
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"hush unit").digest()
    return int.from_bytes(digest, "little", signed=True)


def read_owners(place: Path, unit: str) -> Identities:
    """Whose each row of a table is; a row that does not say so is refused."""
    found: list[Identities] = []
    part, done = place, 0
    for path, piece in pieces_by_part(place):
        part, done = path, done if path == part else 0
        if unit not in piece:
            raise no_column(unit, piece, path)
        missing = map_texts(piece[unit], is_missing).astype(bool)
        if missing.any():
            row = done + int(np.argmax(missing)) + 1
            raise InvalidInputError(
                f"column '{unit}' of '{path}' says whose the rows are and is empty in row {row}: fill it in, or leave "
                "out such rows"
            )
        found.append(_identify_cells(piece[unit]))
        done += count_rows(piece)
    return np.concatenate([*found, np.empty(0, np.int64)])


def _identify_cells(cells: Cells) -> Identities:
    if isinstance(cells, TextColumn):
        return map_texts(cells, identify).astype(np.int64)
    known = {text: identify(text) for text in set(texts(cells))}
    return np.array([known[text] for text in texts(cells)], np.int64)


def read_owner_array(path: Path, unit: str, rows: int, *, test: bool = False) -> Identities:
    """Whose each row of an .npz of arrays is; of its test part, by the array of the same name that ends in _test."""
    name = f"{unit.removesuffix('_train')}_test" if test else unit
    values = read_array(path, name)
    if values.ndim != 1 or len(values) != rows or values.dtype.kind not in "iubUSf":
        raise InvalidInputError(
            f"the array '{name}' of '{path}' must name the unit of each row: one number or text for each"
        )
    different, where = np.unique(values, return_inverse=True)
    names = _write_names(different)
    if any(map(is_missing, names)):
        row = int(np.flatnonzero([is_missing(names[place]) for place in where.reshape(-1)])[0]) + 1
        raise InvalidInputError(f"the array '{name}' of '{path}' says whose the rows are and names nobody in row {row}")
    numbered = np.array([identify(text) for text in names], np.int64)
    return np.asarray(numbered[where.reshape(-1)])


def _write_names(values: NDArray[np.generic]) -> list[str]:
    """The names as a table would write them, whatever type they are kept in; numbers that are not finite are none."""
    if values.dtype.kind == "f":
        return ["" if not np.isfinite(value) else repr(value) for value in values.astype(np.float64).tolist()]
    texts_of = (
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values.tolist()
    )
    return [text.strip() for text in texts_of]


def check_apart(train: Identities, test: Identities, unit: str) -> None:
    """Refuse parts that share a unit."""
    if np.intersect1d(train, test).size:
        raise InvalidInputError(
            f"some of the units ('{unit}') are in the data to train on and in the data to test on: leave them out of "
            "one of the two"
        )
