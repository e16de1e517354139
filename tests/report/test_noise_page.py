"""The page of `hush noise show`: correct numbers, one file, no network access."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hush.cli import main
from hush.errors import InvalidInputError
from hush.matrix_factorization import (
    BLT,
    Dense,
    Diagonal,
    Tree,
    inverse_square_root,
    optimal_banded,
    prefix_sums,
    square_root,
)
from hush.methods import make_plan
from hush.report.noise_page import CELLS, reduce_matrix, render_page, view_noise
from hush.report.svg import pick_ticks
from pages import MOST_BYTES, read_charts

T = 30
STRUCTURES = {
    "bsr": square_root(prefix_sums(T), 4),
    "bisr": inverse_square_root(prefix_sums(T), 4),
    "banded": optimal_banded(prefix_sums(T), 4).structure,
    "diagonal": Diagonal(T, tuple(0.5 + t / T for t in range(T))),
    "blt": BLT(T, np.array([0.9, 0.3]), np.array([0.2, 0.3])),
    "tree": Tree(T),
    "honaker": Tree(T, estimate="honaker"),
    "restarted": Tree(T, restart=7, complete="all-but-last", estimate="honaker"),
    "completed": Tree(T, restart=7, complete="all"),
    "dense": Dense(square_root(prefix_sums(T)).strategy()),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_accumulated_noise_is_that_of_the_map(name: str) -> None:
    structure = STRUCTURES[name]
    expected = (np.cumsum(structure.noise_map(), axis=0) ** 2).sum(axis=1)
    found = structure.prefix_variances()
    assert np.allclose(found, expected, rtol=1e-9)
    assert np.sqrt(found.mean()) == pytest.approx(structure.rmse(), rel=1e-9)


SMALL = {"examples": 200, "batch_size": 10, "epsilon": 3.0}


@pytest.mark.parametrize(
    ("method", "epochs"),
    [("dp-matrix-me", 2), ("dp-ftrl", 2), ("dp-bandmf", 2), ("dp-blt", 2), ("dp-matrix-se", 1), ("dp-sgd", 2)],
)
def test_every_method_has_a_page_that_needs_no_network(method: str, epochs: int) -> None:
    view = view_noise(make_plan(method, **SMALL, epochs=epochs))
    page = render_page(view)
    assert len(page.encode()) < MOST_BYTES
    charts = read_charts(page)
    assert len(charts) == 5
    assert {"Noise that adds up in a weight", "Noise of every single step"} <= set(charts)
    assert f"The noise of {method} over" in page
    assert view.plan.guarantee().sentence() in page.replace("&#39;", "'")


def test_the_numbers_are_the_plans() -> None:
    plan = make_plan("dp-matrix-me", **SMALL, epochs=2)
    view = view_noise(plan)
    assert np.array_equal(view.strategy, plan.noise.structure.strategy())
    assert np.array_equal(view.inverse, plan.noise.structure.noise_map())
    assert len(view.entries) == np.count_nonzero(plan.noise.structure.noise_map())
    errors = view.errors
    assert errors["expected_error"] == pytest.approx(plan.noise_std * plan.noise.structure.rmse())
    same = make_plan("dp-sgd", **SMALL, epochs=2, sampling="same-order")
    sampled = make_plan("dp-sgd", **SMALL, epochs=2)
    root = np.sqrt((40 + 1) / 2)  # of the mean of 1 … 40
    assert errors["independent_error"] == pytest.approx(same.noise_std * root, rel=1e-3)
    assert errors["dp_sgd_error"] == pytest.approx(sampled.noise_std * root, rel=1e-3)
    assert view.accumulated[-1] == pytest.approx(plan.noise_std * np.linalg.norm(plan.noise.structure.inverse.sum(0)))
    assert len(view.path) == 40


def test_independent_noise_is_compared_with_itself() -> None:
    errors = view_noise(make_plan("dp-sgd", **SMALL, epochs=2)).errors
    assert errors["expected_error"] == pytest.approx(errors["dp_sgd_error"], rel=1e-3)


def test_a_hundred_thousand_steps_are_shown() -> None:
    plan = make_plan("dp-bisr", examples=10_000, batch_size=10, steps=100_000, noise_multiplier=1.0, accountant="rdp")
    view = view_noise(plan)
    assert view.corner == 2048
    assert view.strategy.shape == (2048, 2048)
    assert view.steps[-1] == 100_000
    page = render_page(view)
    assert len(page.encode()) < MOST_BYTES
    assert "the first 2048 of 100000 steps" in page


def test_a_full_matrix_makes_no_large_page() -> None:
    plan = make_plan("dp-matrix-me", examples=600, batch_size=10, epochs=4, epsilon=3.0)
    view = view_noise(plan)
    page = render_page(view)
    assert len(page.encode()) < MOST_BYTES
    inverse = read_charts(page)["C⁻¹, how noise is mixed"]
    entries = [e for e in inverse.svg.iter() if e.text and e.text.startswith("row ")]
    assert len(entries) > CELLS * CELLS / 3
    block = -(-plan.steps // CELLS)
    shown = reduce_matrix(view.inverse, block, block)
    assert len(entries) == np.count_nonzero(shown)
    told = {e.text for e in entries}
    row, column = 17, 9
    said = f"row {block * row + 1}, column {block * column + 1}: {shown[row, column]:.3g}"
    assert said in told
    assert inverse.rows[row][1 + column] == pytest.approx(shown[row, column], rel=1e-5)


def test_a_block_shows_its_largest_entry() -> None:
    matrix = np.zeros((600, 300))
    matrix[4, 3], matrix[5, 3], matrix[599, 299] = 0.2, -0.7, 3.0
    values = reduce_matrix(matrix, 3, 2)
    assert values.shape == (200, 150)
    assert values[1, 1] == -0.7
    assert values[199, 149] == 3.0
    assert np.count_nonzero(values) == 2


def test_ticks_have_room_and_lie_within_the_scale() -> None:
    ticks = pick_ticks(-0.5, 3.7, 3.7)
    assert ticks == sorted(ticks)
    assert 0.0 in ticks
    assert min(ticks) >= -0.52
    assert 3 <= len(ticks) <= 9
    roots = np.sign(ticks) * np.sqrt(np.abs(ticks))
    assert np.diff(roots).min() > 0.2 * 3.7**0.5


def test_ordinary_training_has_no_noise_to_show() -> None:
    with pytest.raises(InvalidInputError, match="noise"):
        view_noise(make_plan("sgd", examples=100, batch_size=10, epochs=1))


def test_the_shell(capsys, tmp_path) -> None:
    out = tmp_path / "deep" / "noise.html"
    flags = ("--method", "dp-blt", "--examples", "200", "--batch-size", "10", "--epochs", "2", "--epsilon", "3")
    assert main(["noise", "show", *flags, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == str(out)
    assert found["expected_error"] < found["independent_error"]
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert main(["noise", "show", *flags, "--sampling", "poisson", "--out", str(out)]) == 2
    assert "sampling 'same-order'" in capsys.readouterr().err
