"""A search at a proven cost: independent trials, only the winner released, the total charged in advance."""

from __future__ import annotations

import json
import logging
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hush import training, tuning
from hush.accounting.accountant import epsilon
from hush.accounting.selection import INDEPENDENT, Trials, random_trials
from hush.cli import prepare as tasks
from hush.cli.main import main
from hush.errors import InvalidInputError, NotProvenError
from hush.ledger.book import Ledger
from hush.methods import make_plan
from hush.optimizers.wrappers import TailAverage
from hush.plan import Plan
from hush.randomness import Secret
from hush.release.folder import CARD
from hush.tuning import Choice, Range, check_space, read_space, select_best
from train_arguments import keep

SETTING: dict[str, Any] = {"examples": 1000, "batch_size": 50, "steps": 30, "noise_multiplier": 2.0}
SMALL = ["tune", "--problem", "digits-logistic", "--steps", "8", "--mean-trials", "2", "--json"]


def plan(**given: Any) -> Plan:
    return make_plan("dp-sgd", **{**SETTING, **given})


def test_the_guarantee_is_that_of_the_whole_search() -> None:
    trials = Trials(10.0, 1.0, 5.0)
    base = plan()
    searched = replace(base, trials=trials)
    whole = searched.guarantee()
    assert whole.status == "proven"
    assert whole.accountant == "rdp"
    assert whole.event == random_trials(base.event(), 10.0, 1.0)
    lost = trials.loss_factor * (base.delta - base.delta_left())
    assert whole.epsilon == pytest.approx(epsilon(whole.event, base.delta - lost, accountant="rdp"))
    assert whole.epsilon > 1.5 * base.guarantee().epsilon
    assert "best of a secret number of trials, 10 on average" in whole.sentence()


def test_no_guarantee_is_given_beyond_what_lost_delta_was_counted_for() -> None:
    assert replace(plan(), trials=Trials(10.0, 1.0, 0.5)).guarantee().epsilon == math.inf


def test_noise_is_calibrated_for_the_search() -> None:
    found = replace(plan(), trials=Trials(10.0, 1.0, 2.0)).with_epsilon(2.0)
    assert 1.99 < found.guarantee().epsilon <= 2.0
    assert replace(found, trials=None).guarantee().epsilon < 1.2


def test_a_plan_without_trials_is_the_plan_that_it_was() -> None:
    assert "trials" not in plan().identity()
    assert plan().fingerprint() != replace(plan(), trials=Trials(3.0)).fingerprint()


def test_a_method_whose_event_cannot_be_written_down_is_refused() -> None:
    dice = make_plan("dp-dice", **SETTING)
    with pytest.raises(NotProvenError, match="event"):
        replace(dice, trials=Trials(3.0)).guarantee()


def test_every_trial_draws_anew_and_the_best_is_kept() -> None:
    space = {"lr": Range(0.1, 10.0), "clip": Choice((1.0, 2.0))}
    seen: list[dict[str, Any]] = []

    def run_trial(candidate: dict[str, Any]) -> tuple[float, int]:
        seen.append(candidate)
        warnings.warn("said in every trial, it would count them", stacklevel=1)
        if len(seen) == 2:
            raise ValueError("a trial that fails is the worst")
        return (math.nan if len(seen) == 3 else candidate["lr"]), len(seen)

    secret = next(s for s in map(Secret.from_seed, range(99)) if count(s) > 30)
    best = select_best(Trials(20.0), space, run_trial, secret)
    assert best is not None
    assert best.score == max(c["lr"] for i, c in enumerate(seen, 1) if i not in (2, 3))
    assert seen[best.made - 1] == best.candidate
    assert len({c["lr"] for c in seen}) == len(seen) > 30
    assert all(0.1 <= c["lr"] < 10 for c in seen)
    assert 0.2 < sum(c["lr"] < 1 for c in seen) / len(seen) < 0.8
    assert {c["clip"] for c in seen} == {1.0, 2.0}


def count(secret: Secret) -> int:
    taken = []
    select_best(Trials(20.0), {}, lambda candidate: (taken.append(1) or 0.0, None), secret)
    return len(taken)


def test_nothing_that_is_said_in_a_trial_counts_them(caplog: Any) -> None:
    def run_trial(candidate: dict[str, Any]) -> tuple[float, None]:
        logging.getLogger("hush").warning("the batches of the DataLoader are replaced")
        return 0.0, None

    assert select_best(Trials(20.0), {}, run_trial) is not None
    assert not caplog.records
    logging.getLogger("hush").warning("after it")
    assert len(caplog.records) == 1


def test_no_trial_at_all_is_an_outcome() -> None:
    nobody = Trials(1.0, math.inf)
    results = {select_best(nobody, {}, lambda c: (1.0, "model"), Secret.from_seed(s)) is None for s in range(30)}
    assert results == {True, False}


def test_a_number_of_trials_that_cannot_be_drawn_is_refused() -> None:
    """e^-mean is zero in floating point, and adding up probabilities would never reach any number."""
    assert Trials(700.0, math.inf).count(0.5) == 700
    assert 100 < Trials(300.0, 300.0).count(0.5) < 400
    for mean, shape in ((800.0, math.inf), (2000.0, 2000.0)):
        with pytest.raises(InvalidInputError):
            Trials(mean, shape)


def test_every_claim_about_a_choice_says_what_the_choice_rests_on() -> None:
    searched = replace(plan(), trials=Trials(10.0, 1.0, 5.0))
    assert INDEPENDENT in searched.guarantee().assumptions
    assert INDEPENDENT not in plan().guarantee().assumptions


def test_what_changes_the_event_is_no_candidate() -> None:
    assert check_space({"clip": Range(0.5, 2.0)}, lambda c: plan(**c)).steps == 30
    with pytest.raises(NotProvenError, match="'noise_multiplier'"):
        check_space({"noise_multiplier": Range(1.0, 2.0)}, lambda c: plan(**c))


def test_ranges_and_choices_are_read() -> None:
    assert read_space(["lr=0.1..2", "clip=0.5,1"]) == {"lr": Range(0.1, 2.0), "clip": Choice((0.5, 1.0))}
    for wrong in ("lr", "lr=", "lr=a..b", "lr=2..1", "lr=0..1"):
        with pytest.raises(InvalidInputError):
            read_space([wrong])


def test_the_command_gives_parameters_a_model_and_a_price_paid_ahead(tmp_path: Path, capsys: Any) -> None:
    ledger = tmp_path / "ledger"
    given = ["--epsilon", "3", "--search", "lr=0.5..2", "--public-test", "--out", str(tmp_path / "out")]
    assert main([*SMALL, *given, "--ledger", str(ledger), "--dataset", "digits"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["status"] == "proven"
    assert told["winner_epsilon"] < told["epsilon"] <= 3.0
    assert 0.5 <= told["parameters"]["lr"] <= 2.0
    assert told["score"] == told["test_figures"]["test_accuracy"] > 0.2
    card = json.loads((tmp_path / "out" / "release" / CARD).read_text())
    kinds = [part["kind"] for part in card["guarantee"]["event_json"]["events"]]
    assert kinds == ["RepeatAndSelect", "FinitePrecision"]
    assert card["guarantee"]["epsilon"] == told["epsilon"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"release", "private"}
    assert {path.name for path in (tmp_path / "out" / "private").iterdir()} == {"lock", "tuned.json"}
    assert Ledger(ledger).total("digits").epsilon == pytest.approx(3.0, rel=0.01)
    assert len(Ledger(ledger).spends("digits")) == 1
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main([*SMALL, *given, "--ledger", str(ledger), "--dataset", "digits"]) == 2
    said = capsys.readouterr().err
    assert "already holds a release" in said
    assert len(Ledger(ledger).spends("digits")) == 1


def test_private_rows_score_by_counts_with_noise_inside_the_event(tmp_path: Path, capsys: Any) -> None:
    assert main([*SMALL, "--epsilon", "4", "--private-metrics", "0.5", "--search", "lr=0.5..2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "proven"
    assert told["epsilon"] <= 4.0
    assert told["score"] == told["private_metrics"]["figures"]["accuracy"]
    assert "test_accuracy" not in told
    assert "the model and figures with noise" in told["sentence"]


def test_trials_start_alike_whatever_the_factory_of_the_model_keeps(monkeypatch: Any, capsys: Any) -> None:
    """A factory that gives the same object again would have one trial go on where another one ended."""
    load, steps, starts = tasks.load_task, training.take_steps, []

    def load_with_one_model(given: Any) -> Any:
        task = load(given)
        kept = task.model()
        return replace(task, model=lambda: kept)

    def note_start(run: Any) -> Any:
        starts.append([p.detach().clone() for p in run.model.parameters()])
        return steps(run)

    def choose(trials: Trials, *given: Any) -> Any:
        return select_best(Trials(20.0), *given, next(s for s in map(Secret.from_seed, range(99)) if 2 < count(s) < 6))

    monkeypatch.setattr(tasks, "load_task", load_with_one_model)
    monkeypatch.setattr(training, "take_steps", note_start)
    monkeypatch.setattr(tuning, "select_best", choose)
    assert main([*SMALL, "--epsilon", "3", "--public-test"]) == 0
    assert len(starts) > 2
    assert all(torch.equal(a, b) for start in starts for a, b in zip(start, starts[0], strict=True))


@pytest.mark.parametrize("entered", [False, True])
def test_ctrl_c_says_what_is_left_of_a_search(monkeypatch: Any, tmp_path: Path, capsys: Any, entered: bool) -> None:
    def interrupt(run: Any) -> Any:
        raise KeyboardInterrupt

    def choose(trials: Trials, *given: Any) -> Any:
        return select_best(Trials(20.0), *given, next(s for s in map(Secret.from_seed, range(99)) if count(s) > 2))

    monkeypatch.setattr(training, "take_steps", interrupt)
    monkeypatch.setattr(tuning, "select_best", choose)
    ledger = tmp_path / "ledger"
    given = ["--ledger", str(ledger)] if entered else []
    assert main([*SMALL, "--epsilon", "3", "--public-test", "--out", str(tmp_path / "out"), *given]) == 130
    left = "what was entered in the ledger stays spent" if entered else "nothing of it was released"
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1] == f"stopped: a search cannot be resumed, and {left}"
    assert not (tmp_path / "out").exists()
    assert ledger.exists() == entered


def with_batch_norm(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 800 rows, of which 640 are trained on."""
    rows = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(800)]
    (tmp_path / "rows.csv").write_text("\n".join(["u,v,y", *rows]) + "\n")
    return tmp_path / "rows.csv"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--delta", "1e-14"], "give a larger δ"),
        (["--microbatch", "0"], "microbatch must be a whole number of at least 1, got 0"),
        (["--model", f"{__name__}:with_batch_norm"], "BatchNorm"),
    ],
)
def test_what_would_fail_in_every_trial_is_refused_before_it_is_paid_for(
    wrong: list[str], said: str, table: Path, tmp_path: Path, capsys: Any
) -> None:
    data = (
        ["--data", str(table), "--target", "y", "--public", "classes"]
        if "--model" in wrong
        else ["--problem", "digits-logistic"]
    )
    given = ["--steps", "8", "--mean-trials", "2", "--public-test", "--ledger", str(tmp_path / "ledger")]
    assert main(keep(["tune", *data, *given, *wrong])) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()


def test_a_table_has_the_numbers_that_train_gives_it(table: Path, monkeypatch: Any, capsys: Any) -> None:
    plans: list[tuple[Plan, int]] = []
    start = Plan.start

    def note(plan: Plan, *given: Any, **more: Any) -> Any:
        plans.append((plan, more["microbatch"]))
        return start(plan, *given, **more)

    monkeypatch.setattr(Plan, "start", note)
    data = ["--data", str(table), "--target", "y", "--public-test", "--public", "classes"]
    for more, batch in (([], 40), (["--batch-size", "32"], 32)):
        plans.clear()
        assert main(keep(["tune", *data, "--steps", "4", "--mean-trials", "2", *more])) == 0
        assert "chosen for 640 examples" in capsys.readouterr().err
        for plan, microbatch in plans:
            assert isinstance(plan.optimizer, TailAverage)
            assert (plan.divisor, plan.optimizer.fraction, microbatch) == (batch, 0.5, 4096)


def test_what_a_search_never_reads_is_no_option_of_it(capsys: Any) -> None:
    for option in (["--stop", "10:1.2e-4"], ["--noise-shards"]):
        assert main([*SMALL, "--public-test", *option]) == 2
        assert f"no such option: {option[0]}" in capsys.readouterr().err


def test_several_processes_do_not_each_make_a_search(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*SMALL, "--public-test"]) == 2
    assert "without torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "protects"), [("sanitize-once", "features"), ("label-rr", "labels")])
def test_what_protects_a_part_of_a_row_says_so(method: str, protects: str, capsys: Any) -> None:
    given = ["--method", method, "--search", "lr=0.001..0.01", "--epsilon", "3", "--public-test"]
    assert main([*SMALL, *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["protects"]) == ("proven", protects)
    assert told["epsilon"] <= 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--public-test", "--strategy", "bayesian"], "learns from earlier scores"),
        ([], "--public-test"),
        (["--public-test", "--method", "sgd"], "needs a private method"),
        (["--public-test", "--mean-trials", "0.5"], "at least 1"),
        (["--public-test", "--class-weights", "private"], "in every trial"),
        (["--public-test", "--search", "clip=1,2", "--set", "clip=3"], "searched and set: leave out --search or --set"),
        (["--public-test", "--search", "clip=1,2", "--clip", "3"], "leave out --search or --clip"),
        (["--public-test", "--search", "lr=1..2", "--lr", "3"], "'lr' is both searched and set"),
        (["--public-test", "--lr", "3"], "or leave out --lr"),
        (["--public-test", "--set", "lr=3"], "or leave out --set"),
    ],
)
def test_what_has_no_proof_is_refused(more: list[str], said: str, capsys: Any) -> None:
    assert main([*SMALL, *more]) == 2
    assert said in capsys.readouterr().err
