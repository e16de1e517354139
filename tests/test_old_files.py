"""Files of hush 0.1.0 are read, or refused in one sentence that says what to do, and then no byte of them changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hush.bench.dataframes import read_curves, read_runs
from hush.cli import main

OLD = Path(__file__).parent / "fixtures" / "v0.1.0"
DONE, UNFINISHED = "49ca54032de2c3de6059b8f80e151eb6", "68595f79963e162b24baed54718161be"
TRAIN = ("train", "--problem", "digits-logistic", "--noise-multiplier", "2", "--steps", "4", "--batch-size", "256")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one sentence of a command that is refused."""
    assert main(list(command)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1
    return shown.err


def shown_json(capsys: pytest.CaptureFixture[str], *command: str) -> dict:
    assert main([*command, "--json"]) == 0, capsys.readouterr().err
    found: dict = json.loads(capsys.readouterr().out)
    return found


class TestLedger:
    def test_it_is_read(self, old, capsys):
        before = contents(old)
        (dataset,) = shown_json(capsys, "ledger", "show", "ledger.jsonl")["datasets"]
        assert dataset["dataset"] == "digits"
        assert dataset["budget"] == {"epsilon": 5.0, "delta": 1e-5, "unit": "example", "protects": "example"}
        assert [run["steps"] for run in dataset["runs"]] == [4, 4]
        assert dataset["epsilon"] == pytest.approx(1.3046, abs=5e-3)  # eight steps at rate 256/1438, σ = 2
        assert contents(old) == before

    def test_a_run_is_entered_after_what_was_spent(self, old, capsys):
        before = (old / "ledger.jsonl").read_bytes()
        (spent,) = shown_json(capsys, "ledger", "show", "ledger.jsonl")["datasets"]
        found = shown_json(capsys, *TRAIN, "--ledger", "ledger.jsonl", "--dataset", "digits")["ledger"]
        assert (old / "ledger.jsonl").read_bytes().startswith(before)
        (dataset,) = shown_json(capsys, "ledger", "show", "ledger.jsonl")["datasets"]
        assert [run["steps"] for run in dataset["runs"]] == [4, 4, 4]
        assert dataset["epsilon"] == found["epsilon"] > spent["epsilon"]

    def test_its_budget_holds(self, old, capsys):
        before = contents(old)
        said = refused(capsys, *TRAIN[:3], "--noise-multiplier", "0.3", "--steps", "4", "--batch-size", "256",
                       "--ledger", "ledger.jsonl", "--dataset", "digits")  # fmt: skip
        assert "budget" in said
        assert contents(old) == before


class TestRun:
    @pytest.mark.parametrize("command", [("train", "--out", "run", "--resume"), (*TRAIN, "--out", "run")])
    def test_it_is_left_to_the_version_that_began_it(self, old, capsys, command):
        before = contents(old)
        said = refused(capsys, *command)
        assert "checkpoint of another version of hush ('hush checkpoint 2'" in said
        assert "finish the run with that version, or start a new one in another directory" in said
        assert contents(old) == before

    def test_damage_beside_it_does_not_lose_it(self, old, capsys):
        newest = old / "run" / "private" / "checkpoint-0000000005.safetensors"
        newest.write_bytes(newest.read_bytes()[:1000])
        before = contents(old)
        assert "another version of hush" in refused(capsys, "train", "--out", "run", "--resume")
        assert contents(old) == before


class TestStore:
    def test_what_is_done_is_read(self, old):
        before = contents(old)
        frame = read_runs("store")
        assert list(frame.key) == [DONE]
        assert frame.iloc[0].outcome == "finished"
        assert frame.iloc[0].lr == 0.5
        assert list(read_curves("store").step) == [6, 8]
        assert contents(old) == before

    def test_new_runs_leave_it_as_it_is(self, old, capsys):
        """Its keys are without the arithmetic, so nothing of it is taken for a run of today's spec."""
        before = contents(old / "store")
        found = shown_json(capsys, "bench", "spec.toml", "--store", "store", "--executor", "inline")
        counts = {"runs": 2, "done": 2, "failed": 0, "skipped": 0, "diverged": 0}
        assert {name: found[name] for name in counts} == counts
        after = contents(old / "store")
        assert {name: after[name] for name in before if DONE in name or UNFINISHED in name} == {
            name: content for name, content in before.items() if DONE in name or UNFINISHED in name
        }
