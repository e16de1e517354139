"""The step times on docs/speed.md and docs/results/step-time.md are what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from scripts import ROOT, load_script


@pytest.fixture
def page(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return load_script("speed_page")


def test_the_pages_are_what_the_figures_give(page: ModuleType) -> None:
    assert set(page.read()) == set(page.PARTS)
    for path in page.PAGES:
        assert path.read_text() == page.render(path)


def test_a_changed_figure_changes_the_pages(page: ModuleType, monkeypatch, tmp_path: Path) -> None:
    metrics = page.read()
    metrics["peers"][0]["seconds"] |= {"plain SGD": 0.01, "hush": 0.0123}
    (tmp_path / "step-time.json").write_text(json.dumps(metrics))
    monkeypatch.setattr(page, "FIGURES", tmp_path / "step-time.json")
    for path in page.PAGES:
        assert "| MLP | 256 | 1 | 10.0 | 1.23 |" in page.render(path)


def test_a_part_that_is_none_is_not_taken(page: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="'others'"):
        page.put("others", tmp_path / "figures.json")
