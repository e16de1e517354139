"""`hush plan`: the numbers of every row, the rule of the recommendation, and a page without network access."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from hush.cli import main
from hush.cli.plan import default_batches
from hush.methods import PlanConfig, make_plan
from hush.report.plan_page import ENOUGH, NEAR, PlanRow, Sensitivity, choose, explain_outlook, explain_row, plan_grid
from hush.statistics.releases import plan_releases
from hush.tabular.problem import from_files
from pages import MOST_BYTES, read_charts

SMALL = ("plan", "--examples", "1000", "--epsilon", "2,8", "--batch-size", "50,200", "--epochs", "2,8")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))


def answer(capsys, *arguments: str):
    code = main([*arguments, "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_rows_are_those_of_the_plans(capsys) -> None:
    rows = answer(capsys, *SMALL)
    assert [(r["epsilon"], r["batch_size"], r["epochs"]) for r in rows[:3]] == [(2, 50, 2), (2, 50, 8), (2, 200, 2)]
    assert len(rows) == 8
    assert [r["recommended"] for r in rows].count(True) == 1
    for row in rows:
        plan = make_plan(
            "dp-sgd", examples=1000, batch_size=row["batch_size"], epochs=row["epochs"], epsilon=row["epsilon"]
        )
        assert row["noise_multiplier"] == pytest.approx(plan.sigma, rel=1e-9)
        assert row["steps"] == plan.steps == row["epochs"] * 1000 // row["batch_size"]
        assert row["step_noise"] == pytest.approx(plan.sigma / row["batch_size"])
        grown = math.sqrt((plan.steps + 1) / 2)  # root mean square over t of √t
        assert row["run_noise"] == pytest.approx(plan.sigma * grown / row["batch_size"] / plan.steps)
        assert row["minutes"] is row["parameters"] is None


def test_weights_make_a_length_of_the_noise(capsys) -> None:
    alone = answer(capsys, *SMALL[:-4], "--batch-size", "50", "--epochs", "2")
    many = answer(capsys, *SMALL[:-4], "--batch-size", "50", "--epochs", "2", "--parameters", "400")
    for one, all_of_them in zip(alone, many, strict=True):
        assert all_of_them["step_noise"] == pytest.approx(20 * one["step_noise"])
        assert all_of_them["run_noise"] == pytest.approx(20 * one["run_noise"])


def test_the_table_and_the_advice_fit_80_columns(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*SMALL, "--out", str(tmp_path / "plan.html")]) == 0
    out = capsys.readouterr().out
    told = " ".join(out.split())
    assert "→ At ε = 2: batch size 50, 8 epochs. Why: " in told
    assert "Doubling the batch to 100 leaves 0." in told
    assert "Doubling ε to 4 leaves 0." in told
    assert "noise that cancels over steps (dp-blt)" in told
    assert max(len(line) for line in out.splitlines() if not line.startswith("written")) <= 80
    page = (tmp_path / "plan.html").read_text()
    assert len(page.encode()) < MOST_BYTES
    charts = read_charts(page)
    assert set(charts) == {"Noise of the whole run", "Noise of a single batch", "When correlated noise wins"}
    assert len(charts["Noise of the whole run"].rows) == 8
    assert page.count('<tr data-problem=""') == 8  # every row
    assert page.count("<small>recommended</small>") == 1


def test_minutes_and_weights_come_from_the_problem(capsys) -> None:
    flags = ("--epsilon", "3", "--batch-size", "64,256", "--epochs", "1,2")
    rows = answer(capsys, "plan", "--problem", "digits-mlp", *flags)
    assert {row["parameters"] for row in rows} == {17226}
    assert all(row["minutes"] > 0 for row in rows)
    by = {(row["batch_size"], row["epochs"]): row["minutes"] for row in rows}
    assert by[64, 2] > by[64, 1]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "--examples 60000"),
        (("--examples", "100", "--epsilon", "one"), "--epsilon takes comma-separated numbers"),
        (("--examples", "100", "--epochs", "-1"), "epochs must be above zero"),
        (("--examples", "100", "--batch-size", "300"), "batch size 300 is larger than the data"),
        (("--examples", "100", "--method", "sgd"), "method 'sgd' adds no noise"),
        (("--examples", "100", "--method", "auto"), "compare methods with `hush account --method auto`"),
        (("--examples", "100", "--problem", "digits-mlp"), "--data and --problem determine the numbers"),
        (("--examples", "100", "--set", "learning_rate=1"), "did you mean 'lr'"),
    ],
)
def test_bad_input_is_one_sentence(capsys, flags, told) -> None:
    assert main(["plan", *flags]) == 2
    assert told in capsys.readouterr().err


def test_ranges_released_before_training_are_charged(capsys, tmp_path) -> None:
    """σ is the one that `hush train` finds for both together."""
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{i}.5,{i % 2}\n" for i in range(500)))
    flags = (
        "plan",
        "--data",
        str(path),
        "--target",
        "y",
        "--public",
        "classes",
        "--epsilon",
        "2",
        "--batch-size",
        "100",
        "--epochs",
        "2",
    )
    (plain,), (charged,) = answer(capsys, *flags), answer(capsys, *flags, "--private-ranges", "0.3")
    problem = from_files(path, target="y", public=("classes",), private_ranges=True)
    alone = make_plan("dp-sgd", examples=400, batch_size=100, epochs=2, epsilon=2)
    (part,) = plan_releases(problem, alone, 2.0, range_share=0.3)
    both = replace(alone, composed=(part.composed,)).with_epsilon(2.0)
    assert plain["noise_multiplier"] == pytest.approx(alone.sigma, rel=1e-9)
    assert charged["noise_multiplier"] == pytest.approx(both.sigma, rel=1e-9)
    assert both.sigma > alone.sigma
    assert main(["plan", "--examples", "400", "--private-ranges", "0.3"]) != 0
    assert "with --data" in capsys.readouterr().err


def test_what_does_not_fit_is_left_out(capsys) -> None:
    rows = answer(capsys, "plan", "--examples", "100", "--epsilon", "3", "--batch-size", "50,300", "--epochs", "4")
    assert [row["batch_size"] for row in rows] == [50]


@pytest.mark.parametrize(
    ("examples", "batches"),
    [
        (60000, [256, 512, 1024, 2048, 4096]),
        (1437, [64, 128, 256, 512, 1024]),
        (160, [8, 16, 32, 64, 128]),
        (3, [1, 2]),
    ],
)
def test_default_batches(examples, batches) -> None:
    assert default_batches(examples) == batches


def prospects(epsilon: float = 2.0) -> list[PlanRow]:
    grid = [(epsilon, batch, epochs) for batch in (10, 40, 200) for epochs in (2.0, 10.0)]
    return list(plan_grid("dp-sgd", PlanConfig(1000, batch_size=1), grid))


def test_the_rule() -> None:
    rows = prospects()
    steps = {(row.batch_size, row.epochs): row.plan.steps for row in rows}
    assert steps == {(10, 2): 200, (10, 10): 1000, (40, 2): 50, (40, 10): 250, (200, 2): 10, (200, 10): 50}
    best = choose(rows, 2.0)
    noise = {(row.batch_size, row.epochs): row.run_noise for row in rows}
    assert NEAR * noise[40, 10] < noise[10, 10] < noise[10, 2]  # so of the three rows with 100 steps one is near
    assert (best.batch_size, best.epochs) == (40, 10)
    assert f"of the rows with at least {ENOUGH} steps" in explain_row(best, rows)
    strict = prospects(0.1)  # where sampling gains all that it can: every row leaves about the same noise
    assert max(r.run_noise for r in strict if r.plan.steps >= ENOUGH) < NEAR * min(r.run_noise for r in strict)
    assert (choose(strict, 0.1).batch_size, choose(strict, 0.1).epochs) == (10, 2)
    few = [row for row in rows if row.plan.steps < ENOUGH]
    assert noise[40, 2] > NEAR * noise[200, 10]
    assert choose(few, 2.0).batch_size == 200
    assert f"no row has {ENOUGH} steps" in explain_row(choose(few, 2.0), few)


def test_correlated_noise_wins_by_the_margin_only() -> None:
    best = prospects()[0]
    curve = ((1.0, 1.0, 2.0), (2.0, 1.0, 0.9), (4.0, 1.0, 0.5), (8.0, 1.0, 0.4))
    outlook = Sensitivity(best, None, replace(best, epsilon=4.0), curve)
    assert outlook.crossing == 4.0
    assert "wins from ε = 4 on" in explain_outlook(outlook)[1]
    never = replace(outlook, curve=curve[:2])
    assert never.crossing is None
    assert "does not win up to ε = 2" in explain_outlook(never)[1]


METRICS = ("--problem", "digits-mlp", "--batch-size", "256", "--private-metrics", "2")


def test_figures_with_noise_are_charged_as_train_charges_them(capsys) -> None:
    (planned,) = answer(capsys, "plan", *METRICS, "--epsilon", "3", "--epochs", "1")
    trained = answer(capsys, "train", *METRICS, "--epsilon", "3", "--epochs", "1")
    assert planned["noise_multiplier"] == pytest.approx(trained["noise_multiplier"], rel=1e-9)
    (alone,) = answer(capsys, "plan", *METRICS[:-2], "--epsilon", "3", "--epochs", "1")
    assert planned["noise_multiplier"] > 1.1 * alone["noise_multiplier"]


def test_figures_that_use_up_an_epsilon_have_no_row(capsys, tmp_path) -> None:
    code = main(["plan", *METRICS, "--epsilon", "1,4", "--epochs", "1", "--out", str(tmp_path / "plan.html")])
    said = capsys.readouterr()
    assert code == 0
    assert "rows at ε = 1 are left out: --private-metrics 2 leaves nothing of --epsilon 1 for training" in said.err
    assert "At ε = 4: batch size 256" in said.out
    assert main(["plan", *METRICS, "--epsilon", "2", "--epochs", "1"]) == 2
    assert "--private-metrics 2 leaves nothing of --epsilon 2 for training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--unit", "patient"), "describe your own data: give it with --data"),
        (("--target", "y"), "describe your own data: give it with --data"),
        (("--private-metrics", "1"), "describe the data: give them with --data, or name a --problem"),
        (("--class-weights", "1,2"), "describe the data: give them with --data, or name a --problem"),
        (("--rows-per-unit", "4"), "describe the data: give them with --data, or name a --problem"),
    ],
)
def test_what_describes_data_needs_them(given, said, capsys) -> None:
    assert main([*SMALL, *given]) == 2
    assert said in capsys.readouterr().err
