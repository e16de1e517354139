"""A cell is read by itself, and no cell decides how others are read: kinds are inferred by one majority rule."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from hush.tabular.cells import TextColumn
from hush.tabular.columns import GAP, Category
from hush.tabular.columns.evidence import MAJORITY
from hush.tabular.columns.number import read_numbers
from hush.tabular.inspect import infer, infer_schema
from hush.tabular.rows import read_table
from hush.tabular.schema import Schema, public_columns

ROWS = 400
STRAYS = ["x", "?!", "7", "1.5", "1,5", "2020-01-01", "12\x00", "inf", '"', "yes and no and so on", "٣", "9" * 500]
ORDINARY = {
    "flag": ["yes", "no"],
    "bits": ["0", "1"],
    "number": ["1.5", "-2", "3e2"],
    "thousandths": ["1.234", "0.125", "12.375"],
    "padded": ["1.5\x00\x00", "2\x00", "30.25\x00"],
    "comma": ["1,5", "2,25", "12,75"],
    "date": ["2020-01-31", "1999-12-01"],
    "dotted": ["31.01.2020", "01.12.1999"],
    "moment": ["2020-01-31 10:30", "1999-12-01 23:15"],
    "category": ["red", "green", "blue"],
    "sentence": [f"it was number {i} of them" for i in range(ROWS // 4)],
    "id": [f"A-{i}" for i in range(ROWS)],
}


def write(path: Path, cells: list[str]) -> Path:
    lines = [f'"{cell}"' if "," in cell else cell.replace('"', '""""') for cell in cells]
    path.write_text("x,y\n" + "".join(f"{line},{'uv'[i % 2]}\n" for i, line in enumerate(lines)), encoding="utf-8")
    return path


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("kind", ORDINARY)
def test_a_stray_cell_changes_no_other_row(tmp_path: Path, kind: str, stray: str) -> None:
    """Neither the kind of its column, nor the encoding of any other cell, also where it is the last row."""
    cells = (ORDINARY[kind] * ROWS)[:ROWS]
    schema = infer_schema(write(tmp_path / "a.csv", cells), "y", {})
    rows, _ = read_table(tmp_path / "a.csv", schema)
    for place in (0, ROWS - 1):
        changed = write(tmp_path / "b.csv", [*cells[:place], stray, *cells[place + 1 :]])
        found = infer_schema(changed, "y", {})
        assert found == schema
        others = [i for i in range(ROWS) if i != place]
        assert read_table(changed, found)[0][others].numpy().tobytes() == rows[others].numpy().tobytes()


def test_padding_is_no_part_of_a_number_whatever_the_other_cells_are(tmp_path: Path) -> None:
    """16 000 cells with NUL bytes at their ends and one word: the word is missing, and nothing else."""
    cells = [f"{i / 8}\x00\x00" for i in range(16_000)]
    cells[7] = "word"
    path = write(tmp_path / "a.csv", cells)
    rows, _ = read_table(path, infer_schema(path, "y", {}))
    values = rows[:, 0].numpy()
    assert values[7] == np.float32(GAP)
    assert np.delete(values, 7).tolist() == [np.float32(i / 8) for i in range(16_000) if i != 7]


@pytest.mark.parametrize("kind", ["flag", "number", "date", "comma", "sentence", "id"])
def test_one_threshold_for_every_kind(tmp_path: Path, kind: str) -> None:
    """Nineteen in twenty decide: with 5 % of other words the kind is the same, with more it is a category or text."""
    cells, words = (ORDINARY[kind] * ROWS)[:ROWS], ["alpha", "beta", "gamma"]
    most = round((1 - MAJORITY) * ROWS)
    wanted = infer_schema(write(tmp_path / "a.csv", cells), "y", {}).columns[0]
    for strays, same in ((most, True), (most + 1, False)):
        mixed = [*cells[:-strays], *(words * ROWS)[:strays]]
        found = infer_schema(write(tmp_path / "b.csv", mixed), "y", {}).columns[0]
        assert (found == wanted) is same


def test_a_count_that_is_mostly_zero_is_a_number(tmp_path: Path) -> None:
    cells = ["0"] * (ROWS - 10) + [str(100 + i) for i in range(10)]
    assert infer_schema(write(tmp_path / "a.csv", cells), "y", {}).columns[0].kind == "number"
    rare = ["0"] * (ROWS - 10) + ["1"] * 10
    assert infer_schema(write(tmp_path / "b.csv", rare), "y", {}).columns[0].kind == "flag"


def test_one_fraction_does_not_say_what_a_comma_means(tmp_path: Path) -> None:
    cells = ["1,234"] * (ROWS - 1)
    for stray in ("1,234", "1.5", "1,5"):
        assert infer(write(tmp_path / "a.csv", [*cells, stray]), "y", {}).problems
    assert not infer(write(tmp_path / "b.csv", [*cells[:200], *["1.5"] * 200]), "y", {}).problems


def test_numbers_alone_and_together_are_the_same() -> None:
    cells = [*STRAYS, *(cell for cells in ORDINARY.values() for cell in cells[:5])]
    together = read_numbers(TextColumn.of(cells))
    assert np.concatenate([read_numbers(TextColumn.of([cell])) for cell in cells]).tobytes() == together.tobytes()


def test_inferred_kinds_are_an_assumption(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ORDINARY["flag"] * 50)
    inferred = [text for text in infer_schema(path, "y", {}).assumed if "kinds" in text]
    assert len(inferred) == 1
    given = {"columns": {"x": {"kind": "flag"}, "y": {"kind": "category"}}, "classes": ["u", "v"]}
    assert not [text for text in infer_schema(path, "y", given).assumed if "kinds" in text]


def mix_table(rows: int, seed: int) -> list[list[str]]:
    """Rows of all kinds of cells, ordinary and stray."""
    draw = random.Random(seed)
    return [
        [draw.choice(STRAYS if draw.random() < 0.1 else ["", *cells]) for cells in ORDINARY.values()]
        for _ in range(rows)
    ]


def test_a_row_is_encoded_alike_whatever_the_other_rows_are(tmp_path: Path) -> None:
    """By a given schema, each row of a permuted, a longer and a shorter table has the bits that it has alone."""
    facts = {
        "flag": {"kind": "flag"},
        "bits": {"kind": "flag"},
        "comma": {"decimal": ",", "missing": True},
        "date": {"kind": "date"},
        "dotted": {"format": "dd.mm.yyyy"},
        "moment": {"time": True},
        "category": {"kind": "category", "missing": True},
        "sentence": {"buckets": 5},
        "id": {"values": ["A-1", "A-2"]},
    }
    columns = {kind: facts.get(kind, {"kind": "number", "missing": True}) for kind in ORDINARY}
    schema = Schema((*public_columns(columns).values(), Category("y")), "y", ("u", "v"))
    table, draw = mix_table(300, 1), random.Random(2)

    def encode(rows: list[list[str]], name: str) -> list[bytes]:
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*columns, "y"], *([*row, "u"] for row in rows)])
        return [row.tobytes() for row in read_table(tmp_path / name, schema)[0].numpy()]

    whole = encode(table, "whole.csv")
    order = draw.sample(range(300), 300)
    assert encode([table[place] for place in order], "permuted.csv") == [whole[place] for place in order]
    assert encode([*mix_table(200, 3), *table, *mix_table(50, 4)], "added.csv")[200:500] == whole
    kept = sorted(draw.sample(range(300), 40))
    assert encode([table[place] for place in kept], "removed.csv") == [whole[place] for place in kept]
    assert [encode([table[place]], "one.csv")[0] for place in kept[:15]] == [whole[place] for place in kept[:15]]
