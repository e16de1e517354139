"""`hush methods` and `hush problems`: what there is to choose from."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from hush.cli.console import show_json, show_table
from hush.cli.shell import AsJson
from hush.methods import Method, catalogue, find, options


def methods(as_json: AsJson = False) -> None:
    """List the methods, with what can be set on each by `--set key=value`."""
    rows = [_row(name, find(name)) for name in ("auto", *catalogue())]
    if as_json:
        show_json(rows)
        return
    cells = ([row["method"], row["summary"], ", ".join(_shown(row))] for row in rows)
    show_table("", ("method", "what it is", "options and their defaults"), cells)


def _row(name: str, method: Method) -> dict[str, Any]:
    known = options(method)
    words = {key: _words(parameter.annotation) for key, parameter in known.items()}
    return {
        "method": name,
        "summary": (inspect.getdoc(method) or "").splitlines()[0],
        "options": {key: parameter.default for key, parameter in known.items()},
        "words": {key: allowed for key, allowed in words.items() if allowed},
    }


def _words(hint: Any) -> list[str]:
    """The words that an option takes, where only some are allowed."""
    if typing.get_origin(hint) is typing.Literal:
        return [word for word in typing.get_args(hint) if isinstance(word, str)]
    return [word for part in typing.get_args(hint) for word in _words(part)]


def _shown(row: dict[str, Any]) -> list[str]:
    words = row["words"]
    return [f"{k}={v}" + (f" (of {' '.join(words[k])})" if k in words else "") for k, v in row["options"].items()]


def problems(as_json: AsJson = False) -> None:
    """List the problems: data, model and metric together."""
    from hush.problems import names

    rows = names()
    if as_json:
        show_json([{"problem": name, "summary": summary} for name, summary in rows])
        return
    show_table("", ("problem", "what it is"), rows)
