"""Reading a store for a report: whatever is in it becomes rows, and what cannot be read is said and not hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hush.errors import InvalidInputError
from hush.report.rows import make_row, read_results
from synthetic import make_record, write_store

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
