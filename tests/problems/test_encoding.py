"""Dates, flags and missing values as inputs: exact values, those that the exported JSON says; nothing else moves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush.errors import InvalidInputError
from hush.release.description import Description, describe_table
from hush.release.rows import encode_rows
from hush.tabular.cells import TextColumn
from hush.tabular.columns import GAP, Category, Date, Encoder, Flag, Number, describe_columns
from hush.tabular.columns.date import DOTTED, parse_date
from hush.tabular.columns.number import WAVES
from hush.tabular.rows import encode_piece
from hush.tabular.schema import Schema

COLUMNS = (
    Category("job", values=("a", "b"), missing=True),
    Number("age", 0, 100, missing=True),
    Number("free", missing=True, fill=3.0),
    Date("born", 1900, 2000, form=DOTTED),
    Date("seen", time=True),
    Flag("smoker"),
    Category("town", buckets=3),
)
CELLS = {
    "job": ["a", "?", "z"],
    "age": ["75", "unknown", "1e9"],
    "free": ["2", "", "x"],
    "born": ["1.1.1950", "2020-07-01", "soon"],
    "seen": ["1970-01-01 06:00", "", "2000-02-29"],
    "smoker": ["yes", "NO", "perhaps"],
    "town": ["Ulm", "", "Bonn"],
}


def encode() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(
        encode_piece(
            {name: TextColumn.of(cells) for name, cells in CELLS.items()}, Schema(COLUMNS, "y", ("u", "v")), 0, "rows"
        )
    )
    return rows, Encoder(COLUMNS)(rows)


def test_every_input_by_hand() -> None:
    rows, inputs = encode()
    assert torch.isfinite(rows).all()
    assert inputs.shape == (3, Encoder(COLUMNS).width) == (3, sum(column.width for column in COLUMNS))
    free = np.array([2.0, 3.0, 3.0])
    waves = np.outer(np.arcsinh(10 * free), WAVES)
    age = np.array([[0.5], [0.0], [1.0]])
    numbers = [age, np.arcsinh(free)[:, None] / 4, np.tanh(free)[:, None], np.sin(waves), np.cos(waves)]
    job = np.array([[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    np.testing.assert_allclose(inputs[:, :9], np.concatenate(numbers, 1), atol=2e-6)
    assert inputs[:, 9:13].tolist() == job.tolist()
    assert inputs[:, 16].tolist() == [1, -1, 0]  # yes, no, neither
    assert inputs[:, -5:].tolist() == [[0, 0, 0, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]


def test_dates_by_hand() -> None:
    _, inputs = encode()
    dates = inputs[:, 17:-5]
    assert dates.shape[1] == 2 + 1 + 4 + 4 * 3 + 2
    year = (np.array([-7305.0, 18444, -7305]) / 365.2425 + 70) / 50 - 1  # 1950 is 20 years of 5 leap days before 1970
    np.testing.assert_allclose(dates[:, 0], np.clip(year, -1, 1), atol=1e-3)
    assert dates[1, 0] == 1  # cut to the range
    assert dates[2, 0] == pytest.approx(0, abs=1e-5)  # nothing known: the middle
    assert dates[0, 1] == pytest.approx((1970 - 1900) / 100 - 1, abs=1e-4)
    assert dates[0, 2] == pytest.approx(math.tanh(-30 / 25), abs=1e-4)
    assert dates[2, 2] == pytest.approx(math.tanh((59 / 365.2425) / 25), abs=1e-4)
    assert dates[0, 6] == pytest.approx(math.cos(2 * math.pi * 0.25 / 365.2425), abs=1e-5)
    assert dates[0, -2:].tolist() == pytest.approx([1, 0], abs=1e-5)  # six in the morning
    assert dates[2, -2:].tolist() == pytest.approx([0, 1], abs=1e-5)  # midnight


def test_every_set_of_weekdays_can_be_told_from_its_rest() -> None:
    """Seven days in a row have independent inputs: with a constant they span all functions of the weekday."""
    column = Date("d", 1900, 2000)
    weekdays = Encoder([column])(torch.arange(7.0)[:, None])[:, 3:9]
    assert torch.linalg.matrix_rank(torch.cat([weekdays, torch.ones(7, 1)], 1)) == 7
    later = Encoder([column])(torch.arange(7.0)[:, None] + 7 * 1000)[:, 3:9]
    torch.testing.assert_close(weekdays, later)


def test_the_json_says_the_same() -> None:
    encoding = describe_columns(COLUMNS)
    rows, inputs = encode()
    found = np.array([[value for block in encoding["blocks"] for value in _compute(block, row)] for row in rows])
    assert found.shape == tuple(inputs.shape) == (3, encoding["shape"][0])
    np.testing.assert_allclose(found, inputs, atol=3e-5)


def _compute(block: dict[str, Any], row: torch.Tensor) -> list[float]:
    """One block of inputs, from the words of ``functions`` alone."""
    place = [column.name for column in COLUMNS].index(block["column"])
    x, function = float(row[place]), block["function"]
    gap = x < GAP / 2
    if function == "missing":
        return [float(gap)]
    if gap:
        x = {"age": 50.0, "free": 3.0, "smoker": 0.5}.get(block["column"], _stand_in(block["column"]))
    if function in ("listed", "hashed"):
        return [float(x == slot) for slot in range(block["count"])]
    if function in ("range", "year"):
        low, high = block["low"], block["high"]
        return [2 * (min(max(x, low), high) - low) / (high - low) - 1]
    turn = 2 * math.pi
    return {
        "asinh": lambda: [math.asinh(x) / 4],
        "tanh": lambda: [math.tanh(x)],
        "sin": lambda: [math.sin(k * math.asinh(10 * x)) for k in block["waves"]],
        "cos": lambda: [math.cos(k * math.asinh(10 * x)) for k in block["waves"]],
        "flag": lambda: [2 * x - 1],
        "soft year": lambda: [math.tanh((x - 10957.275) / 9131.0625)],
        "season sin": lambda: [math.sin(turn * x / 365.2425)],
        "season cos": lambda: [math.cos(turn * x / 365.2425)],
        "week sin": lambda: [math.sin(turn * k * math.floor(x) / 7) for k in block["waves"]],
        "week cos": lambda: [math.cos(turn * k * math.floor(x) / 7) for k in block["waves"]],
        "day sin": lambda: [math.sin(turn * x)],
        "day cos": lambda: [math.cos(turn * x)],
    }[function]()


def _stand_in(name: str) -> float:
    """As 32 bits have it."""
    blocks = describe_columns(COLUMNS)["blocks"]
    found = (b["stand_in"] for b in blocks if b["column"] == name and b["function"] == "missing")
    return float(np.float32(next(found, 0.0)))


def test_columns_without_anything_new_keep_their_bits() -> None:
    """What the encoder gives for numbers and categories of schemas from before there were other kinds."""
    columns = [Number("r", 0, 9), Number("f"), Category("c", buckets=4)]
    rows = torch.tensor([[1.3, -2.7, 3.0], [1e30, 3e38, 0.0], [-5.0, -3e38, 1.0]])
    low, high, free = torch.tensor([0.0]), torch.tensor([9.0]), rows[:, 1:2]
    ranged = 2 * (torch.minimum(torch.maximum(rows[:, :1], low), high) - low) / (high - low) - 1
    waves = (torch.asinh(10 * free).unsqueeze(2) * torch.tensor(WAVES)).flatten(1)
    slots = (rows[:, 2:] == torch.arange(4.0)).float()
    before = torch.cat([ranged, torch.asinh(free) / 4, torch.tanh(free), waves.sin(), waves.cos(), slots], 1)
    assert torch.equal(Encoder(columns)(rows).nan_to_num(7.0), before.nan_to_num(7.0))
    assert list(Encoder(columns).state_dict()) == list(Encoder(COLUMNS).state_dict()) == []


def test_a_range_with_waves_by_hand() -> None:
    """The clamped number on its range, and the functions of a number without one; the JSON says the same."""
    columns = [Number("r", 1, 9, waves=True), Number("f"), Number("p", 0, 4)]
    rows = torch.tensor([[3.0, -2.0, 1.0], [1e30, 0.5, 9.0], [-5.0, 7.0, 0.0]])
    inputs = Encoder(columns)(rows)
    both = np.stack([[3.0, 9.0, 1.0], [-2.0, 0.5, 7.0]], 1)
    waves = (np.arcsinh(10 * both)[:, :, None] * np.array(WAVES)).reshape(3, -1)
    ranged = np.array([[-0.5, -0.5], [1, 1], [-1, -1]])
    expected = np.concatenate([ranged, np.arcsinh(both) / 4, np.tanh(both), np.sin(waves), np.cos(waves)], 1)
    np.testing.assert_allclose(inputs, expected, atol=2e-6)
    assert Encoder(columns).width == sum(column.width for column in columns) == 9 + 8 + 1
    blocks = describe_columns(columns)["blocks"]
    assert [(b["column"], b["function"]) for b in blocks[:4]] == [
        ("r", "range"),
        ("p", "range"),
        ("r", "cut asinh"),
        ("f", "asinh"),
    ]
    assert [(b["low"], b["high"]) for b in blocks if b["function"].startswith("cut ")] == [(1, 9)] * 4
    assert [b["at"] for b in blocks] == [0, 1, 2, 3, 4, 5, 6, 9, 12, 15]


def test_the_days_of_the_test() -> None:
    assert parse_date("1.1.1950", DOTTED) == -7305
    assert parse_date("2020-07-01", DOTTED) == 18444


def test_a_file_and_its_cells_in_memory_are_read_alike(tmp_path: Path) -> None:
    schema = Schema((*COLUMNS, Category("y")), "y", ("u", "v"))
    lines = [",".join(CELLS), *(",".join(cells) for cells in zip(*CELLS.values(), strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    inputs = Description("classification", inputs=describe_table(schema), classes=("u", "v"))
    assert torch.equal(encode_rows(tmp_path / "rows.csv", inputs), encode()[0])
    assert torch.equal(encode_rows(CELLS, inputs), encode()[0])
    rows = [{"job": "a", "age": 75, "free": 2.0, "born": "1950-01-01", "seen": None, "smoker": True, "town": "Ulm"}]
    expected = encode()[0][:1].clone()
    expected[0, 4] = GAP
    assert torch.equal(encode_rows(rows, inputs), expected)


@pytest.mark.parametrize("limits", [(-1.0, 1e38), (-2e37, 0.0)])
def test_a_range_that_32_bits_cannot_compute_with_gets_a_sentence(limits: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match="the range of column 'mass' goes beyond 1e\\+37"):
        Number("mass", *limits)
    most = Number("mass", -1e37, 1e37, waves=True)
    encoded = Encoder([most])(torch.tensor([[-1e37], [0.0], [1e37]]))
    assert bool(torch.isfinite(encoded).all())
