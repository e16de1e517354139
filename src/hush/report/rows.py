"""A store of runs, or a file of records, as rows for a report. A record that cannot be read is a row with the reason.

Only records and their lines per epoch are read, never the private part of a run, and never a checkpoint (it holds the
run's secret): of an unfinished run only its key is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hush._internal.storage import explain
from hush.accounting.guarantee import rounded_up
from hush.audit.audit import read_audits, read_findings
from hush.audit.bounds import Verdict
from hush.bench.selection_cost import find_number, group_label
from hush.bench.store import EPOCHS, RECORD, check_store
from hush.errors import InvalidInputError

FORMAT = 1  # of a record
CARD = "privacy.json"
ENDED = ("finished", "diverged", "failed")
NOT_READ = ("unreadable", "unknown version", "unfinished")
OUTCOMES = (*ENDED, *NOT_READ)


@dataclass(frozen=True)
class Row:
    """One run: its record, its curve, and in ``outcome`` one of `OUTCOMES`; ``reason`` is why it is not finished."""

    key: str
    outcome: str
    reason: str
    record: Mapping[str, Any]
    curve: tuple[Mapping[str, Any], ...] = ()
    folder: Path | None = None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What was asked for, without the method's options."""
        found = self.record.get("config")
        return found if isinstance(found, dict) else {}

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The method's options."""
        found = self.config.get("options")
        return found if isinstance(found, dict) else {}

    @property
    def problem(self) -> str:
        """The problem's name."""
        return str(self.config.get("problem", "unknown"))

    @property
    def method(self) -> str:
        """The method that was asked for."""
        return str(self.config.get("method", "unknown"))

    @property
    def status(self) -> str:
        """The origin of its ε; empty if the record does not state it."""
        return str(self.record.get("status", ""))

    @property
    def accounted(self) -> str:
        """The status of the formula of its ε; also proven if the ε is claimed only for its fast arithmetic."""
        fast = self.status == "claimed" and self.config.get("arithmetic") == "fast"
        return "proven" if fast else self.status

    @property
    def metric(self) -> str:
        """accuracy or loss."""
        if self.record.get("metric") in ("accuracy", "loss"):
            return str(self.record["metric"])
        return "accuracy" if self.number("test_accuracy") is not None else "loss"

    @cached_property
    def epsilon_label(self) -> str:
        """The ε that its runs are compared at: as asked for, else as accounted, in three digits."""
        return group_label(self.record)

    def number(self, name: str) -> float | None:
        """A number of the record, of its settings, or of the method's options; None if there is none."""
        return find_number(self.record, name)

    def score(self, part: str) -> float | None:
        """The final figure of the problem's metric on one part ("test" or "validation"), of a finished run."""
        return self.number(f"{part}_{self.metric}") if self.outcome == "finished" else None


@dataclass(frozen=True)
class Audited:
    """The measurement of an audit of a method, and its verdict on the stated ε of this kind."""

    method: str
    status: str
    verdict: str
    epsilon_lower: float
    claimed_epsilon: float
    where: str

    def describe(self) -> str:
        """What the bound was measured of."""
        return f"{self.verdict}: measured where ε = {rounded_up(self.claimed_epsilon)} was stated, {self.where}"


@dataclass(frozen=True)
class Reading:
    """Everything that was read, and notes about reading it."""

    name: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    audits: tuple[Audited, ...] = ()  # of methods that may be among these

    @cached_property
    def ended(self) -> tuple[Row, ...]:
        """Runs with a record that is understood: finished, diverged and failed ones."""
        return tuple(row for row in self.rows if row.outcome in ENDED)

    def count(self, outcome: str) -> int:
        """How many runs have ended so."""
        return sum(row.outcome == outcome for row in self.rows)


def read_results(path: Path) -> Reading:
    """The rows of a store's directory, or of a file with a record a line."""
    if path.is_file():
        return _read_lines(path)
    check_store(path)
    rows, notes = [], []
    for key in _list_names(path / "runs"):
        row, note = _read_folder(path / "runs" / key)
        rows.append(row)
        notes += [note] if note else []
    there = {row.key for row in rows}
    try:
        begun = [key for key in _list_names(path / "working") if key not in there and not key.startswith("forgotten.")]
    except PermissionError:
        begun = []
        notes.append("what is not finished yet cannot be seen from this account")
    waiting = "it has begun, and has no result yet"
    rows += [Row(key, "unfinished", waiting, {}) for key in begun]
    return Reading(path.resolve().name, tuple(rows), tuple(notes))


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except FileNotFoundError:
        return []


def _read_folder(folder: Path) -> tuple[Row, str]:
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except OSError as error:
        return Row(folder.name, "unreadable", f"{RECORD}: {explain(error)}", {}), ""
    except (ValueError, RecursionError):
        return Row(folder.name, "unreadable", f"{RECORD} is not valid JSON", {}), ""
    try:
        curve, note = _read_curve((folder / EPOCHS).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        curve, note = (), "cannot be read"
    return make_row(folder.name, record, curve, folder), f"{EPOCHS} of run {folder.name} {note}" if note else ""


def _read_curve(lines: Iterable[str]) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """The lines up to the first that is broken."""
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            point = json.loads(line)
        except (ValueError, RecursionError):
            point = None
        if not isinstance(point, dict):
            return tuple(found), f"breaks off in line {number}"
        found.append(point)
    return tuple(found), ""


def make_row(key: str, record: Any, curve: Iterable[Mapping[str, Any]] = (), folder: Path | None = None) -> Row:
    """The row of a record with any content."""
    if not isinstance(record, dict):
        return Row(key, "unreadable", "its record is no JSON object", {})
    if record.get("format", FORMAT) != FORMAT:
        why = f"its record has the format {record['format']!r}, and this hush reads {FORMAT}"
        return Row(key, "unknown version", why, record)
    outcome = record.get("outcome")
    if outcome not in ENDED or not isinstance(record.get("config"), dict):
        return Row(key, "unreadable", "its record lacks an outcome or a configuration", record)
    points = tuple(point for point in curve if isinstance(point, dict))
    return Row(key, str(outcome), str(record.get("reason", "")), record, points, folder)


def _read_lines(path: Path) -> Reading:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"'{path}' cannot be read as text: name a store, a file of records or the folder of a run"
        ) from (error)
    rows = [_read_line(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not any(row.outcome in ENDED for row in rows):
        raise InvalidInputError(
            f"'{path}' holds no record of a run: name a store, a file of records or the folder of a run"
        )
    return Reading(path.stem, tuple(rows))


def _read_line(number: int, line: str) -> Row:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return Row(f"line {number}", "unreadable", "it is not valid JSON", {})
    held = record if isinstance(record, dict) else {}
    curve = held.get("curve")
    return make_row(str(held.get("key", f"line {number}")), record, curve if isinstance(curve, list) else ())


# Results of audits for the methods of a store: a named file, or `audit.jsonl` in the store or in its parent folder.
#
# The file is one that `hush audit --store` keeps (an audit a line), or `hush audit --update` (what was refuted).

NAME = "audit.jsonl"  # the file that `hush audit --all` writes without --store


def find_audit_results(source: Path, named: Path | None) -> tuple[Audited, ...]:
    """The audits of the named file; else of the file in the store or in its parent folder; else none."""
    if named is not None and not named.is_file():
        raise InvalidInputError(f"there is no file '{named}': name one that hush audit --store or --update has written")
    places = (source / NAME, source.resolve().parent / NAME) if named is None else (named,)
    found = next((place for place in places if place.is_file() and place.resolve() != source.resolve()), None)
    return () if found is None else _read(found)


def _read(path: Path) -> tuple[Audited, ...]:
    if _is_list(path):
        return tuple(
            Audited(f.method, f.status, "refuted", f.epsilon_lower, f.claimed_epsilon, f"by {path.name}")
            for f in read_findings(path)
        )
    return tuple(_notify(Verdict.from_json(entry)) for entry in read_audits(path))


def _notify(verdict: Verdict) -> Audited:
    where = f"by {verdict.adversary} in {verdict.runs} runs"
    return Audited(
        verdict.method, verdict.status, verdict.verdict, verdict.epsilon_lower, verdict.claimed_epsilon, where
    )


def _is_list(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), list)
    except ValueError:
        return False
