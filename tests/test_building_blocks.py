"""The page from one Gaussian to a private network: its code runs, and its figures can be drawn."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "building-blocks.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("building_blocks", ROOT / "benchmarks" / "building_blocks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_block_runs_after_those_before_it() -> None:
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) >= 8
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["told"].guarantee.private
    assert names["run"].next == names["plan"].steps
    assert 15 < names["naive"].epsilon < 17  # as the page says
    assert 7 < names["better"].epsilon < 8


def test_every_figure_of_the_page_is_drawn_by_the_script(script: ModuleType, tmp_path: Path) -> None:
    norms = json.loads(script.measure(tmp_path, small=True).read_text())
    assert [seen["step"] for seen in norms["seen"]] == [0, 20]
    assert norms["seen"][0]["percentiles"]["5"] < norms["seen"][0]["percentiles"]["95"]
    (tmp_path / "building-blocks.jsonl").write_text((ROOT / "results" / "building-blocks.jsonl").read_text())
    drawn = {path.name for path in script.draw(tmp_path / "out", tmp_path, small=True)}
    shown = set(re.findall(r"pictures/building-blocks/([\w-]+\.svg)", PAGE.read_text()))
    assert shown == drawn
    assert all((ROOT / "docs" / "pictures" / "building-blocks" / name).exists() for name in shown)
    assert all("<svg" in (tmp_path / "out" / name).read_text() for name in drawn)


def test_the_norms_that_the_page_quotes_are_those_that_were_measured() -> None:
    last = json.loads((ROOT / "results" / "building-blocks-norms.json").read_text())["seen"][-1]["percentiles"]
    assert 0.25 < last["50"] < 0.35
    assert 14 < last["95"] < 15.5
