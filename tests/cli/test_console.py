"""Console output: by rank zero only, and without a traceback when the reader closes the pipe."""

from __future__ import annotations

import io
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hush.bench.store import open_store
from hush.cli import console
from hush.cli.console import Interruption
from hush.cli.main import main
from hush.cli.train import ALONE, take_all
from hush.run_directory import RunDirectory


def test_a_silent_process_prints_nothing(capsys, monkeypatch) -> None:
    for stream in (console._errors, console._output):
        monkeypatch.setattr(stream, "quiet", False)
    console.be_silent()
    console.say("x")
    console.show("x")
    console.show_lines(["x", "y"])
    console.show_json({"x": 1})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", [["ledger", "--help"], ["methods", "--json"]])
def test_a_reader_that_has_gone_is_no_error_of_python(command) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "hush", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    said = program.stderr.read()
    program.stderr.close()
    assert program.wait() == 1
    assert said == ""


class TestWithoutMemoryForAThread:
    """A thread that cannot be started, or ends before its first line, stops no command."""

    def test_a_status(self, no_thread, capsys) -> None:
        with console.delayed_status("computing") as notify:
            notify("something")
        assert capsys.readouterr() == ("", "")

    def test_a_progress_bar(self, no_thread, monkeypatch) -> None:
        shown = io.StringIO()
        monkeypatch.setattr(console, "_errors", Console(file=shown, force_terminal=True))
        with console.show_progress() as bar:
            task = bar.add_task("training", total=3)
            for _ in range(3):
                bar.advance(task)
        assert "1/3" in shown.getvalue()
        assert "3/3" in shown.getvalue()


def test_a_status_appears_if_the_task_takes_long(capsys, monkeypatch) -> None:
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    reminded = threading.Event()
    remind = console.DelayedStatus.remind
    monkeypatch.setattr(console.DelayedStatus, "remind", lambda self: (remind(self), reminded.set()))
    with console.delayed_status("computing") as notify:
        assert reminded.wait(60)
        notify("something")
    assert capsys.readouterr().err.splitlines() == ["computing …", "computing: something …"]


# The process around a run: folder permissions, core dumps, and Ctrl-C on one of several processes.


TRAIN = ("train", "--problem", "breast-cancer-logistic", "--steps", "2", "--batch-size", "32")


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    every = [folder, *(path for path in folder.rglob("*"))]
    return {str(path.relative_to(folder.parent)): stat.S_IMODE(path.stat().st_mode) for path in every}


def test_others_cannot_write_into_a_run_whatever_the_umask(open_umask, tmp_path, capsys) -> None:
    assert main([*TRAIN, "--out", str(tmp_path / "a" / "b" / "run")]) == 0, capsys.readouterr().err
    found = modes(tmp_path / "a")
    assert found["a/b/run/release"] == found["a"] == found["a/b"] == 0o755
    assert found["a/b/run/private"] == 0o700
    assert [name for name, mode in found.items() if mode & 0o022] == []


def test_others_cannot_write_into_a_store_whatever_the_umask(open_umask, tmp_path) -> None:
    store = open_store(tmp_path / "store")
    store.working("key")
    assert [name for name, mode in modes(tmp_path / "store").items() if mode & 0o022] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
def test_no_core_dump_holds_memory() -> None:
    program = (
        "import resource, os, sys; from hush.cli import main as m; from hush.cli.main import protect_process; "
        "os.umask(0); protect_process(); print(resource.getrlimit(resource.RLIMIT_CORE)[0], "
        "int(open('/proc/self/coredump_filter').read(), 16), os.umask(0))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["0", "0", str(0o022)]
    assert resource.getrlimit(resource.RLIMIT_CORE)  # this process is left alone


def test_a_process_that_is_interrupted_alone_ends(monkeypatch) -> None:
    """Process 0 of two was not interrupted and takes its steps; process 1 leaves after a few."""
    taken: list[int] = []
    run: Any = SimpleNamespace(next=0, plan=SimpleNamespace(steps=100, method="dp-sgd"), check_arithmetic=lambda: None,
                               ranks=SimpleNamespace(world=2, rank=1, broadcast=lambda said: False))  # fmt: skip

    def steps(*given: Any, **more: Any):
        for number in range(100):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            run.next = number + 1
            taken.append(number)
            yield SimpleNamespace(numbers=dict)

    monkeypatch.setattr("hush.cli.train.take_steps", steps)
    with pytest.raises(Interruption):
        take_all("x", run, RunDirectory(None, False), None, every=1, quiet=True)
    assert len(taken) == 3 + ALONE + 1
