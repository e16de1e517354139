"""Defaults for tables: from public numbers only, stored with the run, overridden by any given option."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hush.cli import main
from hush.cli.options import TaskOptions, note_open, recall
from hush.cli.prepare import load_task
from hush.errors import InvalidInputError
from hush.tabular.columns import Encoder
from hush.tabular.defaults import TableDefaults, choose_model, choose_numbers
from hush.tabular.problem import from_files
from patients import NAMES, PATIENTS, ROWS, STRAY, write_patients
from train_arguments import keep

CHOSEN = {"model": "logistic", "batch_size": 15, "lr": 0.17, "average": "tail:0.5", "microbatch": 4096}
OLD = {"model": None, "batch_size": 256, "lr": None, "average": None, "microbatch": 400}


def write_table(path: Path, rows: int = 300, scale: float = 1.0) -> Path:
    random = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "price", "y"])
        for a, b in scale * random.normal(size=(rows, 2)):
            table.writerow([f"{a:.3f}", f"{b:.3f}", f"{a - b:.3f}", "yes" if a + b > 0 else "no"])
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv")


def train(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    code = main(["train", *map(str, arguments), "--steps", "2", "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out), said.err


def read_options(out: Path) -> dict[str, Any]:
    found = json.loads((out / "private" / "options.json").read_text())
    return {name: found[name] for name in CHOSEN}


def widths(model: str | None, table: Path, **more: Any) -> tuple[int, ...]:
    return tuple(
        from_files(table, target="y", public=("classes",), model=model, **more).architecture.arguments["widths"]
    )[1:-1]


class TestNumbers:
    def test_a_hidden_layer_from_5000_examples_on(self) -> None:
        assert (choose_model(4_999), choose_model(5_000)) == ("logistic", "mlp-32")

    @pytest.mark.parametrize(
        ("examples", "epsilon", "linear", "batch", "lr"),
        [
            (3_285, 8.0, True, 206, 1.0),  # √26280/160 = 1.013
            (3_285, 1.0, True, 206, 0.36),
            (16_000, 1.0, False, 1_000, 1.6),
            (32_561, 3.0, False, 2_036, 3.0),  # √97683/80 = 3.9, and 3 at most
            (10**7, 8.0, False, 4_096, 3.0),
            (1, 1.0, True, 1, 0.0063),  # √1/160 = 0.00625
        ],
    )
    def test_batch_and_rate(self, examples: int, epsilon: float, linear: bool, batch: int, lr: float) -> None:
        assert choose_numbers(examples, epsilon, linear=linear) == TableDefaults(batch, pytest.approx(lr, rel=0.02))


class TestModels:
    def test_a_small_table_gets_logistic_regression(self, table: Path) -> None:
        assert from_files(table, target="y", public=("classes",)).architecture.name == "logistic"

    def test_a_longer_one_a_hidden_layer(self, tmp_path: Path) -> None:
        assert widths(None, write_table(tmp_path / "long.csv", 6_250)) == (32,)  # 5 000 to train on

    def test_widths_are_in_the_name(self, table: Path) -> None:
        assert (widths("mlp", table), widths("mlp-64-32", table), widths("mlp-7", table)) == ((128, 64), (64, 32), (7,))

    @pytest.mark.parametrize("model", ["mlp-", "mlp-0", "mlp-x", "mlp-1000000", "mlp-4-", "mlp-²"])
    def test_what_is_no_width_is_refused(self, table: Path, model: str) -> None:
        with pytest.raises(InvalidInputError, match="mlp-64-32"):
            from_files(table, target="y", public=("classes",), model=model)

    def test_a_number_to_predict_keeps_the_mlp(self, table: Path) -> None:
        found = from_files(table, target="price", task="regression", target_range=(-5, 5))
        assert tuple(found.architecture.arguments["widths"])[1:] == (128, 64, 1)


class TestRuns:
    def test_a_run_keeps_what_was_chosen(self, table: Path, tmp_path: Path, capsys) -> None:
        _, said = train(capsys, "--data", table, "--target", "y", "--public", "classes", "--out", tmp_path / "run")
        assert read_options(tmp_path / "run") == CHOSEN
        chosen = "chosen for 240 examples at ε = 3: batch-size 15, lr 0.17, average tail:0.5, microbatch 4096"
        assert chosen in said.splitlines()

    def test_rows_of_the_same_number_get_the_same(self, tmp_path: Path, capsys) -> None:
        for place, scale in enumerate((1.0, 1e4)):
            path = write_table(tmp_path / f"{place}.csv", scale=scale)
            train(capsys, "--data", path, "--target", "y", "--public", "classes", "--out", tmp_path / f"run-{place}")
            assert read_options(tmp_path / f"run-{place}") == CHOSEN

    def test_what_was_said_wins(self, table: Path, tmp_path: Path, capsys) -> None:
        given = {"model": "mlp", "batch_size": 20, "lr": 0.5, "average": "none", "microbatch": 64}
        flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
        _, said = train(
            capsys, "--data", table, "--target", "y", "--public", "classes", *flags, "--out", tmp_path / "run"
        )
        assert read_options(tmp_path / "run") == given | {"model": "mlp-128-64"}
        assert "chosen for" not in said
        assert "Averaged" not in (tmp_path / "run" / "release" / "privacy.json").read_text()

    @pytest.mark.parametrize("flags", [("--clip", "0.5"), ("--clip-mode", "automatic"), ("--set", "momentum=0.9")])
    def test_a_rate_is_chosen_for_plain_clipping_at_1_alone(self, flags, table: Path, tmp_path: Path, capsys) -> None:
        train(capsys, "--data", table, "--target", "y", "--public", "classes", *flags, "--out", tmp_path / "run")
        assert read_options(tmp_path / "run") == CHOSEN | {"lr": None}

    def test_other_methods_and_tasks_have_their_own(self, table: Path, tmp_path: Path, capsys) -> None:
        train(
            capsys,
            "--data",
            table,
            "--target",
            "y",
            "--public",
            "classes",
            "--method",
            "dp-adam",
            "--out",
            tmp_path / "adam",
        )
        number = ("--target", "price", "--task", "regression", "--target-range", "-5", "5")
        train(capsys, "--data", table, *number, "--out", tmp_path / "number")
        own = OLD | {"batch_size": 60}  # a quarter of the examples, as 256 are more than there are
        assert read_options(tmp_path / "adam") == own | {"model": "logistic"}
        assert read_options(tmp_path / "number") == own | {"model": "mlp-128-64"}

    @pytest.mark.parametrize("epsilon", ["-1", "0", "nan", "inf"])
    def test_an_epsilon_that_is_none_is_one_sentence(self, epsilon: str, table: Path, capsys) -> None:
        assert (
            main(keep(["train", "--data", str(table), "--target", "y", "--public", "classes", "--epsilon", epsilon]))
            == 2
        )
        assert "epsilon must be" in capsys.readouterr().err.splitlines()[-1]

    def test_a_finished_run_is_recalled(self, table: Path, tmp_path: Path, capsys) -> None:
        first, _ = train(capsys, "--data", table, "--target", "y", "--public", "classes", "--out", tmp_path / "run")
        code = main(["train", "--out", str(tmp_path / "run"), "--resume", "--json"])
        assert code == 0
        assert json.loads(capsys.readouterr().out)["test_auc"] == first["test_auc"]

    def test_a_run_from_before_goes_on_as_it_began(self, table: Path, tmp_path: Path) -> None:
        folder = tmp_path / "run" / "private"
        folder.mkdir(parents=True)
        kept = OLD | {"data": {"path": str(table)}, "target": "y"}
        (folder / "options.json").write_text(json.dumps(kept))
        found = note_open(recall({"out": tmp_path / "run", "resume": True}))
        assert (found["left_open"], found["batch_size"], found["lr"]) == (frozenset(), 256, None)
        task = load_task(TaskOptions(data=found["data"], target="y", model=found["model"], resumed=found["resumed"]))
        assert tuple(task.architecture.arguments["widths"])[1:-1] == (128, 64)


def test_patients_at_8_are_within_two_hundredths_of_no_privacy(tmp_path: Path, capsys) -> None:
    """No flag but target, unit and ε; the mean of two seeds, beside logistic regression on the same inputs."""
    path = write_patients(tmp_path / "patients.csv")
    told = []
    for seed in ("0", "1"):
        flags = ("--data", str(path), "--target", "y", "--public", "classes", "--unit", "patient_id", "--epsilon", "8")
        assert main(keep(["train", *flags, "--seed", seed, "--secret-seed", seed, "--json"])) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert all(found["epsilon"] <= 8 and found["unit"] == "patient_id" for found in told)
    task = from_files(path, target="y", public=("classes",), unit="patient_id")
    assert task.schema is not None
    encode = Encoder(task.schema.features)
    (x, y), (held, labels) = ((encode(rows).numpy(), truth.numpy()) for rows, truth in (task.train, task.test))
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(x, y)
    area = roc_auc_score(labels, plain.predict_proba(held)[:, 1])
    assert 0.78 < area < 0.81
    assert np.mean([found["test_auc"] for found in told]) > area - 0.02


# The synthetic patients table: deterministic for a seed, with the stated counts and a learnable target.


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
