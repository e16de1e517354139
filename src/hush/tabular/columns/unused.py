"""Columns that are no inputs: ids, free text, and what a schema leaves out."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from hush.tabular.columns.base import Column, Guess
from hush.tabular.columns.evidence import ENOUGH, Evidence

SENTENCE = 4  # words
_ID_NAME = re.compile(r"(?:.*[^a-z])?(?:id|ids|uid|uuid|guid|mrn|ssn|key|identifier)|.*[a-z](?:Id|ID|UUID|Key)")


@dataclass(frozen=True)
class Id(Column):
    """A name of the person or thing that a row is about."""

    kind: ClassVar[str] = "id"
    described: ClassVar[str] = "an id says who a row is about: not used"
    no_target: ClassVar[str] = "ids"

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        if len(word.split()) == 1 and any(letter.isdigit() for letter in word):
            seen.counts["code"] += count
        return False

    @classmethod
    def is_named(cls, seen: Evidence) -> bool:
        """Whether it is named like an id and has many different values."""
        return _ID_NAME.fullmatch(seen.name) is not None and seen.whole and seen.has_many(0.05)

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        if cls.is_named(seen):
            return Guess(cls(seen.name), "it is named like an id and has many different values")
        if seen.has_many(0.5) and seen.is_most(seen.counts["code"]):
            return Guess(cls(seen.name), "nearly every row has a code of its own")
        return None


@dataclass(frozen=True)
class Text(Column):
    """Free text."""

    kind: ClassVar[str] = "text"
    described: ClassVar[str] = "free text: not used"
    no_target: ClassVar[str] = "free text"

    @classmethod
    def count_word(cls, seen: Evidence, word: str, count: int) -> bool:
        seen.counts["sentence"] += count * (len(word.split()) >= SENTENCE)
        return False

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        if seen.is_most(seen.counts["sentence"]) and seen.different > min(ENOUGH, seen.first_rows / 2):
            return Guess(cls(seen.name), "nearly all cells are sentences")
        return Guess(cls(seen.name), "nearly every row has words of its own") if seen.has_many(0.5) else None


@dataclass(frozen=True)
class Ignored(Column):
    """A column that is left out."""

    kind: ClassVar[str] = "ignore"
    described: ClassVar[str] = "not used"

    @classmethod
    def guess(cls, seen: Evidence, public: Collection[str]) -> Guess | None:
        return None if seen.present else Guess(cls(seen.name), "no row has a value")
