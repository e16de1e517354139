"""Twelve ways to spend ε and get nothing, each refused before the first noisy value and before anything is charged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hush.checkpointing import Checkpoints, InUse
from hush.cli import main
from hush.cli.main import app
from hush.errors import DataError, HushError, InvalidInputError, ReleaseError, ResumeError
from hush.noise_addition import NoiseAdder
from hush.run_directory import TUNED
from hush.tuning import select_best

QUICK = ("--steps", "2", "--batch-size", "32")
TRAIN = ("train", "--problem", "breast-cancer-logistic", *QUICK)
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
    "a file in the place of the folder": (nothing, (*TRAIN, "--out", "file"), InvalidInputError, "file"),
    "a folder that cannot be made": (nothing, (*TRAIN, "--out", "file/out"), InvalidInputError, "file/out"),
    "a release folder with somebody's files": (hold, (*TRAIN, "--out", "out"), InvalidInputError, "thesis.tex"),
    "a description that cannot be written": (nothing, ("train", "--problem", "preflight_problems:broken_description",
                                             *QUICK, "--out", "out"), InvalidInputError, "target"),
    "weights that cannot be written": (nothing, ("train", "--problem", "preflight_problems:broken_state", *QUICK,
                                       "--out", "out"), ReleaseError, "AttributeError"),
    "a delta that is no probability": (nothing, ("train", "--data", "my.csv", "--target", "y", "--delta", "1", "--out",
                                       "out"), InvalidInputError, "1"),
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
    with pytest.raises(error, match=value):
        app(args=[*command, "--ledger", "spend.jsonl"], standalone_mode=False)
    assert noisy == []
    assert not (place / "spend.jsonl").exists()
    assert not list(place.glob("out/private/checkpoint-*"))


def test_there_are_twelve() -> None:
    assert len(WAYS) == 12


@pytest.mark.parametrize("delta", ["0", "2", "nan", "0.5"])
def test_a_delta_is_refused_before_the_table_is_read(delta, place, monkeypatch) -> None:
    read: list[object] = []
    monkeypatch.setattr("hush.cli.options.load_task", lambda *a: read.append(a))
    with pytest.raises(HushError, match=delta):
        app(
            args=["train", "--data", "my.csv", "--target", "y", "--delta", delta, "--out", "out"], standalone_mode=False
        )
    assert read == []


def test_a_full_disk_is_noticed_before_the_first_step(place, monkeypatch) -> None:
    monkeypatch.setattr("hush.run_directory.shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(ReleaseError, match="1000"):
        app(args=[*TRAIN, "--out", "out", "--ledger", "spend.jsonl"], standalone_mode=False)
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
            app(args=[*TRAIN, "--out", "out", "--resume"], standalone_mode=False)
        assert main([*TRAIN, "--out", "out"]) == 2
        assert Path("out/release/privacy.json").read_bytes() == card
        assert main([*TRAIN, "--out", "out", "--overwrite"]) == 0
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
        assert main([*TRAIN, "--out", "out"]) == 0, capsys.readouterr().err
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
        main([*TRAIN, "--out", str(out), "--checkpoint-every", "1", *more])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
