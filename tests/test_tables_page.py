"""The page of results on tables says what the runs say, and every run is there once."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from scripts import load_script


@pytest.fixture
def page() -> ModuleType:
    return load_script("render_tables")


def test_the_page_is_what_the_runs_give(page: ModuleType) -> None:
    assert page.PAGE.read_text() == page.render()


def test_a_changed_run_changes_the_page(page: ModuleType, monkeypatch, tmp_path: Path) -> None:
    before = page.render()
    first, *others = page.read()
    lines = [json.dumps(record) for record in (first | {"test_auc": 0.1234}, *others)]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(page, "RECORDS", tmp_path / "runs.jsonl")
    assert "0.123" in page.render() != before


def test_every_run_is_there_once_and_stays_within_its_epsilon(page: ModuleType) -> None:
    records = page.read()
    jobs = [json.dumps(record["job"], sort_keys=True) for record in records]
    assert len(jobs) == len(set(jobs)) > 0
    private = [record for record in records if record["job"]["epsilon"] is not None]
    assert all(0 < record["epsilon"] <= record["job"]["epsilon"] * 1.001 for record in private)
    assert {record["job"]["table"] for record in records} <= {*page.REPORTED, *page.DEVELOPMENT}


def test_a_cell_is_a_mean_and_a_deviation_over_seeds(page: ModuleType) -> None:
    runs = [{"test_accuracy": a, "test_auc": 0.9} for a in (0.5, 0.7)]
    assert page.write_cell(runs) == "60.0 ± 14.1, 0.900 ± 0.000 (2)"
    assert page.write_cell(runs[:1]) == "50.0, 0.900"
    assert page.write_cell([]) == "not run"
