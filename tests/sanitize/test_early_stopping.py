"""The two early-stopping rules against hand-computed values, and the description of a stopped run."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hush.accounting.guarantee import Guarantee
from hush.cli import train as taking
from hush.cli.main import app, main
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.sanitize.early_stopping import (
    EpochSpreads,
    Stop,
    find_chord_slope,
    find_stop,
    fit_slope,
    flag_flat,
    flag_steady,
    read_stop,
    state_stop,
    take_until,
    watch_epochs,
)
from hush.sanitize.privatised import sum_spreads
from hush.training import take_steps
from sanitized_models import data, losses, network, plan

NO, YES = False, True
PLATEAU = [8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0]
NOISY = [5.0, 1.0, 3.0, 1.5, 2.5, 2.0]


@pytest.mark.parametrize(
    ("series", "length", "threshold", "flags"),
    [
        # Chords of three epochs: (2−8)/2 = −3, (1−4)/2 = −1.5, (1−2)/2 = −0.5, 0, 0.
        (PLATEAU, 3, 0.0, [NO, NO, NO, NO, NO, YES, YES]),
        (PLATEAU, 3, 0.5, [NO, NO, NO, NO, YES, YES, YES]),  # the threshold itself counts
        (PLATEAU, 3, 0.49, [NO, NO, NO, NO, NO, YES, YES]),
        # Chords of two epochs are differences: −4, 2, −1.5, 1, −0.5; of four: (1.5−5)/3, (2.5−1)/3, (2−3)/3.
        (NOISY, 2, 0.5, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 0.4, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 0.5, [NO, NO, NO, NO, YES, YES]),
        # A window's inside does not matter: the ends agree, the chord is flat.
        ([1.0, 9.0, -9.0, 1.0], 4, 0.0, [NO, NO, NO, YES]),
        ([1.0, 1.0], 3, 1.0, [NO, NO]),  # shorter than the window
        ([1.0, 1.0, 1.0], 3, 0.0, [NO, NO, YES]),  # exactly as long
        ([], 3, 1.0, []),
        ([3.0, 2.0, 1.0, 0.0], 2, 0.99, [NO, NO, NO, NO]),  # a steady fall is no plateau
    ],
)
def test_flat(series: list[float], length: int, threshold: float, flags: list[bool]) -> None:
    assert flag_flat(series, length, threshold) == flags


@pytest.mark.parametrize(
    ("series", "length", "tolerance", "flags"),
    [
        # Least squares over three epochs is the chord: −3, −1.5, −0.5, 0, 0; differences 1.5, 1, 0.5, 0.
        (PLATEAU, 3, 0.0, [NO, NO, NO, NO, NO, NO, YES]),
        (PLATEAU, 3, 0.5, [NO, NO, NO, NO, NO, YES, YES]),
        (PLATEAU, 3, 1.0, [NO, NO, NO, NO, YES, YES, YES]),
        # Four epochs: slope (−1.5a − 0.5b + 0.5c + 1.5d)/5: −0.85, 0.3, −0.2; differences 1.15, 0.5.
        (NOISY, 4, 0.5, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 1.2, [NO, NO, NO, NO, YES, YES]),
        ([3.0, 2.0, 1.0, 0.0], 3, 0.0, [NO, NO, NO, YES]),  # a steady fall is steady
        ([1.0, 1.0, 1.0], 3, 9.0, [NO, NO, NO]),  # one window has none before it
        ([1.0], 2, 9.0, [NO]),
        ([], 2, 9.0, []),
    ],
)
def test_steady(series: list[float], length: int, tolerance: float, flags: list[bool]) -> None:
    assert flag_steady(series, length, tolerance + 1e-12) == flags


def test_slopes() -> None:
    assert find_chord_slope([5.0, 9.0, 2.0, 2.0]) == -1.0
    # x − x̄ = −1.5, −0.5, 0.5, 1.5: (−7.5 − 4.5 + 1 + 3)/5 = −1.6
    assert fit_slope([5.0, 9.0, 2.0, 2.0]) == pytest.approx(-1.6)


def test_the_first_flag_stops() -> None:
    assert find_stop([NO, NO, YES, NO, YES]) == 3
    assert find_stop([NO, NO]) is None
    assert find_stop([]) is None


@pytest.mark.parametrize("flag", [flag_flat, flag_steady])
def test_bad_windows_get_a_sentence(flag: object) -> None:
    assert callable(flag)
    with pytest.raises(InvalidInputError, match="2"):
        flag([1.0, 2.0], 1, 0.1)
    with pytest.raises(InvalidInputError):
        flag([1.0, 2.0], 2, -0.1)
    with pytest.raises(InvalidInputError, match="1"):
        flag([1.0, math.nan], 2, 0.1)


def test_the_spread_is_that_of_each_example() -> None:
    """[1, 3] has deviation 1 and [0, 8] has 4: 5 together, however far apart the two lie."""
    assert float(sum_spreads(torch.tensor([[1.0, 3.0], [1000.0, 1008.0]]))) == pytest.approx(5.0)


def test_a_stop_is_proven_at_the_plan_and_claimed_at_itself() -> None:
    planned, early = Guarantee(3.0, 1e-5), Guarantee(2.0, 1e-5)
    first, second = state_stop(planned, early)
    assert first == planned
    assert (second.epsilon, second.status) == (2.0, "claimed")
    assert "stopped by what it had released" in second.sentence()
    assert second.sentence().startswith("Not a guarantee")
    with pytest.raises(InvalidInputError, match="plan"):
        state_stop(early, planned)
    claimed = Guarantee(2.0, 1e-5, status="claimed", reason="a paper says so")
    assert state_stop(planned, claimed)[1].reason.endswith("; a paper says so")


def test_a_run_stops_where_its_own_series_is_flat() -> None:
    """The series of a run that goes on, and of one that is stopped by it: the same epochs, then none."""
    per_epoch, made = 5, plan("sanitize", steps=30)

    def begin():
        return made.start(network("sanitize"), losses, data(), secret=1)

    whole = list(watch_epochs((record.numbers() for record in take_steps(begin())), per_epoch))
    assert len(whole) == 6
    slopes = [abs(find_chord_slope(whole[end - 3 : end])) for end in range(3, 7)]
    stop = Stop(3, sorted(slopes)[1])
    expected = stop.find(whole)
    assert expected is not None
    run = begin()
    assert take_until((record.numbers() for record in take_steps(run)), stop, per_epoch) == expected
    assert run.next == expected * per_epoch
    planned, early = state_stop(made.guarantee(), made.guarantee(run.next))
    assert (planned.status, early.status) == ("refuted", "refuted")
    assert early.epsilon <= planned.epsilon
    assert take_until((record.numbers() for record in take_steps(begin())), Stop(3, 0.0), per_epoch) is None


def test_the_series_is_that_of_the_noisy_outputs() -> None:
    made = plan("sanitize", steps=5, noise_multiplier=50.0)
    run = made.start(network("sanitize"), losses, data(), secret=1)
    (found,) = watch_epochs((record.numbers() for record in take_steps(run)), 5)
    assert found == pytest.approx(run.model[1].noise_std, rel=0.2)  # which here are nearly all noise


def test_a_stop_by_steady_slopes_is_that_of_the_flags() -> None:
    series = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert Stop(3, 1e-9, adaptive=True).find(series) == 4
    assert Stop(3, 1e-9).find(series) is None


# `hush train --stop`: the stopping step, its description, and the same step after a resume.


PER_EPOCH = 12  # ⌈1 438 digits / 128⌉
RUN = ["train", "--problem", "digits-mlp", "--method", "sanitize", "--noise-multiplier", "1", "--accept-claimed"]
RUN += ["--epochs", "6", "--batch-size", "128", "--sanitize-width", "8", "--delta", "1e-4", "--secret-seed", "3"]


def call(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def read_series(out: Path) -> list[float]:
    spreads = EpochSpreads(PER_EPOCH)
    for line in (out / "private" / "steps.jsonl").read_text().splitlines():
        spreads.add(json.loads(line))
    return spreads.series


@pytest.fixture
def limit(tmp_path: Path) -> float:
    """A limit that a window of three epochs keeps somewhere before the end."""
    call(*RUN, "--out", tmp_path / "whole")
    series = read_series(tmp_path / "whole")
    assert len(series) == 6
    slopes = [abs(series[end - 1] - series[end - 3]) / 2 for end in range(3, 7)]
    return 1.0001 * min(slopes[:3])


def test_a_run_ends_at_its_flag_and_all_planned_steps_are_counted(tmp_path: Path, limit: float) -> None:
    after = Stop(3, limit).find(read_series(tmp_path / "whole"))
    assert after is not None
    assert after < 6
    out = tmp_path / "o"
    found = json.loads(call(*RUN, "--stop", f"3:{limit}", "--out", out, "--json"))
    card = json.loads((out / "release" / "privacy.json").read_text())
    assert (found["stopped"]["after_epochs"], found["stopped"]["steps"]) == (after, after * PER_EPOCH)
    assert card["stopped"] == found["stopped"]
    assert (card["steps"], card["steps_taken"]) == (6 * PER_EPOCH, after * PER_EPOCH)
    plan = make_plan(
        "sanitize", examples=1438, batch_size=128, epochs=6, noise_multiplier=1.0, delta=1e-4, accept_claimed=True
    )
    assert found["epsilon"] == card["guarantee"]["epsilon"] == pytest.approx(plan.guarantee().epsilon)
    assert found["stopped"]["epsilon_there"] == pytest.approx(plan.guarantee(after * PER_EPOCH).epsilon)
    assert found["stopped"]["epsilon_there"] < found["epsilon"]
    assert found["stopped"]["status"] == "refuted"
    assert "all are counted" in (out / "release" / "PRIVACY.md").read_text()
    assert f"({after * PER_EPOCH} of {6 * PER_EPOCH} steps" in call(*RUN, "--stop", f"3:{limit}")


def test_an_interrupted_run_ends_at_the_same_flag(
    tmp_path: Path, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after seven steps, in the middle of an epoch: the series goes on where it was."""
    after, out = Stop(3, limit).find(read_series(tmp_path / "whole")), tmp_path / "o"

    with monkeypatch.context() as patch:
        interrupt(patch, 7)
        assert main([*RUN, "--stop", f"3:{limit}", "--out", str(out)]) == 130
    found = json.loads(call("train", "--out", out, "--resume", "--json"))
    assert found["resumed_from"] == 7
    assert found["stopped"]["after_epochs"] == after
    assert read_series(out) == read_series(tmp_path / "whole")[:after]


def test_a_stopped_run_whose_secret_is_kept_takes_no_further_step(tmp_path: Path, limit: float) -> None:
    out = tmp_path / "o"
    first = json.loads(call(*RUN, "--stop", f"3:{limit}", "--out", out, "--keep-secret", "--json"))
    again = json.loads(call("train", "--out", out, "--resume", "--json"))
    assert again["stopped"] == first["stopped"]
    assert again["resumed_from"] == first["stopped"]["steps"]
    assert again["test_accuracy"] == first["test_accuracy"]


def interrupt(patch: pytest.MonkeyPatch, after: int) -> None:
    """A run is interrupted after so many steps."""

    asked = iter([*[False] * (after - 1), True])
    patch.setattr(taking, "note_interrupts", lambda: nullcontext(lambda: next(asked)))


def test_a_run_watched_too_late_says_how_many_steps_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flag is raised after three epochs, and five were taken before it was asked for: the card says five."""
    out = tmp_path / "o"
    with monkeypatch.context() as patch:
        interrupt(patch, 5 * PER_EPOCH)
        assert main([*RUN, "--out", str(out)]) == 130
    found = json.loads(call("train", "--out", out, "--resume", "--stop", "3:1e9", "--json"))
    card = json.loads((out / "release" / "privacy.json").read_text())
    assert (found["stopped"]["after_epochs"], found["stopped"]["steps"]) == (3, 5 * PER_EPOCH)
    assert card["steps_taken"] == 5 * PER_EPOCH
    plan = make_plan(
        "sanitize", examples=1438, batch_size=128, epochs=6, noise_multiplier=1.0, delta=1e-4, accept_claimed=True
    )
    assert card["stopped"]["epsilon_there"] == pytest.approx(plan.guarantee(5 * PER_EPOCH).epsilon)
    assert "proven" not in card["stopped"]["reason"]  # nothing about this method is


def test_a_stopped_run_whose_secret_is_kept_can_be_replaced(tmp_path: Path) -> None:
    out = tmp_path / "o"
    call(*RUN, "--stop", "3:1e9", "--out", out, "--keep-secret")
    refused = CliRunner().invoke(app, [*RUN, "--out", str(out)])
    assert "holds a finished run: add --overwrite" in str(refused.exception)
    found = json.loads(call(*RUN, "--out", out, "--overwrite", "--json"))
    assert "stopped" not in found
    assert not (out / "private" / "ended.json").exists()


def test_a_ledger_counts_a_stopped_run_whole_and_nobody_closes_it(tmp_path: Path) -> None:
    book, out = tmp_path / "ledger.jsonl", tmp_path / "o"
    call(*RUN, "--stop", "3:1e9", "--out", out, "--ledger", book, "--keep-secret")
    [entry] = json.loads(call("ledger", "show", book, "--json"))["datasets"]
    [row] = entry["runs"]
    assert (row["steps"], row["planned"]) == (6 * PER_EPOCH, 6 * PER_EPOCH)
    before = book.read_bytes()
    closing = ["ledger", "close", str(book), row["run"], "--stopped-blindly", "--out", str(out)]
    assert isinstance(CliRunner().invoke(app, closing).exception, InvalidInputError)
    assert book.read_bytes() == before


def test_an_infinite_total_is_on_the_card_as_none(tmp_path: Path) -> None:
    """After labels alone were protected, features have no finite total: the release is written all the same."""
    book, out = tmp_path / "ledger.jsonl", tmp_path / "o"
    replace = ("--adjacency", "replace")
    call("ledger", "add", book, "before", "--epsilon", "1", "--delta", "1e-6", "--protects", "labels", *replace)
    call(*RUN, "--out", out, "--ledger", book)
    card = json.loads((out / "release" / "privacy.json").read_text())
    assert card["ledger"]["epsilon"] is None
    assert "is as it was released" in call("verify", out)


def test_without_its_log_a_run_cannot_tell_when_to_stop(tmp_path: Path, limit: float) -> None:
    out = tmp_path / "o"
    call(*RUN, "--stop", f"3:{limit}", "--out", out, "--keep-secret")
    (out / "private" / "steps.jsonl").unlink()
    found = CliRunner().invoke(app, ["train", "--out", str(out), "--resume"])
    assert "--stop none" in str(found.exception)
    assert json.loads(call("train", "--out", out, "--resume", "--stop", "none", "--json")).get("stopped") is None


@pytest.mark.parametrize(
    ("method", "text", "said"),
    [
        ("dp-sgd", "3:0.1", "--stop needs method sanitize, not dp-sgd"),
        ("sanitize", "3", "epochs and a slope such as 10:1.2e-4, or none; got '3'"),
        ("sanitize", "a:b", "got 'a:b'"),
        ("sanitize", "1:0.1", "at least 2 epochs"),
        ("sanitize", "3:-1", "must be zero or above"),
        ("sanitize", "3:nan", "must be zero or above|finite"),
    ],
)
def test_bad_stops_get_a_sentence(method: str, text: str, said: str) -> None:
    plan = make_plan(method, examples=100, batch_size=10, epochs=2, noise_multiplier=1.0, accept_claimed=True)
    with pytest.raises(InvalidInputError, match=said):
        read_stop(text, plan)


def test_an_adaptive_threshold_has_the_other_flag() -> None:
    how = {"examples": 100, "batch_size": 10, "epochs": 2, "noise_multiplier": 1.0, "accept_claimed": True}
    assert read_stop("3:0.1", make_plan("sanitize", **how)) == Stop(3, 0.1)
    assert read_stop("3:0.1", make_plan("sanitize", threshold_share=0.05, **how)) == Stop(3, 0.1, adaptive=True)
    assert read_stop("none", make_plan("dp-sgd", examples=100, batch_size=10, epochs=2, epsilon=1.0)) is None
