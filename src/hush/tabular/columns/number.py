"""Numbers: how people write them, and what they become.

Which of the two signs is the decimal one is a fact of a column and never of a cell: "1,234" alone may be either, and a
column that has nothing else is refused until a schema says which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal.validate import finite
from hush.errors import InvalidInputError
from hush.tabular.cells import LONGEST_NUMBER, PLAIN, Cells, Floats, TextColumn, is_missing, map_texts
from hush.tabular.columns.base import (
    GAP,
    LARGEST,
    Column,
    ConstantLayer,
    Guess,
    Inputs,
    add_missing,
    check_range,
    check_switch,
    index,
    is_range,
)
from hush.tabular.columns.evidence import Evidence
from hush.tabular.columns.unused import Id

# Numbers as people write them: 1234.5, 1,234.5, 1'234.5, 1 234.5, or with a decimal comma 1234,5 and 1.234,5. A
# thousands separator comes before every three digits or nowhere.

POINT, COMMA = ".", ","
WITH_COMMA = r"^-?[0-9]{1,15}(,[0-9]{1,15})?$"
ONLY_COMMA = r"^-?[0-9]{1,15},([0-9]{1,2}|[0-9]{4,15})$"  # in which the comma cannot separate thousands
_THOUSANDS = {POINT: ",' \u00a0\u202f", COMMA: ".' \u00a0\u202f"}
_GROUPED = {
    decimal: re.compile(rf"[+-]?[0-9]{{1,3}}([{re.escape(signs)}])[0-9]{{3}}(?:\1[0-9]{{3}})*(?:[{decimal}][0-9]+)?")
    for decimal, signs in _THOUSANDS.items()
}
_WITH_COMMA = re.compile(r"[+-]?(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _is_written_plainly(text: str) -> bool:
    """Whether a cell has none of the characters that only Python accepts in a number: underscores between digits, and
    the digits of other scripts. A cell with one of them is no number."""
    return "_" not in text and text.strip().isascii()


def read_number(text: str, decimal: str = POINT) -> float:
    """The number that a cell holds, an infinite or too large one included; NaN where it holds none."""
    value = parse_number(text, decimal)
    if value is not None:
        return value
    try:
        found = float(text) if decimal == POINT and _is_written_plainly(text) else math.nan
    except ValueError:
        return math.nan
    return found if math.isinf(found) else math.nan


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
    if not _is_written_plainly(text):
        return None
    try:
        value = float(text.replace(COMMA, POINT) if decimal == COMMA else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


WAVES = (1.0, 2.0, 4.0)
FREE = ("asinh", "tanh", "sin", "cos")  # the functions of a number without a range
_NUMBER_BEGINS = re.compile(r"[+\-.,\d]")
_PLAIN = re.compile(PLAIN.removesuffix("$"))
_DOTTED = r"^[+-]?[0-9]{1,3}\.[0-9]{3}$"  # a plain decimal that may be a whole number with a thousands separator


@dataclass(frozen=True)
class Number(Column):
    """A number. With a public range [low, high] it is clamped to it and mapped to [−1, 1]; and, with ``waves``, it also
    has the functions of the next line, applied to the clamped number. Without one: asinh(x)/4, tanh(x), and sin(k u),
    cos(k u) for u = asinh(10 x) and k = 1, 2, 4: waves on a logarithmic scale, of which some resolve the column
    whatever its unit is.

    ``decimal`` is the decimal sign of numbers that are text. ``awaited``: the range is a placeholder until it is
    released with noise."""

    low: float | None = None
    high: float | None = None
    fill: float | None = None
    missing: bool = False
    decimal: str = POINT
    waves: bool = False
    awaited: bool = field(default=False, metadata={"in_schema": False})

    kind: ClassVar[str] = "number"
    hint: ClassVar[str] = "# low = …, high = …: a public range makes a better input than none"
    cell: ClassVar[str] = (
        "the cell as a decimal number, rounded to 32 bits; a missing one is the column's fill, and an error where it "
        "has none"
    )
    functions: ClassVar[Mapping[str, str]] = {
        "range": "2·(min(max(x, low), high) − low)/(high − low) − 1, one input",
        "asinh": "asinh(x)/4, one input",
        "tanh": "tanh(x), one input",
        "sin": "sin(k·asinh(10·x)) for each k of waves, as many inputs",
        "cos": "cos(k·asinh(10·x)) for each k of waves, as many inputs",
        "cut asinh": "asinh(min(max(x, low), high))/4, one input",
        "cut tanh": "tanh(min(max(x, low), high)), one input",
        "cut sin": "sin(k·asinh(10·min(max(x, low), high))) for each k of waves, as many inputs",
        "cut cos": "cos(k·asinh(10·min(max(x, low), high))) for each k of waves, as many inputs",
    }

    def __post_init__(self) -> None:
        check_range(self.name, self.low, self.high)
        if self.fill is not None:
            finite(**{f"fill of column '{self.name}'": self.fill})
        check_switch(self, "missing", "waves")
        if self.decimal not in (POINT, COMMA):
            raise InvalidInputError(f"the decimal sign of column '{self.name}' must be '.' or ','")

    def to_schema(self) -> dict[str, Any]:
        """Whether a number with a range has waves is always said: a schema without it means that it has them."""
        facts = super().to_schema()
        return facts if self.low is None else facts | {"waves": self.waves}

    @property
    def has_waves(self) -> bool:
        """Whether it has the functions of a number without a range."""
        return self.low is None or self.waves

    @property
    def marks_missing(self) -> bool:
        return self.missing

    @property
    def stand_in(self) -> float:
        """The fill, else the middle of the range."""
        if self.fill is not None or self.low is None or self.high is None:
            return self.fill or 0.0
        return self.low / 2 + self.high / 2

    @property
    def width(self) -> int:
        return (self.low is not None) + (2 + 2 * len(WAVES)) * self.has_waves + self.missing

    def encode(self, cells: Cells, what: str) -> NDArray[Any]:
        if self.missing:
            values = read_numbers(cells, self.decimal)
            return np.where(np.abs(values) < LARGEST, values, GAP)
        found = numbers(cells) if self.decimal == POINT else read_numbers(cells, self.decimal)
        if found is None:
            raise InvalidInputError(_holds_text(what))
        return found if self.fill is None else np.where(np.isnan(found), self.fill, found)

    @classmethod
    def list_inputs(cls, columns: Sequence[Number]) -> list[Inputs]:
        ends = [{} if c.low is None else {"low": c.low, "high": c.high} for c in columns]
        ranged: list[Inputs] = [(c, "range", {"count": 1, **e}) for c, e in zip(columns, ends, strict=True) if e]
        waves = {"count": len(WAVES), "waves": list(WAVES)}
        return ranged + [
            (c, f"cut {function}" if e else function, {**(waves if function in ("sin", "cos") else {"count": 1}), **e})
            for function in FREE
            for c, e in zip(columns, ends, strict=True)
            if c.has_waves
        ]

    @classmethod
    def build_layer(cls, columns: Sequence[Number], places: Sequence[int]) -> nn.Module:
        return _Numbers(columns, places)

    def describe(self) -> str:
        shown = functions = f"{2 + 2 * len(WAVES)} fixed functions on a logarithmic scale"
        if self.low is None:
            shown = f"no public range given: {functions}"
        else:
            shown = f"range {self.low:g} … {self.high:g} mapped to [−1, 1]"
            shown = "range to be released with noise before training" if self.awaited else shown
            shown = f"{shown}, and {functions}" if self.waves else shown
        return add_missing(shown, self.missing)

    @property
    def written_specially(self) -> bool:
        return self.decimal != POINT

    def describe_writing(self) -> dict[str, Any]:
        facts: dict[str, Any] = {} if self.fill is None else {"fill": self.fill}
        return facts if self.decimal == POINT else facts | {"decimal": self.decimal}

    @classmethod
    def count_cells(cls, seen: Evidence, cells: TextColumn) -> TextColumn:
        """Plain decimals, and numbers whose comma can only be a decimal sign. What few cells are is not looked for
        again: it is counted word by word, with the same result."""
        if seen.decimal == POINT and POINT not in seen.untried and len(cells):
            values, others = cells.plain
            if len(others) > len(cells) / 2:
                seen.untried.add(POINT)
            _count_plain_texts(seen, cells, values)
            cells = cells.pick(others)
        return cells if COMMA in seen.untried else _count_commas(seen, cells)

    @classmethod
    def count_typed(cls, seen: Evidence, found: Floats) -> None:
        """Numbers of a file that has types."""
        there = np.isfinite(found)
        if seen.first_gap is None and not there.all():
            seen.first_gap = seen.rows + int(np.argmin(there)) + 1
        seen.missing += int(np.isnan(found).sum())
        seen.counts["infinite"] += int(np.isinf(found).sum())
        _count_bits(seen, found[there])
        _count_plain(seen, found[there])

    @classmethod
    def find_gap(cls, seen: Evidence, cells: TextColumn) -> int | None:
        """The index of the first cell without a number."""
        others = cells.plain[1] if seen.decimal == POINT else np.arange(len(cells))
        if not len(others):
            return None
        left = cells.pick(others)
        none = np.flatnonzero(map_texts(left, lambda text: parse_number(text, seen.decimal) is None))
        return int(others[none[0]]) if len(none) else None

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        plain = comma = None
        if _NUMBER_BEGINS.match(word):  # nothing else is a number, and most words end here
            plain, comma = parse_number(word, POINT), parse_number(word, COMMA)
        if plain is None and comma is None:
            seen.counts["infinite"] += count * math.isinf(read_number(word))
            return False
        decimal = seen.decimal == POINT and plain is not None and _PLAIN.fullmatch(word) is not None
        if decimal and plain is not None:  # counted as those that Arrow reads
            comma = plain if plain.is_integer() else comma if re.match(_DOTTED, word) else None
        for sign, value in ((POINT, plain), (COMMA, comma)):
            if value is not None:
                seen.counts[sign] += count
                seen.stretch(sign, value, value)
        seen.counts["number"] += count
        if decimal:
            seen.counts["only " + POINT] += count * (plain != comma)
        elif (plain is None) != (comma is None):
            seen.counts["only " + (POINT if comma is None else COMMA)] += count
        elif plain != comma and COMMA in word:
            seen.counts["either"] += count
        seen.counts["fraction"] += count * any(v is not None and not v.is_integer() for v in (plain, comma))
        return True

    @classmethod
    def fits(cls, seen: Evidence, text: str) -> bool:
        signs = [sign for sign in (POINT, COMMA) if seen.is_most(seen.counts[sign])]
        return any(parse_number(text, sign) is not None for sign in signs)

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        counts, column, why = seen.counts, cls(seen.name, missing=True), "nearly all cells are numbers"
        if not seen.numeric or Id.is_named(seen):
            return None
        points, commas = counts["only " + POINT], counts["only " + COMMA]
        if counts["either"] and seen.is_few(points + commas, points + commas + counts["either"]):
            doubt = "has a comma before three digits, for thousands or for decimals: write decimal = '.' or "
            return Guess(column, why, doubt + "decimal = ',' for it into the schema")
        sign = COMMA if commas > points and not seen.is_few(commas) else POINT  # a stray comma decides nothing
        if not seen.is_most(counts[sign]):
            return Guess(column, why, "mixes decimal points and decimal commas: write its numbers in one way")
        if "ranges" in public and is_range(seen.lows[sign], seen.highs[sign]):
            column = replace(column, low=seen.lows[sign], high=seen.highs[sign], waves=True)
        if sign == COMMA:
            return Guess(replace(column, decimal=COMMA), why + ", with a decimal comma")
        return Guess(column, why)

    def count_strays(self, seen: Evidence) -> int:
        return seen.present - seen.counts[self.decimal]

    def find_mismatch(self, seen: Evidence, what: str) -> str:
        stray = self.count_strays(seen)
        if self.missing and seen.is_few(stray):
            return ""
        if stray > seen.counts["infinite"] and (self.decimal == POINT or not seen.is_few(stray)):
            return _holds_text(what)
        if self.fill is None and seen.first_gap is not None and not self.missing:
            return lacks_number(what, seen.first_gap)
        return ""


def _holds_text(what: str) -> str:
    """The message for words among numbers where a column does not provide for them."""
    return (
        f"{what} is said to be a number and holds text: 'missing = true' in the schema takes a stray word for a "
        "missing value"
    )


def lacks_number(what: str, row: int) -> str:
    """The message for a number that is missing where a column does not provide for it."""
    return (
        f"{what} has no finite number in row {row}: remove such rows, or give the column a public 'fill' or "
        "'missing = true' in the schema"
    )


def _count_plain_texts(seen: Evidence, cells: TextColumn, values: Floats) -> None:
    """Count the plain decimals; of 0 and 1 only those of one character are words of a flag."""
    there = np.flatnonzero(~np.isnan(values))
    found = values[there]
    bits = there[(found == 0) | (found == 1)]
    if len(bits):
        _count_bits(seen, values[bits[cells.pick(bits).lengths == 1]])
    dotted = np.flatnonzero(cells.has_sign(POINT, 4) & (np.abs(values) < 1000) & (np.floor(values) != values))
    dotted = dotted[cells.pick(dotted).match(_DOTTED)] if len(dotted) else dotted
    if len(dotted):
        thousands = np.rint(values[dotted] * 1000)
        seen.counts[COMMA] += len(dotted)
        seen.stretch(COMMA, float(thousands.min()), float(thousands.max()))
    _count_plain(seen, found)


def _count_bits(seen: Evidence, found: Floats) -> None:
    seen.words.update({"0": int((found == 0).sum()), "1": int((found == 1).sum())})


def _count_plain(seen: Evidence, found: Floats) -> None:
    """Plain decimals: a whole one is the same with either decimal sign, a fraction speaks for the point."""
    if not len(found):
        return
    whole = np.floor(found) == found
    fractions = len(found) - int(whole.sum())
    seen.counts.update({"number": len(found), POINT: len(found), COMMA: len(found) - fractions})
    seen.counts.update({"only " + POINT: fractions, "fraction": fractions})
    seen.stretch(POINT, float(found.min()), float(found.max()))
    if fractions < len(found):
        seen.stretch(COMMA, float(found[whole].min()), float(found[whole].max()))


def _count_commas(seen: Evidence, cells: TextColumn) -> TextColumn:
    values, others = cells.read_commas(ONLY_COMMA)
    found = values[~np.isnan(values)]
    if len(found) <= len(cells) / 2 and len(cells):
        seen.untried.add(COMMA)
    if not len(found):
        return cells
    seen.counts.update({COMMA: len(found), "number": len(found), "only " + COMMA: len(found)})
    seen.counts["fraction"] += int((np.floor(found) != found).sum())
    seen.stretch(COMMA, float(found.min()), float(found.max()))
    return cells.pick(others)


class _Numbers(ConstantLayer):
    def __init__(self, columns: Sequence[Number], places: Sequence[int]) -> None:
        super().__init__()
        placed = list(zip(places, columns, strict=True))
        ranged, free = [(p, c) for p, c in placed if c.low is not None], [(p, c) for p, c in placed if c.has_waves]
        self.keep(
            ranged=index([p for p, _ in ranged]),
            low=torch.tensor([c.low for _, c in ranged], dtype=torch.float32),
            high=torch.tensor([c.high for _, c in ranged], dtype=torch.float32),
            free=index([p for p, _ in free]),
            waves=torch.tensor(WAVES),
        )
        self._cuts = any(c.low is not None for _, c in free)
        if self._cuts:
            most = torch.finfo(torch.float32).max
            self.keep(
                cut_low=torch.tensor([-most if c.low is None else c.low for _, c in free], dtype=torch.float32),
                cut_high=torch.tensor([most if c.high is None else c.high for _, c in free], dtype=torch.float32),
            )

    def forward(self, rows: Tensor) -> Tensor:
        """Ranged numbers, then the fixed functions, function after function, each for all numbers that have it."""
        low, high = self.get_buffer("low"), self.get_buffer("high")
        ranged = rows[:, self.get_buffer("ranged")]
        ranged = 2 * (torch.minimum(torch.maximum(ranged, low), high) - low) / (high - low) - 1
        free = rows[:, self.get_buffer("free")]
        if self._cuts:
            free = torch.minimum(torch.maximum(free, self.get_buffer("cut_low")), self.get_buffer("cut_high"))
        waves = (torch.asinh(10 * free).unsqueeze(2) * self.get_buffer("waves")).flatten(1)
        return torch.cat([ranged, torch.asinh(free) / 4, torch.tanh(free), waves.sin(), waves.cos()], 1)


def read_numbers(cells: Cells, decimal: str = POINT) -> Floats:
    """The cells as numbers, written with this decimal sign; NaN for other cells. Each is read alone."""
    if not isinstance(cells, TextColumn):
        return cells
    found, others = cells.plain if decimal == POINT else cells.read_commas(WITH_COMMA)
    if not len(others):
        return found
    values = found.copy()
    values[others] = cells.pick(others).map(lambda words: np.array([read_number(word, decimal) for word in words]))
    return values


def numbers(cells: Cells, decimal: str = POINT) -> Floats | None:
    """The cells as numbers, missing ones as NaN; None if some cell is neither a number nor missing."""
    found = read_numbers(cells, decimal)
    if isinstance(cells, TextColumn):
        empty = np.flatnonzero(np.isnan(found))
        if len(empty) and not all(is_missing(word) for word in cells.pick(empty).different):
            return None
    return found
