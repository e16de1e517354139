"""Releases before training: the example that the module shows runs as it stands."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from hush import make_plan
from hush.data_release import make_releases
from hush.statistics import releases
from hush.statistics.releases import plan_releases, take_releases
from hush.tabular.problem import from_files


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i % 40},{'uv'[i % 2]}\n" for i in range(200))
    (tmp_path / "my.csv").write_text("x,y\n" + rows)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"from_files": from_files, "make_plan": make_plan, "make_releases": make_releases}
    names |= {"plan_releases": plan_releases, "take_releases": take_releases}
    shown = [line for line in (releases.__doc__ or "").splitlines() if line.startswith("    ")]
    exec(textwrap.dedent("\n".join(shown)), names)
    assert names["told"].keys() == {"private_ranges", "private_class_weights"}
    assert list(names["told"]["private_class_weights"]) == ["u", "v"]
    (low, high) = names["told"]["private_ranges"]["x"]
    column = names["problem"].schema.features[0]
    assert (column.low, column.high, column.awaited) == (low, high, False)
