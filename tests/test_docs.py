"""The pages whose examples can be run as they stand: their code blocks are taken from the page and run."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import hush
import hush.data
from hush.cli import main
from hush.problems import table

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


def test_extend_by_a_dataset(here: Path, monkeypatch) -> None:
    loader, data, row = blocks("extend.md", "py")
    (here / "wine.py").write_text(loader)
    monkeypatch.setattr(hush.data, "__path__", [*hush.data.__path__, str(here)])
    text = Path(table.__file__).read_text()
    for place, added in (("from hush.data import ", "wine, "), ("adult.CLASSES)\n", data), ("\n_ROWS = (\n", row)):
        assert text.count(place) == 1
        text = text.replace(place, place + added)
    (here / "table_with_wine.py").write_text(text)
    import table_with_wine  # type: ignore[import-not-found]

    problem = table_with_wine.PROBLEMS["wine-logistic"].load(seed=0, validation=0.0, data_dir=None)
    assert (len(problem.train[0]), len(problem.test[0])) == (143, 35)
    assert sum(p.numel() for p in problem.model().parameters()) == 42
    assert problem.train[0].max() <= 1
    assert "wine" in table_with_wine.list_datasets_read()


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
