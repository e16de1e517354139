"""Flags: columns of two words for yes and no."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor, nn

from hush.errors import InvalidInputError
from hush.tabular.cells import Cells, map_texts
from hush.tabular.columns.base import GAP, Column, ConstantLayer, Guess, Inputs, add_missing, count_unread, index
from hush.tabular.columns.evidence import Evidence

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
FLAG_WORDS = {word: float(place) for pair in PAIRS for place, word in enumerate(pair)}


def parse_flag(text: str, values: tuple[str, ...] = ()) -> float | None:
    """0 for no, 1 for yes, None for anything else; by the column's own two words where it has them."""
    if values:
        return float(values.index(text.strip())) if text.strip() in values else None
    return FLAG_WORDS.get(text.strip().lower())


@dataclass(frozen=True)
class Flag(Column):
    """−1 for no and 1 for yes; ``values`` are its own words for no and yes."""

    values: tuple[str, ...] = ()

    kind: ClassVar[str] = "flag"
    cell: ClassVar[str] = "0 for a word that says no and 1 for one that says yes"
    functions: ClassVar[Mapping[str, str]] = {"flag": "2·x − 1, one input"}

    def __post_init__(self) -> None:
        if len(self.values) not in (0, 2):
            raise InvalidInputError(f"the values of the flag '{self.name}' must be two words, the one for no first")

    @property
    def width(self) -> int:
        return 2

    @property
    def marks_missing(self) -> bool:
        return True

    @property
    def stand_in(self) -> float:
        return 0.5

    def parse(self, text: str) -> float | None:
        """A cell as a number, or None."""
        return parse_flag(text, self.values)

    def encode(self, cells: Cells, what: str) -> NDArray[Any]:
        return map_texts(cells, lambda text: GAP if (value := self.parse(text)) is None else value)

    @classmethod
    def list_inputs(cls, columns: Sequence[Flag]) -> list[Inputs]:
        return [(c, "flag", {"count": 1}) for c in columns]

    @classmethod
    def build_layer(cls, columns: Sequence[Flag], places: Sequence[int]) -> nn.Module:
        return _Flags(places)

    def describe(self) -> str:
        return add_missing("−1 for no, 1 for yes")

    def describe_writing(self) -> dict[str, Any]:
        pairs = (self.values,) if self.values else PAIRS
        return {"no": sorted({no for no, _ in pairs}), "yes": sorted({yes for _, yes in pairs})}

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        if (small := word.lower()) in FLAG_WORDS:
            seen.words[small] += count
        return False

    @classmethod
    def fits(cls, seen: Evidence, text: str) -> bool:
        most = [pair for pair in PAIRS if seen.is_most(seen.words[pair[0]] + seen.words[pair[1]])]
        return any(text.strip().lower() in pair for pair in most)

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        """Whether nearly all cells are one of two words for yes and no. Cells of 0 and 1 are a flag only if other
        numbers are strays among the cells that are not the commoner of the two: a count is often 0."""
        for no, yes in PAIRS:
            pair = seen.words[no] + seen.words[yes]
            others = seen.counts["number"] - pair if no == "0" else 0
            if seen.is_most(pair) and seen.is_few(others, seen.present - max(seen.words[no], seen.words[yes])):
                return Guess(cls(seen.name), "two words for yes and no")
        return None

    def count_unread(self, cells: Cells) -> int:
        return count_unread(cells, self.parse)

    def find_mismatch(self, seen: Evidence, what: str) -> str:
        few = seen.is_few(self.count_strays(seen))
        return "" if few else f"{what} is said to be a flag, and more than one cell in twenty is not"


class _Flags(ConstantLayer):
    def __init__(self, places: Sequence[int]) -> None:
        super().__init__()
        self.keep(flags=index(places))

    def forward(self, rows: Tensor) -> Tensor:
        """−1 for no, 1 for yes."""
        return 2 * rows[:, self.get_buffer("flags")] - 1
