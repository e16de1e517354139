"""The page of published results and its pictures say what the records say."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from hush.accounting.accountant import epsilon
from hush.accounting.gaussian import gaussian_delta
from hush.bench.spec import read_spec
from hush.bench.store import open_store
from hush.matrix_factorization.tree import Tree
from hush.textbook.gaussian import analytic_sigma

ROOT = Path(__file__).resolve().parents[1]
RECORDS = sorted((ROOT / "results").glob("*.jsonl"))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from published import page

    return page


@pytest.fixture
def kept(page: ModuleType) -> ModuleType:
    from published import records

    return records


@pytest.fixture
def mnist(page: ModuleType) -> ModuleType:
    from published import mnist

    return mnist


def copy_records(to: Path) -> None:
    to.mkdir(exist_ok=True)
    for path in RECORDS:
        (to / path.name).write_text(path.read_text())


def test_the_page_is_what_the_records_give(page: ModuleType) -> None:
    assert (ROOT / "docs" / "reproduction.md").read_text() == page.render()


def test_the_pictures_are_what_the_records_give(page: ModuleType) -> None:
    drawn = page.draw_all()
    folder = ROOT / "docs" / "pictures" / "reproduction"
    assert {path.name for path in folder.iterdir()} == set(drawn)
    assert {name for name, svg in drawn.items() if (folder / name).read_text() != svg} == set()
    shown = re.findall(r"pictures/reproduction/([\w-]+\.svg)", (ROOT / "docs" / "reproduction.md").read_text())
    assert sorted(shown) == sorted(drawn)
    for svg in drawn.values():
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "var(--" not in svg  # a file of its own has its colours in it


def test_a_changed_record_changes_the_page(page: ModuleType, kept: ModuleType, monkeypatch, tmp_path: Path) -> None:
    before = page.render()
    copy_records(tmp_path)
    record = json.loads((tmp_path / "building-blocks.jsonl").read_text().splitlines()[0])
    record["test_accuracy"] = 0.1234
    (tmp_path / "building-blocks.jsonl").write_text(json.dumps(record) + "\n")
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    assert "12.34 (1)" in page.render() != before


def test_a_changed_curve_or_confusion_changes_the_pictures(
    page: ModuleType, kept: ModuleType, monkeypatch, tmp_path: Path
) -> None:
    before = page.draw_all()
    copy_records(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "mnist-dpsgd.jsonl").read_text().splitlines()]
    lines[0]["curve"][-1]["test_accuracy"] -= 0.05
    lines[0]["confusion"][3][5] += 400
    (tmp_path / "mnist-dpsgd.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    after = page.draw_all()
    assert {name for name in before if before[name] != after[name]} == {"curves-dpsgd.svg", "confusion-dpsgd-mlp.svg"}


def test_without_records_the_page_knows_nothing(page: ModuleType, kept: ModuleType, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    said = page.render()
    assert page.draw_all() == {}
    assert said.count("not run yet") >= len(page.PARTS)
    told = " ".join(said.split())
    assert "ME-λ beat DP-SGD and ME over ten epochs?** At ε = 1 not known yet (all rates are in for 0 of 6" in told
    assert "## DP-SGD on MNIST" not in said


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_are_runs_of_the_spec_each_once(path: Path) -> None:
    trials = {trial.key for trial in read_spec(ROOT / "specs" / f"{path.stem}.toml").trials}
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) > 0
    assert set(keys) <= trials


def test_records_go_back_into_a_store_and_a_sweep_goes_on_after_them(kept: ModuleType, monkeypatch, tmp_path) -> None:
    spec, results = ROOT / "specs" / "mnist-plain.toml", tmp_path / "results"
    trials = read_spec(spec).trials
    copy_records(results)
    monkeypatch.setattr(kept, "RESULTS", results)
    given = results / "mnist-plain.jsonl"
    before = given.read_text()
    assert kept.restore(tmp_path / "store", spec) == len(trials)
    store = open_store(tmp_path / "store")
    assert all(store.has(trial.key) for trial in trials)
    given.unlink()
    assert kept.collect(tmp_path / "store", spec).read_text() == before


def test_what_was_collected_before_stays(kept: ModuleType, monkeypatch, tmp_path: Path) -> None:
    spec, results = ROOT / "specs" / "mnist-plain.toml", tmp_path / "results"
    copy_records(results)
    monkeypatch.setattr(kept, "RESULTS", results)
    given = results / "mnist-plain.jsonl"
    before = given.read_text()
    first, *others = before.splitlines(keepends=True)
    given.write_text(first)
    kept.restore(tmp_path / "store", spec)  # this store has the first run alone
    given.write_text("".join(others))
    assert kept.collect(tmp_path / "store", spec).read_text() == before


def test_a_table_counts_finished_runs_and_seeds(kept: ModuleType) -> None:
    config = {"problem": "p", "options": {"lr": 0.1}}
    runs = [{"outcome": "finished", "config": config, "test_accuracy": a} for a in (0.5, 0.7)]
    runs.append({"outcome": "failed", "config": config, "test_accuracy": 0.0})
    assert kept.spread(kept.pick(runs, problem="p", lr=0.1)) == "60.00 ± 14.14 (2)"
    assert kept.spread(kept.pick(runs, problem="other")) == "not run"


def test_an_epsilon_is_rounded_up(kept: ModuleType) -> None:
    assert kept.epsilon([{"epsilon": 1.671, "status": "claimed"}]) == "1.68, claimed"
    assert re.fullmatch(r"none", kept.epsilon([{"epsilon": None, "status": "none"}]))


def run(accuracy: float, **more: Any) -> dict[str, Any]:
    return {"test_accuracy": accuracy, "epsilon": 1.0, "status": "proven", **more}


def test_a_row_may_lack_a_point(mnist: ModuleType) -> None:
    near, far = (mnist.Row("LeNet", "σ = 1", "90.00", "1", [run(a), run(a)]) for a in (0.8905, 0.8895))
    assert not near.short
    assert far.short
    assert mnist.tell_agreement([near]) == "All 1 rows are within a point of the published accuracy or above it."
    assert mnist.tell_agreement([near, far, mnist.Row("LeNet", "σ = 2", "90.00", "1", [])]) == (
        "1 of 2 rows are within a point of the published accuracy or above it; LeNet at σ = 1 is 1.05 points below "
        "(seeds: 88.95, 88.95)."
    )
    assert far.cells() == ("LeNet", "σ = 1", "90.00", "88.95 ± 0.00 (2)", "−1.05", "1", "1.00")


def test_a_row_with_more_seeds_says_what_the_first_said(mnist: ModuleType, kept: ModuleType, monkeypatch) -> None:
    config = {"node_noise": 25, "options": {"honaker": False}}
    runs = [run(a, outcome="finished", config=config, steps=1200, curve=[]) for a in (0.8, 0.9, 0.85, 0.97, 0.97)]
    monkeypatch.setattr(mnist, "read", lambda name: runs)
    said = " ".join(mnist.render_ftrl())
    assert "Node noise 25 has 5 seeds, as its first 3 lie 10.0 points apart; they alone give 85.00 ± 5.00 (3)" in said
    monkeypatch.setattr(mnist, "read", lambda name: [])
    assert "they alone" not in " ".join(mnist.render_ftrl())


def test_confusion_is_of_all_seeds(page: ModuleType) -> None:
    from published.pictures import average_curves, confuse

    curves = [[{"epoch": 1, "test_accuracy": a}] for a in (0.5, 0.9)]
    (point,) = average_curves([{"curve": curve} for curve in curves])
    assert (point.x, point.y, point.spread) == (1, 0.7, pytest.approx(0.4 / math.sqrt(2)))
    assert confuse([{"confusion": [[8, 2], [1, 9]]}, {"confusion": [[10, 0], [5, 5]]}]) == [[90, 10], [30, 70]]


def test_figures_that_the_page_corrects() -> None:
    """38.8 times the sensitivity that was claimed at ε = 1; the σ of Table IV; the calibration with a slip."""
    injected = GaussianDpEvent(analytic_sigma(1.0, 1e-5) / 38.8)
    assert epsilon(injected, 1e-5, accountant="gdp") == pytest.approx(98, abs=0.5)

    def price(sigma: float) -> float:
        return epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(500 / 54000, GaussianDpEvent(sigma)), 2160), 1e-5)

    assert price(0.8625) < 3.41 < price(0.861)
    assert price(0.872) < 3.36
    for printed, exact in ((0.044, 3.15), (0.028, 5.30), (0.014, 12.26)):  # node noise · 1.1/500; 15 for 120 batches
        found = epsilon(GaussianDpEvent(printed * 500 / 1.1 / 15), 1e-5, accountant="gdp")
        assert found == pytest.approx(exact, abs=0.005)
    for noise, every, read in ((25, 2.445, 2.117), (20, 3.147, 2.72), (12.5, 5.413, 4.659), (8, 9.236, 7.901)):
        for told, counted in ((every, "complete"), (read, "read")):  # Table III: all nodes, and those that sums read
            event = GaussianDpEvent(noise / Tree(1200, nodes=counted).same_order(120))
            assert epsilon(event, 1e-5, accountant="gdp") == pytest.approx(told, abs=0.0006)
    full = GaussianDpEvent(64.09 / math.sqrt(200))  # the second of four tries
    assert epsilon(full, 1e-6, accountant="gdp") == pytest.approx(0.93, abs=0.005)
    wrong = math.sqrt(2 * math.log(1e5)) / 20 + 2 * 20**-1.5
    assert gaussian_delta(20.0, 1 / wrong) == pytest.approx(21e-5, rel=0.02)
