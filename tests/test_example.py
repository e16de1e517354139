"""The example of the README: short, and it runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if path.name == "own_model.py":
        assert "ε = " in done.stdout
        assert (tmp_path / "runs" / "own_model" / "privacy.json").is_file()
        code = [
            line
            for line in path.read_text().splitlines()
            if line.strip() and not line.startswith(('"""', "import", "from"))
        ]
        assert len(code) <= 20
        assert code[-8].startswith("plan = ")
