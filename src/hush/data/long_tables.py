"""A whole table as rows and labels: in memory where it is short, in mapped files where it is long.

Both ways go through the same encoding piece by piece, so they hold the same bits; what differs is where they lie.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hush.data.mapped import digest_table, map_rows, pick_all
from hush.data.parts import estimate_rows, find_parts
from hush.data.schema import Schema
from hush.data.splits import Rows
from hush.data.tables import encode_table, read_table
from hush.data.watching import Watch

MAPPED = 1 << 28  # bytes of encoded rows (4 a cell) from which on a table is mapped


def load_rows(place: Path, schema: Schema, watch: Watch) -> Rows:
    """The rows and labels of a table by its schema; a long one's stay on the disk."""
    watch.begin("encoding")
    parts = find_parts(place)
    if estimate_rows(parts) * max(1, len(schema.features)) * 4 < MAPPED:
        return read_table(place, schema, watch.count)
    name = digest_table(parts, dataclasses.asdict(schema))
    return pick_all(map_rows(name, lambda: encode_table(place, schema, watch.count)))
