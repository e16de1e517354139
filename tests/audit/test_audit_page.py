"""docs/audit.md says what the data file says, and the data file has every method."""

from __future__ import annotations

import sys
from pathlib import Path

from hush.audit.method import list_audited
from hush.audit.store import read_audits

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import audit_page  # noqa: E402


def test_the_page_has_the_tables_of_the_data_files() -> None:
    text = audit_page.PAGE.read_text(encoding="utf-8")
    assert audit_page.make_page(text) == text
    assert audit_page.make_page(text.replace("| dp-sgd", "| dp-other")) == text


def test_every_method_was_audited_and_only_claimed_epsilons_are_refuted() -> None:
    entries = read_audits(audit_page.AUDITS)
    assert {entry["method"] for entry in entries} == set(list_audited())
    refuted = {(entry["method"], entry["status"]) for entry in entries if entry["verdict"] == "refuted"}
    assert refuted == {("dp-dice", "claimed"), ("sanitize", "claimed")}
    assert {entry["verdict"] for entry in entries if entry["status"] == "proven"} == {"consistent"}
