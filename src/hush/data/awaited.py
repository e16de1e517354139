"""Columns whose range is released with noise before training: they have a place in the model before it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hush.data.schema import Range, Schema
from hush.errors import BadInput

PLACEHOLDER: Range = (-1.0, 1.0)


def await_ranges(schema: Schema, what: str) -> Schema:
    """The schema in which every numeric column without a range awaits one; refused where there is none."""
    numeric = [column for column in schema.features if column.kind == "number"]
    if not numeric:
        raise BadInput(f"{what} has no numeric column, so there is no range to release: leave --private-ranges out")
    if all(column.low is not None for column in numeric):
        raise BadInput(
            f"every numeric column of {what} has a public range already: leave --private-ranges out, or the ranges"
        )
    low, high = PLACEHOLDER
    columns = tuple(
        replace(c, low=low, high=high, awaited=True, waves=True)
        if c.kind == "number" and c.low is None and c.name != schema.target
        else c
        for c in schema.columns
    )
    return replace(schema, columns=columns)


def list_awaited(schema: Schema) -> list[int]:
    """Which of the schema's features await their range."""
    return [place for place, column in enumerate(schema.features) if column.awaited]


def with_limits(schema: Schema, limits: Sequence[Range]) -> Schema:
    """The schema with the ranges of the columns that awaited them, in their order."""
    names = [schema.features[place].name for place in list_awaited(schema)]
    found = dict(zip(names, limits, strict=True))
    columns = tuple(
        replace(c, low=found[c.name][0], high=found[c.name][1], awaited=False) if c.name in found else c
        for c in schema.columns
    )
    return replace(schema, columns=columns)
