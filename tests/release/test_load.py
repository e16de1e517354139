"""Releases of tables, images, shipped problems and user modules load from public files alone."""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

import hush
from hush.cli import main
from hush.datasets import catalogue
from hush.datasets.catalogue import PROBLEMS
from hush.datasets.models import SHIPPED, build_shipped, logistic, shipped
from hush.errors import InvalidInputError
from hush.release.description import Description, Inputs, rebuild_schema
from hush.release.folder import read_description
from hush.tabular.columns import Category, Ignored, Number
from hush.tabular.problem import from_files
from hush.tabular.schema import Schema

FEW = ("--batch-size", "20", "--steps", "3", "--noise-multiplier", "2")


def make_table(path: Path, rows: int = 100) -> Path:
    """Ages with gaps, towns, a text that is not used, and a label."""
    dice = random.Random(7)
    lines = ["age,town,note,sick"]
    for number in range(rows):
        age = "" if number % 9 == 0 else str(dice.randint(18, 90))
        lines.append(f"{age},{dice.choice(['Ulm', 'Bonn', ''])},n{number},{dice.choice(['yes', 'no'])}")
    path.write_text("\n".join(lines) + "\n")
    return path


FACTS = {
    "columns": {
        "age": {"low": 0, "high": 120, "fill": 50},
        "town": {"values": ["Bonn", "Ulm"]},
        "note": {"kind": "ignore"},
    }
}


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> Path:
    """A run on a table, made by the command."""
    folder = tmp_path_factory.mktemp("table")
    make_table(folder / "rows.csv")
    (folder / "facts.json").write_text(json.dumps(FACTS))
    data = ("--data", folder / "rows.csv", "--target", "sick", "--schema", folder / "facts.json", "--public", "classes")
    assert main(["train", *map(str, data), *FEW, "--out", str(folder / "run")]) == 0
    return folder / "run"


def drop_column(path: Path, out: Path, name: str) -> Path:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    place = rows[0].index(name)
    out.write_text("\n".join(",".join(row[:place] + row[place + 1 :]) for row in rows) + "\n")
    return out


def test_a_table_is_predicted_without_its_labels_and_without_its_run(table_run, tmp_path) -> None:
    """The copied folder gives what the trained network gives on the rows as training encoded them."""
    shutil.copytree(table_run / "release", tmp_path / "given")
    model = hush.load(tmp_path / "given")
    rows = table_run.with_name("rows.csv")
    found = model.predict(drop_column(rows, tmp_path / "new.csv", "sick"))
    problem = from_files(rows, target="sick", schema=FACTS, public=("classes",), test=0.2)
    features = torch.cat([problem.train[0], problem.test[0]])
    network = problem.model()
    network.load_state_dict(load_file(tmp_path / "given" / "model.safetensors"))
    expected = torch.softmax(network(features).double(), 1)
    order = [tuple(row) for row in features.tolist()]
    encoded = [tuple(row) for row in model.encode(rows).tolist()]
    assert sorted(order) == sorted(encoded)
    places = {row: place for place, row in enumerate(order)}
    again = expected[[places[row] for row in encoded]]
    assert torch.allclose(found.probabilities, again, atol=1e-12)
    assert found.classes == ("no", "yes")
    assert found.names == [found.classes[place] for place in again.argmax(1).tolist()]
    assert model.card["guarantee"]["status"] == "proven"
    assert model.description.target == "sick"
    assert not model.training


def test_rows_in_memory_are_encoded_as_a_file_is(table_run) -> None:
    model = hush.load(table_run)
    dicts = [{"age": 41, "town": "Ulm"}, {"age": None, "town": "Atlantis"}, {"age": 30.5, "town": None}]
    columns = {"age": [41, None, 30.5], "town": ["Ulm", "Atlantis", float("nan")]}
    expected = torch.tensor([[41.0, 1.0], [50.0, 2.0], [30.5, 2.0]])  # the fill, and the slot of anything else
    assert torch.equal(model.encode(dicts), expected)
    assert torch.equal(model.encode(columns), expected)
    assert torch.equal(model.predict(dicts).probabilities, model.predict(expected).probabilities)
    pandas = pytest.importorskip("pandas")
    assert torch.equal(model.encode(pandas.DataFrame(dicts)), expected)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"age": 41}], "^the rows have no column 'town': none of their 1 columns has that name$"),
        ([{"age": 41, "tow": "x"}], "^the rows have no column 'town': did you mean 'tow'"),
        ([{"age": "old", "town": "Ulm"}], "said to be a number and holds text"),
        ([], "no rows"),
        (7, "rows are a file, a list of dicts"),
        ("nowhere.csv", "there is no file"),
        ({"age": [1, 2], "town": ["Ulm"]}, "different lengths"),
    ],
)
def test_rows_that_cannot_be_predicted(table_run, rows, sentence) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        hush.load(table_run).predict(rows)


def make_images(path: Path, *, labels: bool = True) -> Path:
    dice = np.random.default_rng(3)  # rows to look at; nothing here is private
    content = {"x": dice.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)}
    np.savez(path, **content, **({"y": np.arange(60) % 3} if labels else {}))
    return path


def test_images_are_predicted_from_pixels(tmp_path) -> None:
    data, new = make_images(tmp_path / "a.npz"), make_images(tmp_path / "b.npz", labels=False)
    assert main(["train", "--data", str(data), "--model", "lenet", *FEW, "--out", str(tmp_path / "run")]) == 2
    assert main(["train", "--data", str(data), *FEW, "--out", str(tmp_path / "run")]) == 0
    model = hush.load(tmp_path / "run")
    assert model.description.inputs == Inputs("images", (1, 8, 8), 0.0, 255.0)
    pixels = torch.from_numpy(np.load(new)["x"]).float()
    with torch.no_grad():
        expected = torch.softmax(model(pixels * (2 / 255) - 1).double(), 1)
    assert torch.allclose(model.predict(new).probabilities, expected, atol=1e-6)
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "new").mkdir()
    for place in range(3):
        image.fromarray(np.load(new)["x"][place, 0]).save(tmp_path / "new" / f"{place}.png")
    assert torch.allclose(model.predict(tmp_path / "new").probabilities, expected[:3], atol=1e-6)
    with pytest.raises(InvalidInputError, match="pixels"):
        model.predict(np.full((1, 1, 8, 8), 300.0))
    with pytest.raises(InvalidInputError, match="shape"):
        model.predict(np.zeros((1, 1, 9, 9)))


@pytest.mark.parametrize("name", ["digits-mlp", "breast-cancer-logistic"])
def test_a_shipped_problem_is_predicted_as_it_was_tested(name, tmp_path) -> None:
    out = tmp_path / "run"
    assert main(["train", "--problem", name, *FEW, "--out", str(out)]) == 0
    model, problem = hush.load(out), catalogue.load(name)
    features, labels = problem.test
    right = float((model.predict(features).labels == labels).float().mean())
    told = json.loads((out / "private" / "finished.json").read_text())
    assert right == pytest.approx(told["test_accuracy"], abs=1e-6)
    if name == "digits-mlp":
        raw = (features * 16).numpy()
        assert torch.allclose(model.encode(raw), features, atol=1e-6)


@pytest.mark.parametrize("row", PROBLEMS.values(), ids=PROBLEMS)
def test_every_shipped_problem_names_an_architecture_that_is_built_from_its_json(row) -> None:
    read = Description.from_json(json.loads(json.dumps(Description("other", row.model).to_json())))
    with torch.device("meta"):
        one, other = build_shipped(read.architecture), build_shipped(row.model)
    shapes = [{name: value.shape for name, value in network.state_dict().items()} for network in (one, other)]
    assert shapes[0] == shapes[1] != {}


OWN = """
from torch import nn

CALLS = []

def network(features, classes):
    CALLS.append((features, classes))
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, classes))
"""


def test_a_factory_of_ones_own_is_called_only_when_trusted(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = (
        "--data",
        str(make_table(tmp_path / "rows.csv")),
        "--target",
        "sick",
        "--public",
        "classes",
        "--model",
        "own_network:network",
    )
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    assert main(["train", *data, "--schema", str(tmp_path / "facts.json"), *FEW, "--out", str(tmp_path / "run")]) == 0
    calls = sys.modules["own_network"].CALLS
    before = len(calls)
    with pytest.raises(InvalidInputError):
        hush.load(tmp_path / "run")
    assert len(calls) == before
    trusted = hush.load(tmp_path / "run", trust_code=True)
    assert len(calls) == before + 1
    given = hush.load(tmp_path / "run", model=sys.modules["own_network"].network(12, 2))
    rows = [{"age": 41, "town": "Ulm"}]
    assert torch.equal(trusted.predict(rows).probabilities, given.predict(rows).probabilities)
    with pytest.raises(InvalidInputError, match=r"'1\.0\.weight'"):
        hush.load(tmp_path / "run", model=sys.modules["own_network"].network(3, 2))


def release_own(folder: Path, description: Description | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    data = torch.randn(30, 4), torch.randint(0, 2, (30,))
    plan = hush.make_plan("dp-sgd", examples=30, batch_size=10, steps=2, noise_multiplier=1.0)
    model = logistic(4, 2)
    run = plan.start(model, lambda m, c: cross_entropy(m(c[0]), c[1], reduction="none"), data)
    for batch in run.batches():
        run.step(batch)
    run.release(folder, description=description)
    return model


def test_a_module_of_ones_own_is_loaded_into_one_that_is_given(tmp_path) -> None:
    trained = release_own(tmp_path / "out")
    with pytest.raises(InvalidInputError, match="out' holds weights"):
        hush.load(tmp_path / "out", trust_code=True)
    loaded = hush.load(tmp_path / "out", model=logistic(4, 2))
    assert torch.equal(loaded(torch.ones(1, 4)), trained(torch.ones(1, 4)))
    with pytest.raises(InvalidInputError):
        loaded.predict(torch.ones(1, 4))
    release_own(tmp_path / "told", Description("classification", classes=("a", "b")))
    told = hush.load(tmp_path / "told", model=logistic(4, 2)).predict(torch.ones(3, 4))
    assert told.probabilities.sum(1).tolist() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": "shipped", "name": "os:system", "arguments": {"command": "x"}}, "does not come with hush"),
        ({"source": "shipped", "name": "logistic", "arguments": {"features": "x", "classes": 2}}, "do not fit"),
        ({"source": "shipped", "name": "logistic", "arguments": {"features": 10**9, "classes": 10**9}}, "they differ"),
        ({"source": "shipped", "name": "logistic", "arguments": {"features": 4, "code": "x"}}, "do not fit"),
        ({"source": "factory", "name": "os:system", "arguments": {"command": "x"}}, "not run unless you trust it"),
        ({"source": "pickle", "name": "x"}, "architecture"),
        ({"run": "x"}, "the unknown entry 'run'"),
    ],
)
def test_a_description_that_names_code_is_refused(change, sentence, tmp_path) -> None:
    release_own(
        tmp_path / "out", Description("classification", shipped("logistic", features=4, classes=2), None, ("a", "b"))
    )
    assert hush.load(tmp_path / "out").predict(torch.ones(1, 4)).labels.shape == (1,)
    path = tmp_path / "out" / "model.json"
    told = json.loads(path.read_text())
    told["architecture"] = {**told["architecture"], **change}
    path.write_text(json.dumps(told))
    with pytest.raises(InvalidInputError, match=sentence):
        hush.load(tmp_path / "out")


def test_weights_of_another_type_and_half_a_file_are_refused(tmp_path) -> None:
    release_own(
        tmp_path / "out", Description("classification", shipped("logistic", features=4, classes=2), None, ("a", "b"))
    )
    path = tmp_path / "out" / "model.safetensors"
    whole = path.read_bytes()
    save_file({name: value.double() for name, value in load_file(path).items()}, path)
    with pytest.raises(InvalidInputError):
        hush.load(tmp_path / "out")
    path.write_bytes(whole[:-3])
    with pytest.raises(InvalidInputError, match="weights"):
        hush.load(tmp_path / "out")


def test_folders_without_a_release(tmp_path) -> None:
    with pytest.raises(InvalidInputError, match="folder"):
        hush.load(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="release"):
        hush.load(tmp_path)
    old = tmp_path / "old"
    release_own(old)
    (old / "model.json").unlink()
    with pytest.raises(InvalidInputError, match="model.json"):
        hush.load(old)
    assert hush.load(old, model=logistic(4, 2)).description == Description("other")


def test_a_schema_comes_back_from_its_file() -> None:
    columns = (
        Number("a", low=0.1, high=3.0, fill=0.5),
        Category("b", values=("x", "y")),
        Category("c", buckets=7),
        Ignored("d"),
    )
    schema = Schema((*columns, Category("t")), "t", ("no", "yes"))
    again = rebuild_schema(json.loads(json.dumps(schema.to_json())))
    assert (again.features, again.target, again.classes) == (schema.features, "t", ("no", "yes"))
    values = Schema((*columns, Number("t")), "t", ())
    assert rebuild_schema(json.loads(json.dumps(values.to_json()))) == values


def test_a_description_comes_back_from_its_files(table_run) -> None:
    told = read_description(table_run / "release")
    schema = told.schema
    assert Description.from_json(json.loads(json.dumps(told.to_json())), schema.to_json()) == told
    images = Description("other", inputs=Inputs("images", (1, 2, 2), 0.0, 16.0, (0.0, 1.0)))
    assert Description.from_json(json.loads(json.dumps(images.to_json()))) == images
    values = replace(images, task="regression", target="y", target_range=(0.0, 5.0))
    assert Description.from_json(json.loads(json.dumps(values.to_json()))) == values


def test_a_regression_gives_values(tmp_path) -> None:
    release_own(tmp_path / "out", Description("regression", shipped("logistic", features=4, classes=2)))
    path = tmp_path / "out" / "model.json"
    told = json.loads(path.read_text())
    told["architecture"]["arguments"]["classes"] = 1
    path.write_text(json.dumps(told))
    weights = {name: value[:1].clone() for name, value in load_file(path.with_name("model.safetensors")).items()}
    save_file(weights, path.with_name("model.safetensors"))
    found = hush.load(tmp_path / "out").predict(torch.ones(3, 4))
    expected = weights["1.weight"].sum() + weights["1.bias"][0]
    assert torch.allclose(found.values, expected.expand(3))


def test_nothing_but_what_is_listed_can_be_named() -> None:
    assert set(SHIPPED) == {"mlp", "logistic", "linear", "lenet", "cnn", "p1", "p2", "funnel", "resnet18", "vae"} | {
        "projection",
        "sanitized",
    }
