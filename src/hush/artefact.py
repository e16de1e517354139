"""The released artefact: weights and privacy card. Nothing private is in it: no secret, no seed, no batch, no loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from hush.files import sync_directory, writable_directory, write_atomic
from hush.printable import dump_json, escape_cell, make_printable

WEIGHTS, CARD, PAGE = "model.safetensors", "privacy.json", "PRIVACY.md"


def write_artefact(directory: Path, model: nn.Module, card: Mapping[str, Any], page: str) -> Path:
    """Write ``model.safetensors``, ``privacy.json`` and ``PRIVACY.md`` to a directory.

    A card that was there goes before the weights change: after a kill weights may be without a card, and are never
    under another one's.
    """
    writable_directory(directory)
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    content = {
        WEIGHTS: save(weights),
        CARD: (dump_json(card, indent=2) + "\n").encode(),
        PAGE: page.encode(),
    }
    if any(path.exists() and path.read_bytes() != content[path.name] for path in map(directory.joinpath, content)):
        for name in (PAGE, CARD):
            (directory / name).unlink(missing_ok=True)
        sync_directory(directory)
    for name, data in content.items():
        write_atomic(directory / name, data)
    return directory


def card_page(card: Mapping[str, Any], sentence: str) -> str:
    """The card as a page for people."""
    guarantee = card["guarantee"]
    lines = ["# Privacy card", "", _plain(sentence), ""]
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
