"""`hush train` and `hush account` with the methods that release activations."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hush
from hush.cli.main import app
from hush.datasets import catalogue
from hush.datasets.problem import LayerPlace, cross_entropy
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.sanitize.layer import Sanitize, find_layer, insert
from hush.sanitize.problem import insert_layer

RUN = ["train", "--problem", "digits-mlp", "--delta", "1e-4", "--json"]


def call(*arguments: str):
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 0, found.output
    return found


def test_account_says_what_is_claimed_without_being_asked_to_believe_it() -> None:
    base = ["account", "--method", "sanitize", "--examples", "50000", "--batch-size", "250", "--epochs", "30", "--json"]
    found = json.loads(call(*base, "--noise-multiplier", "1").stdout)
    assert found["epsilon"] == pytest.approx(2.34, abs=5e-3)
    assert found["status"] == "refuted"
    calibrated = CliRunner().invoke(app, [*base, "--epsilon", "2"])  # to a claim only where that is accepted
    assert "--accept-claimed" in str(calibrated.exception)


def test_digits_released_once_learn_and_predict_raw_inputs(tmp_path) -> None:
    how = ["--method", "sanitize-once", "--epsilon", "15", "--epochs", "15", "--lr", "0.01", "--secret-seed", "1"]
    found = json.loads(call(*RUN, *how, "--out", str(tmp_path / "o")).stdout)
    assert found["status"] == "proven"
    assert found["test_accuracy"] > 0.4
    assert "labels, and who is in the data, are not protected" in found["sentence"]
    card = json.loads((tmp_path / "o" / "release" / "privacy.json").read_text())
    assert card["guarantee"]["protects"] == "features"
    model = hush.load(tmp_path / "o" / "release")
    task = catalogue.load("digits-mlp")
    images, labels = task.test
    with torch.no_grad():
        right = model(images).argmax(1).eq(labels).double().mean()
    assert float(right) == pytest.approx(found["test_accuracy"], abs=1e-6)


def test_settings_of_the_layer_reach_the_run_and_its_release(tmp_path) -> None:
    noise = ["--sanitize-scale", "per-number", "--sanitize-width", "8", "--noise-multiplier", "1"]
    layer = ["--sanitize-clip", "0.25", "--sanitize-dropout", "0.5", "--dropout-place", "before"]
    how = ["--method", "sanitize", "--accept-claimed", "--epochs", "1", "--batch-size", "256", "--secret-seed", "1"]
    problem = ["train", "--problem", "digits-sanitized", "--delta", "1e-4", "--initialisation", "published", "--json"]
    found = json.loads(call(*problem, *how, *noise, *layer, "--out", str(tmp_path / "o")).stdout)
    sizes = {"examples": 1438, "batch_size": 256, "epochs": 1, "delta": 1e-4, "accept_claimed": True}
    formula = make_plan("sanitize", **sizes, noise_multiplier=8**-0.5).guarantee()
    assert found["epsilon"] == pytest.approx(formula.epsilon)
    released = find_layer(hush.load(tmp_path / "o" / "release").network)[1]
    assert (released.clip, released.dropout, released.place) == (0.25, 0.5, "before")
    account = ["account", "--method", "sanitize", "--examples", "1438", "--batch-size", "256", "--epochs", "1"]
    stated = json.loads(call(*account, *noise, "--delta", "1e-4", "--json").stdout)
    assert stated["epsilon"] == pytest.approx(formula.epsilon)


def test_the_layer_goes_where_it_is_asked_to_and_what_is_before_is_frozen() -> None:
    task = insert_layer(catalogue.load("digits-mlp"), LayerPlace("3", clip=0.25), frozen=True)
    model = task.model()
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        "1.weight",
        "1.bias",
        "3.inner.weight",
        "3.inner.bias",
    }
    assert model[3].sanitize.clip == 0.25
    with pytest.raises(InvalidInputError, match="'head'"):
        insert_layer(catalogue.load("digits-mlp"), LayerPlace("head"), frozen=True).model()


def test_where_noise_drowns_every_row_plain_sums_learn_and_steps_of_one_length_do_not() -> None:
    """Two classes at ±1 in each of 4 numbers under noise of 20: SGD's head is the difference of the class means."""
    features = torch.ones(4000, 4) * torch.tensor([1.0, -1.0]).repeat(2000)[:, None]
    labels = torch.tensor([0, 1]).repeat(2000)
    weights = {}
    for rule, lr in (("sgd", 1e-5), ("adam", 1e-2)):
        model = nn.Sequential(nn.Identity(), nn.Linear(4, 2))
        nn.init.zeros_(model[1].weight)
        insert(model, "0", Sanitize(clip=1.0, noise_multiplier=1.0))
        setting = {"examples": 4000, "batch_size": 100, "epochs": 3, "noise_multiplier": 10.0, "lr": lr}
        plan = hush.make_plan("sanitize-once", **setting, rule=rule)
        run = plan.start(model, cross_entropy, (features, labels), secret=3)
        for batch in run.batches():
            run.step(batch)
        weights[rule] = (model[1].weight[0] - model[1].weight[1]).detach()
    right = {rule: float(torch.nn.functional.cosine_similarity(w, torch.ones(4), dim=0)) for rule, w in weights.items()}
    assert right["sgd"] > 0.9 > right["adam"]


def test_a_problem_that_has_its_layer_keeps_it_unless_another_one_is_asked_for() -> None:
    task = catalogue.load("digits-sanitized")
    kept = insert_layer(task, LayerPlace(), frozen=False).architecture
    assert kept == task.architecture
    wider = insert_layer(task, LayerPlace(width=20, clip=0.25), frozen=False).architecture.arguments
    assert (wider["inner"], wider["at"], wider["clip"]) == ("funnel", "body", 0.25)
    assert wider["arguments"]["width"] == 20
    assert insert_layer(task, LayerPlace(), frozen=True).architecture.arguments["inner"] == "projection"
    frozen = catalogue.load("digits-sanitized-frozen")
    assert insert_layer(frozen, LayerPlace(), frozen=True).architecture == frozen.architecture


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "sanitize-once", "--sanitize-at", "7"], "the model has no module '7'"),
        (["--method", "sanitize-once", "--sanitize-clip", "0"], "sanitize_clip must be above zero"),
        (["--method", "sanitize-once", "--sanitize-width", "0"], "sanitize_width must be"),
        (["--method", "dp-sgd", "--sanitize-width", "9"], "--method sanitize-once"),
        (["--method", "sanitize-once", "--adjacency", "zero-out"], "'replace'"),
        (["--method", "sanitize"], "--accept-claimed"),
        (["--method", "sanitize-once", "--set", "rule=lion"], "unknown rule 'lion'"),
    ],
)
def test_bad_use_gets_a_sentence(arguments, said) -> None:
    found = CliRunner().invoke(app, [*RUN, "--epochs", "1", *arguments])
    assert found.exit_code != 0
    assert said in str(found.exception)
