"""`hush train --private-ranges` and `--class-weights private`: released with noise before training, within one ε."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from safetensors.torch import load_file

from hush import make_plan
from hush.accounting import events
from hush.cli import main
from hush.data_release import make_releases
from hush.errors import InvalidInputError
from hush.ledger.book import Ledger
from hush.statistics import releases
from hush.tabular.problem import from_files
from keeping import keep

SHORT = ("--target", "y", "--public", "classes", "--batch-size", 64, "--steps", 30)


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(keep(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *arguments: object) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def card(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "release" / "privacy.json").read_text())
    return found


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
    found = answer(capsys, "train", "--data", people, *SHORT, "--epsilon", 8, "--private-ranges", 0.3, "--out", out)
    assert 7.9 < found["epsilon"] <= 8
    assert "the model and the noisy ranges of the columns" in found["sentence"]
    told, schema = card(out), json.loads((out / "release" / "schema.json").read_text())
    assert [release["name"] for release in told["beside"]] == ["the noisy ranges of the columns"]
    assert set(found["private_ranges"]) == {"age", "income"}
    for name, (low, high) in found["private_ranges"].items():
        assert told["private_ranges"][name] == [low, high]
        assert schema["columns"][name] == {"kind": "number", "low": low, "high": high, "missing": True, "waves": True}
    training, *others = events.from_json(told["accounting"]["event"]).events
    assert [type(event) for event in others] == [dp_event.GaussianDpEvent]
    assert isinstance(training, dp_event.SelfComposedDpEvent)
    low, high = found["private_ranges"]["income"]
    assert 0 <= low < 22_000 < high < 300_000
    rows = np.loadtxt(people, delimiter=",", skiprows=1, usecols=1)
    assert {low, high}.isdisjoint(rows.tolist())  # no exact value


def test_the_released_model_encodes_by_the_released_ranges(capsys, people: Path, tmp_path: Path) -> None:
    out, predicted = tmp_path / "run", tmp_path / "predicted.csv"
    options = ("--epsilon", 30, "--private-ranges", 0.3, "--lr", 1, "--model", "logistic", "--out", out)
    found = answer(capsys, "train", "--data", people, *SHORT, *options)
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
    found = answer(capsys, "train", "--data", people, *SHORT, *options)
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
    given = ("train", "--data", people, *SHORT, "--noise-multiplier", 1.5)
    alone, both = answer(capsys, *given), answer(capsys, *given, "--private-ranges", 0.5)
    assert alone["noise_multiplier"] == both["noise_multiplier"] == 1.5
    assert alone["epsilon"] * 1.02 < both["epsilon"] < 1.5 * alone["epsilon"]


def test_figures_and_ranges_share_the_epsilon(capsys, people: Path) -> None:
    given = ("train", "--data", people, *SHORT, "--epsilon", 8, "--private-metrics", 2, "--private-ranges", 0.2)
    found = answer(capsys, *given)
    assert 7.9 < found["epsilon"] <= 8
    said = "the model and the noisy ranges of the columns and figures with noise of the held-out rows together"
    assert said in found["sentence"]


@pytest.mark.parametrize("where", ["make_releases", "take_releases"])
def test_stopped_at_the_release_it_goes_on_to_the_same_bits(
    capsys, monkeypatch, people: Path, tmp_path: Path, where: str
) -> None:
    """Killed before the release is made, or when it is made and not used: the ledger covers it, and the run that goes
    on is the one that was never stopped."""
    monkeypatch.setattr("hush.data_release._met", {})
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
    given = ("train", "--data", people, *SHORT, *options)
    whole = answer(capsys, *given, "--out", tmp_path / "whole", "--ledger", tmp_path / "first")

    def stop(run: Any, *rest: object) -> None:
        if where == "make_releases":
            run.charge()
        raise KeyboardInterrupt

    broken = ("--out", tmp_path / "broken", "--ledger", tmp_path / "second")
    with monkeypatch.context() as patched:
        patched.setattr(f"hush.cli.train.{where}", stop)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            raise SystemExit(main([str(a) for a in (*given, *broken)]))
    capsys.readouterr()
    entered = _spends(tmp_path / "second")
    assert len(entered) == 1
    assert len(entered[0].cost.event.events) == 3
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
    given = ("train", "--data", people, *SHORT, "--epsilon", 8, "--private-ranges", 0.2, "--out", tmp_path / "run")

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
    given = ("train", "--data", people, *SHORT, "--epsilon", 8, "--private-ranges", 0.2, "--checkpoint-every", 10)
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
    (("--private-ranges", 1), "takes a share of ε above 0 and below 1, such as 0.1"),
    (("--private-ranges", 0), "takes a share of ε above 0 and below 1, such as 0.1"),
    (("--private-ranges", "nan"), "takes a share of ε above 0 and below 1, such as 0.1"),
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
    code, _, err = call(capsys, "train", "--data", people, *SHORT, *flags)
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
    given = ("train", "--data", tmp_path / "visits.csv", *SHORT, "--epsilon", 8, "--unit", "who", "--delta", 1e-4)
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
    encoder = next(iter(run.model.children()))
    assert encoder.get_buffer("low").tolist()[0] == pytest.approx(low)
    for batch in run.batches():
        run.step(batch)
    assert run.guarantee.epsilon <= 6.0
    with pytest.raises(releases.NotProvenError, match="unit"):
        releases.plan_releases(problem, alone, 6.0, weight_share=0.1, units=np.arange(480))
