"""Checks at the edge, once: each takes one named value and raises a sentence that names it."""

from __future__ import annotations

import math
from collections.abc import Collection

from hush.errors import BadInput, nearest


def _finite(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{name} must be a finite number, got {value!r}")


def positive(**values: float) -> None:
    """Every value is a finite number above zero."""
    for name, value in values.items():
        _finite(name, value)
        if value <= 0:
            raise BadInput(f"{name} must be above zero, got {value}")


def not_negative(**values: float) -> None:
    """Every value is a finite number, zero or above."""
    for name, value in values.items():
        _finite(name, value)
        if value < 0:
            raise BadInput(f"{name} must be zero or above, got {value}")


def probability(**values: float) -> None:
    """Every value lies strictly between 0 and 1."""
    for name, value in values.items():
        _finite(name, value)
        if not 0 < value < 1:
            raise BadInput(f"{name} must lie between 0 and 1 (both excluded), got {value}")


def rate(**values: float) -> None:
    """Every value lies in (0, 1]."""
    for name, value in values.items():
        _finite(name, value)
        if not 0 < value <= 1:
            raise BadInput(f"{name} must be above 0 and at most 1, got {value}")


def whole(**values: float) -> None:
    """Every value is an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a whole number of at least 1, got {value!r}")


def one_of(known: Collection[str], **values: str) -> None:
    """Every value is one of the known names; the error offers the nearest."""
    for name, value in values.items():
        if value not in known:
            raise BadInput(f"unknown {name.replace('_', ' ')} '{value}': {nearest(str(value), known)}")


def escaped(text: str) -> str:
    """The text with every character that a terminal would act on, or not show, written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
