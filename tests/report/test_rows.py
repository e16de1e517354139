"""Reading a store for a report: every run becomes a row, and unreadable runs are reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hush.audit.audit import AuditSettings, add_findings, keep_audits
from hush.audit.bounds import Verdict
from hush.cli import main
from hush.errors import InvalidInputError
from hush.report.rows import find_audit_results, make_row, read_results
from synthetic_stores import make_record, write_plainly, write_store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Two good runs, a diverged and a failed one, one of another version, one unreadable, one begun, a torn curve."""
    runs = [make_record(n, seed=n) for n in range(2)]
    runs += [make_record(2, outcome="diverged"), make_record(3, outcome="failed"), make_record(4, format=99)]
    root = write_store(tmp_path / "store", runs)
    (root / "runs" / ("5" * 32)).mkdir()
    (root / "runs" / ("6" * 32)).mkdir()
    (root / "runs" / ("6" * 32) / "record.json").write_text('{"format": 1, "outcome"')
    (root / "working" / "begun").mkdir()
    torn = root / "runs" / f"{0:032x}" / "epochs.jsonl"
    torn.write_text(torn.read_text().splitlines()[0] + '\n{"step": 4')
    return root


def test_every_run_is_a_row_with_its_outcome(broken: Path) -> None:
    reading = read_results(broken)
    names = ("finished", "diverged", "failed", "unknown version", "unreadable", "unfinished")
    assert [reading.count(name) for name in names] == [2, 1, 1, 1, 2, 1]
    assert len(reading.rows) == 8
    assert len(reading.ended) == 4


def test_reasons_say_what_is_wrong(broken: Path) -> None:
    reasons = {row.outcome: row.reason for row in read_results(broken).rows}
    assert "format 99" in reasons["unknown version"]
    assert "JSON" in reasons["unreadable"]
    assert reasons["unfinished"]


def test_a_torn_curve_is_kept_up_to_the_tear(broken: Path) -> None:
    reading = read_results(broken)
    row = next(row for row in reading.rows if row.key == f"{0:032x}")
    assert len(row.curve) == 1
    assert any("breaks off in line 2" in note for note in reading.notes)


@pytest.mark.parametrize("record", [[], 3, None, {}, {"outcome": "finished"}, {"config": {}, "outcome": "won"}])
def test_strange_records_are_unreadable_rows(record: object) -> None:
    assert make_row("key", record).outcome == "unreadable"


def test_numbers_that_are_none_are_no_numbers() -> None:
    record, _ = make_record(0)
    record |= {"test_accuracy": True, "epsilon": float("nan"), "delta": "1e-5"}
    row = make_row("key", record)
    assert row.number("test_accuracy") is None
    assert row.number("delta") == 1e-5  # what was asked for
    assert row.epsilon_label == "3"


def test_a_file_of_records_is_read_line_by_line(tmp_path: Path) -> None:
    record, curve = make_record(0)
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record | {"curve": curve}) + "\nnonsense\n")
    reading = read_results(path)
    assert [row.outcome for row in reading.rows] == ["finished", "unreadable"]
    assert len(reading.rows[0].curve) == len(curve)


@pytest.mark.parametrize("name", ["mnist-dpsgd", "mnist-ftrl", "mnist-plain", "building-blocks"])
def test_the_shipped_results_are_read(name: str) -> None:
    reading = read_results(ROOT / "results" / f"{name}.jsonl")
    assert reading.count("unreadable") == 0
    assert reading.count("finished") > 5


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    for path in (tmp_path, tmp_path / "text"):
        with pytest.raises(InvalidInputError):
            read_results(path)


def test_the_private_part_is_not_opened(tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", [make_record(0)])
    before = read_results(root)
    (root / "runs" / f"{0:032x}" / "private" / "steps.safetensors").write_bytes(b"garbage")
    assert read_results(root).rows[0].record == before.rows[0].record


# Audit results of a store's methods in its report.


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
