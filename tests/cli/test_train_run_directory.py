"""`hush train --out DIR`: resume, refusals, `hush ledger`, and checks before anything is spent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from hush.checkpointing import Checkpoints, InUse
from hush.cli import main
from hush.cli.main import app
from hush.errors import DataError, ExamplesNotIndependent, HushError, InvalidInputError, ReleaseError, ResumeError
from hush.noise_addition import NoiseAdder
from hush.run_directory import TUNED
from hush.tuning import select_best

TRAIN = ("train", "--problem", "breast-cancer-logistic", "--batch-size", "64", "--noise-multiplier", "2")


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *arguments: object) -> dict:
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def unfinished(capsys, tmp_path: Path, ledger: Path, monkeypatch) -> Path:
    """A run that was interrupted after 20 steps."""
    out = tmp_path / "run"
    answer(capsys, "ledger", "budget", ledger, "--epsilon", 10)
    asked = iter([*[False] * 19, True])
    with monkeypatch.context() as patched:
        patched.setattr("hush.cli.train.note_interrupts", lambda: nullcontext(lambda: next(asked)))
        code, said, err = call(capsys, *TRAIN, "--steps", 60, "--out", out, "--ledger", ledger)
    assert code == 130
    assert said == ""
    assert f"resume with: hush train --out {out} --resume" in err
    return out


def test_a_run_without_room_is_refused_before_its_first_step(capsys, unfinished, ledger, tmp_path) -> None:
    found = answer(capsys, "ledger", "show", ledger)["datasets"][0]
    (run,) = found["runs"]
    assert run["steps"] == run["planned"] == 60  # charged with its plan
    assert not (unfinished / "release").exists()
    answer(capsys, "ledger", "budget", ledger, "--epsilon", found["epsilon"])
    before = ledger.read_bytes()
    code, _, err = call(capsys, *TRAIN, "--steps", 60, "--out", tmp_path / "other", "--ledger", ledger)
    assert code == 2
    assert "'default'" in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "other").exists()
    assert ledger.read_bytes() == before
    assert answer(capsys, "train", "--out", unfinished, "--resume")["steps"] == 60  # it has paid
    assert ledger.read_bytes() == before


def test_an_unfinished_run_is_not_overwritten_and_goes_on(capsys, unfinished, ledger) -> None:
    code, _, err = call(capsys, *TRAIN, "--steps", 60, "--out", unfinished)
    assert code == 2
    assert "holds an unfinished run (step" in err
    assert "add --resume, or give another --out" in err
    code, out, err = call(capsys, "train", "--out", unfinished, "--resume", "--json")
    assert code == 0
    assert "resuming at step" in err
    found = json.loads(out)
    assert found["steps"] == 60
    assert found["resumed_from"] == 20
    assert found["ledger"]["epsilon"] == pytest.approx(found["epsilon"])
    lines = (unfinished / "private" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(60))


def test_resuming_with_another_plan_is_refused(capsys, unfinished, ledger) -> None:
    code, _, err = call(capsys, "train", "--out", unfinished, "--resume", "--noise-multiplier", 3)
    assert code == 2
    assert "(--noise-multiplier was 2 and is 3)" in err
    assert "another --out" in err
    more = ("--set", "momentum=0.5", "--steps", 70)
    code, _, err = call(capsys, "train", "--out", unfinished, "--resume", *more)
    assert code == 2
    assert "--steps was 60 and is 70" in err
    assert "sigma" not in err
    code, _, err = call(capsys, "train", "--out", unfinished, "--resume", "--dataset", "else", "--new-dataset")
    assert code == 2
    assert "is entered for dataset 'default'" in err
    ledger.unlink()
    ledger.with_name("ledger.jsonl.head").unlink()
    code, _, err = call(capsys, "train", "--out", unfinished, "--resume")
    assert code == 2
    assert "give its path with --ledger" in err


def test_a_finished_run_is_reported_again(capsys, tmp_path, ledger) -> None:
    first = answer(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run", "--ledger", ledger)
    before = ledger.read_bytes(), (tmp_path / "run" / "release" / "model.safetensors").read_bytes()
    code, out, err = call(capsys, "train", "--out", tmp_path / "run", "--resume", "--json")
    again = json.loads(out)
    assert code == 0
    assert "is finished" in err
    for field in ("epsilon", "test_accuracy", "steps", "problem", "method"):
        assert again[field] == first[field]
    assert (ledger.read_bytes(), (tmp_path / "run" / "release" / "model.safetensors").read_bytes()) == before


def list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kept", [(), ("--keep-secret",)], ids=["deleted", "kept"])
def test_a_finished_run_is_replaced_only_where_that_is_asked_for(capsys, tmp_path, kept) -> None:
    answer(capsys, *TRAIN, "--epochs", 2, "--out", tmp_path / "run", *kept)
    before = list_files(tmp_path / "run")
    code, out, err = call(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run", "--json")
    assert (code, out) == (2, "")
    assert "holds a finished run: add --overwrite to replace it, or give another --out" in err
    assert len(err.strip().splitlines()) == 1
    assert list_files(tmp_path / "run") == before
    code, out, err = call(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run", "--json", "--overwrite")
    assert code == 0, err
    weights = tmp_path / "run" / "release" / "model.safetensors"
    assert weights.read_bytes() != before[weights]
    steps = (tmp_path / "run" / "private" / "steps.jsonl").read_text().splitlines()
    assert len(steps) == json.loads(out)["steps"]


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
@pytest.mark.parametrize("format", ["hush privacy card 1", None])
def test_no_file_next_to_a_run_is_replaced_and_a_release_is_no_folder_for_a_run(capsys, tmp_path, flag, format) -> None:
    out = tmp_path / "run"
    answer(capsys, *TRAIN, "--epochs", 1, "--out", out, "--keep-secret")
    (out / "privacy.json").write_text(json.dumps({"format": format}))
    for name in ("model.safetensors", "PRIVACY.md"):
        (out / name).write_text("years of work")
    before = list_files(out)
    code, _, err = call(capsys, *TRAIN, "--epochs", 1, "--out", out, "--keep-secret", flag)
    assert code == (0 if format is None else 2), err
    after = list_files(out)
    kept = before if format is not None else {path for path in before if path.parent == out}
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}


@pytest.mark.parametrize("command", [TRAIN, ("tune", *TRAIN[1:], "--public-test")], ids=["train", "tune"])
def test_a_release_is_no_folder_for_a_run(capsys, tmp_path, command) -> None:
    answer(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run")
    release = tmp_path / "run" / "release"
    before = list_files(tmp_path)
    code, _, err = call(capsys, *command, "--epochs", 1, "--out", release)
    assert code == 2
    assert str(release) in err
    assert list_files(tmp_path) == before


def test_nothing_to_resume(capsys, tmp_path) -> None:
    code, _, err = call(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run", "--resume")
    assert code == 0
    assert "nothing to resume" in err
    code, _, err = call(capsys, *TRAIN, "--resume")
    assert code == 2
    assert "--resume needs the --out" in err


def test_damaged_checkpoints(capsys, unfinished) -> None:
    for path in (unfinished / "private").glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-5])
    for more in ((), ("--resume",)):
        code, _, err = call(capsys, *TRAIN, "--steps", 60, "--out", unfinished, *more)
        assert code == 2
        assert "no checkpoint in" in err
        assert "another --out" in err


@pytest.mark.parametrize("left", [("sums-*", "steps.jsonl"), ("sums-*",), ("steps.jsonl",)])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(capsys, unfinished, left) -> None:
    private = unfinished / "private"
    for path in private.glob("checkpoint-*"):
        path.unlink()
    for path in [p for p in (*private.glob("sums-*"), private / "steps.jsonl") if not any(map(p.match, left))]:
        path.unlink()
    code, out, err = call(capsys, "train", "--out", unfinished, "--resume")
    assert (code, out) == (2, "")
    assert "no checkpoint in" in err
    assert "another --out" in err


@pytest.mark.parametrize("there", [False, True])
def test_a_refusal_leaves_no_private_part(capsys, tmp_path, there) -> None:
    out = tmp_path / "messy"
    if there:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    code, _, err = call(capsys, *TRAIN, "--out", out, "--delta", 0.5)
    assert code == 2
    assert list(tmp_path.rglob("*")) == ([out, out / "notes.txt"] if there else [])


def test_a_folder_in_which_nothing_was_begun(capsys, tmp_path) -> None:
    out = tmp_path / "messy"
    (out / "private").mkdir(parents=True)
    (out / "private" / "lock").touch()
    code, _, err = call(capsys, "train", "--out", out, "--resume")
    assert (code, err) == (2, f"error: no run was begun in '{out}': give the options again\n")
    (tmp_path / "rows.csv").write_text("a\n1\n")
    code, _, err = call(capsys, "predict", out, tmp_path / "rows.csv", "--out", out / "answers.csv")
    assert code == 2
    assert f"'{out}' holds no release, as nothing was begun in it: train with --out {out} first" in err
    code, _, err = call(capsys, *TRAIN, "--steps", 2, "--out", out, "--resume")
    assert code == 0
    assert "nothing to resume in" in err


def test_a_refused_first_step_leaves_no_unfinished_run(capsys, tmp_path, monkeypatch) -> None:
    def refuse(*_, **__):
        from hush.errors import ReleaseError

        raise ReleaseError("not today")
        yield

    monkeypatch.setattr("hush.cli.train.take_steps", refuse)
    assert call(capsys, *TRAIN, "--out", tmp_path / "run")[0] == 2
    monkeypatch.undo()
    assert call(capsys, *TRAIN, "--epochs", 1, "--out", tmp_path / "run")[0] == 0


def test_everything_private_is_for_its_owner_alone(capsys, tmp_path) -> None:
    answer(capsys, *TRAIN, "--epochs", 1, "--secret-seed", 77123, "--out", tmp_path / "run")
    out = tmp_path / "run"
    assert {p.name for p in out.iterdir()} == {"release", "private"}
    assert (out / "private").stat().st_mode & 0o777 == 0o700
    for path in (out / "private").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"77123" not in path.read_bytes()


def test_a_run_keeps_the_matrix_behind_its_noise(capsys, tmp_path, monkeypatch) -> None:
    """Computed anew, with other threads or another library, it would differ in its last bits: another plan."""
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))
    one_pass = (*TRAIN, "--method", "dp-matrix-se", "--steps", 4, "--out", tmp_path / "run")
    first = answer(capsys, *one_pass)
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "emptied"))

    def never(*_):
        raise AssertionError("solved again")

    monkeypatch.setattr("hush.matrix_factorization.single_epoch._solve", never)
    again = answer(capsys, "train", "--out", tmp_path / "run", "--resume")
    assert again["resumed_from"] == 4
    assert again["test_loss"] == first["test_loss"]


def rows(path: Path, moved: float = 0.0) -> Path:
    """A small table; ``moved`` shifts one number of one row."""
    lines = ["age,height,label"]
    lines += [f"{20 + i % 50 + (moved if i == 7 else 0)},{150 + i % 40},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(lines) + "\n")
    return path


OWN = (
    "train",
    "--target",
    "label",
    "--batch-size",
    10,
    "--noise-multiplier",
    2,
    "--steps",
    6,
    "--public",
    "ranges+classes",
)


class TestTakenAgain:
    def back(self, out: Path, step: int) -> None:
        """The newest checkpoints go, by somebody's hand."""
        for path in (out / "private").glob("checkpoint-*"):
            if int(path.name[11:21]) > step:
                path.unlink()

    def test_other_sums_are_charged_and_said(self, capsys, tmp_path, ledger, monkeypatch) -> None:
        train = (*TRAIN, "--steps", 20, "--checkpoint-every", 5, "--out", tmp_path / "run", "--ledger", ledger)
        train = (*train, "--keep-secret")
        first = answer(capsys, *train)
        assert first["taken_again"] == []
        self.back(tmp_path / "run", 15)
        same = answer(capsys, "train", "--out", tmp_path / "run", "--resume")
        assert (same["epsilon"], same["resumed_from"], same["taken_again"]) == (first["epsilon"], 15, [])
        assert same["ledger"]["epsilon"] == first["ledger"]["epsilon"]
        self.back(tmp_path / "run", 15)

        def changed(task, augment, views):
            return lambda model, content: 0.9 * task.losses(model, content)

        monkeypatch.setattr("hush.cli.prepare.with_views", changed)
        code, out, err = call(capsys, "train", "--out", tmp_path / "run", "--resume", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert "the sums of step 16 are not those" in err
        assert found["taken_again"] == [[16, 20]]
        assert found["epsilon"] > first["epsilon"]
        assert found["ledger"]["epsilon"] == pytest.approx(found["epsilon"])
        card = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
        assert card["guarantee"]["epsilon"] == found["epsilon"]
        shown = answer(capsys, "ledger", "show", ledger)["datasets"][0]
        assert [run["steps"] for run in shown["runs"]] == [20, 5]

    def test_a_seed_on_changed_data(self, capsys, tmp_path, ledger) -> None:
        data = rows(tmp_path / "rows.csv")
        once = (*OWN, "--data", data, "--secret-seed", 5)
        answer(capsys, *once, "--out", tmp_path / "run")
        answer(capsys, *once, "--out", tmp_path / "other", "--ledger", ledger)
        rows(data, moved=0.5)
        code, out, err = call(capsys, *once, "--out", tmp_path / "run", "--overwrite")
        assert (code, out) == (2, "")
        assert "this secret seed was used in this directory with the same plan on other data" in err
        code, out, err = call(capsys, *once, "--out", tmp_path / "third", "--ledger", ledger)
        assert (code, out) == (2, "")
        assert "the secret behind this run's noise was used before" in err
        assert len(answer(capsys, "ledger", "show", ledger)["datasets"][0]["runs"]) == 1

    def test_a_refused_run_changes_nothing_of_the_one_before(self, capsys, tmp_path) -> None:
        data, out = rows(tmp_path / "rows.csv"), tmp_path / "run"
        answer(capsys, *OWN, "--data", data, "--secret-seed", 5, "--out", out)
        before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
        rows(data, moved=0.5)
        changed = ("--secret-seed", 5, "--out", out, "--checkpoint-every", 3, "--overwrite")
        code, _, err = call(capsys, *OWN, "--data", data, *changed)
        assert code == 2
        assert "this secret seed was used in this directory" in err
        assert {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()} == before

    def test_changed_data_is_not_resumed(self, capsys, tmp_path) -> None:
        data = rows(tmp_path / "rows.csv")
        answer(capsys, *OWN, "--data", data, "--checkpoint-every", 2, "--out", tmp_path / "run", "--keep-secret")
        self.back(tmp_path / "run", 4)
        rows(data, moved=0.5)
        code, _, err = call(capsys, "train", "--out", tmp_path / "run", "--resume")
        assert code == 2
        assert "made on other data" in err


class TestLedger:
    def test_two_runs_compose_and_a_claim_is_labelled(self, capsys, tmp_path, ledger):
        first = answer(capsys, *TRAIN, "--epochs", 1, "--ledger", ledger, "--dataset", "tumours")
        second = answer(capsys, *TRAIN, "--epochs", 1, "--ledger", ledger, "--dataset", "tumours")
        found = answer(capsys, "ledger", "show", ledger)["datasets"]
        assert [entry["dataset"] for entry in found] == ["tumours"]
        assert first["epsilon"] < found[0]["epsilon"] < first["epsilon"] + second["epsilon"]
        assert found[0]["composition"] == "composed as one event"
        assert found[0]["status"] == "proven"
        hand = ("--epsilon", 0.3, "--delta", 1e-6, "--status", "claimed", "--dataset", "tumours")
        added = answer(capsys, "ledger", "add", ledger, "a survey", *hand)
        assert added["status"] == "claimed"
        assert "not a guarantee" in added["sentence"]
        assert "basic composition" in added["composition"]
        code, out, _ = call(capsys, "ledger", "show", ledger, "--dataset", "tumours")
        assert code == 0
        assert "a survey" in out

    def test_ordinary_training_is_entered_as_no_privacy(self, capsys, ledger):
        plain = ("train", "--problem", "breast-cancer-logistic", "--method", "sgd", "--epochs", 1, "--ledger", ledger)
        found = answer(capsys, *plain)["ledger"]
        assert found["epsilon"] is None
        assert found["status"] == "none"
        assert "no privacy" in found["sentence"]

    def test_an_edited_line_is_detected(self, capsys, ledger):
        answer(capsys, "ledger", "add", ledger, "a", "--epsilon", 1, "--delta", 1e-6)
        ledger.write_text(ledger.read_text().replace("1.0", "0.1"))
        code, out, err = call(capsys, "ledger", "show", ledger)
        assert code == 2
        assert out == ""
        assert "line 2 of the ledger" in err
        assert "was edited" in err

    def test_budget(self, capsys, ledger):
        assert call(capsys, "ledger", "budget", ledger)[0] == 2
        found = answer(capsys, "ledger", "budget", ledger, "--epsilon", 3, "--delta", 1e-6)
        assert found["budget"] == {"epsilon": 3.0, "delta": 1e-6, "unit": "example", "protects": "example"}
        assert found["spent"]["epsilon"] == 0
        code, out, _ = call(capsys, "ledger", "budget", ledger)
        assert code == 0
        assert "budget: ε = 3 at δ = 1e-6" in out

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("show", "nowhere.jsonl"), "'nowhere.jsonl'"),
            (("budget", "/no/such/place.jsonl", "--epsilon", 1), "does not exist"),
            (("budget", "LEDGER", "--epsilon", 0), "epsilon must be above zero"),
            (("budget", "LEDGER", "--epsilon", 1, "--delta", 1), "delta must lie between 0 and 1"),
            (("add", "LEDGER", "x", "--epsilon", -1, "--delta", 1e-6), "epsilon must be zero or above"),
            (("add", "LEDGER", "x", "--epsilon", 1, "--delta", 1e-6, "--status", "prooven"), "did you mean 'proven'"),
            (("add", "LEDGER", "x", "--epsilon", 1, "--delta", 1e-6, "--adjacency", "swap"), "adjacency"),
        ],
    )
    def test_bad_input(self, capsys, tmp_path, arguments, sentence):
        made = [tmp_path / "l.jsonl" if a == "LEDGER" else a for a in arguments]
        code, out, err = call(capsys, "ledger", *made)
        assert code == 2
        assert out == ""
        assert sentence in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("left", ["released", "nothing"])
def test_resuming_where_the_private_part_is_gone_is_refused(capsys, tmp_path, left) -> None:
    out = tmp_path / "run"
    answer(capsys, *TRAIN, "--epochs", 1, "--out", out)
    shutil.rmtree(out / "private")
    if left == "nothing":
        shutil.rmtree(out / "release")
    before = list_files(out)
    why = "cannot be resumed" if left == "released" else "no run was begun in"
    for call_again in (("train",), TRAIN) if left == "released" else (("train",),):
        code, said, err = call(capsys, *call_again, "--out", out, "--resume")
        assert (code, said) == (2, "")
        assert why in err
        assert len(err.strip().splitlines()) == 1
        assert list_files(out) == before


def test_nobody_is_told_to_resume_a_deleted_run(capsys, tmp_path, monkeypatch) -> None:
    from hush.cli import train

    out, real = tmp_path / "run", train.take_steps

    def and_then_it_is_gone(run, **more):
        for record in real(run, **more):
            if run.next == 3:
                shutil.rmtree(out)
            yield record

    monkeypatch.setattr(train, "take_steps", and_then_it_is_gone)
    code, said, err = call(capsys, *TRAIN, "--steps", 20, "--checkpoint-every", 5, "--out", out)
    assert (code, said) == (1, "")
    assert "--resume" not in err
    assert "was deleted" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"batch_size": "many"}',
        b'{"batch_size": [1]}',
        b'{"epochs": {}}',
        b'{"data": {"path": 5}}',
        b'{"data": {"file": "x"}}',
        b'{"settings": 5}',
        b'{"delta": null}',
        b'{"accept_claimed": "perhaps"}',
        b'{"problem": "\\ud800"}',
        b'{"problem": ["digits-mlp"]}',
        b'{"microbatch": 1e400}',
    ],
)
def test_damaged_options_are_one_sentence(capsys, unfinished, content) -> None:
    (unfinished / "private" / "options.json").write_bytes(content)
    code, said, err = call(capsys, "train", "--out", unfinished, "--resume")
    assert (code, said) == (2, ""), err
    assert len(err.strip().splitlines()) == 1, err


def test_a_run_that_is_not_there_is_not_gone_on_with(tmp_path: Path, capsys) -> None:
    """Nobody asked for a model of the digits, and nothing is charged for one."""
    ledger = tmp_path / "spend.jsonl"
    code, _, err = call(capsys, "train", "--out", tmp_path / "mistyped", "--resume", "--ledger", ledger)
    assert code == 2
    assert "nothing to resume" in err
    assert not ledger.exists()
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_directory_of_another_version_is_refused_and_left_unchanged(
    capsys, unfinished, monkeypatch, resume
) -> None:
    monkeypatch.setattr("hush.checkpointing.checkpoint.FORMAT", "hush checkpoint 99")
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    command = ("train", "--resume") if resume else (*TRAIN, "--steps", 60)
    code, out, err = call(capsys, *command, "--out", unfinished)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "hush checkpoint 99" in err
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


# Configurations that would spend ε for nothing, each refused before the first noisy value and before any
# charge.


QUICK = ("--steps", "2", "--batch-size", "32")
TRAIN_EARLY = ("train", "--problem", "breast-cancer-logistic", *QUICK)
TUNE = ("tune", "--problem", "breast-cancer-logistic", "--public-test", "--mean-trials", "2", *QUICK)
PROBLEM = """
import dataclasses
from hush.datasets import catalogue
from hush.release.description import Architecture, Inputs

def broken_description():
    found = catalogue.load("breast-cancer-logistic")
    return dataclasses.replace(found, schema=None, target=5)

def broken_state():
    found = catalogue.load("breast-cancer-logistic")
    make = found.model
    def model():
        network = make()
        network.__class__ = type("Odd", (type(network),), {"get_extra_state": lambda self: {"made": "today"},
                                                           "set_extra_state": lambda self, state: None})
        return network
    return dataclasses.replace(found, model=model)

from torch import nn

class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))

def mixing_model(features, classes):
    return Mixing(features, classes)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in: a table, a table without a usable column, a file in the way, and a module of problems."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = [f"{random.normal():.3f},{random.integers(2)}" for _ in range(120)]
    (tmp_path / "my.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    (tmp_path / "bare.csv").write_text("\n".join(["y", *(row.partition(",")[2] for row in rows)]) + "\n")
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "preflight_problems.py").write_text(PROBLEM)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("preflight_problems", None)


def hold(folder: Path) -> None:
    """A release folder with a file that hush did not write."""
    (folder / "out" / "release").mkdir(parents=True)
    (folder / "out" / "release" / "thesis.tex").write_text("years of work")


def begin(folder: Path) -> None:
    """A run that was stopped."""
    kept = Checkpoints(folder / "out" / "private")
    (folder / "out" / "private" / "options.json").write_text("{}")
    kept.close()


def nothing(folder: Path) -> None:
    pass


WAYS: dict[str, tuple[Callable[[Path], None], tuple[str, ...], type[HushError], str]] = {
    "own data that are not kept": (nothing, ("train", "--data", "my.csv", "--target", "y", *QUICK), InvalidInputError,
                                   "--out"),
    "a search on own data that is not kept": (nothing, ("tune", "--data", "my.csv", "--target", "y", "--public-test",
                                              *QUICK), InvalidInputError, "--out"),
    "a table without usable columns": (nothing, ("train", "--data", "bare.csv", "--target", "y", *QUICK, "--out",
                                       "out"), DataError, "y"),
    "a file in the place of the folder": (nothing, (*TRAIN_EARLY, "--out", "file"), InvalidInputError, "file"),
    "a folder that cannot be made": (nothing, (*TRAIN_EARLY, "--out", "file/out"), InvalidInputError, "file/out"),
    "a release folder with somebody's files": (hold, (*TRAIN_EARLY, "--out", "out"), InvalidInputError, "thesis.tex"),
    "a description that cannot be written": (nothing, ("train", "--problem", "preflight_problems:broken_description",
                                             *QUICK, "--out", "out"), InvalidInputError, "target"),
    "weights that cannot be written": (nothing, ("train", "--problem", "preflight_problems:broken_state", *QUICK,
                                       "--out", "out"), ReleaseError, "AttributeError"),
    "a delta that is no probability": (nothing, ("train", "--data", "my.csv", "--target", "y", "--delta", "1", "--out",
                                       "out"), InvalidInputError, "1"),
    "ranges for a model that mixes rows": (nothing, ("train", "--data", "my.csv", "--target", "y", "--model",
                                           "preflight_problems:mixing_model", "--public", "classes",
                                           "--private-ranges", "0.2", *QUICK, "--out", "out"),
                                           ExamplesNotIndependent, ""),
    "a search into a file": (nothing, (*TUNE, "--out", "file"), InvalidInputError, "file"),
    "a search into a run's folder": (begin, (*TUNE, "--out", "out"), InvalidInputError, "out"),
    "a search over somebody's files": (hold, (*TUNE, "--out", "out"), InvalidInputError, "thesis.tex"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_spent_for_nothing(way: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, command, error, value = WAYS[way]
    prepare(place)
    noisy: list[object] = []
    monkeypatch.setattr(NoiseAdder, "release", lambda *a, **k: noisy.append(a))
    with pytest.raises(error, match=value or None):
        app(args=[*command, "--ledger", "spend.jsonl"], standalone_mode=False)
    assert noisy == []
    ledger = place / "spend.jsonl"
    assert not ledger.exists() or len(ledger.read_text().splitlines()) == 1  # its header
    assert not list(place.glob("out/private/checkpoint-*[1-9].safetensors"))


def test_there_are_twelve_and_more() -> None:
    assert len(WAYS) == 13


@pytest.mark.parametrize("delta", ["0", "2", "nan", "0.5"])
def test_a_delta_is_refused_before_the_table_is_read(delta, place, monkeypatch) -> None:
    read: list[object] = []
    monkeypatch.setattr("hush.cli.prepare.load_task", lambda *a: read.append(a))
    with pytest.raises(HushError, match=delta):
        app(
            args=["train", "--data", "my.csv", "--target", "y", "--delta", delta, "--out", "out"], standalone_mode=False
        )
    assert read == []


def test_a_full_disk_is_noticed_before_the_first_step(place, monkeypatch) -> None:
    monkeypatch.setattr("hush.run_directory.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(ReleaseError, match="1000"):
        app(args=[*TRAIN_EARLY, "--out", "out", "--ledger", "spend.jsonl"], standalone_mode=False)
    assert not (place / "spend.jsonl").exists()


class TestFolderOfASearch:
    def test_two_searches_on_one_folder_pay_once(self, place, monkeypatch, capsys) -> None:
        second: list[type[BaseException]] = []

        def search(*given):
            ledger = Path("spend.jsonl").read_bytes()
            with pytest.raises(InUse) as refused:
                app(args=[*TUNE, "--out", "out", "--ledger", "spend.jsonl"], standalone_mode=False)
            second.append(refused.type)
            assert Path("spend.jsonl").read_bytes() == ledger
            return select_best(*given)

        monkeypatch.setattr("hush.tuning.select_best", search)
        code = main([*TUNE, "--out", "out", "--ledger", "spend.jsonl", "--json"])
        assert code == 0, capsys.readouterr().err
        assert second == [InUse]
        assert Path("out/release/privacy.json").is_file()

    def test_what_a_search_wrote_is_not_resumed(self, place, capsys) -> None:
        assert main([*TUNE, "--out", "out"]) == 0, capsys.readouterr().err
        card = Path("out/release/privacy.json").read_bytes()
        assert json.loads(Path("out/private", TUNED).read_text()) == {"written_by": "hush tune"}
        with pytest.raises(ResumeError):
            app(args=[*TRAIN_EARLY, "--out", "out", "--resume"], standalone_mode=False)
        assert main([*TRAIN_EARLY, "--out", "out"]) == 2
        assert Path("out/release/privacy.json").read_bytes() == card
        assert main([*TRAIN_EARLY, "--out", "out", "--overwrite"]) == 0
        assert not Path("out/private", TUNED).exists()

    def test_a_resumed_run_does_not_replace_the_release_of_another(self, place, capsys) -> None:
        assert main([*TUNE, "--out", "search"]) == 0, capsys.readouterr().err
        stop(place / "out")
        Path("search/release").rename("out/release")
        card = Path("out/release/privacy.json").read_bytes()
        with pytest.raises(ResumeError, match="release"):
            app(args=["train", "--out", "out", "--resume"], standalone_mode=False)
        assert Path("out/release/privacy.json").read_bytes() == card
        Path("out/release").rename("moved")
        assert main(["train", "--out", "out", "--resume"]) == 0

    def test_a_run_that_was_asked_to_replace_a_release_does_so_after_a_kill(self, place, capsys) -> None:
        assert main([*TRAIN_EARLY, "--out", "out"]) == 0, capsys.readouterr().err
        card = Path("out/release/privacy.json").read_bytes()
        stop(place / "out", "--overwrite")
        assert Path("out/release/privacy.json").read_bytes() == card
        assert main(["train", "--out", "out", "--resume"]) == 0, capsys.readouterr().err
        assert Path("out/release/privacy.json").read_bytes() != card

    def test_a_search_without_a_result_leaves_the_folder_free(self, place, monkeypatch) -> None:
        monkeypatch.setattr("hush.tuning.select_best", lambda *given: None)
        assert main([*TUNE, "--out", "out"]) == 2
        assert not Path("out").exists()


def stop(out: Path, *more: str) -> None:
    """A run in ``out`` that is killed after its first step."""
    child = os.fork()
    if child == 0:
        step = NoiseAdder.release

        def once(adder, channels, secret, number):
            if number:
                os._exit(9)
            return step(adder, channels, secret, number)

        NoiseAdder.release = once
        main([*TRAIN_EARLY, "--out", str(out), "--checkpoint-every", "1", *more])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
