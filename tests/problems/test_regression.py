"""Numbers to predict: a public range, targets cut to it and mapped, figures and predictions in the target's units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hush import load, make_plan
from hush.datasets import evaluation
from hush.datasets import problem as problems
from hush.datasets.problem import HUBER, from_units, huber, squared_error, to_units
from hush.errors import InvalidInputError
from hush.randomness import seeded
from hush.tabular import problem as problems_problem


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """300 prices that follow from two numbers; a tenth of them lie above 100."""
    with seeded(3):
        size, age = torch.rand(300), torch.rand(300)
    prices = 20 + 90 * size - 10 * age
    prices[:30] += 200
    lines = [f"{s:.5f},{a:.5f},{p:.4f}" for s, a, p in zip(size, age, prices, strict=True)]
    (tmp_path / "houses.csv").write_text("\n".join(["size,age,price", *lines]) + "\n")
    return tmp_path / "houses.csv"


HOW = {"target": "price", "task": "regression", "target_range": (0.0, 100.0)}


def fit(problem: problems.Problem, steps: int = 300) -> nn.Module:
    with seeded(0):
        model = problem.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.losses(model, problem.train).mean().backward()
        optimizer.step()
    return model


def test_targets_to_train_on_are_cut_and_mapped_and_those_to_test_on_are_true(houses: Path) -> None:
    problem = problems_problem.from_files(houses, **HOW)
    assert (problem.metric, problem.classes, problem.target_range) == ("loss", None, (0.0, 100.0))
    train, test = problem.train[1], problem.test[1]
    assert float(train.min()) >= -1
    assert float(train.max()) == 1.0
    assert float(test.max()) > 3  # 200 and more, of a range up to 100
    assert problem.model()(problem.train[0]).shape == (240, 1)
    assert any("the target's range 0 … 100 is public" in text for text in problem.assumptions)
    assert not any("classes" in text for text in problem.assumptions)


def test_figures_are_in_the_targets_units(houses: Path) -> None:
    problem = problems_problem.from_files(houses, **HOW)
    model = fit(problem, 50)
    found = evaluation.evaluate_problem(model, problem).values
    assert found is not None
    with torch.no_grad():
        said = 50 + 50 * model(problem.test[0]).squeeze(1).double()
    error = said - (50 + 50 * problem.test[1].double())
    assert found.mae == pytest.approx(float(error.abs().mean()), rel=1e-6)
    assert found.rmse == pytest.approx(float(error.square().mean().sqrt()), rel=1e-6)
    assert found.rows == 60


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_it_learns(houses: Path, loss: str) -> None:
    lines = houses.read_text().splitlines()
    houses.write_text("\n".join([lines[0], *lines[31:]]) + "\n")  # those in the range
    problem = problems_problem.from_files(houses, **HOW, loss=loss)
    values = evaluation.evaluate_problem(fit(problem, 600), problem).values
    assert values is not None
    assert values.r2 is not None
    assert values.r2 > 0.95  # predicting the mean: 0
    assert values.mae < 6


def test_the_losses_by_hand() -> None:
    content = (torch.tensor([[0.05], [1.0], [-0.5]]), torch.zeros(3))
    assert squared_error(nn.Identity(), content).tolist() == pytest.approx([0.0025, 1.0, 0.25])
    h = HUBER
    expected = [0.5 * 0.05**2, h * (1 - h / 2), h * (0.5 - h / 2)]
    assert huber(nn.Identity(), content).tolist() == pytest.approx(expected)


def test_units_go_there_and_back() -> None:
    values = torch.tensor([-3.0, 0.0, 7.0, 12.0], dtype=torch.float64)
    assert from_units(values, (-3.0, 7.0)).tolist() == pytest.approx([-1, -0.4, 1, 2])
    assert to_units(from_units(values, (-3.0, 7.0)), (-3.0, 7.0)).tolist() == pytest.approx(values.tolist())


@pytest.mark.parametrize("schema", [{"target_range": [0, 100]}, {"columns": {"price": {"low": 0, "high": 100}}}])
def test_the_range_may_come_from_the_schema(houses: Path, schema: dict[str, object]) -> None:
    problem = problems_problem.from_files(houses, target="price", task="regression", schema=schema)
    assert problem.target_range == (0.0, 100.0)
    assert torch.equal(problem.train[1], problems_problem.from_files(houses, **HOW).train[1])


def test_arrays_too(tmp_path: Path) -> None:
    with seeded(0):
        x = torch.rand(50, 4).numpy()
    np.savez(tmp_path / "a.npz", x=x, y=x.sum(1))
    problem = problems_problem.from_files(tmp_path / "a.npz", task="regression", target_range=(0, 4))
    assert float(problem.train[1].abs().max()) < 1
    assert problem.schema is not None
    assert problem.schema.classes == ()
    np.savez(tmp_path / "images.npz", x=x[:, :, None] * np.ones((1, 4, 4)), y=x.sum(1))
    images = problems_problem.from_files(tmp_path / "images.npz", task="regression", target_range=(0, 4))
    assert images.model()(images.train[0][:2]).shape == (2, 1)
    assert images.describe().task == "regression"


def test_a_release_predicts_in_units(houses: Path, tmp_path: Path) -> None:
    problem = problems_problem.from_files(houses, **HOW)
    plan = make_plan("dp-sgd", examples=240, batch_size=60, steps=3, epsilon=8.0, counted=True)
    run = plan.start(problem.model(), problem.losses, problem.train)
    for batch in run.batches():
        run.step(batch)
    run.release(tmp_path / "release", description=problem.describe())
    found = load(tmp_path / "release").predict(houses).values
    assert found is not None
    run.model.eval()
    with torch.no_grad():
        said = 50 + 50 * run.model(torch.tensor([[0.5, 0.5]])).double()
    again = load(tmp_path / "release").predict([{"size": 0.5, "age": 0.5}]).values
    assert again is not None
    assert float(again[0]) == pytest.approx(float(said), rel=1e-6)
    assert len(found) == 300


def test_a_model_that_diverged_has_no_figures(houses: Path) -> None:
    problem = problems_problem.from_files(houses, **HOW)
    model = problem.model()
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    assert evaluation.evaluate_problem(model, problem).values is None


def test_bad_requests_name_the_remedy(houses: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--task"):
        problems_problem.from_files(_few(houses), target="price")
    with pytest.raises(InvalidInputError, match="predict.*--target-range"):
        problems_problem.from_files(houses, target="price", task="regression")
    with pytest.raises(InvalidInputError, match="--task"):
        problems_problem.from_files(houses, target="price", target_range=(0, 1))
    with pytest.raises(InvalidInputError, match="target's"):
        problems_problem.from_files(houses, target="price", task="regression", target_range=(1, 1))
    with pytest.raises(InvalidInputError, match="'regresion'"):
        problems_problem.from_files(houses, target="price", task="regresion")
    with pytest.raises(InvalidInputError, match="'cubed'"):
        problems_problem.from_files(houses, **HOW, loss="cubed")
    (tmp_path / "gap.csv").write_text("a,y\n1,0.5\n2,\n")
    with pytest.raises(InvalidInputError, match="'y'.*2"):
        problems_problem.from_files(tmp_path / "gap.csv", target="y", task="regression", target_range=(0, 1))
    (tmp_path / "words.csv").write_text("a,y\n1,one\n2,two\n")
    with pytest.raises(InvalidInputError, match="number"):
        problems_problem.from_files(tmp_path / "words.csv", target="y", task="regression", target_range=(0, 1))
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.array([0.5, 1, 2, 3]))
    with pytest.raises(InvalidInputError, match="float64.*float64.*--task"):
        problems_problem.from_files(tmp_path / "a.npz")


def _few(path: Path) -> Path:
    short = path.with_name("few.csv")
    short.write_text("\n".join(path.read_text().splitlines()[:50]) + "\n")
    return short
