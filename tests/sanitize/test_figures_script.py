"""The script behind the figures: a small run of it, once, and again from its store."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("sanitize_figures")


def test_every_figure_is_there_and_each_run_is_made_once(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = script.draw(script.SMALL, tmp_path)
    assert drawn["status"] == "refuted"
    assert len(list(tmp_path.glob("*.json"))) == len(script.SMALL.list_runs()) == 5
    for kind in ("static", "adaptive"):
        assert [n for n, *_ in drawn["accuracy_by_width"][kind]] == [2, 4]
        assert all(0.05 < last <= best <= 1 for _, last, best in drawn["accuracy_by_width"][kind])
        curve = drawn["convergence"][kind]["accuracy"]
        assert [curve[-1], max(curve)] in [found[1:] for found in drawn["accuracy_by_width"][kind]]
        assert len(drawn["convergence"][kind]["accuracy"]) == 3
        tight, loose = drawn["flags"][kind]
        assert tight[2][0] is loose[2][0] is False  # no window is whole after one epoch
        assert loose[2][-1] is True  # a limit of 100 raises every flag there can be
    static = drawn["convergence"]["static"]
    assert static["stops"][1][:4] == [2, 1e2, 2, static["accuracy"][1]]
    assert static["stops"][0][2:] == [None, None, None] or static["stops"][0][2] > 1
    whole = script.make_plan(script.SMALL.base, 1438).guarantee().epsilon
    assert 0 < static["stops"][1][4] < whole  # two epochs of three
    for share, pairs in drawn["norm_and_clip_by_share"].items():
        norms, clips = zip(*pairs, strict=True)
        assert [float(share) * norm for norm in norms[:-1]] == pytest.approx(list(clips[1:]))
    monkeypatch.setattr(script, "train", None)  # a second time nothing is trained
    assert script.draw(script.SMALL, tmp_path) == drawn


def test_the_claimed_epsilon_is_the_published_one(script: ModuleType) -> None:
    """σ = 1, q = 250/50 000, 30 epochs: 2.34."""
    plan = script.make_plan(script.Training(epochs=30), 50_000)
    assert plan.guarantee().epsilon == pytest.approx(2.34, abs=0.005)
    assert plan.guarantee().status == "refuted"


def test_low_against_high_threshold(script: ModuleType) -> None:
    """[2.8, 0.9, 1.5] at C = 1 loses √(1.8² + 0.5²) for noise √3; at C = 3 it loses nothing for three times as much."""
    low, high = (script.compare_threshold(clip, 1.0) for clip in (1.0, 3.0))
    assert low["clipped"] == [1.0, 0.9, 1.0]
    assert (low["lost"], low["noise"]) == (pytest.approx(math.sqrt(3.49)), pytest.approx(math.sqrt(3)))
    assert high["clipped"] == [2.8, 0.9, 1.5]
    assert (high["lost"], high["noise"]) == (0.0, pytest.approx(3 * math.sqrt(3)))
