"""The kinds of columns, one class each in its own module: parsed, recognised, encoded and described there.

A new kind is one module here, and its place in ``KINDS`` (the order of the inputs) and in ``GUESSED``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hush.tabular.cells import MISSING
from hush.tabular.columns.base import GAP, LARGEST, Column, ConstantLayer, Guess, Range, index, is_range
from hush.tabular.columns.category import Category
from hush.tabular.columns.date import Date
from hush.tabular.columns.evidence import Evidence
from hush.tabular.columns.flag import Flag
from hush.tabular.columns.number import Number
from hush.tabular.columns.unused import Id, Ignored, Text

__all__ = [
    "GAP",
    "GUESSED",
    "KINDS",
    "LARGEST",
    "Category",
    "Column",
    "Date",
    "Encoder",
    "Evidence",
    "Flag",
    "Guess",
    "Id",
    "Ignored",
    "Number",
    "Range",
    "Text",
    "describe_columns",
    "guess_column",
    "is_range",
]

KINDS: Mapping[str, type[Column]] = {c.kind: c for c in (Number, Category, Flag, Date, Id, Text, Ignored)}
"""All kinds by name, in the order of the model's inputs."""
GUESSED: tuple[type[Column], ...] = (Ignored, Flag, Number, Date, Id, Text, Category)
"""The order in which kinds are tried for a column and its words; the last fits every column."""


def guess_column(seen: Evidence, public: Collection[str] = ()) -> Guess:
    """The most likely kind of the column."""
    return next(found for kind in GUESSED if (found := kind.guess(seen, public)) is not None)


# A whole table: the layer that encodes it, and its description for other programs.


class Encoder(ConstantLayer):
    """The first layer of a model on a table: (n, columns) of numbers and category codes to (n, width).

    It encodes by public facts only and row by row, and has no parameters. It is part of the model, so that the released
    model takes raw columns and memory holds them once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.width = sum(column.width for column in columns)
        marked = [place for place, column in enumerate(columns) if column.marks_missing]
        self.keep(
            marks=torch.tensor([column.marks_missing for column in columns], dtype=torch.bool),
            marked=index(marked),
            stand_in=torch.tensor([c.stand_in if c.marks_missing else 0.0 for c in columns], dtype=torch.float32),
        )
        self.layers = nn.ModuleList(
            kind.build_layer([columns[place] for place in places], places)
            for kind in KINDS.values()
            if (places := [place for place, column in enumerate(columns) if type(column) is kind and column.used])
        )

    def forward(self, rows: Tensor) -> Tensor:
        """The inputs: kind after kind, and whether a value is missing."""
        gaps = (rows[:, self.get_buffer("marked")] < -LARGEST).to(rows.dtype)
        rows = torch.where(self.get_buffer("marks") & (rows < -LARGEST), self.get_buffer("stand_in"), rows)
        return torch.cat([*(layer(rows) for layer in self.layers), gaps], dim=1)


MISSING_INPUT = "1 where the cell holds no value, and 0 elsewhere; x is then stand_in in all other blocks of the column"


def describe_columns(columns: Sequence[Column]) -> dict[str, Any]:
    """The encoding of a table's columns as JSON data, enough to implement it in any language: blocks of inputs in the
    order of `Encoder`, each with its first place."""
    inputs = [found for kind in KINDS.values() for found in kind.list_inputs([c for c in columns if type(c) is kind])]
    inputs += [(c, "missing", {"count": 1, "stand_in": c.stand_in}) for c in columns if c.marks_missing]
    blocks: list[dict[str, Any]] = []
    for column, function, facts in inputs:
        at = sum(block["count"] for block in blocks)
        blocks.append({"at": at, "column": column.name, "function": function, **facts})
    known = {name: text for kind in KINDS.values() for name, text in kind.functions.items()}
    used = {function for _, function, _ in inputs}
    return {
        "kind": "table",
        "shape": [sum(block["count"] for block in blocks)],
        "arithmetic": "float32",
        "columns": [{"name": c.name, "kind": c.kind, **c.describe_writing()} for c in columns],
        "cells": {kind.kind: kind.cell for kind in KINDS.values() if kind.cell},
        "missing": {"words": sorted(MISSING), "of": "a number's cell in small letters without white space at its ends"},
        "blocks": blocks,
        "functions": {name: text for name, text in {**known, "missing": MISSING_INPUT}.items() if name in used},
    }
