"""`hush train`: every figure on stdout and in private/, and in the release only what may be there."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush.cli import main
from hush.cli.main import app
from hush.cli.train import METRICS, list_lines
from hush.errors import ResumeError
from hush.release.folder import WEIGHTS, pack_weights
from keeping import keep

SHORT = ("train", "--problem", "breast-cancer-logistic", "--batch-size", 64, "--epochs", 2)


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(keep(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *arguments: object) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def raised(*arguments: object) -> None:
    """The command without the layer that turns errors into sentences."""
    app(args=[str(a) for a in arguments], standalone_mode=False)


def card(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "release" / "privacy.json").read_text())
    return found


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """300 rows of which nine in ten are 'a', and numbers that say nothing of it."""
    generator = np.random.default_rng(0)
    rows = [f"{generator.normal():.3f},{'a' if i % 10 else 'b'}" for i in range(300)]
    (tmp_path / "rare.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    return tmp_path / "rare.csv"


def test_every_figure_is_in_the_answer_and_follows_from_the_confusion_matrix(capsys) -> None:
    found = answer(capsys, *SHORT)
    confusion = np.array(found["test_confusion"])
    recall = confusion.diagonal() / confusion.sum(1)
    assert found["test_accuracy"] == pytest.approx(confusion.trace() / confusion.sum())
    assert found["test_commonest_accuracy"] == pytest.approx(confusion.sum(1).max() / confusion.sum())
    assert found["test_balanced_accuracy"] == pytest.approx(recall.mean())
    assert list(found["test_recall"]) == ["malignant", "benign"]
    assert list(found["test_recall"].values()) == pytest.approx(list(recall))
    assert found["test_log_loss"] == pytest.approx(found["test_loss"], rel=1e-5)
    assert 0.5 < found["test_auc"] <= 1
    assert "private_metrics" not in found


def test_exact_figures_are_kept_privately_and_not_released(capsys, tmp_path: Path) -> None:
    found = answer(capsys, *SHORT, "--out", tmp_path / "run")
    kept = tmp_path / "run" / "private" / "figures.json"
    assert json.loads(kept.read_text())["test_confusion"] == found["test_confusion"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    released = "".join(path.read_text() for path in (tmp_path / "run" / "release").glob("*.json"))
    assert "test_accuracy" not in released
    assert "confusion" not in released


def test_public_test_rows_are_released_exactly(capsys, tmp_path: Path) -> None:
    found = answer(capsys, *SHORT, "--public-test", "--out", tmp_path / "run")
    told = card(tmp_path / "run")
    assert told["test_figures"]["test_confusion"] == found["test_confusion"]
    assert "the rows that were tested on are public" in told["guarantee"]["assumptions"]
    assert told["beside"] == []


def test_noisy_figures_are_part_of_the_spend(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = answer(capsys, *SHORT, "--epsilon", 3, "--private-metrics", 1, "--out", out)
    told = card(out)
    assert 2.97 < found["epsilon"] <= 3
    assert told["guarantee"]["epsilon"] == found["epsilon"]
    assert "Gaussian" in told["beside"][0]["event"]
    assert told["guarantee"]["event"].endswith(told["beside"][0]["event"])
    assert "figures with noise of the held-out rows" in told["guarantee"]["sentence"]
    assert found["noise_multiplier"] > 1.02 * answer(capsys, *SHORT, "--epsilon", 3)["noise_multiplier"]
    released = "".join(path.read_text() for path in (out / "release").glob("*.json"))
    assert "test_accuracy" not in released


def test_noisy_figures_are_noisy_and_near(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = answer(capsys, *SHORT, "--epsilon", 30, "--private-metrics", 8, "--out", out)
    metrics = card(out)["private_metrics"]
    exact, noisy = np.array(found["test_confusion"]), np.array(metrics["noisy_confusion"])
    std = metrics["noise_std"]["confusion"]
    assert not np.array_equal(exact, noisy)
    assert np.abs(exact - noisy).max() < 7 * std < 10
    assert metrics["figures"]["accuracy"] == pytest.approx(found["test_accuracy"], abs=7 * metrics["accuracy_std"])
    assert metrics["figures"]["rows"] == exact.sum()
    assert metrics["classes"] == ["malignant", "benign"]


def test_a_run_that_is_reported_again_draws_no_second_noise(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = answer(capsys, *SHORT, "--private-metrics", 1, "--keep-secret", "--out", out)["private_metrics"]
    assert answer(capsys, "train", "--out", out, "--resume")["private_metrics"] == first
    assert card(out)["private_metrics"] == first
    kept = json.loads((out / "private" / METRICS).read_text())
    (out / "private" / METRICS).write_text(json.dumps({**kept, "weights": "of another model"}))
    code, text, err = call(capsys, "train", "--out", out, "--resume", "--json")
    assert code == 0
    assert json.loads(text)["private_metrics"] is None
    assert "paid for once: none are released" in err
    (out / "private" / METRICS).write_text("{")
    assert call(capsys, "train", "--out", out, "--resume")[0] == 2


def test_figures_are_kept_for_the_weights_that_are_released(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer(capsys, *SHORT, "--private-metrics", 1, "--out", out)
    kept = json.loads((out / "private" / METRICS).read_text())
    assert kept["weights"] == card(out)["digests"][WEIGHTS]
    assert pack_weights(hush.load(out).network) == (out / "release" / WEIGHTS).read_bytes()


def test_figures_that_were_released_are_not_drawn_again_where_the_private_record_is_gone(
    capsys, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = answer(capsys, *SHORT, "--private-metrics", 1, "--keep-secret", "--out", out)["private_metrics"]
    (out / "private" / METRICS).unlink()
    assert answer(capsys, "train", "--out", out, "--resume")["private_metrics"] == first
    assert card(out)["private_metrics"] == first


@pytest.mark.parametrize("more", [("--keep-secret",), ()], ids=["secret kept", "killed before the secret was wiped"])
def test_figures_that_are_gone_with_the_release_are_refused(more, capsys, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    if not more:
        monkeypatch.setattr("hush.run_directory.RunDirectory.finish", lambda *a, **k: None)
    answer(capsys, *SHORT, "--private-metrics", 1, *more, "--out", out)
    (out / "release").rename(tmp_path / "moved")
    (out / "private" / METRICS).unlink()
    drawn: list[object] = []
    monkeypatch.setattr("hush.cli.train._draw", lambda *a: drawn.append(a))
    with pytest.raises(ResumeError, match=METRICS):
        raised("train", "--out", out, "--resume")
    assert drawn == []
    assert not (out / "release").exists()


def test_the_noise_of_figures_is_a_function_of_the_runs_secret_and_the_counts(capsys, tmp_path: Path) -> None:
    """Where also the list of releases is gone, repeating gives the same figures."""
    out = tmp_path / "run"
    first = answer(capsys, *SHORT, "--private-metrics", 1, "--keep-secret", "--out", out)["private_metrics"]
    (out / "release").rename(tmp_path / "moved")
    for name in (METRICS, "releases.jsonl"):
        (out / "private" / name).unlink()
    assert answer(capsys, "train", "--out", out, "--resume")["private_metrics"] == first


def test_a_run_without_its_secret_answers_the_same_and_verifies(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = answer(capsys, *SHORT, "--private-metrics", 1, "--out", out)
    again = answer(capsys, "train", "--out", out, "--resume")
    assert again["private_metrics"] == first["private_metrics"]
    assert again["test_recall"] == first["test_recall"]
    found = answer(capsys, "verify", out)
    assert found["verified"]
    assert found["epsilon_recomputed"] == pytest.approx(first["epsilon"], rel=1e-4)


def test_the_ledger_pays_for_the_figures(capsys, tmp_path: Path) -> None:
    book = ("--ledger", tmp_path / "book.json", "--dataset", "tumours")
    found = answer(capsys, *SHORT, "--private-metrics", 1, *book)
    assert found["ledger"]["epsilon"] == pytest.approx(found["epsilon"], rel=1e-3)
    assert found["epsilon"] > 2.97


def test_a_useless_model_is_called_that(rare: Path, capsys) -> None:
    code, out, err = call(
        capsys,
        "train",
        "--data",
        rare,
        "--target",
        "y",
        "--public",
        "classes",
        "--batch-size",
        32,
        "--epochs",
        1,
        "--epsilon",
        0.05,
    )
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("test accuracy ")
    assert lines[1].startswith("always the commonest class ")
    assert "lowest recall: " in lines[2]
    assert "always saying the commonest class" in lines[3]


def test_lines_for_people() -> None:
    told = {
        "test_loss": 1.0,
        "test_accuracy": 0.25,
        "test_commonest_accuracy": 0.5,
        "test_balanced_accuracy": 0.3,
        "test_auc": None,
        "test_log_loss": 1.25,
        "test_recall": {"a": 0.5, "b": None, "c": 0.125},
        "verdict": "Worse.",
    }
    assert list_lines(told, "(1 s)") == [
        "test accuracy 25.00 %  (1 s)",
        "always the commonest class 50.00 %, balanced accuracy 30.00 %, AUC does not exist, log-loss 1.250",
        "lowest recall: 12.5 % of 'c', 50.0 % of 'a'",
        "Worse.",
    ]
    assert list_lines(told | {"test_accuracy": 0.75}, "")[-1].startswith("lowest recall")
    assert list_lines({"test_loss": 0.5, "test_mae": 2.0, "test_rmse": 3.5, "test_r2": 0.25}, "(1 s)") == [
        "test MAE 2, RMSE 3.5, R² 0.250  (1 s)"
    ]


def test_numbers_are_predicted(tmp_path: Path, capsys) -> None:
    generator = np.random.default_rng(1)
    values = generator.uniform(0, 1, 400)
    lines = [f"{v:.4f},{10 + 30 * v:.3f}" for v in values]
    (tmp_path / "line.csv").write_text("\n".join(["x,price", *lines]) + "\n")
    (tmp_path / "facts.toml").write_text("[columns.x]\nlow = 0\nhigh = 1\n")
    how = (
        "--data",
        tmp_path / "line.csv",
        "--target",
        "price",
        "--schema",
        tmp_path / "facts.toml",
        "--batch-size",
        64,
    )
    flags = (*how, "--task", "regression", "--target-range", 10, 40, "--epsilon", 8, "--epochs", 20, "--lr", 0.5)
    found = answer(capsys, "train", *flags, "--out", tmp_path / "run")
    assert found["test_r2"] > 0.5  # always the mean: 0
    assert 0 < found["test_mae"] <= found["test_rmse"] < 8  # the target's deviation is 8.7
    assert "test_accuracy" not in found
    model = json.loads((tmp_path / "run" / "release" / "model.json").read_text())
    assert (model["task"], model["target_range"]) == ("regression", [10.0, 40.0])
    again = answer(capsys, "train", "--out", tmp_path / "run", "--resume")
    assert again["test_mae"] == found["test_mae"]
    assert call(capsys, "train", *how)[2].count("predict it with --task regression") == 1


def test_class_weights_shift_the_model_and_not_the_noise(rare: Path, capsys) -> None:
    flags = (
        "train",
        "--data",
        rare,
        "--target",
        "y",
        "--public",
        "classes",
        "--batch-size",
        64,
        "--epochs",
        10,
        "--epsilon",
        50,
    )
    plain = answer(capsys, *flags, "--secret-seed", 1)
    weighted = answer(capsys, *flags, "--secret-seed", 1, "--class-weights", "a=0.05")
    assert weighted["noise_multiplier"] == plain["noise_multiplier"]
    assert weighted["epsilon"] == plain["epsilon"]
    assert weighted["test_recall"]["b"] > plain["test_recall"]["b"] + 0.2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--private-metrics", 3), "--private-metrics 3 leaves nothing of --epsilon 3 for training"),
        (("--private-metrics", 0), "private_metrics must be above zero, got 0"),
        (("--private-metrics", -1), "private_metrics must be above zero, got -1"),
        (("--private-metrics", 1, "--public-test"), "leave --private-metrics out"),
        (("--private-metrics", 1, "--method", "sgd"), "adds no noise, so figures with noise of the held-out rows"),
        (("--private-metrics", 1, "--method", "dp-dice"), "cannot be composed with figures with noise"),
        (("--class-weights", "1,2,3"), "has 2 classes and needs as many weights, not 3"),
        (("--class-weights", "1,many"), "--class-weights takes numbers"),
        (("--class-weights", "1,-2"), "must be finite numbers above 0"),
        (("--class-weights", "bening=2"), "did you mean 'benign'"),
        (("--class-weights", "1,2", "--clip-mode", "automatic"), "which undoes --class-weights"),
        (("--task", "regression"), "describe your own data: give it with --data"),
        (("--target-range", 0, 1), "describe your own data: give it with --data"),
    ],
)
def test_bad_requests_are_one_sentence(capsys, flags, sentence) -> None:
    code, out, err = call(capsys, *SHORT, *flags)
    assert (code, out) == (2, ""), err
    assert sentence in err
    assert err.count("error:") == 1


def test_a_model_that_has_diverged_is_said_to_have(capsys, tmp_path: Path) -> None:
    given = (*SHORT, "--set", "weight_decay=1e20", "--out")
    found = answer(capsys, *given, tmp_path / "one")
    assert (found["test_loss"], found["test_log_loss"], found["test_auc"]) == (None, None, None)
    assert isinstance(found["test_accuracy"], float)
    code, out, _ = call(capsys, *given, tmp_path / "two", "--private-metrics", 1)
    assert code == 0
    first, second, *_ = out.splitlines()
    assert first.startswith("the model's outputs are not finite")
    assert second.startswith("released with noise: ")
    assert "log-loss" not in out
    assert (tmp_path / "two" / "release").is_dir()
