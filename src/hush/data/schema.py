"""What a table's columns are, and how each becomes numbers without looking at anybody else's row.

The smallest and largest value of a column, its mean, or the list of its categories are statistics of private rows;
scaling by them and releasing the model would release them unaccounted. So a column is encoded by public facts only:

- a number with a public range [low, high]: clamped to it and mapped to [−1, 1];
- a number without one: asinh(x)/4, tanh(x), and sin(k u), cos(k u) for u = asinh(10 x) and k = 1, 2, 4: waves on a
  logarithmic scale, of which some resolve the column whatever its unit is;
- a category with a public list of values: one slot each, and one for anything else;
- a category without one: hashed (BLAKE2b) into a fixed number of slots.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hush.errors import BadInput, nearest
from hush.files import explain
from hush.validate import finite, is_finite, one_of, whole

Kind = Literal["number", "category", "ignore"]
KINDS = ("number", "category", "ignore")
WAVES = (1.0, 2.0, 4.0)
BUCKETS = 32
MOST_CLASSES = 1000
MOST_LINES = 200  # of columns, shown to people
MOST_BUCKETS = 100_000
ENTRIES = ("target", "classes", "range", "target_range", "columns")
Range = tuple[float, float]


@dataclass(frozen=True)
class Column:
    """One column: its kind, and the public facts about it."""

    name: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    buckets: int = BUCKETS
    fill: float | None = None
    awaited: bool = False  # its range is a placeholder until it is released with noise (`hush.data.awaited`)

    def __post_init__(self) -> None:
        one_of(KINDS, kind=self.kind)
        whole(buckets=self.buckets)
        if self.buckets > MOST_BUCKETS:
            raise BadInput(f"column '{self.name}' has more than {MOST_BUCKETS} buckets")
        finite(**{f"{k} of column '{self.name}'": v for k, v in self._numbers().items() if v is not None})
        if (self.low is None) != (self.high is None):
            raise BadInput(f"column '{self.name}' has one end of a range: give both low and high")
        if self.low is not None and self.high is not None and not is_range(self.low, self.high):
            raise BadInput(f"column '{self.name}' has low {self.low} not below high {self.high}, as 32-bit numbers")

    def _numbers(self) -> dict[str, float | None]:
        return {"low": self.low, "high": self.high, "fill": self.fill}

    @property
    def width(self) -> int:
        """How many inputs of the model this column becomes."""
        if self.kind == "ignore":
            return 0
        if self.kind == "number":
            return 1 if self.low is not None else 2 + 2 * len(WAVES)
        return len(self.values) + 1 if self.values else self.buckets

    def code(self, value: str) -> int:
        """The slot of a category."""
        if not self.values:
            return _hashed(value, self.buckets)
        return _places(self.values).get(value, len(self.values))

    def encoding(self) -> str:
        """How it is encoded, in words."""
        if self.kind == "ignore":
            return "not used"
        if self.awaited:
            return "range to be released with noise before training"
        if self.kind == "number" and self.low is not None:
            return f"range {self.low:g} … {self.high:g} mapped to [−1, 1]"
        if self.kind == "number":
            return f"no public range given: {self.width} fixed functions on a logarithmic scale"
        if self.values:
            return f"{len(self.values)} public values, one slot each, one for anything else"
        return f"no public list given: hashed into {self.buckets} slots"


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
        return tuple(c for c in self.columns if c.kind != "ignore" and c.name != self.target)

    def lines(self) -> list[str]:
        """One line a column for people to check: name, kind, encoding."""
        others = [c for c in self.columns if c.name != self.target]
        pad = min(40, max(len(c.name) for c in self.columns))
        shown = [f"{c.name:<{pad}}  {c.kind:<8}  {c.encoding()}" for c in others[:MOST_LINES]]
        if len(others) > MOST_LINES:
            shown.append(f"… and {len(others) - MOST_LINES} more columns")
        return [*shown, f"{self.target:<{pad}}  target    {self._describe_target()}"]

    def _describe_target(self) -> str:
        if self.target_range is None:
            return f"{len(self.classes)} classes"
        return "a number from {:g} to {:g}; those to train on are cut to that".format(*self.target_range)

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``Schema.from_json`` reads again."""
        kind = {"classes": list(self.classes)} if self.target_range is None else {"target_range": [*self.target_range]}
        return {
            "target": self.target,
            **kind,
            "columns": {c.name: _without_defaults(c) for c in self.columns if c.name != self.target},
        }


def public_columns(given: Mapping[str, Any]) -> dict[str, Column]:
    """The columns written down in a schema: {name: {kind, low, high, values, buckets, fill}}."""
    known = {"kind", "low", "high", "values", "buckets", "fill"}
    columns = {}
    for name, facts in given.items():
        if not isinstance(facts, Mapping):
            raise BadInput(f"the schema of column '{name}' must be a table such as {{ low = 0, high = 1 }}")
        for key in facts:
            if key not in known:
                raise BadInput(f"the schema of column '{name}' has an unknown entry '{key}': {nearest(key, known)}")
        kind: Any = facts.get("kind") or ("category" if "values" in facts or "buckets" in facts else "number")
        rest = {key: value for key, value in facts.items() if key not in ("kind", "values")}
        columns[name] = Column(
            name, kind, values=_listed(facts.get("values", []), f"values of column '{name}'"), **rest
        )
    return columns


def read_schema(given: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """A schema given as a dict, or as a .toml or .json file: ``target``, ``classes`` or ``target_range``, ``range``
    (for all numbers that have none of their own, the target aside) and a table ``columns``, each optional."""
    found = dict(given) if isinstance(given, Mapping) else {} if given is None else _read(Path(given))
    for key in found:
        one_of(ENTRIES, schema_entry=key)
    if not isinstance(found.get("columns", {}), Mapping):
        raise BadInput("the schema's columns must be a table with one table for each column: [columns.NAME]")
    if not isinstance(found.get("target", ""), str):
        raise BadInput("the schema's target must be the name of a column")
    for key in ("range", "target_range"):
        if key in found:
            found[key] = read_range(found[key], f"the schema's {key}")
    if "classes" in found:
        found["classes"] = _listed(found["classes"], "classes")
        if len(found["classes"]) < 2:
            raise BadInput("the schema's classes must be at least two")
    return found


def is_range(low: float, high: float) -> bool:
    """Whether low is below high and both, and their distance, are numbers of 32 bits, in which tables are kept."""
    with np.errstate(over="ignore"):
        distance = np.float32(high) - np.float32(low)
    return bool(0 < distance < np.inf)


def read_range(limits: Any, what: str) -> Range:
    """Two numbers, the first below the second."""
    if isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(is_finite, limits)) and is_range(*limits):
        return float(limits[0]), float(limits[1])
    raise BadInput(f"{what} must be [low, high], two numbers with low below high")


def _listed(values: Any, what: str) -> tuple[str, ...]:
    """A list of different words (or whole numbers, or truth values) from a schema."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(v, (str, int)) for v in values):
        raise BadInput(f"the schema's {what} must be a list of words")
    words = tuple(map(str, values))
    if len(set(words)) < len(words):
        raise BadInput(f"the schema's {what} must be different from each other")
    if len(words) > MOST_BUCKETS or (what == "classes" and len(words) > MOST_CLASSES):
        raise BadInput(f"the schema's {what} are too many: {len(words)}")
    return words


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"the schema '{path}' cannot be read: {explain(error)}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the schema '{path}' is not valid {path.suffix[1:] or 'TOML'}: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"the schema '{path}' must hold a table of {', '.join(ENTRIES)}")
    return found


def _without_defaults(column: Column) -> dict[str, Any]:
    plain = Column(column.name, column.kind)
    facts = {k: v for k, v in asdict(column).items() if v != getattr(plain, k)}
    return {"kind": column.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in facts.items()}}


@lru_cache(maxsize=65536)
def _hashed(value: str, buckets: int) -> int:
    return (
        int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        % buckets
    )


@lru_cache(maxsize=256)
def _places(values: tuple[str, ...]) -> dict[str, int]:
    return {value: place for place, value in enumerate(values)}
