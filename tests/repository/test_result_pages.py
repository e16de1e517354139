"""docs/audit.md matches its data file, which has every method; and the script of many audits."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmark_scripts import ROOT as ROOT_SPEED
from benchmark_scripts import load_script
from hush.audit.audit import list_audited, read_audits
from hush.bench.spec import read_spec
from hush.sanitize.early_stopping import Stop

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_data_files() -> None:
    script = load("audit_page")
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.make_page(text) == text
    for name, (begin, end) in script.MARKS.items():
        emptied = script.put(text, name, "")
        assert emptied != text
        assert f"{begin}\n{end}" in emptied
        assert script.make_page(emptied) == text


def test_a_row_has_what_every_seed_gave_and_no_refutation_is_hidden() -> None:
    entry = {"method": "m", "status": "claimed", "claimed_epsilon": 3.999, "epsilon_lower": 0.199, "adversary": "a"}
    entries = [
        {**entry, "epsilon_estimate": 2.0, "verdict": "consistent"},
        {**entry, "epsilon_estimate": None, "verdict": "refuted"},
    ]
    row = load("audit_page").write_table(entries).splitlines()[-1]
    assert row == "| `m` | claimed | 4 | 0.19, 0.19 | 2.0, ∞ | consistent, **refuted** | a |"


def test_every_method_was_audited_and_only_claimed_epsilons_are_refuted() -> None:
    entries = read_audits(load("audit_page").AUDITS)
    assert {(entry["method"], entry["settings"]["seed"]) for entry in entries} == set(
        product(list_audited(), (1, 2, 3))
    )
    assert {entry["runs"] for entry in entries} == {400}
    refuted = {(entry["method"], entry["status"]) for entry in entries if entry["verdict"] == "refuted"}
    assert refuted == {("dp-dice", "claimed"), ("sanitize", "claimed")}
    assert {entry["verdict"] for entry in entries if entry["status"] == "proven"} == {"consistent"}


def test_audits_of_dp_sgd_come_near_its_epsilon_and_not_above_it() -> None:
    """At ε = 4 and 10 the Gaussian fit is at least half of it in the median over 20 audits; bounds at 95 % are above it
    no more often than chance allows, and no verdict refutes it."""
    script = load("audits")
    kept = json.loads(load("audit_page").NEARNESS.read_text(encoding="utf-8"))
    assert kept["summary"] == [script.summarise(kept["audits"], epsilon) for epsilon in script.EPSILONS]
    for summary in kept["summary"]:
        assert summary["audits"] == 20
        assert summary["bounds_above"] <= summary["bounds_allowed_above"] == 5
        assert summary["refuted"] == 0
        assert summary["share"] >= 0.5 or summary["epsilon"] == 1.0
    assert {audit["runs"] for audit in kept["audits"]} == {400}


def test_many_audits_go_on_where_they_were_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, out = load("audits"), tmp_path / "audits.json"
    monkeypatch.setattr(script, "EPSILONS", (4.0,))
    script.main(out, runs=8, audits=1)
    (first,) = json.loads(out.read_text())["audits"]
    script.main(out, runs=8, audits=2)
    kept = json.loads(out.read_text())
    assert kept["audits"][0] == first
    assert kept["audits"][1]["epsilon_estimate"] != first["epsilon_estimate"]
    (summary,) = kept["summary"]
    assert (summary["audits"], summary["refuted"], summary["bounds_above"]) == (2, 0, 0)
    fits = [audit["epsilon_estimate"] for audit in kept["audits"]]
    assert summary["share"] == pytest.approx(sum(fits) / 2 / 4)


# The table of docs/sanitize.md matches the records of its runs and calls no claimed ε proven.


PAGE = ROOT / "docs" / "sanitize.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    found = importlib.util.spec_from_file_location("sanitize_table", ROOT / "benchmarks" / "sanitize_table.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "sanitize_table", module)
    found.loader.exec_module(module)
    return module


def record(problem: str, method: str, accuracy: float, **options: Any) -> dict[str, Any]:
    claimed = method == "sanitize"
    curve = [
        {
            "epoch": epoch,
            "test_accuracy": accuracy - 0.1 + epoch / 200,
            "epsilon": epoch / 10,
            "spread": spread,
            "validation_accuracy": accuracy - abs(epoch - 4) / 100,
        }
        for epoch, spread in enumerate([*range(10, 1, -1), *[1.0] * 11], 1)
    ]
    return {
        "outcome": "finished",
        "config": {"problem": problem, "method": method, "options": {"lr": 1e-3, **options}},
        "test_accuracy": accuracy,
        "epsilon": 2.0 if claimed else 1.84,
        "status": "claimed" if claimed else "proven",
        "protects": {"label-rr": "labels", "dp-sgd": "example"}.get(method, "features"),
        "curve": curve,
    }


def lines_of(script: ModuleType, records: list[dict[str, Any]], monkeypatch, tmp_path: Path) -> list[str]:
    from published import records as kept

    (tmp_path / "sanitize.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    return list(script.render())


def test_the_page_is_what_the_records_give(script: ModuleType) -> None:
    assert script.rewrite(PAGE.read_text()) == PAGE.read_text()


def test_what_was_not_run_says_so(script: ModuleType, monkeypatch, tmp_path: Path) -> None:
    rows = lines_of(script, [], monkeypatch, tmp_path)[2:-1]
    assert len(rows) == 17
    assert all("| not run | not run |" in row for row in rows)


def test_rows_with_and_without_stopping(script: ModuleType, monkeypatch, tmp_path: Path) -> None:
    """Spreads 10, 9, … 2, then 1 for ever: a window of ten is flat to 1.2e-4 at the nineteenth epoch."""
    assert Stop(10, 1.2e-4).find([*range(10, 1, -1), *[1.0] * 11]) == 19
    runs = [record("mnist-sanitized", "sanitize", accuracy) for accuracy in (0.9, 0.94)]
    whole, stopped, adaptive, *_ = lines_of(script, runs, monkeypatch, tmp_path)[2:]
    assert whole.split(" | ")[1:5] == [
        "`sanitize`, static C",
        "nothing; features by its claim",
        "2.00, **claimed**",
        "92.00 ± 2.83 (2)",
    ]
    assert "with stopping (after 19, 19 epochs) | nothing; features by its claim | 1.90, **claimed**" in stopped
    assert "| 91.50 ± 2.83 (2) |" in stopped
    assert "| not run | not run |" in adaptive  # which has other options


def test_a_flag_that_is_never_raised_stops_nothing(script: ModuleType, monkeypatch, tmp_path: Path) -> None:
    run = record("mnist-sanitized", "sanitize", 0.9)
    moving = run | {"curve": [epoch | {"spread": float(epoch["epoch"])} for epoch in run["curve"]]}
    never = lines_of(script, [moving], monkeypatch, tmp_path)[3]
    assert "with stopping: never |" in never
    assert "| 90.00 (1) |" in never
    once = lines_of(script, [moving, run], monkeypatch, tmp_path)[3]
    assert "with stopping (after all, 19 epochs) |" in once


def test_each_method_says_what_it_protects(script: ModuleType, monkeypatch, tmp_path: Path) -> None:
    runs = [
        record("mnist-sanitized", "sanitize", 0.9, threshold_share=0.05),
        record("mnist-scattering-sanitized", "sanitize-once", 0.5),
        record("mnist-funnel", "label-rr", 0.6),
        record("mnist-funnel", "dp-sgd", 0.7),
    ]
    rows = lines_of(script, runs, monkeypatch, tmp_path)
    for method, cells in (
        ("`sanitize-once`", "features | 1.84, proven | 50.00 (1)"),
        ("`label-rr`", "labels | 1.84, proven | 60.00 (1)"),
        ("`dp-sgd`, batches of 1000, averaged weights", "features and labels | 1.84, proven | 70.00 (1)"),
        ("`sanitize`, adaptive C", "nothing; features by its claim | 2.00, **claimed** | 90.00 (1)"),
    ):
        assert any(f"| {method} | {cells} |" in row for row in rows), method
    assert not any("`sanitize`," in row and "proven" in row for row in rows)


def test_randomised_labels_at_the_epoch_that_held_out_rows_like_best(script: ModuleType, monkeypatch, tmp_path) -> None:
    """They like the fourth, whatever the test set would: it has 0.1 − 4/200 less than the last."""
    runs = [record("mnist-funnel", "label-rr", 0.6)]
    [best] = [line for line in lines_of(script, runs, monkeypatch, tmp_path) if "`label-rr`, best epoch" in line]
    assert "held-out rows (after 4 epochs)" in best
    assert "| 52.00 (1) |" in best


def test_the_figures_are_what_the_data_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pictures = load_script("sanitize_pictures")
    found = json.loads(pictures.DATA.read_text())
    assert pictures.rewrite(PAGE.read_text(), found) == PAGE.read_text()
    for name, svg in pictures.draw_all(found).items():
        assert (pictures.PICTURES / name).read_text() == svg
        assert f"pictures/sanitize/{name}" in PAGE.read_text()
    found["convergence"]["static"]["accuracy"][-1] -= 0.01
    assert pictures.rewrite(PAGE.read_text(), found) != PAGE.read_text()


def test_every_row_has_runs_in_the_spec(script: ModuleType) -> None:
    trials = [
        {"outcome": "finished", "config": trial.config()}
        for trial in read_spec(ROOT / "specs" / "sanitize.toml").trials
    ]
    for row in script.list_rows():
        assert script.pick(trials, **row.wanted), row.method


# The script of the sanitize figures: a small run, and a second one from its store.


@pytest.fixture(scope="module")
def script_figures() -> ModuleType:
    return load_script("sanitize_figures")


def test_every_figure_is_there_and_each_run_is_made_once(
    script_figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = script_figures.draw(script_figures.SMALL, tmp_path)
    assert drawn["status"] == "refuted"
    assert len(list(tmp_path.glob("*.json"))) == len(script_figures.SMALL.list_runs()) == 5
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
    whole = script_figures.make_plan(script_figures.SMALL.base, 1438).guarantee().epsilon
    assert 0 < static["stops"][1][4] < whole  # two epochs of three
    for share, pairs in drawn["norm_and_clip_by_share"].items():
        norms, clips = zip(*pairs, strict=True)
        assert [float(share) * norm for norm in norms[:-1]] == pytest.approx(list(clips[1:]))
    monkeypatch.setattr(script_figures, "train", None)  # a second time nothing is trained
    assert script_figures.draw(script_figures.SMALL, tmp_path) == drawn


def test_the_claimed_epsilon_is_the_published_one(script_figures: ModuleType) -> None:
    """σ = 1, q = 250/50 000, 30 epochs: 2.34."""
    plan = script_figures.make_plan(script_figures.Training(epochs=30), 50_000)
    assert plan.guarantee().epsilon == pytest.approx(2.34, abs=0.005)
    assert plan.guarantee().status == "refuted"


def test_low_against_high_threshold(script_figures: ModuleType) -> None:
    """[2.8, 0.9, 1.5] at C = 1 loses √(1.8² + 0.5²) for noise √3; at C = 3 it loses nothing for three times as much."""
    low, high = (script_figures.compare_threshold(clip, 1.0) for clip in (1.0, 3.0))
    assert low["clipped"] == [1.0, 0.9, 1.0]
    assert (low["lost"], low["noise"]) == (pytest.approx(math.sqrt(3.49)), pytest.approx(math.sqrt(3)))
    assert high["clipped"] == [2.8, 0.9, 1.5]
    assert (high["lost"], high["noise"]) == (0.0, pytest.approx(3 * math.sqrt(3)))


# docs/scale.md matches its figures, and the figures match the formulas.


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


# The step times of docs/speed.md and docs/results/step-time.md are the measured ones.


@pytest.fixture
def page_speed(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT_SPEED / "benchmarks"))
    return load_script("speed_page")


def test_the_pages_are_what_the_figures_give(page_speed: ModuleType) -> None:
    assert set(page_speed.read()) == set(page_speed.PARTS)
    for path in page_speed.PAGES:
        assert path.read_text() == page_speed.render(path)


def test_a_changed_figure_changes_the_pages(page_speed: ModuleType, monkeypatch, tmp_path: Path) -> None:
    metrics = page_speed.read()
    metrics["peers"][0]["seconds"] |= {"plain SGD": 0.01, "hush": 0.0123}
    (tmp_path / "step-time.json").write_text(json.dumps(metrics))
    monkeypatch.setattr(page_speed, "FIGURES", tmp_path / "step-time.json")
    for path in page_speed.PAGES:
        assert "| MLP | 256 | 1 | 10.0 | 1.23 |" in page_speed.render(path)


def test_every_part_is_measured_and_the_pages_follow(page_speed: ModuleType, monkeypatch, tmp_path: Path) -> None:
    """`make speed` with programs that report the times of one model that are there already, but for one."""
    before, ran = page_speed.read() | {"arithmetic": json.loads(page_speed.ARITHMETIC.read_text())}, []
    before = {part: [{**found[0], "model": "MLP"}, *found[1:2]] for part, found in before.items()}
    before = {part: [result for result in found if result["model"] == "MLP"] for part, found in before.items()}
    before["transformers"][0]["model"] = "BERT"
    before["peers"][0]["seconds"] |= {"plain SGD": 0.01, "hush": 0.0123}

    def answer(command: list[str], check: bool) -> None:
        part = [*before][len(ran)]
        ran.append(command)
        Path(command[command.index("--json") + 1]).write_text(json.dumps(before[part]))

    monkeypatch.setattr(page_speed.subprocess, "run", answer)
    for name in ("FIGURES", "ARITHMETIC", "PAGES"):  # main replaces them
        monkeypatch.setattr(page_speed, name, getattr(page_speed, name))
    monkeypatch.setattr("sys.argv", ["speed_page.py", "measure", "--quick", str(tmp_path), "--parts", ",".join(before)])
    page_speed.main()
    others = ["fine_tuning.py", "arithmetic.py"]
    assert [Path(command[1]).name for command in ran] == ["step_time.py"] * (len(page_speed.PARTS) - 1) + others
    assert "| MLP | 256 | 1 | 10.0 | 1.23 |" in (tmp_path / "speed.md").read_text()
    assert json.loads((tmp_path / "results" / "step-time.json").read_text())["peers"] == before["peers"]
    assert "| MLP | 256 | 1 | 10.0 | 1.23 |" not in (ROOT_SPEED / "docs" / "speed.md").read_text()


@pytest.mark.parametrize("found", [[], [{"model": "MLP", "batch": 256, "seconds": {"hush": "RuntimeError"}}]])
def test_a_part_without_a_time_of_ours_is_not_taken(page_speed: ModuleType, monkeypatch, tmp_path: Path, found) -> None:
    monkeypatch.setattr(
        page_speed.subprocess, "run", lambda command, check: Path(command[-1]).write_text(json.dumps(found))
    )
    monkeypatch.setattr(page_speed, "FIGURES", tmp_path / "step-time.json")
    with pytest.raises(SystemExit, match="no time of some model"):
        page_speed.measure(["peers"], quick=True)
    assert not page_speed.FIGURES.exists()


# docs/tables.md matches its runs, each listed once.


@pytest.fixture
def page_tables() -> ModuleType:
    return load_script("render_tables")


def test_the_page_is_what_the_runs_give(page_tables: ModuleType) -> None:
    assert page_tables.PAGE.read_text() == page_tables.render()


def test_a_changed_run_changes_the_page(page_tables: ModuleType, monkeypatch, tmp_path: Path) -> None:
    before = page_tables.render()
    first, *others = page_tables.read()
    lines = [json.dumps(record) for record in (first | {"test_auc": 0.1234}, *others)]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(page_tables, "RECORDS", tmp_path / "runs.jsonl")
    assert "0.123" in page_tables.render() != before


def test_every_run_is_there_once_and_stays_within_its_epsilon(page_tables: ModuleType) -> None:
    records = page_tables.read()
    jobs = [json.dumps(record["job"], sort_keys=True) for record in records]
    assert len(jobs) == len(set(jobs)) > 0
    private = [record for record in records if record["job"]["epsilon"] is not None]
    assert all(0 < record["epsilon"] <= record["job"]["epsilon"] * 1.001 for record in private)
    assert {record["job"]["table"] for record in records} <= {*page_tables.REPORTED, *page_tables.DEVELOPMENT}


def test_a_cell_is_a_mean_and_a_deviation_over_seeds(page_tables: ModuleType) -> None:
    runs = [{"test_accuracy": a, "test_auc": 0.9} for a in (0.5, 0.7)]
    assert page_tables.write_cell(runs) == "60.0 ± 14.1, 0.900 ± 0.000 (2)"
    assert page_tables.write_cell(runs[:1]) == "50.0, 0.900"
    assert page_tables.write_cell([]) == "not run"
