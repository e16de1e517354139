"""docs/audit.md says what the data file says, the data file has every method; and the script of many audits."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from hush.audit.method import list_audited
from hush.audit.store import read_audits

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_data_files() -> None:
    script = load("audit_page")
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.make_page(text) == text
    assert script.make_page(text.replace("| consistent |", "| refuted |")) == text


def test_every_method_was_audited_and_only_claimed_epsilons_are_refuted() -> None:
    entries = read_audits(load("audit_page").AUDITS)
    assert {entry["method"] for entry in entries} == set(list_audited())
    refuted = {(entry["method"], entry["status"]) for entry in entries if entry["verdict"] == "refuted"}
    assert refuted == {("dp-dice", "claimed"), ("sanitize", "claimed")}
    assert {entry["verdict"] for entry in entries if entry["status"] == "proven"} == {"consistent"}


def test_many_audits_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, out = load("audits"), tmp_path / "audits.json"
    monkeypatch.setattr(script, "EPSILONS", (4.0,))
    script.main(out, runs=8, audits=1)
    (first,) = json.loads(out.read_text())["audits"]
    script.main(out, runs=8, audits=2)
    kept = json.loads(out.read_text())
    assert kept["audits"][0] == first
    assert kept["audits"][1]["epsilon_estimate"] != first["epsilon_estimate"]
    (summary,) = kept["summary"]
    assert (summary["audits"], summary["refuted"], summary["bounds_above"]) == (2, 0, 0)
    fits = [audit["epsilon_estimate"] for audit in kept["audits"]]
    assert summary["share"] == pytest.approx(sum(fits) / 2 / 4)
