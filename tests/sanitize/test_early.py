"""`hush train --stop`: where a run ends, what is said of it, and the same end after an interruption."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hush.cli import train as taking
from hush.cli.main import app, main
from hush.cli.train import read_stop
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.sanitize.early_stopping import EpochSpreads, Stop

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
