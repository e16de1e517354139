"""What a statement is made of: plain text in a few kinds of block. A renderer escapes every string of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from hush.privacy.tradeoff import Curve


@dataclass(frozen=True)
class Paragraph:
    """One paragraph."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Box:
    """What must not be overlooked: the answer in short, or a warning."""

    kind: ClassVar[str] = "box"
    tone: Literal["good", "plain", "warning"]
    title: str
    text: str


@dataclass(frozen=True)
class Points:
    """A list. ``style``: numbered, or boxes to tick, or neither; ``names`` are said before each point."""

    kind: ClassVar[str] = "points"
    items: tuple[str, ...]
    style: Literal["plain", "numbered", "boxes"] = "plain"
    names: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every point with its name; an empty one where there are no names."""
        return tuple(zip(self.names or ("",) * len(self.items), self.items, strict=True))


@dataclass(frozen=True)
class Table:
    """A small table; ``style``: figures (numbers to compare), facts (two columns: what and value) or files."""

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    style: Literal["figures", "facts", "files"] = "facts"


@dataclass(frozen=True)
class Picture:
    """The trade-off curve, drawn where a page can hold a picture."""

    kind: ClassVar[str] = "picture"
    curve: Curve


@dataclass(frozen=True)
class Signature:
    """Lines to fill in by hand."""

    kind: ClassVar[str] = "signature"
    fields: tuple[str, ...]


Block: TypeAlias = Paragraph | Box | Points | Table | Picture | Signature


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Statement:
    """The whole page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
