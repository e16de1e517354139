"""A schema: a table's columns, its target and the public facts about both, in memory, in JSON and in a file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hush._internal.storage import explain
from hush._internal.validate import choice, is_finite
from hush.errors import InvalidInputError, nearest
from hush.tabular.columns import KINDS, Column, Number, Range, is_range
from hush.tabular.columns.category import MOST_BUCKETS, MOST_CLASSES

MOST_LINES = 200  # of columns, shown to people
FACTS_OF_COLUMNS = ("kind", *dict.fromkeys(entry for kind in KINDS.values() for entry in kind.entries()))
ENTRIES = ("target", "classes", "range", "target_range", "columns", "read_off")
READ_OFF = ("kinds", "ranges", "categories", "classes")  # what a schema may say was read off private rows


@dataclass(frozen=True)
class Schema:
    """The columns of a table in order, the one to predict, and its classes; or no classes, and the public range of a
    number."""

    columns: tuple[Column, ...]
    target: str
    classes: tuple[str, ...]
    assumed: tuple[str, ...] = field(default=())
    target_range: Range | None = None

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that the model sees."""
        return tuple(c for c in self.columns if c.used and c.name != self.target)

    def lines(self) -> list[str]:
        """One line a column for people to check: name, kind, encoding."""
        others = [c for c in self.columns if c.name != self.target]
        pad = min(40, max(len(c.name) for c in self.columns))
        shown = [f"{c.name:<{pad}}  {c.kind:<8}  {c.describe()}" for c in others[:MOST_LINES]]
        if len(others) > MOST_LINES:
            shown.append(f"… and {len(others) - MOST_LINES} more columns")
        return [*shown, f"{self.target:<{pad}}  target    {self._describe_target()}"]

    def _describe_target(self) -> str:
        if self.target_range is None:
            return (
                f"{len(self.classes)} classes" if self.classes else "classes to be released with noise before training"
            )
        return "a number from {:g} to {:g}; those to train on are cut to that".format(*self.target_range)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `read_schema` reads again, to the same encoding of every column."""
        kind = {"classes": list(self.classes)} if self.target_range is None else {"target_range": [*self.target_range]}
        return {
            "target": self.target,
            **kind,
            "columns": {c.name: c.to_schema() for c in self.columns if c.name != self.target},
        }


def public_columns(given: Mapping[str, Any]) -> dict[str, Column]:
    """The columns written in a schema, {name: {kind, and the entries of that kind}}, unchanged."""
    columns = {}
    for name, facts in given.items():
        if not isinstance(facts, Mapping):
            raise InvalidInputError(f"the schema of column '{name}' must be a table such as {{ low = 0, high = 1 }}")
        for key in facts:
            if key not in FACTS_OF_COLUMNS:
                hint = nearest(key, FACTS_OF_COLUMNS)
                raise InvalidInputError(f"the schema of column '{name}' has an unknown entry '{key}': {hint}")
        kind = facts.get("kind") or _find_kind(facts)
        choice(KINDS, kind=kind)
        _check_entries(name, KINDS[kind], facts)
        listed = {"values": _listed(facts["values"], f"values of column '{name}'")} if "values" in facts else {}
        columns[name] = KINDS[kind].from_schema(name, {**facts, **listed})
    return columns


def _check_entries(name: str, kind: type[Column], facts: Mapping[str, Any]) -> None:
    """Refuse an entry that one other kind has, and this one has not, unless the column is not used anyway."""
    for key, value in facts.items():
        having = [other for other in KINDS.values() if key in other.entries()]
        if len(having) == 1 and kind.entries() and kind is not having[0] and value != having[0].entries()[key]:
            raise InvalidInputError(
                f"column '{name}' has the entry '{key}' of a {having[0].kind} and is said to be a {kind.kind}"
            )


def choose_waves(column: Column, given: Mapping[str, Any]) -> Column:
    """A number with a range also gets the inputs of one without, unless the schema says ``waves = false`` for it:
    they depend on no row, and a range must not make a model worse."""
    facts = given.get("columns", {}).get(column.name, {})
    if not isinstance(column, Number) or column.low is None:
        return column
    return replace(column, waves=facts.get("waves", True))


def _find_kind(facts: Mapping[str, Any]) -> str:
    """The kind of a column whose schema does not say it."""
    if "values" in facts or "buckets" in facts:
        return "category"
    return "date" if "format" in facts or "time" in facts else "number"


def read_schema(given: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """A schema given as a dict, or as a .toml or .json file: ``target``, ``classes`` or ``target_range``, ``range``
    (for all numbers without a range, except the target) and a table ``columns``, each optional."""
    found = dict(given) if isinstance(given, Mapping) else {} if given is None else _read(Path(given))
    for key in found:
        choice(ENTRIES, schema_entry=key)
    if not isinstance(found.get("columns", {}), Mapping):
        raise InvalidInputError("the schema's columns must be a table with one table for each column: [columns.NAME]")
    for fact in _listed(found.get("read_off", ()), "read_off"):
        choice(READ_OFF, read_off=fact)
    if not isinstance(found.get("target", ""), str):
        raise InvalidInputError("the schema's target must be the name of a column")
    for key in ("range", "target_range"):
        if key in found:
            found[key] = read_range(found[key], f"the schema's {key}")
    if "classes" in found:
        found["classes"] = _listed(found["classes"], "classes")
        if len(found["classes"]) < 2:
            raise InvalidInputError("the schema's classes must be at least two")
    return found


def read_range(limits: Any, what: str) -> Range:
    """Two numbers, the first below the second."""
    if isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(is_finite, limits)) and is_range(*limits):
        return float(limits[0]), float(limits[1])
    raise InvalidInputError(f"{what} must be [low, high], two numbers with low below high")


def _listed(values: Any, what: str) -> tuple[str, ...]:
    """A list of different words (or whole numbers, or truth values) from a schema."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(v, (str, int)) for v in values):
        raise InvalidInputError(f"the schema's {what} must be a list of words")
    words = tuple(map(str, values))
    if len(set(words)) < len(words):
        raise InvalidInputError(f"the schema's {what} must be different from each other")
    if len(words) > MOST_BUCKETS or (what == "classes" and len(words) > MOST_CLASSES):
        raise InvalidInputError(f"the schema's {what} are too many: {len(words)}")
    return words


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidInputError(f"the schema '{path}' cannot be read: {explain(error)}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the schema '{path}' is not valid {path.suffix[1:] or 'TOML'}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"the schema '{path}' must hold a table of {', '.join(ENTRIES)}")
    return found


# Columns whose range is released with noise before training: they have a place in the model before it is known.

PLACEHOLDER: Range = (-1.0, 1.0)


def mark_pending_ranges(schema: Schema, what: str) -> Schema:
    """The schema in which every numeric column without a range awaits one; raises if every one has a range."""
    numeric = [column for column in schema.features if isinstance(column, Number)]
    if not numeric:
        raise InvalidInputError(
            f"{what} has no numeric column, so there is no range to release: leave --private-ranges out"
        )
    if all(column.low is not None for column in numeric):
        raise InvalidInputError(
            f"every numeric column of {what} has a public range already: leave --private-ranges out, or the ranges"
        )
    low, high = PLACEHOLDER
    columns = tuple(
        replace(c, low=low, high=high, awaited=True, waves=True)
        if isinstance(c, Number) and c.low is None and c.name != schema.target
        else c
        for c in schema.columns
    )
    return replace(schema, columns=columns)


def pending_columns(schema: Schema) -> list[int]:
    """Which of the schema's features await their range."""
    return [place for place, column in enumerate(schema.features) if isinstance(column, Number) and column.awaited]


def with_limits(schema: Schema, limits: Sequence[Range]) -> Schema:
    """The schema with the ranges of the columns that awaited them, in their order."""
    names = [schema.features[place].name for place in pending_columns(schema)]
    found = dict(zip(names, limits, strict=True))
    columns = tuple(
        replace(c, low=found[c.name][0], high=found[c.name][1], awaited=False)
        if isinstance(c, Number) and c.name in found
        else c
        for c in schema.columns
    )
    return replace(schema, columns=columns)
