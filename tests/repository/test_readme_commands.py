"""What `.ci/run` takes from the README to run with the installed wheel, and what it needs for that."""

from __future__ import annotations

import builtins
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from hush.bench.dataframes import _pandas
from hush.errors import MissingDependencyError
from hush.release.export import _need_onnx

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    spec = importlib.util.spec_from_file_location("readme", ROOT / ".ci" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[list[str]] = module.list_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    return found


def test_a_table_is_trained_predicted_verified_and_exported() -> None:
    handed = next(block for block in commands() if any("hush predict" in command for command in block))
    assert [command.split()[1] for command in handed] == ["train", "predict", "evaluate", "verify", "export"]
    assert "--data" in handed[0]
    assert sum(map(len, commands())) >= 15
    assert all(command.split()[0] in ("hush", "torchrun") for block in commands() for command in block)


def test_the_plain_dependencies_are_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=]", name)[0] for name in project["dependencies"]} == {
        "torch", "numpy", "scipy", "dp-accounting", "cryptography", "safetensors", "pyarrow", "scikit-learn", "typer",
        "rich", "jinja2", "pooch",
    }  # fmt: skip


def test_the_clean_environment_is_part_of_ci() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    for part in ("pip wheel", "--no-deps", "--constraint constraints.txt", ".ci/readme.py README.md"):
        assert part in text


@pytest.mark.parametrize(("need", "extra"), [(_need_onnx, "onnx"), (_pandas, "bench")])
def test_a_missing_package_is_named_with_its_extra(need, extra, monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *given, **more):
        if name.partition(".")[0] in ("onnx", "onnxscript", "pandas"):
            raise ModuleNotFoundError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf"hush-dp\[{extra}\]"):
        need()
