"""Numbers as people write them: 1234.5, 1,234.5, 1'234.5, 1 234.5, or with a decimal comma 1234,5 and 1.234,5.

Which of the two signs is the decimal one is a fact of a column and never of a cell: "1,234" alone may be either, and a
column that has nothing else is refused until a schema says which. Signs of thousands stand before every three digits
or nowhere.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

POINT, COMMA = ".", ","
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
LONGEST_NUMBER = 400  # characters
_THOUSANDS = {POINT: ",' \u00a0\u202f", COMMA: ".' \u00a0\u202f"}
_GROUPED = {
    decimal: re.compile(rf"[+-]?[0-9]{{1,3}}([{re.escape(signs)}])[0-9]{{3}}(?:\1[0-9]{{3}})*(?:[{decimal}][0-9]+)?")
    for decimal, signs in _THOUSANDS.items()
}
_WITH_COMMA = re.compile(r"[+-]?(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_missing(text: str) -> bool:
    """Whether a cell says that there is nothing in it."""
    return text.strip().lower() in MISSING


def is_written_plainly(text: str) -> bool:
    """Whether a cell has none of the signs that Python alone takes for parts of a number: underscores between digits,
    and the digits of other scripts. A cell with one of them is no number."""
    return "_" not in text and text.strip().isascii()


@lru_cache(maxsize=65536)
def parse_number(text: str, decimal: str = POINT) -> float | None:
    """The finite number that a cell holds, or None."""
    text = text.strip()
    if len(text) > LONGEST_NUMBER:
        return None
    found = _GROUPED[decimal].fullmatch(text)
    if found is not None:
        text = text.replace(found.group(1), "")
    elif decimal == COMMA and not _WITH_COMMA.fullmatch(text):
        return None
    if not is_written_plainly(text):
        return None
    try:
        value = float(text.replace(COMMA, POINT) if decimal == COMMA else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
