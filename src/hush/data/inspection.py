"""A table looked at as a whole: the kind of every column, and every problem that keeps it from being trained on.

Counts of missing values and stray words say something about the rows: they are for their owner alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hush.data.columns import Column
from hush.data.dates import ISO
from hush.data.evidence import MAJORITY, Evidence
from hush.data.kinds import guess_column, repeats
from hush.data.long_tables import look_once
from hush.data.numerals import POINT
from hush.data.reading import Count
from hush.data.schema import choose_waves, public_columns
from hush.data.tables import holds_text, no_column, no_number

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
        """The ids that stand in several rows, in a sentence each."""
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
    """Look at a whole table. ``given`` is the schema that somebody wrote, ``unit`` the column of who a row is about."""
    named = {name: choose_waves(column, given) for name, column in public_columns(given.get("columns", {})).items()}
    classes = frozenset(map(str, given.get("classes", ())))
    listed = "categories" in public

    def begin(name: str) -> Evidence:
        """What a column has shown before its first row."""
        return Evidence(name, listed or name == target, named.get(name), classes if name == target else frozenset())

    facts = {"target": target, "listed": listed, "classes": sorted(classes), "given": list(map(asdict, named.values()))}
    seen = look_once(path, begin, facts, count)
    wanted = dict.fromkeys(filter(None, (target, unit, *named)))
    problems = [str(no_column(name, seen, path)) for name in wanted if name not in seen]
    findings = tuple(_find(path, evidence, named.get(name), public, name, unit) for name, evidence in seen.items())
    problems += [found.problem for found in findings if found.problem and found.column.name != target]
    if unit and unit == target:
        problems.insert(0, f"column '{unit}' of '{path}' is to be predicted, and cannot be both that and the unit")
    if unit in seen and seen[unit].missing:
        problems.append(f"column '{unit}' of '{path}' has rows without a value, and every row must belong to a unit")
    return Inspection(path, findings, seen, tuple(problems))


def _find(path: Path, seen: Evidence, given: Column | None, public: Collection[str], name: str, unit: str) -> Finding:
    if name == unit:
        return Finding(Column(name, "id"), "it names who a row is about, the unit of privacy", missing=seen.missing)
    if given is not None:
        return _check_given(path, seen, given)
    guess = guess_column(seen, public)
    problem = f"column '{name}' of '{path}' {guess.problem}" if guess.problem else ""
    again = repeats(seen, guess.column.kind) and not unit
    return Finding(guess.column, guess.why, problem, again, seen.missing, _count_stray(seen, guess.column))


def _check_given(path: Path, seen: Evidence, given: Column) -> Finding:
    """A column whose kind the schema says, and whether its cells are of that kind."""
    stray = _count_stray(seen, given)
    return Finding(given, "the schema says so", _name_mismatch(path, seen, given, stray), False, seen.missing, stray)


def _name_mismatch(path: Path, seen: Evidence, given: Column, stray: int) -> str:
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


def _count_stray(seen: Evidence, column: Column) -> int:
    """How many cells hold something that is not of the column's kind."""
    if column.kind == "number":
        return seen.present - seen.counts[column.decimal]
    if seen.given is None and column.kind == "date":
        return seen.present - seen.counts[column.form] - (seen.counts[ISO] if column.form != ISO else 0)
    return seen.stray
