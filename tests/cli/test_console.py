"""What commands print: by one process of a run only, and without a trace where the reader has gone."""

from __future__ import annotations

import _thread
import io
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from hush.cli import console


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

    def refuse(self, *given):
        raise RuntimeError("can't start new thread")

    @pytest.fixture(params=["refused", "ends at once"])
    def no_thread(self, request, monkeypatch) -> None:
        start = self.refuse if request.param == "refused" else lambda *given: 0
        for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            monkeypatch.setattr(module, name, start)
        monkeypatch.setattr(threading.Event, "wait", lambda *given: pytest.fail("it would wait for ever"))

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
