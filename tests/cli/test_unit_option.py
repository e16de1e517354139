"""`hush train --unit`: the guarantee, the card and the ledger are per unit, and nobody is trained and tested on."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hush.cli import main
from hush.cli.train import _draw
from hush.datasets.evaluation import Evaluation
from hush.privacy_unit import ROWS_PER_UNIT
from hush.randomness import Secret
from hush.statistics.histogram import FINEST
from hush.tabular.problem import from_files
from hush.tabular.unit_ids import identify
from keeping import keep

PATIENTS = 120


def make_rows() -> list[list[object]]:
    random = np.random.default_rng(0)
    rows = []
    for patient in range(PATIENTS):
        for _ in range(1 + patient % 12 if patient % 5 == 0 else 1 + patient % 2):
            a, b = random.normal(size=2)
            rows.append([f"P{patient:04d}", f"{a:.3f}", f"{b:.3f}", "yes" if a + b > 0 else "no"])
    return [rows[i] for i in random.permutation(len(rows))]


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "visits.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["patient_id", "a", "b", "sick"], *make_rows()])
    return path


@dataclass(frozen=True)
class Said:
    """What a command wrote."""

    stdout: str
    stderr: str


@pytest.fixture
def hush(capsys) -> Callable[..., Said]:
    def call(*arguments: object, code: int = 0) -> Said:
        capsys.readouterr()
        found = main(keep(arguments))
        captured = capsys.readouterr()
        assert found == code, captured.err
        return Said(captured.out, captured.err)

    return call


@pytest.fixture
def train(hush) -> Callable[..., Said]:
    def call(table: Path, *more: object, code: int = 0) -> Said:
        return hush(
            "train",
            "--data",
            table,
            "--target",
            "sick",
            "--public",
            "classes",
            "--epochs",
            2,
            "--json",
            *more,
            code=code,
        )

    return call


def test_everything_says_whose_the_guarantee_is(table: Path, tmp_path, train) -> None:
    out, ledger = tmp_path / "run", tmp_path / "ledger.json"
    result = train(table, "--unit", "patient_id", "--out", out, "--ledger", ledger, "--dataset", "visits")
    told = json.loads(result.stdout)
    assert told["unit"] == "patient_id"
    assert "differentially private per patient_id" in told["sentence"]
    assert "the number of units (patient_id) is public" in told["sentence"]
    card = json.loads((out / "release" / "privacy.json").read_text())
    assert '"unit": "patient_id"' in json.dumps(card)
    assert f"at most {ROWS_PER_UNIT} of them at a time" in result.stderr
    assert "warning" not in result.stderr


def test_the_plan_is_over_units(table: Path, train) -> None:
    problem = from_files(table, target="sick", public=("classes",), unit="patient_id")
    assert problem.unit == "patient_id"
    assert problem.owners is not None
    assert problem.examples == len(set(problem.owners.train.tolist())) < PATIENTS
    assert len(problem.train[0]) > problem.examples
    told = json.loads(train(table, "--unit", "patient_id", "--batch-size", 30, "--delta", 1e-5).stdout)
    assert told["steps"] == 2 * -(-problem.examples // 30)
    above = 0.999 / PATIENTS  # below 1 over all units, not below 1 over those to train on times their rows
    rows = len(problem.train[0])
    assert 1 / rows < above < 1 / problem.examples
    train(table, "--unit", "patient_id", "--delta", above)
    assert "is not below 1/N" in train(table, "--delta", above, code=2).stderr


def test_nobody_is_on_two_sides_and_the_unit_is_no_feature(table: Path) -> None:
    problem = from_files(table, target="sick", public=("classes",), unit="patient_id", validation=0.2)
    assert problem.owners is not None
    whose: dict[tuple[float, ...], int] = {
        (round(float(a), 3), round(float(b), 3)): identify(name)  # type: ignore[arg-type]
        for name, a, b, _ in make_rows()
    }

    def owners(part) -> set[int]:
        return {whose[tuple(round(float(v), 3) for v in row)] for row in part[0]}

    trained, test, held = owners(problem.train), owners(problem.test), owners(problem.validation)
    assert not trained & test
    assert not trained & held
    assert not test & held
    assert len(trained | test | held) == PATIENTS
    assert trained == set(problem.owners.train.tolist())
    assert test == set(problem.owners.test.tolist())
    assert problem.train[0].shape[1] == 2
    assert [c.name for c in problem.schema.features] == ["a", "b"]


def test_one_patient_more_moves_no_other_to_the_test_rows(table: Path, tmp_path) -> None:
    lines = table.read_text().splitlines()
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("\n".join(line for line in lines if "P0005" not in line) + "\n")
    both = [from_files(path, target="sick", public=("classes",), unit="patient_id").owners for path in (table, fewer)]
    assert {*both[0].test.tolist()} - {identify("P0005")} == {*both[1].test.tolist()}
    assert {*both[0].train.tolist()} - {identify("P0005")} == {*both[1].train.tolist()}


def test_arrays_have_units_too(tmp_path, hush) -> None:
    rows = make_rows()
    x, y = (
        np.array([[float(r[1]), float(r[2])] for r in rows], np.float32),
        np.array([int(r[3] == "yes") for r in rows]),
    )
    np.savez(tmp_path / "t.npz", data=x, y=y, who=np.array([r[0] for r in rows]))
    result = hush("train", "--data", tmp_path / "t.npz", "--unit", "who", "--epochs", 1, "--json")
    assert json.loads(result.stdout)["unit"] == "who"
    result = hush("train", "--data", tmp_path / "t.npz", "--unit", "y", code=2)
    assert "is to be predicted, and cannot be both that and the unit" in result.stderr
    half = len(x) // 2
    parts = {"x_train": x[:half], "y_train": y[:half], "x_test": x[half:], "y_test": y[half:]}
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=1000 + np.arange(len(x) - half))
    hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, "--json")
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=np.arange(len(x) - half))
    result = hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, code=2)
    assert "are in the data to train on and in the data to test on" in result.stderr
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=np.arange(len(x) - half) * 1.0)
    result = hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, code=2)
    assert "are in the data to train on and in the data to test on" in result.stderr  # of whatever type the ids are


def test_a_table_of_its_own_to_test_on_names_its_units(table: Path, tmp_path, train) -> None:
    lines = table.read_text().splitlines()
    first = [line for line in lines[1:] if line < "P0080"]
    rest = [line for line in lines[1:] if line >= "P0080"]
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("\n".join([lines[0], *first]) + "\n")
    two.write_text("\n".join([lines[0], *rest]) + "\n")
    train(one, "--unit", "patient_id", "--test-data", two)
    two.write_text("\n".join([lines[0], *rest, first[0]]) + "\n")
    assert "leave them out of one of the two" in train(one, "--unit", "patient_id", "--test-data", two, code=2).stderr


def test_a_column_that_looks_like_an_id_is_named_and_its_values_are_not(table: Path, train) -> None:
    said = train(table).stderr
    assert said.count("warning") == 1
    assert "--unit patient_id" in said
    assert "P00" not in said
    assert str(PATIENTS) not in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--unit", "patient"], "did you mean 'patient_id'"),
        (["--unit", "sick"], "is to be predicted, and cannot be both that and the unit"),
        (["--unit", "example"], "is the word for a single row"),
        (["--rows-per-unit", "3"], "--rows-per-unit needs a unit"),
        (["--unit", "patient_id", "--rows-per-unit", "0"], "rows_per_unit must be a whole number"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(table: Path, more: list[str], said: str, train) -> None:
    result = train(table, *more, code=2)
    assert said in result.stderr
    assert "P00" not in result.stderr


def test_a_problem_by_name_has_no_units(tmp_path, hush) -> None:
    assert "describe your own data" in hush("train", "--unit", "x", code=2).stderr
    for who in ("a", "b"):
        (tmp_path / "pictures" / who).mkdir(parents=True)
    result = hush("train", "--data", tmp_path / "pictures", "--unit", "x", code=2)
    assert "no column that says whose they are" in result.stderr


def test_a_run_goes_on_with_its_units(table: Path, tmp_path, train, hush) -> None:
    seeds = ("--secret-seed", 5, "--unit", "patient_id", "--rows-per-unit", 2)
    right = json.loads(train(table, *seeds, "--out", tmp_path / "right").stdout)
    weights = (tmp_path / "right" / "release" / "model.safetensors").read_bytes()
    again = json.loads(hush("train", "--out", tmp_path / "right", "--resume", "--json").stdout)
    assert again["epsilon"] == right["epsilon"]
    train(table, *seeds, "--out", tmp_path / "other")
    assert (tmp_path / "other" / "release" / "model.safetensors").read_bytes() == weights


class _Silent:
    """Noise so small that counts show through."""

    noise_multiplier = 1e-6


def test_a_unit_counts_once_in_figures_with_noise(table: Path) -> None:
    """Whatever its rows are: the counts of all cells sum to the number of units, not of rows."""
    problem = from_files(table, target="sick", public=("classes",), unit="patient_id")
    assert problem.owners is not None
    rows, units = len(problem.test[0]), len(set(problem.owners.test.tolist()))
    assert rows > units
    shares = np.stack([np.linspace(0, 1, rows), 1 - np.linspace(0, 1, rows)], 1)
    found = Evaluation(rows, 0.0, 0.0, probabilities=shares, labels=problem.test[1].numpy())

    class Release:
        event, lost, adjacency = _Silent(), 0.0, "zero-out"

    drawn = _draw(problem, found, Release(), Secret.from_seed(0, "metrics"))  # type: ignore[arg-type]
    assert abs(np.sum(drawn["noisy_confusion"]) - units) < 1e-2 + rows * FINEST
    assert drawn["figures"]["rows"] == units
    assert drawn["weighed"] == "each patient_id counts 1, whatever its rows"
    assert torch.is_tensor(problem.test[1])
