"""Columns of two words for yes and no, in the words that need no schema."""

from __future__ import annotations

PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("f", "t"),
    ("0", "1"),
    ("off", "on"),
    ("nein", "ja"),
    ("falsch", "wahr"),
    ("non", "oui"),
    ("faux", "vrai"),
    ("no", "si"),
    ("no", "sí"),
    ("nee", "ja"),
    ("não", "sim"),
    ("nej", "ja"),
)
_MEANING = {word: float(place) for pair in PAIRS for place, word in enumerate(pair)}


def parse_flag(text: str, values: tuple[str, ...] = ()) -> float | None:
    """0 for no, 1 for yes, None for anything else; by the column's own two words where it has them."""
    if values:
        return float(values.index(text.strip())) if text.strip() in values else None
    return _MEANING.get(text.strip().lower())


def list_pairs(text: str) -> frozenset[int]:
    """The places of those of ``PAIRS`` that have this word."""
    return frozenset(place for place, pair in enumerate(PAIRS) if text.strip().lower() in pair)
