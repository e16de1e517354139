"""A table looked at as a whole: the kind of every column, and every problem that keeps it from being trained on.

Counts of missing values and stray words say something about the rows: they are for their owner alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hush._internal.validate import choice
from hush.errors import DataError, InvalidInputError
from hush.tabular.cache import cached_profile
from hush.tabular.columns import Column, Range
from hush.tabular.encode import holds_text, no_column, no_number
from hush.tabular.profiling import MAJORITY, ColumnProfile, guess_column, repeats
from hush.tabular.reader import ISO, POINT, Count, is_missing, parse_number
from hush.tabular.schema import MOST_CLASSES, Schema, choose_waves, describe_column, public_columns

REPEATS = "several rows have the same {name}: if it names a person, --unit {name} protects all rows of one together"


@dataclass(frozen=True)
class Finding:
    """One column: what it is and why, the problem it has if any, and (private) how many cells hold no value or a value
    that is none of its kind."""

    column: Column
    why: str
    problem: str = ""
    repeats: bool = False
    missing: int = 0
    stray: int = 0

    def describe(self) -> dict[str, Any]:
        """Plain data without the counts."""
        return {
            "column": self.column.name,
            "kind": self.column.kind,
            "why": self.why,
            "happens": self.column.encoding(),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Inspection:
    """All columns of a table in order, its target, the problems in the order of their columns, and what every column
    has shown."""

    path: Path
    findings: tuple[Finding, ...]
    seen: Mapping[str, ColumnProfile]
    problems: tuple[str, ...]

    def find(self, name: str) -> Finding:
        """What was found of one column."""
        return next(finding for finding in self.findings if finding.column.name == name)

    def count_strays(self) -> list[str]:
        """How many cells hold no value, or a word among numbers; private, a line for each column that has any."""
        return [
            f"{found.column.name}: {found.missing} of {self.seen[found.column.name].rows} cells are empty"
            + (f" and {found.stray} hold no {found.column.kind}, missing values all of them" if found.stray else "")
            for found in self.findings
            if found.column.used and (found.missing or found.stray)
        ]

    def list_repeating(self) -> list[str]:
        """The ids that occur in several rows, in a sentence each."""
        return [REPEATS.format(name=found.column.name) for found in self.findings if found.repeats]


def inspect_table(
    path: Path,
    given: Mapping[str, Any],
    public: Collection[str] = (),
    *,
    target: str | None = None,
    unit: str = "",
    count: Count = lambda rows: None,
) -> Inspection:
    """Inspect a whole table. ``given`` is the schema that the user wrote, ``unit`` the column of the privacy unit."""
    named = {name: choose_waves(column, given) for name, column in public_columns(given.get("columns", {})).items()}
    classes = frozenset(map(str, given.get("classes", ())))
    listed = "categories" in public

    def begin(name: str) -> ColumnProfile:
        """What a column has shown before its first row."""
        return ColumnProfile(
            name, listed or name == target, named.get(name), classes if name == target else frozenset()
        )

    facts: dict[str, Any] = {"target": target, "listed": listed, "classes": sorted(classes), "unit": unit}
    facts["given"] = [asdict(column) for column in named.values()]
    seen = cached_profile(path, begin, facts, count, unit)
    wanted = dict.fromkeys(filter(None, (target, unit, *named)))
    problems = [str(no_column(name, seen, path)) for name in wanted if name not in seen]
    findings = tuple(_find(path, evidence, named.get(name), public, name, unit) for name, evidence in seen.items())
    problems += [found.problem for found in findings if found.problem and found.column.name != target]
    problems += _check_header(path, seen, named, target)
    if unit and unit == target:
        problems.insert(0, f"column '{unit}' of '{path}' is to be predicted, and cannot be both that and the unit")
    if unit in seen and seen[unit].missing:
        problems.append(f"column '{unit}' of '{path}' has rows without a value, and every row must belong to a unit")
    return Inspection(path, findings, seen, tuple(problems))


def _check_header(
    path: Path, seen: Mapping[str, ColumnProfile], named: Collection[str], target: str | None
) -> list[str]:
    """A file without a header: its first row, which is private, would be published as the names of the columns.

    Names that count the columns (0, 1, 2, … or 1, 2, 3, …) and names that a schema lists are no cells."""
    numbered = [int(name) for name in seen if name.isdecimal() and name.isascii() and len(name) < 6]
    counted = numbered[:1] in ([0], [1]) and numbered == list(range(numbered[0], numbered[0] + len(numbered)))
    for place, (name, evidence) in enumerate(seen.items(), start=1):
        is_class = name == target and name in evidence.values
        is_name = name in named or (counted and name.isdecimal())
        if is_class or (not is_name and evidence.holds(name)):
            return [
                f"the name of column {place} of '{path}' is one of the values in that column, so the first row looks "
                "like data: add a row with the names of the columns, or list the names in a schema"
            ]
    return []


def _find(
    path: Path, seen: ColumnProfile, given: Column | None, public: Collection[str], name: str, unit: str
) -> Finding:
    if name == unit:
        return Finding(Column(name, "id"), "it names who a row is about, the unit of privacy", missing=seen.missing)
    if given is not None:
        return _check_given(path, seen, given)
    guess = guess_column(seen, public)
    problem = f"column '{name}' of '{path}' {guess.problem}" if guess.problem else ""
    again = repeats(seen, guess.column.kind) and not unit
    return Finding(guess.column, guess.why, problem, again, seen.missing, _count_stray(seen, guess.column))


def _check_given(path: Path, seen: ColumnProfile, given: Column) -> Finding:
    """A column whose kind the schema says, and whether its cells are of that kind."""
    stray = _count_stray(seen, given)
    return Finding(given, "the schema says so", _name_mismatch(path, seen, given, stray), False, seen.missing, stray)


def _name_mismatch(path: Path, seen: ColumnProfile, given: Column, stray: int) -> str:
    few = stray <= (1 - MAJORITY) * seen.present
    if given.kind in ("flag", "date") and not few:
        written = f"a date written {given.form}" if given.kind == "date" else "a flag"
        return f"column '{given.name}' of '{path}' is said to be {written}, and more than one cell in twenty is not"
    if given.kind != "number" or (given.missing and few):
        return ""
    if stray > seen.counts["infinite"] and (given.decimal == POINT or not few):
        return str(holds_text(given.name, path))
    if given.fill is None and seen.first_gap is not None and not given.missing:
        return str(no_number(given.name, seen.first_gap, path))
    return ""


def _count_stray(seen: ColumnProfile, column: Column) -> int:
    """How many cells hold something that is not of the column's kind."""
    if column.kind == "number":
        return seen.present - seen.counts[column.decimal]
    if seen.given is None and column.kind == "date":
        return seen.present - seen.counts[column.form] - (seen.counts[ISO] if column.form != ISO else 0)
    return seen.stray


# What the columns of a table are, found from the file, and what that takes to be public.
#
# Only kinds of columns and how their cells are written are inferred by default. Ranges, categories and classes come
# from a schema that a person writes, or from the rows themselves if that person says that they are public; ranges and
# classes may also be released with noise before training.

FACTS = ("ranges", "categories", "classes")
MOST_WHOLE = 20  # different whole numbers: a target with more of them looks like a number and not like classes
NUMBERS = "predict numbers with --task regression (task='regression'), or put them into classes first"
NAMED = "predict it with --task regression (task='regression'), or name its classes in a schema (classes = […])"


@dataclass(frozen=True)
class Inferred:
    """A schema, what it was found from, and all problems: with one there is no schema."""

    inspection: Inspection
    schema: Schema | None
    problems: tuple[str, ...]
    labels: tuple[str, ...] = ()  # of the rows, private, where the classes are to be released with noise

    def require(self) -> Schema:
        """The schema, or the first problem and how many more there are."""
        if self.schema is not None:
            return self.schema
        first, *more = self.problems
        if not more:
            raise DataError(first)
        others = f"{len(more)} more problem{'s' * (len(more) > 1)}"
        raise DataError(f"{first}; {others}: `hush data inspect {self.inspection.path}` lists all")


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
    """The schema of a .csv or .parquet file. ``given`` holds what the user wrote; ``public`` names the facts that may
    be read off the rows because they are public: "ranges", "categories", "classes". In a ``regression`` the target is a
    number with a public range. ``unit`` is the column of the privacy unit, which is not an input. ``count`` is called
    with the number of rows that were read."""
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
    private_classes: bool = False,
) -> Inferred:
    """The same, with what it was found from and with all problems at once. With ``private_classes``, classes that are
    neither given nor public are left open, and the labels of the rows are given apart from the schema."""
    for fact in public:
        choice(FACTS, public_fact=fact)
    target = target or given.get("target")
    if target is None:
        raise InvalidInputError(f"name the column to predict in '{path}': target=… (on the command line --target)")
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
    except InvalidInputError as error:
        return Inferred(found, None, (str(error), *found.problems))
    if found.problems:
        return Inferred(found, None, found.problems)
    pending = private_classes and not regression and "classes" not in given and "classes" not in public
    assumed = _assumed(given, given.get("columns", {}), columns, public, limits, pending)
    schema = Schema(columns, target, () if pending else classes, assumed, limits)
    return Inferred(found, schema, (), tuple(sorted(classes)) if pending else ())


def find_target_range(given: Mapping[str, Any], own: Column, what: str) -> Range:
    """The public range of a number to predict: the schema's ``target_range``, or low and high of its column."""
    if "classes" in given:
        raise InvalidInputError(
            "a schema with classes is for classification: leave them out where a number is predicted"
        )
    if own.kind != "number":
        raise InvalidInputError(f"{what} holds text, and a number is to be predicted: leave out --task regression")
    if "target_range" in given:
        return float(given["target_range"][0]), float(given["target_range"][1])
    if own.low is None or own.high is None:
        raise InvalidInputError(
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


def _classes(seen: ColumnProfile, own: Column, path: Path) -> tuple[str, ...]:
    """The classes that were found, in order; or what the target looks like, where that is no list of classes."""
    what = f"column '{own.name}' of '{path}'"
    if own.kind in ("date", "id", "text"):
        looks = {"date": "dates", "id": "ids", "text": "free text"}[own.kind]
        raise InvalidInputError(
            f"{what} looks like {looks}, which nothing predicts: name another target, or its classes in a schema"
        )
    if any(is_missing(value) and (value == "" or own.kind == "number") for value in seen.values):
        raise InvalidInputError(f"{what} has rows without a label")
    if own.kind == "number" and not seen.whole:
        raise InvalidInputError(f"{what} holds fractions and looks like a number: {NAMED}")
    if own.kind == "number" and len(seen.values) > MOST_WHOLE:
        raise InvalidInputError(
            f"{what} holds more than {MOST_WHOLE} different whole numbers and looks like a number: {NAMED}"
        )
    if len(seen.values) > MOST_CLASSES:
        raise InvalidInputError(
            f"{what} has more than {MOST_CLASSES} different values, and they are no numbers to predict"
        )
    if len(seen.values) < 2:
        raise InvalidInputError(f"{what} has one value only: nothing to predict")
    values = {value: parse_number(value) for value in seen.values}
    if any(number is None for number in values.values()):
        return tuple(sorted(values))
    return tuple(sorted(values, key=lambda value: (values[value], value)))


def _check_labels(seen: ColumnProfile, classes: tuple[str, ...], path: Path) -> None:
    """No label may be other than the classes that were given."""
    if seen.first_other is not None:
        raise InvalidInputError(
            f"row {seen.first_other} of '{path}' has a label that is none of the {len(classes)} classes of the schema"
        )


def _check_targets(seen: ColumnProfile, target: str, path: Path) -> None:
    """Every row of a regression must have a number to predict."""
    if seen.counts["."] < seen.present:
        raise InvalidInputError(f"column '{target}' of '{path}' is to be predicted as a number and holds text")
    if seen.first_gap is not None:
        raise no_number(target, seen.first_gap, path)


def _assumed(
    given: Mapping[str, Any],
    columns: Mapping[str, Any],
    found: Collection[Column],
    public: Collection[str],
    limits: Range | None = None,
    pending: bool = False,
) -> tuple[str, ...]:
    """A description of what the guarantee takes to be public."""
    read_off = {*given.get("read_off", ()), *public}
    guessed = [column for column in found if column.name not in columns or "kinds" in read_off]
    said = ["the number of rows and the order in which they are split are public"]
    if limits is not None:
        said.append(say_target_range(limits))
    elif not pending:
        said.append("the classes are public" + ("" if "classes" in given else " (they were read off the rows)"))
    if guessed:
        said.append("the names and kinds of the columns are public (kinds were read off the rows)")
    if any(column.is_written_specially() for column in guessed):
        said.append("how dates and numbers are written in the columns is public (it was read off the rows)")
    if (columns or "range" in given) and not {*FACTS[:2]} & {*given.get("read_off", ())}:
        said.append("the ranges and categories of the given schema are public and were not computed from the rows")
    said += [
        f"the {fact} of the columns, read off the rows, are public anyway" for fact in FACTS[:2] if fact in read_off
    ]
    return tuple(said)


# A schema as a .toml file for a person to edit, written from what a table looks like.
#
# It holds kinds and formats, which were read off private rows, and says so at its top. Classes, categories and ranges
# are values: they are in it only if the user declared them public.

HEADER = """\
# Written by `hush data inspect`, which looked at private rows: what `read_off` lists was read off them, and a guarantee
# takes it to be public. Whoever may not know it may not have this file. Check every line, and add what is public:
# classes, ranges (low, high) and categories (values), from knowledge of the subject and not from the rows.
"""
HINTS = {
    "number": "# low = …, high = …: a public range makes a better input than none",
    "date": "# low = …, high = …: a public range of years",
    "category": '# values = ["…"]: a public list makes a better input than hashing',
}


def write_toml(
    found: Inspection,
    *,
    target: str | None,
    classes: Collection[str] = (),
    target_range: Collection[float] = (),
    public: Collection[str] = (),
) -> str:
    """The text of the schema. Columns with a problem are commented out, for the user to decide about them."""
    read_off = f"read_off = {spell(['kinds', *public])}"
    lines = [HEADER, read_off, "# target = …" if target is None else f"target = {spell(target)}"]
    if target_range:
        lines.append(f"target_range = {spell(list(target_range))}")
    elif target is not None:
        lines.append(f"classes = {spell(list(classes))}" if classes else '# classes = ["…", "…"]: the labels in order')
    for finding in found.findings:
        if finding.column.name != target:
            lines += ["", *_write_column(finding)]
    return "\n".join(lines) + "\n"


def _write_column(finding: Finding) -> list[str]:
    facts = [f"{key} = {spell(value)}" for key, value in describe_column(finding.column).items()]
    lines = [f"[columns.{spell(finding.column.name)}]", *facts]
    if finding.problem:
        return [f"# {_flatten(finding.problem)}", *(f"# {line}" for line in lines)]
    column = finding.column
    hint = HINTS.get(column.kind, "") if column.low is None and not column.values else ""
    return [*lines, hint] if hint else lines


def spell(value: Any) -> str:
    """A text, number, truth value or list of them in TOML, whose texts are those of JSON but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flatten(text: str) -> str:
    """A text that ends no comment before its time."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
