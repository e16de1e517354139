"""The file of findings: only what was refuted, in the form that a guarantee reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hush.accounting.guarantee import AuditFinding
from hush.audit.audit import add_findings
from hush.audit.bounds import Verdict
from hush.errors import InvalidInputError

REFUTED = Verdict("dp-x", "claimed", 1.0, 1e-5, 2.5, "refuted", "white-box", 1e-9, 1, 100)


def test_only_refuted_claims_are_found_and_earlier_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    add_findings(path, [REFUTED, replace(REFUTED, status="proven", verdict="consistent")])
    add_findings(path, [replace(REFUTED, method="dp-y"), replace(REFUTED, epsilon_lower=1.5)])
    found = [AuditFinding(**entry) for entry in json.loads(path.read_text())]
    assert [(f.method, f.status, f.epsilon_lower) for f in found] == [
        ("dp-x", "claimed", 2.5),
        ("dp-y", "claimed", 2.5),
    ]
    add_findings(path, [replace(REFUTED, epsilon_lower=3.0)])
    assert json.loads(path.read_text())[0]["epsilon_lower"] == 3.0


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    path.write_text('{"a": 1}')
    with pytest.raises(InvalidInputError):
        add_findings(path, [REFUTED])
    assert path.read_text() == '{"a": 1}'
