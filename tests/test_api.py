"""The names that `hush` exports: their results, and the runnable examples of the public modules."""

from __future__ import annotations

import doctest
import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event
from torch import nn
from torch.nn.functional import cross_entropy

import hush
from hush import accounting, clipping, noise, optimizers, sampling
from hush.errors import ExamplesNotIndependent
from hush.tuning import SCORED_PUBLICLY

PUBLIC = (
    "hush",
    "hush.accounting",
    "hush.audit",
    "hush.bench",
    "hush.clipping",
    "hush.ledger.book",
    "hush.methods",
    "hush.noise",
    "hush.optimizers",
    "hush.plan",
    "hush.release.load",
    "hush.report",
    "hush.run",
    "hush.sampling",
    "hush.training",
    "hush.tuning",
)
torch.manual_seed(0)
X = torch.randn(300, 6)
Y = (X[:, 0] > 0).long()


def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(X[:100]).argmax(1) == Y[:100]).float().mean())


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_opens_with_an_example_that_runs(name: str) -> None:
    module = importlib.import_module(name)
    assert ">>> " in (module.__doc__ or "")
    assert doctest.testmod(module).failed == 0


def test_every_exported_function_has_a_docstring() -> None:
    undocumented = [name for name in hush.__all__ if callable(getattr(hush, name)) and not getattr(hush, name).__doc__]
    assert undocumented == []


def test_accounting_by_event() -> None:
    event = dp_event.GaussianDpEvent(2.0)
    spent = accounting.epsilon(event, 1e-5)
    assert accounting.delta(event, spent) == pytest.approx(1e-5, rel=1e-3)
    sigma = accounting.calibrate(dp_event.GaussianDpEvent, spent, 1e-5)
    assert 2.0 <= sigma < 2.002
    assert float(accounting.curve_of_event(event).beta(0.5)) == pytest.approx(
        0.5 * math.erfc(0.5 / math.sqrt(2))
    )  # Φ(0 − μ), μ = 1/2
    assert accounting.events.from_json(accounting.events.to_json(event)) == event


def test_parts_compose_where_there_is_a_proof_and_only_there() -> None:
    parts = {
        "query": clipping.ClippedSum(clip=1.0, mode="normalised"),
        "noise": noise.Banded(bands=4),
        "optimizer": optimizers.chain(
            optimizers.KalmanFilter(kappa=0.7), optimizers.SGD(lr=1.0, momentum=0.9), optimizers.EMA(0.999)
        ),
        "epsilon": 3,
    }
    plan = hush.Plan.calibrated(
        sampler=sampling.CyclicPoisson(examples=6_000, batch_size=100, groups=4, steps=60), **parts
    )
    assert 2.99 < plan.guarantee().epsilon <= 3.0
    assert replace(plan, sigma=2 * plan.sigma).guarantee().epsilon < 2.0
    with pytest.raises(hush.NotProvenError):
        hush.Plan.calibrated(sampler=sampling.Poisson(examples=6_000, rate=1 / 60, steps=60), **parts)


class Angles(nn.Module):
    """An operation of examples and its parameter that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(x, self.weight)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x - x.mean(0))


def test_explain_names_the_path_of_every_module_and_leaves_the_model_alone() -> None:
    model = nn.Sequential(Angles(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    model[1].requires_grad_(False)
    before = torch.get_rng_state()
    found = hush.explain(model, losses, (X[:8], Y[:8]))
    assert torch.equal(torch.get_rng_state(), before)
    assert [(path.module, path.kind, path.path) for path in found] == [
        ("0", "Angles", "torch.func"),
        ("1", "Linear", "frozen"),
        ("3", "Linear", "book-keeping"),
    ]
    assert "atan2" in found[0].reason
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [path.reason for path in found[1:]] == ["", ""]
    assert all(path.memory > 0 for path in found if path.path != "frozen")
    assert sum(path.memory for path in found) == pytest.approx(1)
    assert found[1].memory == 0 < found[1].time
    assert 0.5 < sum(path.time for path in found) <= 1  # the rest is in modules without parameters
    table = str(found).splitlines()
    assert [line.split()[0] for line in table[1:]] == ["0", "1", "3"]
    with pytest.raises(ExamplesNotIndependent):
        hush.explain(Centred(), losses, (X[:8], Y[:8]))
    with pytest.raises(hush.InvalidInputError):
        hush.explain(model, losses, (X[:1], Y[:1]))


class Peaked(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / 2 if x.abs().max() > 100 else x)


class Turned(nn.Module):
    """A layer over the examples in another dimension than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x.view(-1, 2, 3).transpose(0, 1)).mean(0))


def test_explain_gives_the_reason_at_the_module_that_causes_it() -> None:
    inner, head = hush.explain(Turned(), losses, (X[:8], Y[:8]))
    assert (inner.path, head.path) == ("torch.func", "torch.func")
    assert "inner" in head.reason
    assert "cross_entropy" not in inner.reason  # where the recording stopped, but not why


def test_explain_decides_as_a_run_does_that_a_model_reads_values() -> None:
    (path,) = hush.explain(nn.Sequential(Peaked(6, 2)), losses, (X[:8], Y[:8]))
    assert path.path == "one by one"
    assert "'__bool__'" in path.reason
    first, second = hush.explain(nn.Sequential(Peaked(6, 4), Peaked(4, 2)), losses, (X[:8], Y[:8]))
    assert "'__bool__'" in first.reason
    assert "'__bool__'" not in second.reason  # it names the other module instead
    assert second.reason.endswith(" 0")


class Normed(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 0).all(1).any():
            raise ValueError("an empty row")
        return super().forward(x)


class Thinned(nn.Linear):
    """All examples share one draw."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * nn.functional.dropout(torch.ones(6)))


def test_explain_has_the_empty_row_and_the_random_numbers_of_a_run() -> None:
    with pytest.raises(hush.errors.UnsupportedModelError, match="an empty row"):
        hush.explain(Normed(6, 2), losses, (X[:8], Y[:8]))
    (path,) = hush.explain(Thinned(6, 2), losses, (X[:8], Y[:8]))
    assert path.path == "book-keeping"


def test_tune_gives_the_best_trial_and_charges_the_search_once(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    start = model.weight.detach().clone()
    found = hush.tune(
        model,
        losses,
        (X, Y),
        score=accuracy,
        search={"lr": (0.1, 2.0), "clip": [0.5, 1.0]},
        mean_trials=2,
        epsilon=3,
        steps=6,
        batch_size=60,
        directory=tmp_path / "out",
        ledger=tmp_path / "spend.jsonl",
        dataset="people",
    )
    assert found is not None  # geometric: at least one trial
    assert torch.equal(model.weight, start)
    assert 0.1 <= found.parameters["lr"] <= 2.0
    assert found.parameters["clip"] in (0.5, 1.0)
    assert found.score == accuracy(found.model)
    assert found.guarantee.status == "proven"
    assert 2.9 < found.guarantee.epsilon <= 3.0
    assert {SCORED_PUBLICLY, "the number of examples is public"} <= set(found.guarantee.conditions)
    assert replace(found.plan, trials=None).guarantee().epsilon < 2.0
    book = hush.Ledger(tmp_path / "spend.jsonl")
    assert len(book.spends("people")) == 1
    assert found.guarantee.epsilon <= book.total("people", unit="example").epsilon <= 3.0
    assert hush.verify(tmp_path / "out").verified
    card = json.loads((tmp_path / "out" / "release" / "privacy.json").read_text())
    event = card["guarantee"]["event_json"]
    assert [part["kind"] for part in event["events"]] == ["RepeatAndSelect", "FinitePrecision"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"search": {"batch_size": [30, 60]}, "steps": 4}, hush.NotProvenError),
        ({"search": {"lr": 0.5}}, hush.InvalidInputError),
        ({"search": {"lr": (0.1, 1.0)}, "lr": 0.5}, hush.InvalidInputError),
        ({"ledger": "spend.jsonl"}, hush.InvalidInputError),
        ({"search": {"lr": (0.1, 1.0)}, "method": "sgd"}, hush.InvalidInputError),
    ],
)
def test_a_search_without_a_proof_is_refused_and_costs_nothing(wrong, error, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        hush.tune(nn.Linear(6, 2), losses, (X, Y), score=accuracy, epsilon=3, **wrong)
    assert not list(tmp_path.iterdir())


SPEC = """
secret_seed = 7
[[grid]]
problem = "breast-cancer-logistic"
method = "dp-sgd"
batch_size = 64
steps = 3
noise_multiplier = 1.0
lr = [0.1, 0.5]
"""


def test_a_bench_is_run_and_reported(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    found = hush.run_bench(tmp_path / "spec.toml", tmp_path / "store")
    assert found.counts == {"runs": 2, "done": 2, "failed": 0, "skipped": 0, "diverged": 0}
    (choice,) = found.choices
    assert choice.runs == found.total.runs == 2
    assert choice.winner_epsilon < choice.selection_epsilon == found.total.epsilon
    again = hush.run_bench(tmp_path / "spec.toml", tmp_path / "store")
    assert (again.counts["done"], again.counts["skipped"]) == (0, 2)
    page = hush.write_report(tmp_path / "store", tmp_path / "report.html")
    assert page.out == tmp_path / "report.html"
    assert page.private is None
    assert page.counts["runs"] == page.counts["finished"] == 2
    assert "dp-sgd" in page.out.read_text()
    with pytest.raises(hush.InvalidInputError):
        hush.write_report(tmp_path / "nothing")


def test_around_a_release(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = hush.make_plan("dp-sgd", examples=300, batch_size=60, steps=4, epsilon=5, lr=1.0)
    run = hush.start(plan, nn.Linear(6, 2), losses, (X, Y), directory="run")
    for _ in run:
        pass
    run.release(description=hush.Description("classification", inputs=hush.Inputs("arrays", (6,)), classes=("a", "b")))
    model = hush.load("run/release", model=nn.Linear(6, 2))
    assert model.guarantee.epsilon == run.guarantee.epsilon == model.card["guarantee"]["epsilon"]
    assert model.guarantee.conditions == run.guarantee.conditions
    assert hush.predict(model, X[:5]).names == ["ab"[place] for place in run.model(X[:5]).argmax(1)]
    assert hush.export(model) == Path("model.pt2")
    assert torch.allclose(torch.export.load("model.pt2").module()(X[:5]), run.model(X[:5]), atol=1e-6)
    assert json.loads(Path("model.pt2.json").read_text())["outputs"]["classes"] == ["a", "b"]
    with pytest.raises(hush.InvalidInputError):
        hush.export(model, format="pickle")
    page = hush.write_report("run")
    assert (page.out, page.private) == (Path("run/report.html"), Path("run/private/report.html"))


def test_an_audit_needs_a_plan_alone() -> None:
    plan = hush.make_plan("dp-sgd", examples=64, batch_size=32, steps=2, epsilon=4)
    (verdict,) = hush.audit_plan(plan, runs=8, seed=3)
    assert (verdict.runs, verdict.method, verdict.verdict) == (8, "dp-sgd", "consistent")
    assert verdict.claimed_epsilon == plan.guarantee().epsilon
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(6, 2), runs=8)
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(6, 2), losses, (X, Y), problem="digits-logistic", runs=8)
