"""The made-up patients: the same for the same seed, as many as they say, and with something to learn in them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from patients import NAMES, PATIENTS, ROWS, STRAY, write_patients


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    path = write_patients(tmp_path_factory.mktemp("patients") / "patients.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_their_number_and_what_is_wrong_with_them(rows: list[dict[str, str]]) -> None:
    assert (len(rows), len({row["patient_id"] for row in rows})) == (ROWS, PATIENTS) == (8_000, 4_098)
    assert tuple(rows[0]) == tuple(NAMES)
    assert 0.1 < np.mean([row["y"] == "1" for row in rows]) < 0.25
    assert 40 < sum(row["crp"] in STRAY for row in rows) < 160
    assert 400 < sum(row["crp"] in ("", "NA") for row in rows) < 900
    assert min(sum(row["diagnosis"] == code for row in rows) for code in ("R00", "R59")) < 60


def test_a_seed_gives_the_same_file(tmp_path: Path) -> None:
    first, again, other = (
        write_patients(tmp_path / f"{place}.csv", seed).read_bytes() for place, seed in enumerate((1, 1, 2))
    )
    assert first == again != other


def test_there_is_something_to_learn(rows: list[dict[str, str]]) -> None:
    named = ("I50", "J44", "N18", "Z00", "M54")
    inputs = np.array(
        [
            [np.log(_read(r["crp"], 5)), np.log(_read(r["creatinine"], 81)), _read(r["age"], 50), r["smoker"] == "yes"]
            + [np.log1p(float(r["prior_admissions"])), *(r["diagnosis"] == name for name in named)]
            for r in rows
        ],
        dtype=float,
    )
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    labels, held = np.array([int(r["y"]) for r in rows]), np.array([int(r["patient_id"]) % 5 == 0 for r in rows])
    model = LogisticRegression().fit(inputs[~held], labels[~held])
    assert 0.76 < roc_auc_score(labels[held], model.decision_function(inputs[held])) < 0.84


def _read(cell: str, otherwise: float) -> float:
    return max(float(cell), 0.1) if cell.replace(".", "", 1).isdigit() else otherwise
