"""Sweeps over learning rates: who is chosen, by what, which spec that gives, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

import hush
from hush.bench.spec import read_spec
from hush.bench.trial import Trial

ROOT = Path(__file__).resolve().parents[1]
BEST = {"dp-sgd": 3.0, "dp-matrix-me": 1.0, "dp-matrix-me-lambda": 10.0}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The modules, with results of their own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from published import answers, records, setups, sweeps, winners

    monkeypatch.setattr(records, "RESULTS", tmp_path)
    return SimpleNamespace(answers=answers, setups=setups, sweeps=sweeps, winners=winners, results=tmp_path)


def make_record(trial: Trial, validation: float, test: float, outcome: str = "finished") -> dict[str, Any]:
    figures = {"validation_accuracy": validation, "test_accuracy": test}
    if trial.problem == "fashion-vae":
        figures = {"validation_loss": 100 - 100 * validation, "test_loss": 100 - 100 * test}
    return {
        "key": trial.key,
        "outcome": outcome,
        "config": trial.config(),
        "epsilon": trial.settings["epsilon"],
        "status": "proven",
        "curve": [],
        **figures,
    }


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def sweep_three(score: Callable[[Trial], tuple[float, float]]) -> list[dict[str, Any]]:
    trials = read_spec(ROOT / "specs" / "setup-3-reduced.toml").trials
    return [make_record(trial, *score(trial)) for trial in trials]


def prefer(trial: Trial) -> tuple[float, float]:
    """Held-out rows prefer BEST (the middle rate for the VAE); the test set would prefer another."""
    chosen = trial.options["lr"] == (1.0 if trial.problem == "fashion-vae" else BEST[trial.method])
    return (0.6, 0.5) if chosen else (0.4, 0.9)


def test_held_out_rows_choose_and_not_the_test_set(published: SimpleNamespace) -> None:
    write(published.results, "setup-3-reduced", sweep_three(prefer))
    cells = published.sweeps.read_cells("setup-3-reduced")
    assert len(cells) == 12
    for cell in cells:
        expected = 1.0 if cell.problem == "fashion-vae" else BEST[cell.method]
        assert published.sweeps.find_rate(cell.best) == expected
    assert cells[0].tell() == "50.00 (1), lr 3"
    told = {cell.method: cell.tell() for cell in cells if cell.problem == "cifar10-p1" and cell.epsilon == 10}
    assert told["dp-matrix-me"] == "50.00 (1), lr 1 ▾"  # the smallest and the largest
    assert told["dp-matrix-me-lambda"] == "50.00 (1), lr 10 ▴"


def test_nobody_is_chosen_while_rates_are_missing(published: SimpleNamespace) -> None:
    write(published.results, "setup-3-reduced", sweep_three(prefer)[1:])
    first, *others = published.sweeps.read_cells("setup-3-reduced")
    assert first.best is None
    assert first.tell() == "3 of 4 rates are in"
    assert all(cell.best is not None for cell in others)
    assert "41 of 42 runs are in" in " ".join(published.setups.render_many()).replace("\n", " ")


def test_a_run_that_diverged_is_not_chosen(published: SimpleNamespace) -> None:
    records = sweep_three(prefer)
    for record in records:
        if record["config"]["problem"] == "cifar10-p1":
            record["outcome"] = "diverged"
    write(published.results, "setup-3-reduced", records)
    cells = published.sweeps.read_cells("setup-3-reduced")
    assert cells[0].tell() == "diverged at every rate"
    assert [cell.best for cell in cells if cell.problem == "cifar10-p1"] == [None] * 6


def test_the_winners_are_the_chosen_rates_with_three_seeds(published: SimpleNamespace, tmp_path: Path) -> None:
    records = sweep_three(prefer)
    write(published.results, "setup-3-reduced", records)
    path = tmp_path / "setup-3-winners.toml"
    path.write_text(published.winners.render_winners("setup-3"))
    spec = read_spec(path)
    assert spec.name == "setup-3-winners"
    assert len(spec.trials) == 36
    chosen = {cell.best["key"] for cell in published.sweeps.read_cells("setup-3-reduced")}
    assert chosen <= {trial.key for trial in spec.trials}  # the first seed is the run that was chosen
    assert {t.options["lr"] for t in spec.trials if t.method == "dp-sgd" and t.problem == "cifar10-p1"} == {3.0}
    assert len({trial.seed for trial in spec.trials}) == 3
    more = [make_record(trial, 0.6, 0.52) for trial in spec.trials if trial.key not in chosen]
    write(published.results, "setup-3-winners", more)
    assert published.sweeps.read_cells("setup-3-reduced")[0].tell() == "51.33 ± 1.15 (3), lr 3"


def test_a_cell_without_all_its_rates_has_no_winner_yet(published: SimpleNamespace, tmp_path: Path) -> None:
    write(published.results, "setup-3-reduced", sweep_three(prefer)[1:])
    text = published.winners.render_winners("setup-3")
    path = tmp_path / "setup-3-winners.toml"
    path.write_text(text)
    assert "# 1 of 12 cells are not here" in text
    assert len(read_spec(path).trials) == 33


def test_settings_of_one_method_alone_are_kept(published: SimpleNamespace, tmp_path: Path) -> None:
    trials = read_spec(ROOT / "specs" / "setup-1-reduced.toml").trials
    write(published.results, "setup-1-reduced", [make_record(trial, 0.5, 0.5) for trial in trials])
    path = tmp_path / "setup-1-winners.toml"
    path.write_text(published.winners.render_winners("setup-1"))
    dice = [trial for trial in read_spec(path).trials if trial.method == "dp-dice"]
    assert len(dice) == 12
    assert {trial.options["clip_feedback"] for trial in dice} == {1.0}
    assert {trial.options["lr"] for trial in dice} == {0.01}  # all level: the smallest


@pytest.mark.parametrize("name", ["setup-1", "setup-3"])
def test_a_spec_of_winners_that_ships_is_that_of_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from published import winners

    path = ROOT / "specs" / f"{name}-winners.toml"
    if not path.exists():
        assert not (ROOT / "results" / f"{name}-winners.jsonl").exists()
        return
    assert path.read_text() == winners.render_winners(name)


def test_more_than_two_standard_errors_are_a_lead(published: SimpleNamespace) -> None:
    make = published.sweeps.Comparison
    assert make([50.0, 52.0, 51.0], [48.0, 49.0, 47.0]).verdict == "ahead"  # 3 > 2·√(1/3 + 1/3) = 1.63
    assert make([50.0, 52.0, 51.0], [49.0, 50.0, 50.5]).verdict == "level"
    assert make([50.0], [49.5]).verdict == "level"
    assert make([50.0], [52.0, 52.0]).verdict == "behind"
    assert make([30.0], [31.0], published.sweeps.LOSS).verdict == "ahead"  # less is better, by 3 %
    assert make([30.9], [31.0], published.sweeps.LOSS).verdict == "level"


@pytest.mark.parametrize(
    ("aware", "short"), [(0.9, "yes"), (0.3, "no"), (0.55, "in 2 of 4 comparisons"), (0.602, "in 2 of 4 comparisons")]
)
def test_the_question_of_lambda(published: SimpleNamespace, aware: float, short: str) -> None:
    """DP-SGD 0.6, ME 0.5."""
    reached = {"dp-sgd": 0.6, "dp-matrix-me": 0.5, "dp-matrix-me-lambda": aware}
    write(published.results, "setup-3-reduced", sweep_three(lambda t: (reached[t.method],) * 2))
    answer = published.answers.answer_lambda()
    assert answer.short == f"At ε = 1 {short}; at ε = 10 {short}."
    assert f"CIFAR-10 (P1), against DP-SGD: {100 * aware:.2f} (1) against 60.00 (1)" in answer.figures[0]
    partly = [r for r in sweep_three(lambda t: (reached[t.method],) * 2) if r["config"]["problem"] == "cifar10-p1"]
    write(published.results, "setup-3-reduced", partly)
    assert published.answers.answer_lambda().short.count(" so far") == 2


def test_a_loss_that_still_moves_says_so(published: SimpleNamespace) -> None:
    records = sweep_three(prefer)
    for record in records:
        record["curve"] = [{"test_loss": loss} for loss in (90.0, 60.0, 70.0)]
    write(published.results, "setup-3-reduced", records)
    told = " ".join(published.setups.render_many())
    assert "still moves by 20.0 on average from one epoch to the next, up to 30.0" in told


def test_what_a_loss_of_the_autoencoder_is_worth(published: SimpleNamespace, monkeypatch, data_dir: Path) -> None:
    monkeypatch.setenv("HUSH_DATA", str(data_dir))
    problem = hush.problems.load("fashion-vae", seed=0)
    seen, new = problem.train[0].double(), problem.test[0].double()

    def loss(told: Tensor) -> float:
        return (new - told).square().flatten(1).sum(1).mean().item()

    assert round(loss(seen.mean()), 1) == published.setups.GREY
    assert round(loss(seen.mean(0)), 1) == published.setups.MEAN_IMAGE


def test_the_question_of_one_pass(published: SimpleNamespace) -> None:
    trials = read_spec(ROOT / "specs" / "setup-2.toml").trials
    reached = {("dp-matrix-se", 10): 0.8}  # SE wins at ε = 10, all are level at 1
    records = [make_record(t, a := reached.get((t.method, t.settings["epsilon"]), 0.7), a) for t in trials]
    write(published.results, "setup-2", records)
    answer = published.answers.answer_one_pass()
    assert answer.short == "At ε = 1 no; at ε = 10 yes."
    write(published.results, "setup-2", records[:3])
    assert published.answers.answer_one_pass().short.startswith("At ε = 1 not known yet (")


def test_a_rate_between_counts_as_soon_as_all_have_it(published: SimpleNamespace) -> None:
    trials, finer = (read_spec(ROOT / "specs" / f"{name}.toml").trials for name in ("setup-2", "setup-2-finer"))
    assert {t.options["lr"] for t in finer} == {0.3}
    more = [make_record(t, 0.9, 0.8 if t.method == "dp-sgd" else 0.75) for t in finer]
    write(published.results, "setup-2", [make_record(t, 0.7, 0.7) for t in trials])
    write(published.results, "setup-2-finer", more[1:])
    assert published.answers.answer_one_pass().short == "At ε = 1 no; at ε = 10 no."
    assert "80.00" not in " ".join(published.setups.render_one_pass())
    write(published.results, "setup-2-finer", more)
    assert "75.00 (1) against 80.00 (1) (behind)" in published.answers.answer_one_pass().figures[0]
    assert "80.00 (1), lr 0.3 |" in " ".join(published.setups.render_one_pass())  # no end of the rates: no mark


def test_the_question_of_rules(published: SimpleNamespace) -> None:
    trials = read_spec(ROOT / "specs" / "setup-1-reduced.toml").trials
    reached = {"dp-sgd": 0.7, "dp-adam-bc": 0.702, "dp-disk": 0.6, "dp-adam": 0.5, "dp-dice": 0.1}
    write(published.results, "setup-1-reduced", [make_record(t, reached[t.method], reached[t.method]) for t in trials])
    assert published.answers.answer_rules().figures[0] == (
        "Fashion-MNIST (P2), ε = 1: DP-AdamBC 70.20 (1), DP-SGD 70.00 (1), DiSK 60.00 (1), DP-Adam 50.00 (1), "
        "DiceSGD 10.00 (1); level with the first: DP-SGD."
    )
