"""A whole table as rows and labels: in memory where it is short, in mapped files where it is long.

Both ways go through the same encoding piece by piece, so they hold the same bits; what differs is where they lie. Of a
long table it is also kept what its columns showed, in the folder ``columns`` of hush's cache: private as its rows are,
named like them by the table's bytes, by what was asked and by the code, and forgotten like them after a week.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hush._internal.storage import PRIVATE, write_atomic
from hush.datasets.splits import Rows
from hush.errors import InvalidInputError
from hush.tabular.encode import (
    Encoded,
    digest_table,
    encode_table,
    forget_old,
    map_rows,
    open_private,
    pick_all,
    read_table,
)
from hush.tabular.profiling import ColumnProfile, profile_columns
from hush.tabular.reader import Count, ReadProgress, estimate_rows, find_parts, read_names
from hush.tabular.schema import Schema

MAPPED = 1 << 28  # bytes of encoded rows (4 a cell) from which on a table is mapped
FOLDER = "columns"
Begin = Callable[[str], ColumnProfile]


def load_rows(place: Path, schema: Schema, watch: ReadProgress) -> Rows:
    """The rows and labels of a table by its schema; a long one's stay on the disk."""
    watch.begin("encoding")
    parts = find_parts(place)
    if not _is_long(parts, len(schema.features)):
        return read_table(place, schema, watch.count)
    facts = dataclasses.asdict(schema)
    name = digest_table(parts, facts)

    def encode() -> Iterator[Encoded]:
        """The rows, if they match the name: everything stored under a name is trusted permanently."""
        yield from encode_table(place, schema, watch.count)
        if digest_table(find_parts(place), facts) != name:
            raise InvalidInputError(f"'{place}' changed while it was read: try again when no process writes to it")

    return pick_all(map_rows(name, encode))


def cached_profile(place: Path, begin: Begin, facts: Any, count: Count, unit: str = "") -> dict[str, ColumnProfile]:
    """What every column of a table shows (`hush.tabular.profiling.profile_columns`); a long table that was looked at
    before with the same ``facts``, all that ``begin`` depends on as plain data, is not looked at again."""
    kept = _find_kept(place, facts)
    seen = None if kept is None else _recall(kept, begin)
    if seen is None:
        seen = profile_columns(place, begin, count, unit)
        if kept is not None and kept == _find_kept(place, facts):  # the table is still the one that has this name
            _keep(kept, seen)
    return seen


def _is_long(parts: Sequence[Path], columns: int) -> bool:
    return estimate_rows(parts) * max(1, columns) * 4 >= MAPPED


def _find_kept(place: Path, facts: Any) -> Path | None:
    """Where it is kept what a long table showed; None for a short table, and where it cannot be kept or read: looking
    says why it cannot be read."""
    try:
        parts = find_parts(place)
        if _is_long(parts, len(read_names(parts[0]))):
            return open_private(FOLDER) / f"{digest_table(parts, facts)}.json"
    except (InvalidInputError, OSError):
        pass
    return None


def _recall(kept: Path, begin: Begin) -> dict[str, ColumnProfile] | None:
    """What was kept; None where there is nothing, or nothing whole."""
    seen: dict[str, ColumnProfile] = {}
    try:
        for name, found in json.loads(kept.read_bytes()):
            seen[name] = begin(name)
            seen[name].fill_from(found)
        os.utime(kept)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return seen or None


def _keep(kept: Path, seen: dict[str, ColumnProfile]) -> None:
    """For the next time, where that is possible."""
    content = json.dumps([(name, evidence.to_json()) for name, evidence in seen.items()])
    with contextlib.suppress(OSError):
        forget_old(kept.parent, kept)
        write_atomic(kept, content.encode(), mode=PRIVATE)
