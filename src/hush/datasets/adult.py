"""UCI Adult: 15 columns of the 1994 census; does a person's income exceed 50 000 dollars a year.

The list of every category comes from ``adult.names``, the dataset's public description, and the ranges of the numbers
are written down here: neither is computed from the rows.
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor

from hush.datasets.download import read_files
from hush.datasets.sources import ADULT
from hush.datasets.splits import Split
from hush.errors import InvalidInputError
from hush.tabular.columns import Category, Column, Ignored, Number
from hush.tabular.schema import Schema

TARGET = "income"
CLASSES = ("<=50K", ">50K")
RANGES = {
    "age": (16.0, 90.0),  # the census asked people over 16; ages are top-coded at 90
    "education-num": (1.0, 16.0),  # sixteen levels of schooling
    "hours-per-week": (0.0, 100.0),
    "capital-gain": (0.0, 20_000.0),
    "capital-loss": (0.0, 4_000.0),
}
UNUSED = ("fnlwgt",)  # a weight of the survey's design, no attribute of the person


def load(data_dir: Path | None = None) -> Split:
    """32 561 rows to train on and 16 281 to test on, with the schema that says what the columns are."""
    train, test, names = read_files(ADULT, ["adult.data", "adult.test", "adult.names"], data_dir)
    schema = parse_names(names.decode("latin-1"))
    return Split(parse_rows(train, schema, "adult.data"), parse_rows(test, schema, "adult.test"), schema)


def parse_names(text: str) -> Schema:
    """The schema in ``adult.names``: lines of "column: continuous." or "column: value, value, …."."""
    lines = [line for line in text.splitlines() if not line.startswith("|") and ":" in line]
    columns = [
        _column(name.strip(), facts.strip().rstrip(".")) for name, facts in (line.split(":", 1) for line in lines)
    ]
    return Schema((*columns, Category(TARGET, values=CLASSES)), TARGET, CLASSES)


def parse_rows(content: bytes, schema: Schema, name: str = "the file") -> tuple[Tensor, Tensor]:
    """(columns as numbers and codes, labels 0 or 1) of one of the two data files."""
    names = [column.name for column in schema.columns]
    rows, labels = [], []
    lines = csv.reader(content.decode("latin-1").splitlines(), skipinitialspace=True)
    for number, cells in enumerate(lines, start=1):
        if not cells or cells[0].startswith("|"):
            continue
        if len(cells) != len(names):
            raise InvalidInputError(
                f"line {number} of {name} has {len(cells)} columns where {len(names)} were expected"
            )
        row = dict(zip(names, cells, strict=True))
        label = row[TARGET].rstrip(".")
        if label not in CLASSES:
            raise InvalidInputError(f"line {number} of {name} has a label that is not {' or '.join(CLASSES)}")
        rows.append([float(c.code(row[c.name]) if isinstance(c, Category) else row[c.name]) for c in schema.features])
        labels.append(CLASSES.index(label))
    return torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)


def _column(name: str, facts: str) -> Column:
    if name in UNUSED:
        return Ignored(name)
    if facts == "continuous":
        low, high = RANGES[name]
        return Number(name, low, high)
    return Category(name, values=tuple(value.strip() for value in facts.split(",")))
