"""The two ways hush says no: the input is wrong, or the guarantee asked for has no proof."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hush._internal.text import translate


class HushError(Exception):
    """Base of every error that hush raises on purpose; its text is one sentence for the person at the keyboard."""


class InvalidInputError(HushError, ValueError):
    """A value, file or name that hush cannot work with; the text names it and says what was expected."""


class Refused(HushError):
    """A combination without a proof (or without an accountant); the text names the reason and the remedy."""


def find_nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was meant: what others call so, or the closest in spelling; None where nothing is near."""
    names = sorted(known)
    if (meant := translate(name)) in names:
        return meant
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return close[0] if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the known one that was meant, or the whole list."""
    names = sorted(known)
    meant = find_nearest(name, names)
    return f"known: {', '.join(names)}" if meant is None else f"did you mean '{meant}'?"
