"""The two ways hush says no: the input is wrong, or the guarantee asked for has no proof."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HushError(Exception):
    """Base of every error that hush raises on purpose; its text is one sentence for the person at the keyboard."""


class BadInput(HushError, ValueError):
    """A value, file or name that hush cannot work with; the text names it and says what was expected."""


class Refused(HushError):
    """A combination without a proof (or without an accountant); the text names the reason and the remedy."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the closest known one, or the whole list."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
