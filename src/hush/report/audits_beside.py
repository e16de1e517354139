"""What audits said about the methods of a store: a file that was named, or `audit.jsonl` in the store or beside it.

The file is one that `hush audit --store` keeps (an audit a line), or `hush audit --update` (what was refuted).
"""

from __future__ import annotations

import json
from pathlib import Path

from hush.audit.findings import read_findings
from hush.audit.store import read_audits
from hush.audit.verdict import Verdict
from hush.errors import BadInput
from hush.report.store_rows import Audited

NAME = "audit.jsonl"  # what `hush audit --all` writes where no store is named


def find_audits_beside(source: Path, named: Path | None) -> tuple[Audited, ...]:
    """Those of the file that was named; else of that in the store or in the folder that it is in; else none."""
    if named is not None and not named.is_file():
        raise BadInput(f"there is no file '{named}': name one that hush audit --store or --update has written")
    places = (source / NAME, source.resolve().parent / NAME) if named is None else (named,)
    found = next((place for place in places if place.is_file() and place.resolve() != source.resolve()), None)
    return () if found is None else _read(found)


def _read(path: Path) -> tuple[Audited, ...]:
    if _is_list(path):
        return tuple(
            Audited(f.method, f.status, "refuted", f.epsilon_lower, f.claimed_epsilon, f"by {path.name}")
            for f in read_findings(path)
        )
    return tuple(_tell(Verdict.from_json(entry)) for entry in read_audits(path))


def _tell(verdict: Verdict) -> Audited:
    where = f"by {verdict.adversary} in {verdict.runs} runs"
    return Audited(
        verdict.method, verdict.status, verdict.verdict, verdict.epsilon_lower, verdict.claimed_epsilon, where
    )


def _is_list(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), list)
    except ValueError:
        return False
