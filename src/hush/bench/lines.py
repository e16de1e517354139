"""Where a key of a TOML text stands, so that an error can name its line.

``tomllib`` gives values without places. This reads the headers and the keys of the text and nothing else; a place that
it cannot see (a key of an inline table) is answered with the line of what holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Place = tuple[str | int, ...]
"""A path into the document: table names, keys, and positions in arrays of tables."""

_NAME = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PART = re.compile(_NAME)
_KEY = re.compile(rf"({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


@dataclass(frozen=True)
class Lines:
    """The line, from 1, of every table and key that the text spells out."""

    known: dict[Place, int]

    @staticmethod
    def of(text: str) -> Lines:
        """Read the places of a TOML text."""
        known: dict[Place, int] = {}
        counts: dict[Place, int] = {}
        table: Place = ()
        for number, line in enumerate(text.splitlines(), start=1):
            text = line.strip()
            if header := _header(text):
                table = _table(_parts(header), text.startswith("[["), counts)
                known.setdefault(table, number)
            elif key := _KEY.match(text):
                known.setdefault((*table, *_parts(key[1])), number)
        return Lines(known)

    def at(self, *place: str | int) -> int:
        """The line of a place, or of the nearest thing that holds it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.known:
                return self.known[place[:length]]
        return 1


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


def _header(text: str) -> str:
    """What is between the brackets of a table's header; empty for any other line."""
    brackets = 2 if text.startswith("[[") else 1 if text.startswith("[") else 0
    name, closed, rest = text[brackets:].partition("]" * brackets) if brackets else ("", "", "")
    return name.strip() if closed and (not rest.strip() or rest.strip().startswith("#")) else ""


def _table(names: list[str], is_array: bool, counts: dict[Place, int]) -> Place:
    """The path of a header: a name that is an array of tables is followed by the position of its latest table."""
    path: Place = ()
    for depth, name in enumerate(names):
        path = (*path, name)
        if is_array and depth == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
