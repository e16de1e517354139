"""What audits said about the methods of a store stands in its report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hush.audit.audit import AuditSettings, add_findings, keep_audits
from hush.audit.bounds import Verdict
from hush.cli import main
from hush.errors import InvalidInputError
from hush.report.rows import find_audit_results
from synthetic import make_record, write_plainly

HELD = Verdict("dp-sgd", "proven", 4.0, 1e-5, 0.25, "consistent", "white-box", 0.7, 1, 400)
BROKEN = Verdict("dp-x", "claimed", 1.0, 1e-5, 2.5, "refuted", "white-box", 1e-9, 1, 200)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = [make_record(0, method="dp-sgd"), make_record(1, method="dp-x", status="claimed")]
    return write_plainly(tmp_path / "stores" / "one", made)


def keep(path: Path) -> Path:
    keep_audits(path, [HELD, replace(HELD, epsilon_lower=0.125), BROKEN], AuditSettings(), announced=1, cpu_seconds=1.0)
    return path


def test_the_file_in_the_store_beside_it_or_named(store: Path, tmp_path: Path) -> None:
    assert find_audit_results(store, None) == ()
    keep(store.parent / "audit.jsonl")
    composed = find_audit_results(store, None)
    assert [(a.method, a.verdict, a.epsilon_lower) for a in composed] == [
        ("dp-sgd", "consistent", 0.25),
        ("dp-sgd", "consistent", 0.125),
        ("dp-x", "refuted", 2.5),
    ]
    keep_audits(store / "audit.jsonl", [BROKEN], AuditSettings(), announced=1, cpu_seconds=1.0)
    assert [a.method for a in find_audit_results(store, None)] == ["dp-x"]
    add_findings(tmp_path / "found.json", [replace(BROKEN, method="dp-y"), HELD])
    (named,) = find_audit_results(store, tmp_path / "found.json")
    assert (named.method, named.status, named.verdict, named.epsilon_lower) == ("dp-y", "claimed", "refuted", 2.5)
    with pytest.raises(InvalidInputError, match="file"):
        find_audit_results(store, tmp_path / "nothing.jsonl")


def test_the_report_shows_the_verdicts(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audits, out = keep(tmp_path / "kept.jsonl"), tmp_path / "report.md"
    assert main(["report", str(store), "--audits", str(audits), "--out", str(out), "--format", "markdown"]) == 0
    rows = [line for line in out.read_text(encoding="utf-8").splitlines() if line.count("|") > 3]
    lines = {row.split("|")[2].strip(): row for row in rows}
    held = "consistent: measured where ε = 4 was stated, by white-box in 400 runs"
    assert "ε ≥ 0.25" in lines["dp-sgd"]
    assert held in lines["dp-sgd"]
    assert "(proven)" in lines["dp-sgd"]
    assert "ε ≥ 2.5" in lines["dp-x"]
    assert "(refuted)" in lines["dp-x"]
    capsys.readouterr()
    assert main(["report", str(store), "--out", str(out), "--format", "markdown", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    assert held not in out.read_text(encoding="utf-8")


def test_runs_made_after_the_audit_have_its_bound_too(tmp_path: Path) -> None:
    made = [make_record(0, method="dp-x", status="refuted"), make_record(1, method="dp-sgd")]
    store, audits = write_plainly(tmp_path / "store", made), keep(tmp_path / "kept.jsonl")
    out = tmp_path / "report.md"
    assert main(["report", str(store), "--audits", str(audits), "--out", str(out), "--format", "markdown"]) == 0
    (row,) = [line for line in out.read_text(encoding="utf-8").splitlines() if line.count("|") > 3 and "dp-x" in line]
    assert "ε ≥ 2.5" in row
    assert "(refuted)" in row
