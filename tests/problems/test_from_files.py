"""Data of one's own as a problem: every kind of file, the model chosen by name, and an honest list of assumptions."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine
from torch import nn

from hush.datasets import evaluation
from hush.datasets import problem as problems
from hush.errors import InvalidInputError
from hush.randomness import seeded
from hush.tabular import problem as problems_problem


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
    with pytest.raises(InvalidInputError, match=r"\[0.*1\]"):
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
    with pytest.raises(InvalidInputError, match=".csv.*.parquet.*.npz"):
        problems_problem.from_files(tmp_path / "data.xls")
    with pytest.raises(InvalidInputError, match="'mpl'.*'mlp'"):
        problems_problem.from_files(wine, target="kind", public=("classes",), model="mpl")
    with pytest.raises(InvalidInputError, match="'lenet'"):
        problems_problem.from_files(wine, target="kind", public=("classes",), model="lenet")
    with pytest.raises(InvalidInputError, match="rows"):
        problems_problem.from_files(wine, target="kind", public=("classes",), test=0.001)
