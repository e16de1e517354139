"""The pages whose examples can be run as they stand: their code blocks are taken from the page and run."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import hush
from hush.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [shlex.split(line.removeprefix("PYTHONPATH=. "))[1:] for line in lines]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_extend(here: Path, capsys) -> None:
    (here / "mymodule.py").write_text("\n".join(blocks("extend.md", "python")))
    (command,) = commands("extend.md")
    assert main([*command, "--epochs", "1"]) == 0, capsys.readouterr().err
    import mymodule  # type: ignore[import-not-found]

    plan = hush.make_plan("dp-sgd", examples=100, batch_size=10, epochs=1, epsilon=3.0)
    other = replace(plan, method="sign-sgd", rule=mymodule.SignSGD(0.01))
    assert other.guarantee().epsilon == plan.guarantee().epsilon


def test_own_data(here: Path, capsys) -> None:
    table, module = blocks("own-data.md", "python")
    exec(table, {})
    (here / "mine.py").write_text(module)
    (here / "patients.toml").write_text(*blocks("own-data.md", "toml"))
    for command in commands("own-data.md"):
        assert main([*command, "--epochs", "2"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    shown = (DOCS / "own-data.md").read_text()
    assert all(line in shown for line in said.err.splitlines())
    assert (here / "patients" / "privacy.json").is_file()


def test_readme(here: Path, capsys) -> None:
    (snippet,) = blocks("../README.md", "python")
    exec(snippet, {})
    said = capsys.readouterr().out
    assert said.startswith("(ε = 3, δ = 1e-5)-differentially private per example (one example's contribution becoming")
    assert "assumes that (1) the number of examples is public and (2) rounding" in said
    assert (here / "out" / "privacy.json").is_file()
