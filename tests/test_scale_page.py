"""docs/scale.md says what the figures say, the figures are what the formulas say, and its two lines do what it says."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from scripts import load_script


@pytest.fixture
def page() -> ModuleType:
    return load_script("scale")


def test_the_page_is_what_the_figures_give(page: ModuleType) -> None:
    assert page.PAGE.read_text() == page.render()


def test_what_was_counted_is_what_the_formulas_say(page: ModuleType) -> None:
    rows = page.read()["bytes"]
    assert len(rows) == len(page.POINTS) * len(page.WIDTHS)
    for row in rows:
        assert page.predict_bytes(row["d"], row["processes"], row["vectors kept"]) == {
            "sent": row["sent"],
            "state": row["state"],
        }


def test_a_changed_figure_changes_the_page(page: ModuleType, monkeypatch, tmp_path: Path) -> None:
    metrics = page.read()
    about = {"network": "LeNet-5", "d": 61_706, "processes": 2, "cores": 8, "batch": 512, "steps": 10}
    times = {**about, "efficiency": 0.4321}
    (tmp_path / "scale.json").write_text(json.dumps(metrics | {"times": [times]}))
    monkeypatch.setattr(page, "FIGURES", tmp_path / "scale.json")
    shown = page.render()
    assert "| LeNet-5 | 61 706 | 2 | 8 | 0.43 |" in shown
    assert "dp-sgd, batch 512" in shown
    assert "no figure of it yet" not in shown
