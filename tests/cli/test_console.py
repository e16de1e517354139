"""What commands print: by one process of a run only, and without a trace where the reader has gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
