"""docs/audit.md from the data file of audits: ``python benchmarks/audit_page.py`` writes the page's table anew.

The data file is what ``hush audit --all --store results/audits/methods.jsonl`` keeps. Everything on the page but the
table is prose, and stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hush.audit.store import read_audits
from hush.privacy.guarantee import rounded_down, rounded_up

ROOT = Path(__file__).resolve().parents[1]
AUDITS, FINDINGS = ROOT / "results" / "audits" / "methods.jsonl", ROOT / "src" / "hush" / "privacy" / "refuted.json"
PAGE = ROOT / "docs" / "audit.md"
COLUMNS = (
    "method",
    "status",
    "claimed ε",
    "measured, at least (95 %)",
    "Gaussian fit",
    "verdict",
    "adversary",
    "runs",
    "seed",
)
MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("table", "findings")}


def write_table(entries: Iterable[dict[str, Any]]) -> str:
    """A row for each method, status and seed."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for entry in entries:
        fit = entry["epsilon_estimate"]
        cells = [
            f"`{entry['method']}`",
            entry["status"],
            rounded_up(entry["claimed_epsilon"]),
            rounded_down(entry["epsilon_lower"]),
            "∞" if fit is None else rounded_down(fit),
            f"**{entry['verdict']}**" if entry["verdict"] == "refuted" else entry["verdict"],
            entry["adversary"],
            str(entry["runs"]),
            str(entry["settings"]["seed"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_findings(entries: Iterable[dict[str, Any]]) -> str:
    """A line for each finding that is shipped."""
    return "".join(
        f"- `{found['method']}`, {found['status']} ε = {rounded_up(found['claimed_epsilon'])}: at least "
        f"{rounded_down(found['epsilon_lower'])} at δ = {rounded_up(found['delta'])} "
        f"({found['confidence']:.0%}); {found['source']}.\n"
        for found in entries
    )


def put(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of that name."""
    begin, end = MARKS[name]
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}{end}{rest.split(end)[1]}"


def make_page(page: str) -> str:
    """The page with the tables that the data files give."""
    page = put(page, "table", write_table(read_audits(AUDITS)))
    return put(page, "findings", write_findings(json.loads(FINDINGS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
