"""The example of the README: short, and it runs as it stands."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {
    "with_tensorboard.py": ("tensorboard",),
    "with_lightning.py": ("lightning",),
    "with_peft.py": ("transformers", "peft"),
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    for package in NEEDED.get(path.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if path.name == "own_model.py":
        card = json.loads((tmp_path / "runs" / "own_model" / "privacy.json").read_text())
        assert all(text in done.stdout for text in card["guarantee"]["assumptions"])
        assert (card["method"], card["steps_taken"], card["steps"]) == ("dp-sgd", 160, 160)  # ⌈1797/256⌉ · 20
        assert 2.99 < card["guarantee"]["epsilon"] <= 3.0
        weights = load_file(tmp_path / "runs" / "own_model" / "model.safetensors")
        assert {name: tuple(w.shape) for name, w in weights.items()} == {
            "1.weight": (64, 64),
            "1.bias": (64,),
            "3.weight": (10, 64),
            "3.bias": (10,),
        }


@pytest.mark.parametrize("name", NEEDED)
def test_examples_with_other_packages_are_short_and_log_nothing_private(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert len(text.splitlines()) <= 60
    calls = [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert not [call for call in calls if ".private" in call or ".numbers(" in call or ".indices" in call]
    assert any("run.release(" in call for call in calls)


def test_the_example_is_short() -> None:
    imports = (ast.Import, ast.ImportFrom)
    tree = ast.parse((ROOT / "examples" / "own_model.py").read_text())
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, imports)}
    assert len(lines) <= 16
    private = [ast.unparse(node) for node in tree.body if "hush." in ast.unparse(node) or "run." in ast.unparse(node)]
    assert len(private) == 4  # the plan, the loop, the guarantee and the release; start is a method of the plan
