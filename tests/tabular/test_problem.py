"""The user's data as a problem: every file type, models by name, and the list of assumptions."""

from __future__ import annotations

import csv
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine
from torch import nn

from hush import load, make_plan
from hush.data_release import make_releases
from hush.datasets import evaluation
from hush.datasets import problem as problems
from hush.datasets.problem import HUBER, from_units, huber, squared_error, to_units
from hush.errors import DataError, InvalidInputError
from hush.randomness import seeded
from hush.statistics import releases
from hush.statistics.releases import plan_releases, take_releases
from hush.tabular import problem as problems_problem
from hush.tabular.problem import from_files


@pytest.fixture
def wine(tmp_path: Path) -> Path:
    """178 wines: 13 measurements from 0.1 to 1680 in their own units."""
    bunch = load_wine()
    with (tmp_path / "wine.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*bunch.feature_names, "kind"])
        writer.writerows([*row, bunch.target_names[label]] for row, label in zip(bunch.data, bunch.target, strict=True))
    return tmp_path / "wine.csv"


def trained_accuracy(problem: problems.Problem, steps: int = 60) -> float:
    with seeded(0):
        model = problem.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.losses(model, problem.train).mean().backward()
        optimizer.step()
    accuracy = evaluation.evaluate_problem(model, problem).accuracy
    assert accuracy is not None
    return accuracy


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_a_csv_learns_without_any_statistic_of_its_rows(wine: Path, model: str) -> None:
    problem = problems_problem.from_files(wine, target="kind", public=("classes",), model=model)
    assert problem.class_names == ("class_0", "class_1", "class_2")
    assert (len(problem.train[0]), len(problem.test[0])) == (143, 35)
    assert trained_accuracy(problem) > 0.9  # the raw columns in place of the encoding: 0.34 to 0.80 over three seeds
    assert problem.summary == "wine.csv: 143 rows to train on, 35 to test on"


def test_the_encoding_of_a_row_does_not_depend_on_the_others(wine: Path) -> None:
    problem = problems_problem.from_files(wine, target="kind", public=("classes",))
    lines = wine.read_text().splitlines(keepends=True)
    short = wine.with_name("short.csv")
    short.write_text("".join(lines[:1] + lines[20:]))  # other ranges, other rows
    other = problems_problem.from_files(short, target="kind", public=("classes",))
    row = problem.train[0][:1]
    assert torch.equal(problem.model()[0](row), other.model()[0](row))


def test_a_file_that_changes_while_it_is_read_is_refused(wine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_rows = problems_problem.load_rows

    def load_and_append(place: Path, *rest: Any) -> Any:
        rows = load_rows(place, *rest)
        lines = place.read_text().splitlines()
        place.write_text("\n".join([*lines, lines[-1]]) + "\n")
        return rows

    monkeypatch.setattr(problems_problem, "load_rows", load_and_append)
    with pytest.raises(DataError, match=wine.name):
        from_files(wine, target="kind", public=("classes",))


def test_assumptions_are_stated(wine: Path) -> None:
    said = problems_problem.from_files(wine, target="kind", public=("classes",)).assumptions
    assert "the number of rows and the order in which they are split are public" in said
    assert "the classes are public (they were read off the rows)" in said
    assert "the names and kinds of the columns are public (kinds were read off the rows)" in said
    more = problems_problem.from_files(wine, target="kind", public=("ranges", "classes")).assumptions
    assert set(more) - set(said) == {"the ranges of the columns, read off the rows, are public anyway"}


def test_a_separate_test_file_and_a_validation_part(wine: Path) -> None:
    problem = problems_problem.from_files(wine, target="kind", public=("classes",), test=wine, validation=0.1)
    assert len(problem.test[0]) == 178
    assert (len(problem.train[0]), len(problem.validation[0])) == (161, 17)


def test_parquet_trains_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    iris = load_iris()
    table = {f"c{i}": iris.data[:, i] for i in range(4)} | {"kind": iris.target}
    pq.write_table(pa.table(table), tmp_path / "iris.parquet")
    assert (
        trained_accuracy(
            problems_problem.from_files(tmp_path / "iris.parquet", target="kind", public=("classes",), model="logistic")
        )
        > 0.9
    )


def test_arrays_of_features_and_of_images(tmp_path: Path) -> None:
    with seeded(0):
        x = torch.rand(50, 6).numpy()
    y = (x[:, 0] > 0.5).astype(np.int64)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    rows = problems_problem.from_files(tmp_path / "rows.npz", schema={"range": [0, 1]})
    assert rows.schema is not None
    assert rows.model()[0](rows.train[0]).abs().max() <= 1
    np.savez(tmp_path / "images.npz", x=(x[:, :, None] * np.ones((1, 6, 12)) * 255).astype(np.uint8), y=y)
    images = problems_problem.from_files(tmp_path / "images.npz")
    assert images.train[0].shape == (40, 1, 6, 12)
    assert images.train[0].min() >= -1
    assert images.model()(images.train[0][:2]).shape == (2, 2)
    np.savez(tmp_path / "floats.npz", x=x[:, :, None] * np.full((1, 6, 6), 300.0), y=y)
    with pytest.raises(InvalidInputError, match=r"\[0, 1\]"):
        problems_problem.from_files(tmp_path / "floats.npz")
    given = problems_problem.from_files(tmp_path / "floats.npz", schema={"range": [0, 300]})
    assert given.train[0].abs().max() <= 1


def test_folders_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for name, value in (("dark", 20), ("light", 230)):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(5):
                image.new("L", (28, 28), value + i).save(tmp_path / part / name / f"{i}.png")
    problem = problems_problem.from_files(tmp_path, model="lenet")
    assert problem.class_names == ("dark", "light")
    assert len(problem.train[0]) == len(problem.test[0]) == 10
    assert problem.train[0][0, 0, 0, 0].item() == pytest.approx(2 * 20 / 255 - 1)
    alone = problems_problem.from_files(tmp_path / "train", test=0.5)
    assert len(alone.test[0]) == 5
    (tmp_path / "test" / "other").mkdir()
    image.new("L", (28, 28), 3).save(tmp_path / "test" / "other" / "x.png")
    with pytest.raises(InvalidInputError):
        problems_problem.from_files(tmp_path)


def build(features: int, classes: int) -> nn.Module:
    """A model of somebody else."""
    return nn.Linear(features, classes)


def not_a_model(classes: int) -> int:
    return classes


def test_a_model_from_elsewhere(wine: Path) -> None:
    problem = problems_problem.from_files(wine, target="kind", public=("classes",), model=f"{__name__}:build")
    assert problem.model()(problem.train[0]).shape == (143, 3)
    with pytest.raises(InvalidInputError, match="torch.nn.Module"):
        problems_problem.from_files(wine, target="kind", public=("classes",), model=f"{__name__}:not_a_model").model()


def test_bad_requests_are_one_sentence(wine: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="folder"):
        problems_problem.from_files(tmp_path / "none.csv", target="kind", public=("classes",))
    (tmp_path / "data.xls").write_text("")
    with pytest.raises(InvalidInputError, match=r"\.csv.*\.parquet.*\.npz"):
        problems_problem.from_files(tmp_path / "data.xls")
    with pytest.raises(InvalidInputError, match="'mpl'.*'mlp'"):
        problems_problem.from_files(wine, target="kind", public=("classes",), model="mpl")
    with pytest.raises(InvalidInputError, match="'lenet'"):
        problems_problem.from_files(wine, target="kind", public=("classes",), model="lenet")
    with pytest.raises(InvalidInputError, match="rows"):
        problems_problem.from_files(wine, target="kind", public=("classes",), test=0.001)


# Regression: a public range, targets clipped and scaled to it, metrics and predictions in the target's units.


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


# Releases before training: the example of the module's documentation.


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i % 40},{'uv'[i % 2]}\n" for i in range(200))
    (tmp_path / "my.csv").write_text("x,y\n" + rows)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"from_files": from_files, "make_plan": make_plan, "make_releases": make_releases}
    names |= {"plan_releases": plan_releases, "take_releases": take_releases}
    shown = [line for line in (releases.__doc__ or "").splitlines() if line.startswith("    ")]
    exec(textwrap.dedent("\n".join(shown)), names)
    assert names["released"].keys() == {"private_ranges", "private_class_weights"}
    assert list(names["released"]["private_class_weights"]) == ["u", "v"]
    (low, high) = names["released"]["private_ranges"]["x"]
    column = names["problem"].schema.features[0]
    assert (column.low, column.high, column.awaited) == (low, high, False)
