"""The public description of a released model in addition to its weights: enough to rebuild it and to read its rows.

A description is plain data and never code. It names an architecture that comes with hush and its arguments, or a
third-party factory, which is imported only if the reader allows it, or nothing at all. On disk it is ``model.json``,
and the columns of a table are ``schema.json`` in the same folder, in the form that ``--schema`` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hush._internal.validate import choice, is_finite
from hush.errors import InvalidInputError
from hush.tabular.columns import Category, Number
from hush.tabular.schema import Schema, public_columns, read_schema

FORMAT = "hush model 1"
Task = Literal["classification", "regression", "other"]
TASKS = ("classification", "regression", "other")
Source = Literal["shipped", "factory", "state only"]
SOURCES = ("shipped", "factory", "state only")
InputKind = Literal["table", "images", "arrays"]
INPUT_KINDS = ("table", "images", "arrays")
DEEPEST = 8  # levels of lists and tables within an argument


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | bool | int) or is_finite(value)


@dataclass(frozen=True)
class Architecture:
    """How the network is built.

    ``source`` is "shipped" (``name`` is one of `hush.datasets.models.SHIPPED`), "factory" (``name`` is
    ``package.module:factory``, ``version`` that of its distribution or any text its owner gives), or "state only":
    then the caller provides the module when loading. ``arguments`` are plain data, passed by name. ``encoder`` says
    that hush's encoding of the table's columns comes first, as the first of two modules in a row."""

    source: Source
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    encoder: bool = False

    def __post_init__(self) -> None:
        choice(SOURCES, architecture=self.source)
        if not isinstance(self.name, str) or not isinstance(self.version, str | None):
            raise InvalidInputError("the name and the version of an architecture must be text")
        if (self.source == "state only") != (self.name == ""):
            raise InvalidInputError(f"an architecture that is '{self.source}' has {'no' if self.name else 'a'} name")
        if not isinstance(self.arguments, Mapping) or not _is_plain(self.arguments, DEEPEST):
            raise InvalidInputError(
                "the arguments of an architecture must be numbers, text, and lists and tables of them"
            )
        if not isinstance(self.encoder, bool):
            raise InvalidInputError("whether an architecture has an encoder in front must be true or false")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        facts = {"source": self.source, "name": self.name, "arguments": dict(self.arguments)}
        return {**facts, "version": self.version, "encoder": self.encoder}

    @classmethod
    def from_json(cls, data: Any) -> Architecture:
        """The inverse of `to_json`; raises for anything else."""
        return cls(**_take(data, ("source", "name", "arguments", "version", "encoder"), "architecture"))


STATE_ONLY = Architecture("state only")


@dataclass(frozen=True)
class Inputs:
    """The kind of one example. ``shape`` is that of the network's input (of a table: its columns).

    Images lie in the public range ``low`` … ``high``, and reach the network mapped to ``onto``:
    x′ = (x − low)·(onto₁ − onto₀)/(high − low) + onto₀. A table brings its ``schema``."""

    kind: InputKind
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    onto: tuple[float, float] = (-1.0, 1.0)
    schema: Schema | None = None

    def __post_init__(self) -> None:
        choice(INPUT_KINDS, inputs=self.kind)
        if not self.shape or not all(type(side) is int and side > 0 for side in self.shape):
            raise InvalidInputError("the shape of an example must be a list of whole numbers above zero")
        if (self.schema is not None) != (self.kind == "table"):
            raise InvalidInputError("a description of a table has a schema, and no other has one")
        if self.schema is not None and self.shape != (len(self.schema.features),):
            raise InvalidInputError(
                f"the schema has {len(self.schema.features)} columns and the description {self.shape}"
            )
        if self.kind == "images":
            self._check_range()

    def _check_range(self) -> None:
        ends = (self.low, self.high, *self.onto)
        if len(ends) != 4 or not all(map(is_finite, ends)):
            raise InvalidInputError(
                "a description of images must give the public range of a pixel, and what it is mapped to"
            )
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InvalidInputError("the public range of a pixel must have its low end below its high end")

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the schema, which is a separate file."""
        facts: dict[str, Any] = {"kind": self.kind, "shape": list(self.shape)}
        return facts if self.kind != "images" else {**facts, "range": [self.low, self.high], "onto": list(self.onto)}

    @classmethod
    def from_json(cls, data: Any, schema: Schema | None) -> Inputs:
        """The inverse of `to_json`, with the schema of the same folder."""
        found = _take(data, ("kind", "shape", "range", "onto"), "inputs", needed=2)
        (low, high), onto = _pair(found.get("range")), _pair(found.get("onto"))
        if not isinstance(found["shape"], list):
            raise InvalidInputError("the shape of an example must be a list of whole numbers above zero")
        mapped = {} if found.get("onto") is None else {"onto": onto}
        return cls(found["kind"], tuple(found["shape"]), low, high, schema=schema, **mapped)


@dataclass(frozen=True)
class Description:
    """The public description of a released model: its target, its inputs and its architecture.

    ``classes`` are the names of the classes in the order of the scores; ``target`` the column or array that is
    predicted; ``target_range`` the public range of a regression's target. ``inputs`` is None if unknown."""

    task: Task
    architecture: Architecture = STATE_ONLY
    inputs: Inputs | None = None
    classes: tuple[str, ...] = ()
    target: str | None = None
    target_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        choice(TASKS, task=self.task)
        if not all(isinstance(name, str) for name in self.classes):
            raise InvalidInputError("the names of the classes must be text")
        if (self.task == "classification") != (len(self.classes) > 0):
            raise InvalidInputError("a description of a classification names its classes, and no other does")
        if not isinstance(self.target, str | None):
            raise InvalidInputError("the target of a description must be the name of a column")
        if self.architecture.encoder and self.schema is None:
            raise InvalidInputError("a description with an encoder in front of its network needs the schema of a table")

    @property
    def schema(self) -> Schema | None:
        """The columns, if the model is for a table."""
        return None if self.inputs is None else self.inputs.schema

    def to_json(self) -> dict[str, Any]:
        """The content of ``model.json``; the schema is not in it."""
        return {
            "format": FORMAT,
            "task": self.task,
            "classes": list(self.classes),
            "target": self.target,
            "target_range": None if self.target_range is None else list(self.target_range),
            "architecture": self.architecture.to_json(),
            "inputs": None if self.inputs is None else self.inputs.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any, schema: Mapping[str, Any] | None = None) -> Description:
        """The description in ``model.json`` and ``schema.json``; anything else in them is refused."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InvalidInputError(f"this is no description of a model that this hush reads ('{FORMAT}')")
        named = ("format", "task", "classes", "target", "target_range", "architecture", "inputs")
        found = _take(data, named, "description")
        if not isinstance(found["classes"], list):
            raise InvalidInputError("the classes of a description must be a list of names")
        columns = None if schema is None else rebuild_schema(schema)
        limits = _pair(found["target_range"])
        return cls(
            found["task"],
            Architecture.from_json(found["architecture"]),
            None if found["inputs"] is None else Inputs.from_json(found["inputs"], columns),
            tuple(found["classes"]),
            found["target"],
            None if limits == (None, None) else limits,
        )


def rebuild_schema(given: Mapping[str, Any]) -> Schema:
    """The schema that `Schema.to_json` wrote."""
    found = read_schema({name: entry for name, entry in given.items() if (name, entry) != ("classes", [])})
    if not {"target", "columns"} <= found.keys():
        raise InvalidInputError("a released schema must have a target and columns")
    columns, classes = public_columns(found["columns"]), tuple(found.get("classes", ()))
    target = Category(found["target"]) if classes else Number(found["target"])
    return Schema((*columns.values(), target), target.name, classes, target_range=found.get("target_range"))


def describe_table(schema: Schema) -> Inputs:
    """The inputs of a model on a table of these columns."""
    return Inputs("table", (len(schema.features),), schema=schema)


def _take(data: Any, names: tuple[str, ...], what: str, *, needed: int | None = None) -> dict[str, Any]:
    """The entries of a JSON object, which must have the first ``needed`` of the names (all by default) and no other."""
    if not isinstance(data, dict):
        raise InvalidInputError(f"the {what} must be a JSON object with {', '.join(names)}")
    missing, unknown = set(names[:needed]) - data.keys(), data.keys() - set(names)
    if missing or unknown:
        named = f"lacks '{min(missing)}'" if missing else f"has the unknown entry '{min(map(str, unknown))}'"
        raise InvalidInputError(f"the {what} {named}: it was not written by this hush")
    return data


def _pair(ends: Any) -> Any:
    if ends is None:
        return None, None
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(is_finite, ends)):
        raise InvalidInputError("a range in a description must be two numbers")
    return float(ends[0]), float(ends[1])
