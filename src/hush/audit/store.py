"""The file of finished audits: one JSON object a line, so that auditing many methods goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hush.audit.auditing import RUNS
from hush.audit.verdict import Verdict
from hush.errors import BadInput
from hush.files import write_atomic
from hush.version import read_own_version


@dataclass(frozen=True)
class AuditSettings:
    """What an audit of a method depends on beside the method."""

    epsilon: float = 4.0
    delta: float = 1e-5
    runs: int = RUNS
    seed: int | None = None
    comparisons: int = 1
    problem: str | None = None  # the digits that are made for audits

    def to_json(self) -> dict[str, Any]:
        """Plain data; the problem is there where one was named, and older files have none."""
        return {name: value for name, value in asdict(self).items() if name != "problem" or value is not None}


def read_audits(path: Path) -> list[dict[str, Any]]:
    """Every line of the file, none where there is no file; a last line that was broken off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            Verdict.from_json(entry)
            AuditSettings(**entry["settings"])
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) - 1 and isinstance(error, json.JSONDecodeError):
                break
            raise BadInput(f"line {number + 1} of '{path}' is no audit: name another file, or remove it") from error
        found.append(entry)
    return found


def find_audits(path: Path, method: str, settings: AuditSettings) -> list[dict[str, Any]]:
    """The lines of one method with these settings, by this version of hush."""
    mine = {"settings": settings.to_json(), "version": read_own_version()}
    return [
        entry
        for entry in read_audits(path)
        if entry["method"] == method and all(entry.get(key) == value for key, value in mine.items())
    ]


def count_audits(path: Path, method: str) -> int:
    """How often the method was audited in this file, with whatever settings."""
    mine = [entry for entry in read_audits(path) if entry["method"] == method]
    return len({json.dumps([entry["settings"], entry.get("version")], sort_keys=True) for entry in mine})


def find_announced(path: Path, method: str) -> int | None:
    """The fewest audits of the method that were announced with any that is in this file; None where there is none."""
    mine = [entry for entry in read_audits(path) if entry["method"] == method]
    return min((int(entry.get("announced", entry["settings"]["comparisons"])) for entry in mine), default=None)


def keep_audits(
    path: Path, verdicts: Iterable[Verdict], settings: AuditSettings, *, announced: int, cpu_seconds: float
) -> list[dict[str, Any]]:
    """Add the verdicts on all claims of a method at once, with how many audits of it were announced and what this one
    took, and return their lines."""
    told = {"settings": settings.to_json(), "version": read_own_version(), "announced": announced}
    told["cpu_seconds"] = round(cpu_seconds, 1)
    new = [{**verdict.to_json(), **told} for verdict in verdicts]
    lines = [json.dumps(entry, allow_nan=False) for entry in (*read_audits(path), *new)]
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return new
