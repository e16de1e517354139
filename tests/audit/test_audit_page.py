"""docs/audit.md says what the data file says, the data file has every method; and the script of many audits."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from hush.audit.audit import list_audited, read_audits

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
    for name, (begin, end) in script.MARKS.items():
        emptied = script.put(text, name, "")
        assert emptied != text
        assert f"{begin}\n{end}" in emptied
        assert script.make_page(emptied) == text


def test_a_row_has_what_every_seed_gave_and_no_refutation_is_hidden() -> None:
    entry = {"method": "m", "status": "claimed", "claimed_epsilon": 3.999, "epsilon_lower": 0.199, "adversary": "a"}
    entries = [
        {**entry, "epsilon_estimate": 2.0, "verdict": "consistent"},
        {**entry, "epsilon_estimate": None, "verdict": "refuted"},
    ]
    row = load("audit_page").write_table(entries).splitlines()[-1]
    assert row == "| `m` | claimed | 4 | 0.19, 0.19 | 2.0, ∞ | consistent, **refuted** | a |"


def test_every_method_was_audited_and_only_claimed_epsilons_are_refuted() -> None:
    entries = read_audits(load("audit_page").AUDITS)
    assert {(entry["method"], entry["settings"]["seed"]) for entry in entries} == set(
        product(list_audited(), (1, 2, 3))
    )
    assert {entry["runs"] for entry in entries} == {400}
    refuted = {(entry["method"], entry["status"]) for entry in entries if entry["verdict"] == "refuted"}
    assert refuted == {("dp-dice", "claimed"), ("sanitize", "claimed")}
    assert {entry["verdict"] for entry in entries if entry["status"] == "proven"} == {"consistent"}


def test_audits_of_dp_sgd_come_near_its_epsilon_and_not_above_it() -> None:
    """At ε = 4 and 10 the Gaussian fit is at least half of it in the median over 20 audits; bounds at 95 % are above it
    no more often than chance allows, and no verdict refutes it."""
    script = load("audits")
    kept = json.loads(load("audit_page").NEARNESS.read_text(encoding="utf-8"))
    assert kept["summary"] == [script.summarise(kept["audits"], epsilon) for epsilon in script.EPSILONS]
    for summary in kept["summary"]:
        assert summary["audits"] == 20
        assert summary["bounds_above"] <= summary["bounds_allowed_above"] == 5
        assert summary["refuted"] == 0
        assert summary["share"] >= 0.5 or summary["epsilon"] == 1.0
    assert {audit["runs"] for audit in kept["audits"]} == {400}


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
