"""`hush train`: all metrics on stdout and in private/, and only publishable ones in the release."""

from __future__ import annotations

import json
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from safetensors.torch import load_file

import hush
from hush import make_plan
from hush.accounting import events
from hush.cli import main
from hush.cli.main import app
from hush.cli.train import list_lines
from hush.data_release import make_releases
from hush.errors import InvalidInputError, ResumeError
from hush.ledger.book import Ledger
from hush.release.folder import WEIGHTS, pack_weights
from hush.run_directory import METRICS
from hush.statistics import releases
from hush.tabular.problem import from_files
from train_arguments import keep

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
    assert told["beside"][0]["event"] in told["guarantee"]["event"]
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
    monkeypatch.setattr("hush.statistics.private_metrics.draw_metrics", lambda *a: drawn.append(a))
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
    code, out, err = call(capsys, *given, tmp_path / "two", "--private-metrics", 1)
    assert code == 0, err
    first, second, *_ = out.splitlines()
    assert first.startswith("the model's outputs are not finite")
    assert second.startswith("released with noise: ")
    assert "log-loss" not in out
    assert (tmp_path / "two" / "release").is_dir()


# `--private-ranges` and `--class-weights private`: released with noise before training, within one ε.


SHORT_RUN = ("--target", "y", "--public", "classes", "--batch-size", 64, "--steps", 30)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """600 rows: an age, an income that decides, a town; one in five is 'yes'."""
    generator = np.random.default_rng(0)
    income = generator.lognormal(10, 0.5, 600)
    rich = income > np.quantile(income, 0.8)
    lines = [
        f"{generator.integers(18, 80)},{pay:.2f},{'abc'[i % 3]},{'yes' if yes else 'no'}"
        for i, (pay, yes) in enumerate(zip(income, rich, strict=True))
    ]
    (tmp_path / "people.csv").write_text("\n".join(["age,income,town,y", *lines]) + "\n")
    return tmp_path / "people.csv"


def test_ranges_are_released_within_the_epsilon(capsys, people: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = answer(capsys, "train", "--data", people, *SHORT_RUN, "--epsilon", 8, "--private-ranges", 0.3, "--out", out)
    assert 7.9 < found["epsilon"] <= 8
    assert "the model and the noisy ranges of the columns" in found["sentence"]
    told, schema = card(out), json.loads((out / "release" / "schema.json").read_text())
    assert [release["name"] for release in told["beside"]] == ["the noisy ranges of the columns"]
    assert set(found["private_ranges"]) == {"age", "income"}
    for name, (low, high) in found["private_ranges"].items():
        assert told["private_ranges"][name] == [low, high]
        assert schema["columns"][name] == {"kind": "number", "low": low, "high": high, "missing": True, "waves": True}
    training, *others = events.from_json(told["accounting"]["event"]).events
    assert [type(event) for event in others] == [dp_event.GaussianDpEvent, events.FinitePrecisionDpEvent]
    assert isinstance(training, dp_event.SelfComposedDpEvent)
    low, high = found["private_ranges"]["income"]
    assert 0 <= low < 22_000 < high < 300_000
    rows = np.loadtxt(people, delimiter=",", skiprows=1, usecols=1)
    assert {low, high}.isdisjoint(rows.tolist())  # no exact value


def test_the_released_model_encodes_by_the_released_ranges(capsys, people: Path, tmp_path: Path) -> None:
    out, predicted = tmp_path / "run", tmp_path / "predicted.csv"
    options = ("--epsilon", 30, "--private-ranges", 0.3, "--lr", 1, "--model", "logistic", "--out", out)
    found = answer(capsys, "train", "--data", people, *SHORT_RUN, *options)
    assert found["test_auc"] > 0.9
    code, _, err = call(capsys, "predict", out / "release", people, "--out", predicted)
    assert code == 0, err
    probabilities = [float(line.split(",")[-1]) for line in predicted.read_text().splitlines()[1:]]
    truth = [line.endswith("yes") for line in people.read_text().splitlines()[1:]]
    ranks = np.argsort(np.argsort(probabilities))
    yes = ranks[np.array(truth)]
    area = (yes.sum() - len(yes) * (len(yes) - 1) / 2) / (len(yes) * (len(truth) - len(yes)))
    assert abs(area - 0.5) > 0.35


def test_class_weights_follow_noisy_counts(capsys, people: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--epsilon", 8, "--class-weights", "private:0.3", "--private-ranges", 0.2, "--out", out)
    found = answer(capsys, "train", "--data", people, *SHORT_RUN, *options)
    weights = found["private_class_weights"]
    assert weights["yes"] == pytest.approx(2.5, rel=0.3)
    assert weights["no"] == pytest.approx(0.625, rel=0.3)
    told = card(out)
    assert told["private_class_weights"] == weights
    assert [release["name"] for release in told["beside"]] == [
        "the noisy ranges of the columns",
        "the noisy counts of the classes",
    ]
    assert 7.9 < found["epsilon"] <= 8
    assert not [text for text in told["guarantee"]["assumptions"] if "class weights" in text]


def test_they_come_on_top_of_a_given_noise(capsys, people: Path) -> None:
    given = ("train", "--data", people, *SHORT_RUN, "--noise-multiplier", 1.5)
    alone, both = answer(capsys, *given), answer(capsys, *given, "--private-ranges", 0.5)
    assert alone["noise_multiplier"] == both["noise_multiplier"] == 1.5
    assert alone["epsilon"] * 1.02 < both["epsilon"] < 1.5 * alone["epsilon"]


def test_figures_and_ranges_share_the_epsilon(capsys, people: Path) -> None:
    given = ("train", "--data", people, *SHORT_RUN, "--epsilon", 8, "--private-metrics", 2, "--private-ranges", 0.2)
    found = answer(capsys, *given)
    assert 7.9 < found["epsilon"] <= 8
    said = "the model and the noisy ranges of the columns and figures with noise of the held-out rows together"
    assert said in found["sentence"]


@pytest.mark.parametrize("where", ["hush.training.make_releases", "hush.statistics.releases.take_releases"])
def test_stopped_at_the_release_it_goes_on_to_the_same_bits(
    capsys, monkeypatch, people: Path, tmp_path: Path, where: str
) -> None:
    """Killed before the release is made, or when it is made and not used: the ledger covers it, and the run that goes
    on is the one that was never stopped."""
    monkeypatch.setattr("hush.data_release._noised_content", {})
    options = (
        "--epsilon",
        8,
        "--private-ranges",
        0.2,
        "--class-weights",
        "private",
        "--secret-seed",
        4,
        "--keep-secret",
    )
    given = ("train", "--data", people, *SHORT_RUN, *options)
    whole = answer(capsys, *given, "--out", tmp_path / "whole", "--ledger", tmp_path / "first")

    def stop(run: Any, *rest: object) -> None:
        if where == "hush.training.make_releases":
            run.charge()
        raise KeyboardInterrupt

    broken = ("--out", tmp_path / "broken", "--ledger", tmp_path / "second")
    with monkeypatch.context() as patched:
        patched.setattr(where, stop)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            raise SystemExit(main([str(a) for a in (*given, *broken)]))
    capsys.readouterr()
    entered = _spends(tmp_path / "second")
    assert len(entered) == 1
    assert len(entered[0].cost.event.events) == 4  # with the precision of the noise
    again = answer(capsys, "train", "--out", tmp_path / "broken", "--resume")
    assert _spends(tmp_path / "second")[0].cost == _spends(tmp_path / "first")[0].cost
    assert again["private_ranges"] == whole["private_ranges"]
    assert again["private_class_weights"] == whole["private_class_weights"]
    weights = [load_file(tmp_path / name / "release" / "model.safetensors") for name in ("whole", "broken")]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_first_step_that_is_refused_does_not_forget_the_secret_of_a_release(
    capsys, monkeypatch, people: Path, tmp_path: Path
) -> None:
    given = ("train", "--data", people, *SHORT_RUN, "--epsilon", 8, "--private-ranges", 0.2, "--out", tmp_path / "run")

    def refuse(*given: object) -> None:
        raise InvalidInputError("no step")

    with monkeypatch.context() as patched:
        patched.setattr("hush.run.Run.step", refuse)
        code, _, err = call(capsys, *given)
    assert code == 2
    assert "no step" in err
    kept = load_file(tmp_path / "run" / "private" / "before-ranges.safetensors")["limits"].tolist()
    again = answer(capsys, "train", "--out", tmp_path / "run", "--resume")
    assert list(again["private_ranges"].values()) == kept


def _spends(path: Path) -> list[Any]:
    ledger = Ledger(path)
    with ledger.turn():
        return list(ledger.spends("default").values())


def test_a_run_that_goes_on_in_the_middle_keeps_its_ranges(capsys, people: Path, tmp_path: Path, monkeypatch) -> None:
    given = ("train", "--data", people, *SHORT_RUN, "--epsilon", 8, "--private-ranges", 0.2, "--checkpoint-every", 10)
    out = tmp_path / "run"
    steps = iter(range(100))
    with monkeypatch.context() as patched:
        patched.setattr("hush.cli.train.note_interrupts", _interrupt_after(steps, 12))
        assert main([str(a) for a in (*given, "--out", out)]) == 130
    said = capsys.readouterr().err
    kept = load_file(out / "private" / "before-ranges.safetensors")["limits"].tolist()
    again = answer(capsys, "train", "--out", out, "--resume")
    assert again["resumed_from"] > 0
    assert list(again["private_ranges"].values()) == kept
    assert "column 'age': range" in said


def _interrupt_after(steps: Any, count: int) -> Any:
    @contextmanager
    def note() -> Any:
        yield lambda: next(steps) >= count

    return note


REFUSED = [
    (("--private-ranges", 1), "takes a share of ε in (0, 1), got 1"),
    (("--private-ranges", 0), "takes a share of ε in (0, 1), got 0"),
    (("--private-ranges", "nan"), "takes a share of ε in (0, 1), got nan"),
    (("--private-ranges", 0.6, "--class-weights", "private:0.5"), "take 1.1 of ε and leave nothing for it: give less"),
    (("--class-weights", "private:much"), "--class-weights private:SHARE takes a share of ε such as 0.05, got 'much'"),
    (("--private-ranges", 0.1, "--public", "ranges+classes"), "has a public range already: leave --private-ranges out"),
    (
        ("--private-ranges", 0.1, "--method", "sgd"),
        "method 'sgd' adds no noise",
    ),
    (("--private-ranges", 0.1, "--method", "dp-dice"), "cannot be composed with the noisy ranges of the columns"),
    (("--class-weights", "private", "--method", "sgd"), "method 'sgd' adds no noise"),
    (("--class-weights", "private", "--clip-mode", "automatic"), "which undoes --class-weights: use plain"),
    (
        ("--private-ranges", 0.99, "--private-metrics", 0.9, "--epsilon", 1),
        "nothing is left of ε = 1 for training: the",
    ),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED)
def test_what_cannot_be_is_one_sentence(capsys, people: Path, flags: tuple[object, ...], said: str) -> None:
    code, _, err = call(capsys, "train", "--data", people, *SHORT_RUN, *flags)
    assert code == 2
    assert said in err
    assert err.count("error:") == 1


def test_tables_without_numbers_and_other_data_are_refused(capsys, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("a,y\n" + "".join(f"{'pqr'[i % 3]},{i % 2}\n" for i in range(60)))
    code, _, err = call(capsys, "train", "--data", tmp_path / "words.csv", "--target", "y", "--private-ranges", 0.1)
    assert code == 2
    assert "has no numeric column, so there is no range to release: leave --private-ranges out" in err
    code, _, err = call(capsys, "train", "--problem", "digits-mlp", "--private-ranges", 0.1)
    assert code == 2
    assert "describe your own data: give it with --data" in err


def test_a_unit_counts_once_however_many_rows_it_has(capsys, tmp_path: Path) -> None:
    """One person in ten has 60 rows of 'yes', the others one row of 'no': by rows 'yes' is common, by people rare."""
    generator = np.random.default_rng(1)
    lines = [
        f"p{person},{generator.normal(50 if person % 10 else 5000, 1):.3f},{'no' if person % 10 else 'yes'}"
        for person in range(600)
        for _ in range(1 if person % 10 else 60)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["who,x,y", *lines]) + "\n")
    given = ("train", "--data", tmp_path / "visits.csv", *SHORT_RUN, "--epsilon", 8, "--unit", "who", "--delta", 1e-4)
    options = ("--private-ranges", 0.3, "--class-weights", "private:0.3")
    found = answer(capsys, *given, *options)
    weights = found["private_class_weights"]
    assert weights["yes"] > 3 * weights["no"]  # by rows it would be less than a fifth of it
    assert "per who" in found["sentence"]
    assert 7.9 < found["epsilon"] <= 8


def test_in_python(people: Path) -> None:
    problem = from_files(people, target="y", public=("classes",), private_ranges=True).awaiting_weights()
    setting = {"examples": len(problem.train[0]), "batch_size": 64, "steps": 20, "epsilon": 6.0, "counted": True}
    alone = make_plan("dp-sgd", **setting)
    parts = releases.plan_releases(problem, alone, 6.0, range_share=0.2, weight_share=0.1)
    plan = make_plan("dp-sgd", **setting, composed=tuple(part.composed for part in parts))
    run = plan.start(problem.model(), problem.training_losses, problem.train)
    problem, told = releases.take_releases(problem, run, make_releases(run, parts))
    assert problem.schema is not None
    low, high = told["private_ranges"]["age"]
    assert (problem.schema.features[0].low, problem.schema.features[0].high) == (low, high)
    lows = [value for name, value in run.model.named_buffers() if name.endswith(".low")]
    assert [value.tolist()[0] for value in lows] == [pytest.approx(low)]
    for batch in run.batches():
        run.step(batch)
    assert run.guarantee.epsilon <= 6.0
    with pytest.raises(releases.NotProvenError, match="unit"):
        releases.plan_releases(problem, alone, 6.0, weight_share=0.1, units=np.arange(480))
