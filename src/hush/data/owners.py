"""Whose each row of a file is: the column or array that names the unit of privacy, and the ones that look like it.

A name becomes a number of 64 bits, by BLAKE2b. Should two names have the same number, their rows are one unit: it is
protected as a whole, and so is each of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from hush.data.pictures import read_array
from hush.data.reading import Cells, Piece, count_rows, pieces, pieces_by_part
from hush.data.splits import Identities
from hush.data.tables import MISSING, map_texts, no_column, numbers, texts
from hush.errors import BadInput

LEAST_SHARE = 0.05  # of the rows, that an id's different values are at least
LEAST_REPEATS = 1.1  # rows that an id's value has on average
FEW = 20  # rows of which nothing is said
FEWEST = 5  # different values of a column that is called an id
LONGEST = 64  # letters of an id
LEAST_DIGITS = 4  # of an id that is a number, all of one length
_NAMED = re.compile(r"(^|[_\-. ])(?i:id|ids|uuid|guid|mrn|ssn)$|[a-z]I[dD]$")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")


def identify(text: str) -> int:
    """The number of a name."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"hush unit").digest()
    return int.from_bytes(digest, "little", signed=True)


def read_owners(place: Path, unit: str) -> Identities:
    """Whose each row of a table is; a row that does not say so is refused."""
    found: list[Identities] = []
    part, done = place, 0
    for path, piece in pieces_by_part(place):
        part, done = path, done if path == part else 0
        if unit not in piece:
            raise no_column(unit, piece, path)
        missing = map_texts(piece[unit], lambda text: text.lower() in MISSING).astype(bool)
        if missing.any():
            row = done + int(np.argmax(missing)) + 1
            raise BadInput(
                f"column '{unit}' of '{path}' says whose the rows are and is empty in row {row}: fill it in, or leave "
                "out such rows"
            )
        found.append(_identify_cells(piece[unit]))
        done += count_rows(piece)
    return np.concatenate([*found, np.empty(0, np.int64)])


def _identify_cells(cells: Cells) -> Identities:
    known: dict[str, int] = {}
    for text in set(texts(cells)):
        known[text] = identify(text)
    return np.array([known[text] for text in texts(cells)], np.int64)


def read_owner_array(path: Path, unit: str, rows: int, *, test: bool = False) -> Identities:
    """Whose each row of an .npz of arrays is; of its test part, by the array of the same name that ends in _test."""
    name = f"{unit.removesuffix('_train')}_test" if test else unit
    values = read_array(path, name)
    if values.ndim != 1 or len(values) != rows or values.dtype.kind not in "iubUSf":
        raise BadInput(f"the array '{name}' of '{path}' must name the unit of each row: one number or text for each")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadInput(f"the array '{name}' of '{path}' says whose the rows are and has values that are not finite")
    different, where = np.unique(values, return_inverse=True)
    numbered = np.array([identify(str(value)) for value in different.tolist()], np.int64)
    return np.asarray(numbered[where.reshape(-1)])


def check_apart(train: Identities, test: Identities, unit: str) -> None:
    """Refuse parts that share a unit."""
    if np.intersect1d(train, test).size:
        raise BadInput(
            f"some of the units ('{unit}') are in the data to train on and in the data to test on: leave them out of "
            "one of the two"
        )


def find_repeated_id(place: Path, others: Collection[str] = ()) -> str | None:
    """The column of a table that looks like an id and repeats, so that one person may have several rows; None if there
    is none. It is looked for in the first rows, and not among ``others``, such as the target."""
    piece: Piece = next(iter(pieces(place)), {})
    if not piece or count_rows(piece) < FEW:
        return None
    found = [name for name, cells in piece.items() if name not in others and _is_repeated_id(name, cells)]
    return min(found, key=lambda name: not _NAMED.search(name), default=None)


def _is_repeated_id(name: str, cells: Cells) -> bool:
    known = [text for text in texts(cells) if text.lower() not in MISSING]
    different = set(known)
    if not known or len(known) < LEAST_REPEATS * len(different):
        return False
    if _NAMED.search(name):
        return len(different) >= FEWEST
    return len(different) > LEAST_SHARE * len(known) and _reads_as_id(different)


def _reads_as_id(different: Iterable[str]) -> bool:
    """Short codes that are neither numbers nor dates, or whole numbers that all have the same number of digits."""
    values = list(different)
    if numbers(values) is not None:
        lengths = set(map(len, values))
        return all(value.isdigit() for value in values) and len(lengths) == 1 and lengths.pop() >= LEAST_DIGITS
    plain = all(len(value) <= LONGEST and " " not in value and not _DATE.fullmatch(value) for value in values)
    return plain and any(letter.isdigit() for value in values for letter in value)


def warn_of_repeated_id(name: str) -> str:
    """What is said of such a column."""
    return (
        f"warning: column '{name}' looks like an id that repeats. The guarantee is for single rows: whoever has "
        f"several is protected less. With --unit {name} all rows of one are one example"
    )
