"""Text from files, made safe to show: a name or a label may hold characters that a terminal or a page would obey.

Control characters (escape sequences that recolour or rewrite a terminal), marks that reverse the direction of writing,
line separators and halves of characters are spelt out as ``\\x1b``, ``\\u202e`` and the like. Everything else stays.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

OBEYED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # Unicode categories


def make_printable(text: object) -> str:
    """The text with every character that is obeyed rather than shown spelt out; always one line."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(_spell_out(c) if unicodedata.category(c) in OBEYED else c for c in shown)


def dump_json(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON in which such characters are escaped, so that the file may be shown as it is; it means the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in OBEYED else _escape_in_json(c) for c in text)


def as_json_data(value: Any) -> Any:
    """Data that JSON can hold: infinity and NaN become null, as JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): as_json_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def escape_cell(text: object) -> str:
    """Text in a table of a Markdown page: no bar ends its cell, no tag begins."""
    return make_printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _spell_out(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escape_in_json(character: str) -> str:
    return json.dumps(character)[1:-1]
