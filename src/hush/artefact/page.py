"""PRIVACY.md: the privacy card as a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hush.printable import escape_cell, make_printable


def card_page(card: Mapping[str, Any]) -> str:
    """The card as a page for people."""
    guarantee = card["guarantee"]
    lines = ["# Privacy card", "", _plain(guarantee["sentence"]), ""]
    if guarantee["assumptions"]:
        numbered = (f"{number}. {_plain(text)}" for number, text in enumerate(guarantee["assumptions"], 1))
        lines += ["It assumes that:", "", *numbered, ""]
    if len(card["claims"]) > 1:
        lines += ["## Every ε that is said about this method", "", "| ε | status | reason |", "|---|---|---|"]
        lines += [f"| {c['epsilon']} | {c['status']} | {escape_cell(c['reason'])} |" for c in card["claims"]] + [""]
    rows = {
        "method": card["method"],
        "mechanism": f"`{guarantee['event']}`",
        "accountant": guarantee["accountant"],
        "noise multiplier σ": f"{card['noise_multiplier']:.6g}",
        "sensitivity of the noise's correlation": f"{card['sensitivity']:.6g}",
        "noise on the sum, in clip units": f"{card['noise_std']:.6g}",
        "divisor": card["divisor"],
        "steps planned and accounted for": card["steps"],
        "steps taken": card["steps_taken"],
    }
    lines += [
        "## How it was trained",
        "",
        "| what | value |",
        "|---|---|",
        *(f"| {k} | {escape_cell(v)} |" for k, v in rows.items()),
    ]
    lines += ["", "The complete plan is in `privacy.json`."]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return make_printable(text).replace("<", "&lt;")
