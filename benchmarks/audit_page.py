"""docs/audit.md from the data files of audits: ``python benchmarks/audit_page.py`` writes the page's tables anew.

The data files are what ``hush audit --all --store results/audits/methods.jsonl`` keeps, what ``benchmarks/audits.py``
writes, and the findings that are shipped. Everything on the page but the tables is prose, and stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hush.accounting.guarantee import rounded_down, rounded_up
from hush.audit.audit import read_audits

ROOT = Path(__file__).resolve().parents[1]
AUDITS, FINDINGS = ROOT / "results" / "audits" / "methods.jsonl", ROOT / "src" / "hush" / "accounting" / "refuted.json"
NEARNESS = ROOT / "results" / "audits" / "dp-sgd.json"
PAGE = ROOT / "docs" / "audit.md"
COLUMNS = ("method", "status", "claimed ε", "measured, at least (95 %)", "Gaussian fit", "verdict", "adversary")
NEAR_COLUMNS = (
    "ε of dp-sgd",
    "audits",
    "Gaussian fit: median, and its share of ε",
    "smallest to largest",
    "measured, at least (95 %): median",
    "bounds above ε (chance allows)",
    "refuted",
)
NAMES = ("table", "spent", "findings", "nearness")
MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in NAMES}
Entry = dict[str, Any]


def write_table(entries: Iterable[Entry]) -> str:
    """A row for each method and status, with what every seed gave."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry["method"], entry["status"]), []).append(entry)
    rows = []
    for (method, status), some in groups.items():
        verdicts = [f"**{entry['verdict']}**" if entry["verdict"] == "refuted" else entry["verdict"] for entry in some]
        rows.append(
            [
                f"`{method}`",
                status,
                rounded_up(max(entry["claimed_epsilon"] for entry in some)),
                ", ".join(f"{math.floor(100 * entry['epsilon_lower']) / 100:.2f}" for entry in some),
                ", ".join(_round_fit(entry["epsilon_estimate"]) for entry in some),
                ", ".join(dict.fromkeys(verdicts)),
                some[0]["adversary"],
            ]
        )
    return _draw(COLUMNS, rows)


def write_spent(entries: Sequence[Entry]) -> str:
    """What the audits of the table are, and what they took."""
    seeds = sorted({entry["settings"]["seed"] for entry in entries})
    (runs,) = {entry["runs"] for entry in entries}
    once = {(entry["method"], entry["settings"]["seed"]): entry["cpu_seconds"] for entry in entries}
    minutes = [sum(took for (_, seed), took in once.items() if seed == one) / 60 for one in seeds]
    return (
        f"{runs} runs for each method and each of {len(seeds)} seeds. All methods took "
        f"{min(minutes):.1f} to {max(minutes):.1f} minutes of one core's time a seed.\n"
    )


def write_findings(entries: Iterable[Entry]) -> str:
    """A line for each finding that is shipped."""
    return "".join(
        f"- `{found['method']}`, {found['status']} ε = {rounded_up(found['claimed_epsilon'])}: at least "
        f"{rounded_down(found['epsilon_lower'])} at δ = {rounded_up(found['delta'])} "
        f"({found['confidence']:.0%}); {found['source']}.\n"
        for found in entries
    )


def write_nearness(kept: Entry) -> str:
    """A row for each ε at which dp-sgd was audited many times."""
    rows = []
    for told in sorted(kept["summary"], key=lambda summary: float(summary["epsilon"])):
        fits = [audit["epsilon_estimate"] for audit in kept["audits"] if audit["epsilon"] == told["epsilon"]]
        rows.append(
            [
                f"{told['epsilon']:g}",
                str(told["audits"]),
                f"{told['median_estimate']:.2f}, {told['share']:.0%}",
                f"{min(fits):.2f} to {max(fits):.2f}",
                f"{told['median_bound']:.2f}",
                f"{told['bounds_above']} ({told['bounds_allowed_above']})",
                str(told["refuted"]),
            ]
        )
    return _draw(NEAR_COLUMNS, rows)


def _round_fit(fit: float | None) -> str:
    return "∞" if fit is None else f"{fit:.1f}"


def _draw(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def put(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of that name."""
    begin, end = MARKS[name]
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}{end}{rest.split(end)[1]}"


def make_page(page: str) -> str:
    """The page with the tables that the data files give."""
    audits = read_audits(AUDITS)
    page = put(page, "table", write_table(audits))
    page = put(page, "spent", write_spent(audits))
    page = put(page, "nearness", write_nearness(json.loads(NEARNESS.read_text(encoding="utf-8"))))
    return put(page, "findings", write_findings(json.loads(FINDINGS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
