"""Inspect a whole table: the kind of every column, and every problem that prevents training on it.

Counts of missing values and stray words are statistics of private rows: they are only for the owner of the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hush._internal.validate import choice
from hush.errors import DataError, InvalidInputError
from hush.tabular.cells import Cells, TextColumn, WordCounts, count_texts, find_first, is_missing, list_different
from hush.tabular.cells import take_first as take_first_cells
from hush.tabular.columns import GUESSED, KINDS, Category, Column, Evidence, Id, Number, Range, guess_column
from hush.tabular.columns.category import MOST_CLASSES
from hush.tabular.columns.number import lacks_number, parse_number
from hush.tabular.reader import Count, read_chunks
from hush.tabular.rows import no_column
from hush.tabular.schema import Schema, choose_waves, public_columns

# The pass over a table that counts the evidence for the kinds of its columns, a batch of rows at a time.
#
# Memory is bounded for a table of any length. Different values are counted only in the first ``FIRST_ROWS`` rows,
# independent of the batches. The kinds count most cells many at a time; all other words are gathered over many batches,
# and each different one is counted once.

FIRST_ROWS = 20_000  # rows whose different values are counted
ROOM = 1 << 25  # bytes of words of all columns that are gathered before they are counted


def _profile_columns(
    path: Path, begin: Callable[[str], ColumnProfiler], count: Count, unit: str = ""
) -> dict[str, Evidence]:
    """The evidence of every column; ``begin`` makes its profiler. The column ``unit`` is read as exact text."""
    seen: dict[str, ColumnProfiler] = {}
    for chunk in read_chunks(path, count, exact=unit):
        seen = seen or {name: begin(name) for name in chunk}
        for name, cells in chunk.items():
            seen[name].add(cells)
        if sum(profiler.words.size for profiler in seen.values()) > ROOM:
            for profiler in seen.values():
                profiler.mark_updated()
    if not seen:
        raise InvalidInputError(f"'{path}' holds no rows")
    return {name: profiler.mark_updated() for name, profiler in seen.items()}


class ColumnProfiler:
    """Counts the evidence of one column, some rows at a time; `settle` completes it. ``given`` is the column of a
    schema."""

    def __init__(self, evidence: Evidence, given: Column | None = None) -> None:
        self.evidence, self._given = evidence, given
        self.words = WordCounts()
        self._first_values: set[str] = set()
        if given is not None:
            evidence.stray = 0
        if isinstance(given, Number):
            evidence.decimal = given.decimal

    def mark_updated(self) -> Evidence:
        """The evidence, with the words that were gathered."""
        for text, count in self.words.drain():
            if is_missing(word := text.strip()):
                self.evidence.missing += count
            else:
                any(kind.count_word(self.evidence, word, count) for kind in GUESSED)
        return self.evidence

    def add(self, cells: Cells) -> None:
        """Count some more rows."""
        seen = self.evidence
        if isinstance(cells, TextColumn):
            self._add_texts(cells)
        else:
            Number.count_typed(seen, cells)
        if self._given is not None and seen.stray is not None:
            seen.stray += self._given.count_unread(cells)
        if seen.classes and seen.first_other is None:
            seen.first_other = self._number(find_first(cells, lambda text: text not in seen.classes))
        if seen.rows < FIRST_ROWS:
            self._count_different(take_first_cells(cells, FIRST_ROWS - seen.rows))
        if seen.listed and len(seen.values) <= MOST_CLASSES:
            seen.values.update(list_different(cells))
        seen.rows += len(cells)

    def _number(self, place: int | None) -> int | None:
        """The number of a row, from its index in the batch."""
        return None if place is None else self.evidence.rows + place + 1

    def _add_texts(self, cells: TextColumn) -> None:
        seen = self.evidence
        if seen.first_gap is None:
            seen.first_gap = self._number(Number.find_gap(seen, cells))
        for kind in KINDS.values():
            cells = kind.count_cells(seen, cells)
        self.words.add(cells)

    def _count_different(self, cells: Cells) -> None:
        counted = {text: count for text, count in count_texts(cells).items() if not is_missing(text)}
        self._first_values.update(counted)
        self.evidence.first_rows += sum(counted.values())
        self.evidence.different = len(self._first_values)


# A table as a whole: the kind of every column, and every problem.

REPEATS = "several rows have the same {name}: if it names a person, --unit {name} protects all rows of one together"


@dataclass(frozen=True)
class Finding:
    """One column: its kind and the reason, its problem if any, and (private) the number of cells without a value and of
    cells with a value of another kind."""

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
            "happens": self.column.describe(),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Inspection:
    """All columns of a table in order, its target, the problems in the order of their columns, and what every column
    has shown."""

    path: Path
    findings: tuple[Finding, ...]
    seen: Mapping[str, Evidence]
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

    def begin(name: str) -> ColumnProfiler:
        """The profiler of a column before its first row."""
        evidence = Evidence(name, listed or name == target, classes=classes if name == target else frozenset())
        return ColumnProfiler(evidence, named.get(name))

    seen = _profile_columns(path, begin, count, unit)
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


def _check_header(path: Path, seen: Mapping[str, Evidence], named: Collection[str], target: str | None) -> list[str]:
    """A file without a header: its first row, which is private, would be published as the names of the columns.

    Names that count the columns (0, 1, 2, … or 1, 2, 3, …) and names that a schema lists are no cells."""
    numbered = [int(name) for name in seen if name.isdecimal() and name.isascii() and len(name) < 6]
    counted = numbered[:1] in ([0], [1]) and numbered == list(range(numbered[0], numbered[0] + len(numbered)))
    for place, (name, evidence) in enumerate(seen.items(), start=1):
        is_class = name == target and name in evidence.values
        is_name = name in named or (counted and name.isdecimal())
        if is_class or (not is_name and any(kind.fits(evidence, name) for kind in KINDS.values())):
            return [
                f"the name of column {place} of '{path}' is one of the values in that column, so the first row looks "
                "like data: add a row with the names of the columns, or list the names in a schema"
            ]
    return []


def _find(path: Path, seen: Evidence, given: Column | None, public: Collection[str], name: str, unit: str) -> Finding:
    if name == unit:
        return Finding(Id(name), "it names who a row is about, the unit of privacy", missing=seen.missing)
    what = f"column '{name}' of '{path}'"
    if given is not None:
        problem = given.find_mismatch(seen, what)
        return Finding(given, "the schema says so", problem, False, seen.missing, given.count_strays(seen))
    guess = guess_column(seen, public)
    problem = f"{what} {guess.problem}" if guess.problem else ""
    again = _repeats(seen, guess.column) and not unit
    return Finding(guess.column, guess.why, problem, again, seen.missing, guess.column.count_strays(seen))


def _repeats(seen: Evidence, column: Column) -> bool:
    """Whether values of an id, or of a category that looks like one (many codes), occur in several rows."""
    coded = isinstance(column, Category) and seen.counts["code"] > seen.present / 2 and seen.has_many(0.05)
    return (isinstance(column, Id) or coded) and 0 < seen.different < seen.first_rows


# Infer the schema of a table from the file, and list what this takes to be public.
#
# Only kinds of columns and how their cells are written are inferred by default. Ranges, categories and classes come
# from a schema that a person writes, or from the rows themselves if that person says that they are public; ranges and
# classes may also be released with noise before training.

FACTS = ("ranges", "categories", "classes")
MOST_WHOLE = 20  # a target with more different whole numbers looks like a number and not like classes
NUMBERS = "predict numbers with --task regression (task='regression'), or put them into classes first"
NAMED = "predict it with --task regression (task='regression'), or name its classes in a schema (classes = […])"


@dataclass(frozen=True)
class Inferred:
    """A schema, the inspection that it was inferred from, and all problems; with a problem there is no schema."""

    inspection: Inspection
    schema: Schema | None
    problems: tuple[str, ...]
    labels: tuple[str, ...] = ()  # the private labels of the rows, if their classes are released with noise

    def require(self) -> Schema:
        """The schema; `DataError` with the first problem and the number of others if there is none."""
        if self.schema is not None:
            return self.schema
        first, *more = self.problems
        if not more:
            raise DataError(first)
        others = f"{len(more)} more problem{'s' * (len(more) > 1)}"
        raise DataError(f"{first}; {others}: `hush data inspect {self.inspection.path}` lists all")


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
    """Infer the schema of a .csv or .parquet file, with all problems at once; `Inferred.require` raises the first.

    ``given`` holds what the user wrote; ``public`` names the facts that may be read off the rows because they are
    public: "ranges", "categories", "classes". In a ``regression`` the target is a number with a public range. ``unit``
    is the column of the privacy unit, which is not an input. ``count`` is called with the number of rows that were
    read. With ``private_classes``, classes that are neither given nor public are left open, and the labels of the rows
    are returned separately from the schema."""
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
            if found.seen[target].numeric and not isinstance(own, Number):
                own = Number(target)
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
    if not isinstance(own, Number):
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
    """The assumption about the range of a number to predict."""
    return f"the target's range {limits[0]:g} … {limits[1]:g} is public, and targets to train on are cut to it"


def with_range(column: Column, given: Mapping[str, Any]) -> Column:
    """The column with the schema's ``range = [low, high]``, which is for all numbers without a range."""
    limits = given.get("range")
    if limits is None or not isinstance(column, Number) or column.low is not None:
        return column
    return choose_waves(replace(column, low=float(limits[0]), high=float(limits[1])), given)


def _classes(seen: Evidence, own: Column, path: Path) -> tuple[str, ...]:
    """The classes that were found, in order; `InvalidInputError` if the target does not look like classes."""
    what = f"column '{own.name}' of '{path}'"
    if own.no_target:
        raise InvalidInputError(
            f"{what} looks like {own.no_target}, which nothing predicts: name another target, or its classes in a "
            "schema"
        )
    if any(is_missing(value) and (value == "" or isinstance(own, Number)) for value in seen.values):
        raise InvalidInputError(f"{what} has rows without a label")
    if isinstance(own, Number) and not seen.whole:
        raise InvalidInputError(f"{what} holds fractions and looks like a number: {NAMED}")
    if isinstance(own, Number) and len(seen.values) > MOST_WHOLE:
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


def _check_labels(seen: Evidence, classes: tuple[str, ...], path: Path) -> None:
    """Raise for a label that is not one of the given classes."""
    if seen.first_other is not None:
        raise InvalidInputError(
            f"row {seen.first_other} of '{path}' has a label that is none of the {len(classes)} classes of the schema"
        )


def _check_targets(seen: Evidence, target: str, path: Path) -> None:
    """Raise for a row of a regression without a number to predict."""
    if seen.counts["."] < seen.present:
        raise InvalidInputError(f"column '{target}' of '{path}' is to be predicted as a number and holds text")
    if seen.first_gap is not None:
        raise InvalidInputError(lacks_number(f"column '{target}' of '{path}'", seen.first_gap))


def _assumed(
    given: Mapping[str, Any],
    columns: Mapping[str, Any],
    found: Collection[Column],
    public: Collection[str],
    limits: Range | None = None,
    pending: bool = False,
) -> tuple[str, ...]:
    """The facts that the guarantee takes to be public, as sentences."""
    read_off = {*given.get("read_off", ()), *public}
    guessed = [column for column in found if column.name not in columns or "kinds" in read_off]
    said = ["the number of rows and the order in which they are split are public"]
    if limits is not None:
        said.append(say_target_range(limits))
    elif not pending:
        said.append("the classes are public" + ("" if "classes" in given else " (they were read off the rows)"))
    if guessed:
        said.append("the names and kinds of the columns are public (kinds were read off the rows)")
    if any(column.written_specially for column in guessed):
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
# takes it to be public: give this file only to people who may know it. Check every line, and add what is public:
# classes, ranges (low, high) and categories (values), from knowledge of the subject and not from the rows.
"""


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
    facts = [f"{key} = {spell(value)}" for key, value in finding.column.to_schema().items()]
    lines = [f"[columns.{spell(finding.column.name)}]", *facts]
    if finding.problem:
        return [f"# {_flatten(finding.problem)}", *(f"# {line}" for line in lines)]
    given = finding.column.to_schema().keys() & {"low", "values"}
    return lines if given or not finding.column.hint else [*lines, finding.column.hint]


def spell(value: Any) -> str:
    """A text, number, truth value or list of them in TOML, whose texts are those of JSON but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flatten(text: str) -> str:
    """The text in one line, so that it does not end a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
