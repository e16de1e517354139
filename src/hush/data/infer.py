"""What the columns of a table are, found from the file, and what that takes to be public.

Only kinds of columns and the set of classes are inferred by default. Ranges and categories come from a schema that a
person writes, or from the rows themselves if that person says that they are public.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hush.data.reading import Cells, Count, pieces
from hush.data.schema import MOST_CLASSES, Column, Range, Schema, is_range, public_columns
from hush.data.tables import MISSING, list_different, no_column, numbers
from hush.errors import BadInput
from hush.validate import one_of

FACTS = ("ranges", "categories")
NUMBERS = "predict numbers with --task regression (task='regression'), or put them into classes first"


@dataclass
class _Seen:
    """What one column has shown so far; its different values only if they are wanted (``listed``)."""

    listed: bool
    number: bool = True
    low: float = float("inf")
    high: float = float("-inf")
    values: set[str] = field(default_factory=set)

    def add(self, cells: Cells) -> None:
        found = numbers(cells) if self.number else None
        self.number = found is not None
        if found is not None and np.isfinite(found).any():
            finite = found[np.isfinite(found)]
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        if self.listed and len(self.values) <= MOST_CLASSES:
            self.values.update(list_different(cells))


def infer_schema(
    path: Path,
    target: str | None,
    given: Mapping[str, Any],
    public: Collection[str] = (),
    *,
    regression: bool = False,
    count: Count = lambda rows: None,
) -> Schema:
    """The schema of a .csv or .parquet table. ``given`` holds what a person wrote down; ``public`` names the facts that
    may be read off the rows because they are public anyway: "ranges", "categories". In a ``regression`` the target is a
    number with a public range. ``count`` is told how many rows were looked at."""
    for fact in public:
        one_of(FACTS, public_fact=fact)
    target = target or given.get("target")
    if target is None:
        raise BadInput(f"name the column to predict in '{path}': target=… (on the command line --target)")
    seen = _look(path, target, public, count)
    columns = public_columns(given.get("columns", {}))
    for name in columns:
        if name not in seen:
            raise no_column(name, seen, path)
    found = tuple(with_range(columns.get(name) or _column(name, what, public), given) for name, what in seen.items())
    if regression:
        own = columns.get(target) or _column(target, seen[target], public)
        limits = find_target_range(given, own, f"column '{target}' of '{path}'")
        return Schema(found, target, (), _assumed(given, columns, found, public, limits), limits)
    classes = tuple(str(c) for c in given["classes"]) if "classes" in given else _classes(seen[target], target, path)
    return Schema(found, target, classes, _assumed(given, columns, found, public))


def find_target_range(given: Mapping[str, Any], own: Column, what: str) -> Range:
    """The public range of a number to predict: the schema's ``target_range``, or low and high of its column."""
    if "classes" in given:
        raise BadInput("a schema with classes is for classification: leave them out where a number is predicted")
    if own.kind != "number":
        raise BadInput(f"{what} holds text, and a number is to be predicted: leave out --task regression")
    if "target_range" in given:
        return float(given["target_range"][0]), float(given["target_range"][1])
    if own.low is None or own.high is None:
        raise BadInput(
            f"regression needs a public range of the number to predict, {what}: give --target-range LOW HIGH "
            "(target_range=(low, high)), or target_range = [low, high] in the schema"
        )
    return own.low, own.high


def say_target_range(limits: Range) -> str:
    """What is taken to be public of a number to predict."""
    return f"the target's range {limits[0]:g} … {limits[1]:g} is public, and targets to train on are cut to it"


def with_range(column: Column, given: Mapping[str, Any]) -> Column:
    """The column with the schema's ``range = [low, high]`` for all numbers that have none of their own."""
    limits = given.get("range")
    if limits is None or column.kind != "number" or column.low is not None:
        return column
    return replace(column, low=float(limits[0]), high=float(limits[1]))


def _look(path: Path, target: str, public: Collection[str], count: Count) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    for piece in pieces(path, count):
        if not seen:
            seen = {name: _Seen(listed=name == target or "categories" in public) for name in piece}
            if target not in seen:
                raise no_column(target, seen, path)
        for name, cells in piece.items():
            seen[name].add(cells)
    if not seen:
        raise BadInput(f"'{path}' holds no rows")
    return seen


def _column(name: str, seen: _Seen, public: Collection[str]) -> Column:
    if not seen.number:
        if "categories" in public and len(seen.values) <= MOST_CLASSES:
            return Column(name, "category", values=tuple(sorted(seen.values)))
        return Column(name, "category")
    column = Column(name, "number")
    return (
        replace(column, low=seen.low, high=seen.high)
        if "ranges" in public and is_range(seen.low, seen.high)
        else column
    )


def _classes(seen: _Seen, target: str, path: Path) -> tuple[str, ...]:
    if len(seen.values) > MOST_CLASSES:
        raise BadInput(f"column '{target}' of '{path}' has more than {MOST_CLASSES} different values: {NUMBERS}")
    blank = MISSING if seen.number else {""}
    if any(value.lower() in blank for value in seen.values):
        raise BadInput(f"column '{target}' of '{path}' has rows without a label")
    if len(seen.values) < 2:
        raise BadInput(f"column '{target}' of '{path}' has one value only: nothing to predict")
    if seen.number and not all(float(value).is_integer() for value in seen.values):
        raise BadInput(f"column '{target}' of '{path}' holds fractions: {NUMBERS}")
    return tuple(sorted(seen.values, key=lambda value: (float(value) if seen.number else 0.0, value)))


def _assumed(
    given: Mapping[str, Any],
    columns: Mapping[str, Column],
    found: Collection[Column],
    public: Collection[str],
    limits: Range | None = None,
) -> tuple[str, ...]:
    """What the guarantee takes to be public, in words."""
    said = ["the number of rows and the order in which they are split are public"]
    if limits is not None:
        said.append(say_target_range(limits))
    else:
        said.append("the classes are public" + ("" if "classes" in given else " (they were read off the rows)"))
    if any(column.name not in columns for column in found):
        said.append("the names and kinds of the columns are public (kinds were read off the rows)")
    if columns or "range" in given:
        said.append("the ranges and categories of the given schema are public and were not computed from the rows")
    said += [f"the {fact} of the columns, read off the rows, are public anyway" for fact in FACTS if fact in public]
    return tuple(said)
