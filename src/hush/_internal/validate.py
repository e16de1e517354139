"""Checks of arguments: each takes named values and raises `InvalidInputError` with the name and the value."""

from __future__ import annotations

import math
from collections.abc import Collection

from hush.errors import InvalidInputError, nearest

LONGEST = 100  # letters of a name


def _check_finite(name: str, value: float) -> None:
    if not is_finite(value):
        raise InvalidInputError(f"{name} must be a finite number, got {_shorten(value)}")


def is_finite(value: object) -> bool:
    """Whether this is a number (no bool) that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of more than 308 digits
        return False


def finite(**values: float) -> None:
    """Every value is a finite number."""
    for name, value in values.items():
        _check_finite(name, value)


def _shorten(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a number too large to print"
    return text if len(text) <= 60 else f"{text[:40]}…"


def positive(**values: float) -> None:
    """Every value is a finite number above zero."""
    for name, value in values.items():
        _check_finite(name, value)
        if value <= 0:
            raise InvalidInputError(f"{name} must be above zero, got {_shorten(value)}")


def non_negative(**values: float) -> None:
    """Every value is a finite number, zero or above."""
    for name, value in values.items():
        _check_finite(name, value)
        if value < 0:
            raise InvalidInputError(f"{name} must be zero or above, got {_shorten(value)}")


def probability(**values: float) -> None:
    """Every value lies strictly between 0 and 1."""
    for name, value in values.items():
        _check_finite(name, value)
        if not 0 < value < 1:
            raise InvalidInputError(f"{name} must lie between 0 and 1 (both excluded), got {_shorten(value)}")


def rate(**values: float) -> None:
    """Every value lies in (0, 1]."""
    for name, value in values.items():
        _check_finite(name, value)
        if not 0 < value <= 1:
            raise InvalidInputError(f"{name} must be above 0 and at most 1, got {_shorten(value)}")


def positive_int(**values: float) -> None:
    """Every value is an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInputError(f"{name} must be a whole number of at least 1, got {_shorten(value)}")


def name(**values: str) -> None:
    """Every value is a short printable name."""
    for key, value in values.items():
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > LONGEST:
            raise InvalidInputError(
                f"{key} must be a name of at most {LONGEST} printable letters, got {_shorten(value)}"
            )


def choice(known: Collection[str], **values: str) -> None:
    """Every value is one of the known names; the error offers the nearest."""
    for name, value in values.items():
        if not isinstance(value, str) or value not in known:
            raise InvalidInputError(f"unknown {name.replace('_', ' ')} '{value}': {nearest(str(value), known)}")


def suggest_delta(examples: int) -> float:
    """The largest power of ten that is at most 1/(10 N)."""
    return float(f"1e-{len(str(10 * examples - 1))}")


def describe_large_delta(delta: float, examples: int) -> str:
    """Why a δ of 1/N or more is too large."""
    return f"δ = {delta:g} is not below 1/N = {1 / examples:.2g}, so it permits releasing a whole record"
