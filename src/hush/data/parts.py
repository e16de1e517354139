"""One table in several files: which they are, that they agree in their columns, and about how long they are together.

A table is a file, a folder of files, or a pattern such as ``parts/*.parquet``. Its parts are read in the order of their
names. A folder is a table if it holds tables and no folders; with folders in it, it is one of images.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hush.errors import BadInput
from hush.files import explain

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
            raise BadInput(f"{where} fits no file: put it in quotation marks, and look at the folder's name")
    elif place.is_dir():
        found, where = _list_folder(place), f"the folder '{place}'"
    else:
        return (place,)
    for path in found:
        if not path.is_file() or not is_table(path):
            raise BadInput(f"{where} holds '{path.name}', which is no table: give a pattern such as 'parts/*.csv'")
    if not found:
        raise BadInput(f"{where} holds no table")
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
            raise BadInput(
                f"'{two}' lacks the column '{name}' that '{one}' has: parts of a table need the same columns"
            )
    for name, kind in other.items():
        if name not in first:
            raise BadInput(
                f"'{two}' has the column '{name}', and '{one}' has not: parts of a table need the same columns"
            )
        known = first[name]
        if None not in (kind, known) and kind != known:
            raise BadInput(
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
        raise BadInput(f"'{part}' cannot be read: {explain(error)}") from error
    return round(size * sample.count(b"\n") / len(sample)) if sample else 0


def _count_parquet(part: Path) -> int:
    try:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(part).num_rows)
    except (ImportError, OSError, ValueError):  # reading the file says in a sentence what is wrong
        return 0


def _list_folder(folder: Path) -> list[Path]:
    """What lies in a folder, without what programs leave there (``_SUCCESS``, ``.part-0.crc``)."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def _has_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in _list_folder(folder))
