"""The privacy unit of each row: the column or array that names it, read as exact text.

A guarantee per unit holds for a person only if all of the person's rows have one id, and no other person's rows have
it. If the rows of two persons are one unit, removing one of the two still changes the unit's gradient, from one clipped
vector to another: the sum moves by up to twice the bound that is charged. So ids are never merged by accident:

- A column of any type is read as exact text (`hush.tabular.reader.spell_exactly`); a cast that could lose digits
  is refused.
- An id is hashed by BLAKE2b to 128 bits, of which 64 are used as its number; two ids that share these and differ in the
  others are refused.
- Ids that differ only in their Unicode form, case, surrounding spaces, invisible characters or a trailing ".0" may name
  one person or two (`hush.privacy_unit.NORMALISATIONS`). They are refused with the kind of difference,
  unless ``normalise`` declares that they name one: then they are one unit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.datasets.images import read_array
from hush.datasets.splits import Identities
from hush.errors import DataError, InvalidInputError
from hush.privacy_unit import NORMALISATIONS, drop_fraction, normalise_id, strip_id
from hush.tabular.cells import TextColumn, is_missing, map_texts
from hush.tabular.reader import count_rows, read_chunks_by_part, spell_float
from hush.tabular.rows import no_column

_DESCRIBED = np.dtype([("exact", "S16"), ("normal", "S16"), ("number", np.int64), ("changed", np.uint8)])


def identify(text: str) -> int:
    """The number of an id: 64 bits of its hash. Spaces around it and a trailing ".0" do not count; ids that differ in
    nothing else are refused before (`UnitIds`)."""
    return int.from_bytes(_digest(drop_fraction(strip_id(text)))[:8], "little", signed=True)


def _digest(text: str) -> bytes:
    """128 bits: two hashes of 64 bits, of which the first is the number of the id."""
    name = text.encode("utf-8", "surrogatepass")
    parts = (hashlib.blake2b(name, digest_size=8, person=person).digest() for person in (b"hush unit", b"hush unit 2"))
    return b"".join(parts)


class UnitIds:
    """The different ids of a column, added some rows at a time: hashes of each, written and normalised, and the
    normalisations that changed it."""

    def __init__(self, what: str, *, normalise: bool = False) -> None:
        self._what, self._normalise = what, normalise
        self._seen: list[NDArray[Any]] = []

    def number(self, words: Iterable[str]) -> Identities:
        """The number of each of some different ids."""
        names = (normalise_id(word) if self._normalise else word for word in words)
        self._seen.append(np.array([_describe(name) for name in names], _DESCRIBED))
        return np.asarray(self._seen[-1]["number"])

    def check(self) -> None:
        """Refuse ids that are equal after normalisation, and different ids with the same number."""
        seen = np.concatenate([*self._seen, np.empty(0, _DESCRIBED)])
        seen = seen[np.unique(seen["exact"], return_index=True)[1]]
        _, group, sizes = np.unique(seen["normal"], return_inverse=True, return_counts=True)
        any_changed, all_changed = np.zeros(len(sizes), np.uint8), np.full(len(sizes), 255, np.uint8)
        np.bitwise_or.at(any_changed, group, seen["changed"])
        np.bitwise_and.at(all_changed, group, seen["changed"])
        merged = sizes > 1
        if merged.any():
            differ = np.where(any_changed != all_changed, any_changed & ~all_changed, any_changed)
            bits = int(np.bitwise_or.reduce(differ[merged]))
            kinds = [kind for place, (kind, _) in enumerate(NORMALISATIONS) if bits >> place & 1]
            raise DataError(
                f"{self._what} has ids that differ only in {' and '.join(kinds)}, and they may name one unit or "
                "several: write every id in one way, or merge such ids with --unit-normalise (unit_normalise=True)"
            )
        if len(np.unique(seen["number"])) < len(seen):
            raise DataError(
                f"{self._what} has two different ids with the same 64-bit hash, and their rows would be one unit: "
                "rename one of the ids"
            )


def _describe(text: str) -> tuple[bytes, bytes, int, int]:
    exact, changed, number = _digest(text), 0, identify(text)
    for place, (_, change) in enumerate(NORMALISATIONS):
        after = change(text)
        changed |= (after != text) << place
        text = after
    return exact, _digest(text) if changed else exact, number, changed


def read_owners(place: Path, unit: str, *, normalise: bool = False) -> Identities:
    """The unit of each row of a table as a number; a row without an id is refused."""
    found: list[Identities] = []
    part, done = place, 0
    known = UnitIds(f"column '{unit}' of '{place}'", normalise=normalise)
    for path, chunk in read_chunks_by_part(place, exact=unit, columns=(unit,)):
        part, done = path, done if path == part else 0
        if unit not in chunk:
            raise no_column(unit, chunk, path)
        cells = chunk[unit]
        assert isinstance(cells, TextColumn)
        missing = map_texts(cells, is_missing).astype(bool)
        if missing.any():
            row = done + int(np.argmax(missing)) + 1
            raise DataError(
                f"column '{unit}' of '{path}' names the unit of each row and is empty in row {row}: fill it in, or "
                "leave out such rows"
            )
        found.append(cells.map(known.number))
        done += count_rows(chunk)
    known.check()
    return np.concatenate([*found, np.empty(0, np.int64)])


def read_owner_array(path: Path, unit: str, rows: int, *, test: bool = False, normalise: bool = False) -> Identities:
    """The unit of each row of an .npz of arrays; of its test part, by the array of the same name that ends in _test."""
    name = f"{unit.removesuffix('_train')}_test" if test else unit
    values = read_array(path, name)
    named = values.dtype.kind in "iubUSf" and values.dtype.type is not np.longdouble  # which would be rounded
    if values.ndim != 1 or len(values) != rows or not named:
        raise InvalidInputError(
            f"the array '{name}' of '{path}' has the shape {values.shape} and the type {values.dtype}, but to name the "
            f"unit of each of {rows} rows it needs one number of at most 64 bits or one text for each"
        )
    what = f"the array '{name}' of '{path}'"
    different, where = np.unique(values, return_inverse=True)
    names = _write_names(different, what)
    if any(map(is_missing, names)):
        row = int(np.flatnonzero([is_missing(names[place]) for place in where.reshape(-1)])[0]) + 1
        raise DataError(f"{what} names the unit of each row and has none in row {row}")
    known = UnitIds(what, normalise=normalise)
    numbered = known.number(names)
    known.check()
    return np.asarray(numbered[where.reshape(-1)])


def _write_names(values: NDArray[np.generic], what: str) -> list[str]:
    """The ids of any type as exact text; numbers that are not finite become empty."""
    if values.dtype.kind == "f":
        size = min(values.dtype.itemsize, 8)
        return [spell_float(value, size, what) or "" for value in values.astype(np.float64).tolist()]
    return [_spell_bytes(value) if isinstance(value, bytes) else str(value) for value in values.tolist()]


def _spell_bytes(value: bytes) -> str:
    """Bytes as text if they are UTF-8, otherwise as hexadecimal digits."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def check_apart(train: Identities, test: Identities, unit: str) -> None:
    """Refuse parts that share a unit."""
    if np.intersect1d(train, test).size:
        raise DataError(
            f"some of the units ('{unit}') are in the data to train on and in the data to test on: leave them out of "
            "one of the two"
        )
