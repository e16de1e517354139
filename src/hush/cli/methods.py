"""`hush methods` and `hush problems`: what there is to choose from."""

from __future__ import annotations

import inspect
import typing
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from hush.cli.console import show, show_block, show_json, show_table
from hush.cli.shell import AsJson
from hush.methods import Method, catalogue, find, make_plan, option_groups, options, purpose

SMALL: dict[str, Any] = {"examples": 64, "batch_size": 8, "epochs": 1, "accept_claimed": True}  # tells its noise
NOISE = {"none": "no noise", "chosen": "the noise that fits the setting"}
PROTECTED = {
    "nothing": "nothing",
    "features": "features only; labels, and who is in the data, are taken to be public",
    "labels": "labels only; features, and who is in the data, are taken to be public",
    "example": "both: the whole example",
}
STATUS = {
    "proven": "proven ε",
    "none": "no guarantee",
    "proven or claimed": "ε proven, or claimed by its paper",
    "proven or refuted": "ε proven; that of its paper is refuted",
    "refuted": "no guarantee; the ε of its paper is refuted",
}


def methods(as_json: AsJson = False) -> None:
    """List the methods: their noise, what they are for, and what can be set on each by `--set key=value`."""
    rows = [_row(name, find(name)) for name in ("auto", *catalogue())]
    if as_json:
        show_json(rows)
        return
    show("Options that methods share, set by --set key=value, with their defaults:")
    for names, shared in _shared(rows):
        show()
        show_block(names, indent=2)
        show_block(shared, indent=6)
    show()
    show("The methods, with the options that each has beside them:")
    for row in rows:
        _show_method(row)
    show()
    show("What they protect:")
    for what, words in PROTECTED.items():
        show()
        show_block(words, indent=2)
        show_block(", ".join(row["method"] for row in rows if _find_protected(row) == what) or "no method", indent=6)


def _find_protected(row: dict[str, Any]) -> str:
    """What is protected in truth: nothing by an ε that is refuted."""
    return "nothing" if row["status"] == "refuted" else str(row["protects"])


def _show_method(row: dict[str, Any]) -> None:
    show()
    noise = NOISE.get(row["noise"], f"{row['noise']} noise")
    status = STATUS.get(row["status"], row["status"])
    show_block(f"{row['method']}: {noise}, {status}", indent=2)
    show_block(f"{row['summary']} {row['purpose']}".strip(), indent=6)
    if own := _own_options(row):
        show_block(_shown(row, own), indent=6)


def _row(name: str, method: Method) -> dict[str, Any]:
    known = options(method)
    words = {key: _words(parameter.annotation) for key, parameter in known.items()}
    return {
        "method": name,
        "summary": (inspect.getdoc(method) or "").split("\n\n")[0].replace("\n", " "),
        "options": {key: parameter.default for key, parameter in known.items()},
        "words": {key: allowed for key, allowed in words.items() if allowed},
        "purpose": purpose(method),
        **_noise(name),
    }


def _noise(name: str) -> dict[str, str]:
    """Whether noise is independent over steps, what is known of the ε, and which part of an example it is for: read
    off a small plan."""
    if name == "auto":  # every candidate is one of the proven methods, and protects the whole example
        return {"noise": "chosen", "status": "proven", "protects": "example"}
    if name == "sgd":
        return {"noise": "none", "status": "none", "protects": "nothing"}
    plan = make_plan(name, **SMALL, noise_multiplier=4.0)
    claims = plan.claims()
    status = " or ".join(dict.fromkeys(claim.status for claim in claims))
    noise = "independent" if plan.noise.structure.bands == 1 else "correlated"
    return {"noise": noise, "status": status, "protects": claims[0].protects}


def _words(hint: Any) -> list[str]:
    """The words that an option takes, where only some are allowed."""
    if typing.get_origin(hint) is typing.Literal:
        return [word for word in typing.get_args(hint) if isinstance(word, str)]
    return [word for part in typing.get_args(hint) for word in _words(part)]


def _shared(rows: list[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """(Methods, options) for every group of options, the one that most methods take first."""
    sharing: dict[type, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for kind in option_groups(find(row["method"])).values():
            sharing[kind].append(row)
    for kind, theirs in sorted(sharing.items(), key=lambda item: -len(item[1])):
        yield _name_all(theirs, rows), _shown(theirs[0], [f.name for f in fields(kind)])


def _own_options(row: dict[str, Any]) -> list[str]:
    shared = {f.name for kind in option_groups(find(row["method"])).values() for f in fields(kind)}
    return [key for key in row["options"] if key not in shared]


def _name_all(some: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The methods by name, or those that are left out where these are fewer."""
    names = [row["method"] for row in some]
    others = [row["method"] for row in rows if row["method"] not in names]
    return ", ".join(names) if len(names) <= len(others) else f"all but {', '.join(others)}"


def _shown(row: dict[str, Any], keys: Iterable[str]) -> str:
    words, defaults = row["words"], row["options"]
    return ", ".join(f"{k}={defaults[k]}" + (f" (of {' '.join(words[k])})" if k in words else "") for k in keys)


def problems(as_json: AsJson = False) -> None:
    """List the problems: data, model and metric together."""
    from hush.problems import names

    rows = names()
    if as_json:
        show_json([{"problem": name, "summary": summary} for name, summary in rows])
        return
    show_table("", ("problem", "what it is"), rows)
