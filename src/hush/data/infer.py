"""What the columns of a table are, found from the file, and what that takes to be public.

Only kinds of columns, how their cells are written and the set of classes are inferred by default. Ranges and categories
come from a schema that a person writes, or from the rows themselves if that person says that they are public.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hush.data.evidence import Evidence
from hush.data.inspection import Inspection, inspect_table
from hush.data.numerals import is_missing, parse_number
from hush.data.reading import Count
from hush.data.schema import MOST_CLASSES, Column, Range, Schema, choose_waves
from hush.data.tables import no_number
from hush.errors import BadInput
from hush.validate import one_of

FACTS = ("ranges", "categories")
MOST_WHOLE = 20  # different whole numbers: a target with more of them looks like a number and not like classes
NUMBERS = "predict numbers with --task regression (task='regression'), or put them into classes first"
NAMED = "predict it with --task regression (task='regression'), or name its classes in a schema (classes = […])"


@dataclass(frozen=True)
class Inferred:
    """A schema, what it was found from, and all problems: with one there is no schema."""

    inspection: Inspection
    schema: Schema | None
    problems: tuple[str, ...]

    def require(self) -> Schema:
        """The schema, or the first problem and how many more there are."""
        if self.schema is not None:
            return self.schema
        first, *more = self.problems
        if not more:
            raise BadInput(first)
        others = f"{len(more)} more problem{'s' * (len(more) > 1)}"
        raise BadInput(f"{first}; {others}: `hush data inspect {self.inspection.path}` lists all")


def infer_schema(
    path: Path,
    target: str | None,
    given: Mapping[str, Any],
    public: Collection[str] = (),
    *,
    regression: bool = False,
    unit: str = "",
    count: Count = lambda rows: None,
) -> Schema:
    """The schema of a .csv or .parquet file. ``given`` holds what a person wrote down; ``public`` names the facts that
    may be read off the rows because they are public anyway: "ranges", "categories". In a ``regression`` the target is a
    number with a public range. ``unit`` is the column of who a row is about, which is no input. ``count``
    is told how many rows were looked at."""
    return infer(path, target, given, public, regression=regression, unit=unit, count=count).require()


def infer(
    path: Path,
    target: str | None,
    given: Mapping[str, Any],
    public: Collection[str] = (),
    *,
    regression: bool = False,
    unit: str = "",
    count: Count = lambda rows: None,
) -> Inferred:
    """The same, with what it was found from and with all problems at once."""
    for fact in public:
        one_of(FACTS, public_fact=fact)
    target = target or given.get("target")
    if target is None:
        raise BadInput(f"name the column to predict in '{path}': target=… (on the command line --target)")
    found = inspect_table(path, given, public, target=target, unit=unit, count=count)
    if target not in found.seen or unit == target:
        return Inferred(found, None, found.problems)
    columns = tuple(with_range(finding.column, given) for finding in found.findings)
    own = next(column for column in columns if column.name == target)
    limits: Range | None = None
    classes: tuple[str, ...] = ()
    try:
        if regression:
            own = Column(target, "number", own.low, own.high) if found.seen[target].holds_numbers() else own
            limits = find_target_range(given, own, f"column '{target}' of '{path}'")
            _check_targets(found.seen[target], target, path)
        else:
            classes = tuple(map(str, given.get("classes", ()))) or _classes(found.seen[target], own, path)
            _check_labels(found.seen[target], classes, path)
    except BadInput as error:
        return Inferred(found, None, (str(error), *found.problems))
    if found.problems:
        return Inferred(found, None, found.problems)
    assumed = _assumed(given, given.get("columns", {}), columns, public, limits)
    return Inferred(found, Schema(columns, target, classes, assumed, limits), ())


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
    return choose_waves(replace(column, low=float(limits[0]), high=float(limits[1])), given)


def _classes(seen: Evidence, own: Column, path: Path) -> tuple[str, ...]:
    """The classes that were found, in order; or what the target looks like, where that is no list of classes."""
    what = f"column '{own.name}' of '{path}'"
    if own.kind in ("date", "id", "text"):
        looks = {"date": "dates", "id": "ids", "text": "free text"}[own.kind]
        raise BadInput(
            f"{what} looks like {looks}, which nothing predicts: name another target, or its classes in a schema"
        )
    if any(is_missing(value) and (value == "" or own.kind == "number") for value in seen.values):
        raise BadInput(f"{what} has rows without a label")
    if own.kind == "number" and not seen.whole:
        raise BadInput(f"{what} holds fractions and looks like a number: {NAMED}")
    if own.kind == "number" and len(seen.values) > MOST_WHOLE:
        raise BadInput(f"{what} holds more than {MOST_WHOLE} different whole numbers and looks like a number: {NAMED}")
    if len(seen.values) > MOST_CLASSES:
        raise BadInput(f"{what} has more than {MOST_CLASSES} different values, and they are no numbers to predict")
    if len(seen.values) < 2:
        raise BadInput(f"{what} has one value only: nothing to predict")
    values = {value: parse_number(value) for value in seen.values}
    if any(number is None for number in values.values()):
        return tuple(sorted(values))
    return tuple(sorted(values, key=lambda value: (values[value], value)))


def _check_labels(seen: Evidence, classes: tuple[str, ...], path: Path) -> None:
    """No label may be other than the classes that were given."""
    if seen.first_other is not None:
        raise BadInput(
            f"row {seen.first_other} of '{path}' has a label that is none of the {len(classes)} classes of the schema"
        )


def _check_targets(seen: Evidence, target: str, path: Path) -> None:
    """Every row of a regression must have a number to predict."""
    if seen.counts["."] < seen.present:
        raise BadInput(f"column '{target}' of '{path}' is to be predicted as a number and holds text")
    if seen.first_gap is not None:
        raise no_number(target, seen.first_gap, path)


def _assumed(
    given: Mapping[str, Any],
    columns: Mapping[str, Any],
    found: Collection[Column],
    public: Collection[str],
    limits: Range | None = None,
) -> tuple[str, ...]:
    """What the guarantee takes to be public, in words."""
    read_off = {*given.get("read_off", ()), *public}
    guessed = [column for column in found if column.name not in columns or "kinds" in read_off]
    said = ["the number of rows and the order in which they are split are public"]
    if limits is not None:
        said.append(say_target_range(limits))
    else:
        said.append("the classes are public" + ("" if "classes" in given else " (they were read off the rows)"))
    if guessed:
        said.append("the names and kinds of the columns are public (kinds were read off the rows)")
    if any(column.is_written_specially() for column in guessed):
        said.append("how dates and numbers are written in the columns is public (it was read off the rows)")
    if (columns or "range" in given) and not {*FACTS} & {*given.get("read_off", ())}:
        said.append("the ranges and categories of the given schema are public and were not computed from the rows")
    said += [f"the {fact} of the columns, read off the rows, are public anyway" for fact in FACTS if fact in read_off]
    return tuple(said)
