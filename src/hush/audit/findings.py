"""The file of findings that a Guarantee reads (`hush.privacy.guarantee`): what audits have refuted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from hush.audit.verdict import Verdict
from hush.errors import BadInput
from hush.files import write_atomic
from hush.privacy.guarantee import Finding


def add_findings(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Put the refuted claims into the file, each method and status once; what was found before stays (findings are
    kept), unless this audit measured more beyond what was claimed."""
    known = {(found.method, found.status): found for found in read_findings(path)}
    for verdict in verdicts:
        if not verdict.refuted:
            continue
        new = _find(verdict)
        old = known.get((new.method, new.status))
        if old is None or _excess(new) > _excess(old):
            known[new.method, new.status] = new
    entries = [dataclasses.asdict(known[key]) for key in sorted(known)]
    write_atomic(path, (json.dumps(entries, indent=2) + "\n").encode())


def _excess(found: Finding) -> float:
    return found.epsilon_lower - found.claimed_epsilon


def _find(verdict: Verdict) -> Finding:
    return Finding(
        method=verdict.method,
        claimed_epsilon=verdict.claimed_epsilon,
        epsilon_lower=verdict.epsilon_lower,
        delta=verdict.delta,
        confidence=verdict.confidence,
        status=verdict.status,
        source=f"hush audit, {verdict.runs} runs, adversary {verdict.adversary}, p = {verdict.p_value:.1g} against the "
        "claimed trade-off curve",
    )


def read_findings(path: Path) -> tuple[Finding, ...]:
    """The findings of a file; none where there is no file."""
    if not path.exists():
        return ()
    try:
        return tuple(Finding(**entry) for entry in json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise BadInput(f"'{path}' is no file of findings: name another, or remove it") from error
