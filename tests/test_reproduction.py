"""The page of published results says what the records say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from hush.bench.spec import read_spec

ROOT = Path(__file__).resolve().parents[1]
RECORDS = sorted((ROOT / "results").glob("*.jsonl"))


@pytest.fixture
def reproduction() -> ModuleType:
    found = importlib.util.spec_from_file_location("reproduction", ROOT / "benchmarks" / "reproduction.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_is_what_the_records_give(reproduction: ModuleType) -> None:
    assert (ROOT / "docs" / "reproduction.md").read_text() == reproduction.render()


def test_a_changed_record_changes_the_page(reproduction: ModuleType, monkeypatch, tmp_path: Path) -> None:
    before = reproduction.render()
    for path in RECORDS:
        (tmp_path / path.name).write_text(path.read_text())
    record = json.loads((tmp_path / "building-blocks.jsonl").read_text().splitlines()[0])
    record["test_accuracy"] = 0.1234
    (tmp_path / "building-blocks.jsonl").write_text(json.dumps(record) + "\n")
    monkeypatch.setattr(reproduction, "RESULTS", tmp_path)
    assert "12.34 (1)" in reproduction.render() != before


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_are_runs_of_the_spec_each_once(path: Path) -> None:
    trials = {trial.key for trial in read_spec(ROOT / "specs" / f"{path.stem}.toml").trials}
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) > 0
    assert set(keys) <= trials


def test_a_table_counts_finished_runs_and_seeds(reproduction: ModuleType) -> None:
    config = {"problem": "p", "options": {"lr": 0.1}}
    runs = [{"outcome": "finished", "config": config, "test_accuracy": a} for a in (0.5, 0.7)]
    runs.append({"outcome": "failed", "config": config, "test_accuracy": 0.0})
    assert reproduction.spread(reproduction.pick(runs, problem="p", lr=0.1)) == "60.00 ± 14.14 (2)"
    assert reproduction.spread(reproduction.pick(runs, problem="other")) == "not run"


def test_an_epsilon_is_rounded_up(reproduction: ModuleType) -> None:
    assert reproduction.epsilon([{"epsilon": 1.671, "status": "claimed"}]) == "1.68, claimed"
    assert re.fullmatch(r"none", reproduction.epsilon([{"epsilon": None, "status": "none"}]))
