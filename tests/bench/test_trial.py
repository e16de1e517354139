"""One trial writes one record: its fields, its private part, and failed or diverged runs."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hush.bench.executors import Inline
from hush.bench.selection_cost import price_choices
from hush.bench.spec import check_spec, read_spec
from hush.bench.store import open_store
from hush.bench.sweep import sweep
from hush.bench.timing import estimate
from hush.bench.trial import (
    MODEL_AXES,
    POINTS,
    Accounts,
    RunOptions,
    WatchedLosses,
    configure_problem,
    load_problem,
    make_trial_plan,
    pick_steps,
    run_trial,
)
from hush.datasets import catalogue
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import cross_entropy
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.randomness import Secret, seeded
from hush.sanitize.layer import find_layer
from hush.training import take_steps


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


def run_one(store, trial, **settings):
    store.finish(trial.key, run_trial(trial, store, RunOptions(**settings)))
    return store.record(trial.key)


def test_a_record_says_what_was_run_and_what_came_of_it(store, write_spec) -> None:
    text = '[[grid]]\nproblem = "digits-mlp"\nmethod = "dp-sgd"\nbatch_size = 256\nepochs = 3\nepsilon = 4\nlr = 0.5\n'
    trial = read_spec(write_spec(text)).trials[0]
    record = run_one(store, trial)
    assert record["outcome"] == "finished"
    assert record["config"]["options"]["lr"] == 0.5
    assert record["config"]["seed"] == trial.seed
    assert record["status"] == "proven"
    assert 3.9 < record["epsilon"] <= 4
    assert record["examples"] == 1295  # of 1 438 training rows a tenth is held out
    assert record["steps"] == record["steps_taken"] == 18
    assert {"hush", "torch", "dp-accounting", "python"} <= set(record["versions"])
    assert sum(map(sum, record["confusion"])) == 359
    right = sum(row[i] for i, row in enumerate(record["confusion"]))
    assert record["test_accuracy"] == right / 359
    assert record["inference_seconds"] > 0
    lines = [json.loads(line) for line in (store.folder(trial.key) / "epochs.jsonl").read_text().splitlines()]
    assert [(line["step"], line["epoch"]) for line in lines] == [(6, 1.0), (12, 2.0), (18, 3.0)]
    assert lines[-1]["test_accuracy"] == record["test_accuracy"]
    assert lines[-1]["validation_accuracy"] == record["validation_accuracy"]
    epsilons = [line["epsilon"] for line in lines]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(record["epsilon"], rel=1e-12)


def test_the_record_is_that_of_the_bare_loop(store, small) -> None:
    trial = small.trials[0]
    record = run_one(store, trial)
    problem = catalogue.load(trial.problem, seed=trial.split_seed, validation=0.1)
    options = trial.settings | trial.options
    public = {"examples": len(problem.train[0]), "counted": True, "assumptions": problem.assumptions}
    plan = make_plan("dp-sgd", **public, **options)
    with seeded(trial.seed):
        model = problem.model()
    secret = Secret.from_seed(7, "bench", trial.key, plan.fingerprint())
    run = plan.start(model, problem.losses, problem.train, secret=secret)
    numbers = [step.numbers() for step in take_steps(run)]
    assert record["test_loss"] == evaluate_problem(model, problem).loss
    assert record["validation_loss"] == evaluate_problem(model, problem, part="validation").loss
    kept = load_file(store.folder(trial.key) / "private" / "steps.safetensors")
    assert kept["loss"].tolist() == pytest.approx([n["loss"] / n["examples"] for n in numbers], rel=1e-6)
    assert kept["examples"].tolist() == [n["examples"] for n in numbers]
    weights = load_file(store.folder(trial.key) / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_what_training_data_shows_is_in_the_private_part_alone(store, small) -> None:
    trial = small.trials[0]
    run_one(store, trial)
    folder = store.folder(trial.key)
    assert (folder / "private").stat().st_mode & 0o077 == 0
    assert (folder / "private" / "steps.safetensors").stat().st_mode & 0o077 == 0
    assert {p.name for p in folder.iterdir()} == {
        *("record.json", "epochs.jsonl", "private", "model.safetensors", "model.json", "privacy.json"),
        *("PRIVACY.md", "privacy.html"),
    }
    public = (folder / "record.json").read_text() + (folder / "epochs.jsonl").read_text()
    assert "train_loss" not in public
    assert "clipped" not in public
    assert not (store.root / "working" / trial.key).exists()  # it held the secret


def test_weights_can_be_left_out(store, small) -> None:
    run_one(store, small.trials[0], weights=False)
    assert not (store.folder(small.trials[0].key) / "model.safetensors").exists()


def test_every_run_has_its_own_secret(store, small, monkeypatch) -> None:
    seen: list[bytes] = []
    from hush.plan import Plan

    start = Plan.start
    monkeypatch.setattr(
        Plan, "start", lambda self, *a, secret=None, **k: (seen.append(secret), start(self, *a, secret=secret, **k))[1]
    )
    again = replace(small.trials[0], seed=small.trials[0].seed + 1)
    for trial in (*small.trials, again):
        run_one(store, trial)
    assert len({secret.key for secret in seen}) == 5
    assert all(secret.origin == "seed" for secret in seen)
    run_one(store, replace(small.trials[0], secret_seed=None))
    assert seen[-1] is None  # from the operating system


def test_the_training_accuracy_is_that_of_the_batch() -> None:
    torch.manual_seed(0)
    model, content = nn.Linear(5, 3), (torch.randn(40, 5), torch.randint(3, (40,)))
    losses = WatchedLosses(cross_entropy, 3)
    losses.watch(model)
    assert torch.equal(losses(model, content), cross_entropy(model, content))
    losses(model, content)  # a second gradient at the same examples counts once
    for size in (3, 2, 40):  # an engine that checks itself
        losses(model, tuple(part[:size].clone() for part in content))
    assert losses.accuracy(40) == int((model(content[0]).argmax(1) == content[1]).sum()) / 40
    losses(model, content)
    assert math.isnan(losses.accuracy(35))
    assert math.isnan(losses.accuracy(0))


@pytest.mark.parametrize("method", ["sgd", "dp-sgd", "dp-disk", "dp-dice"])
def test_training_accuracy_is_counted_for_every_kind_of_query(store, small, method) -> None:
    trial = small.trials[0]
    noise = {} if method == "sgd" else {"noise_multiplier": 1.0}
    trial = replace(trial, method=method, settings={"batch_size": 64, "epochs": 1, "delta": 1e-5} | noise, options={})
    assert run_one(store, trial)["outcome"] == "finished"
    steps = load_file(store.folder(trial.key) / "private" / "steps.safetensors")
    later = steps["accuracy"][1:]  # in its first step an engine looks at the examples too often to count
    assert bool(((later > 0.02) & (later <= 1)).all())


def test_divergence_is_a_record_with_a_reason(store, small) -> None:
    trial = replace(small.trials[0], settings=small.trials[0].settings | {"epochs": 4}, options={"lr": 1e40})
    record = run_one(store, trial)
    assert record["outcome"] == "diverged"
    assert "not finite after step" in record["reason"]
    assert record["steps_taken"] < record["steps"]
    assert record["epsilon"] == pytest.approx(
        make_trial_plan(trial, load_problem(trial.problem, 0, 0.1), Accounts(None)).guarantee().epsilon
    )


def test_failure_is_a_record_with_a_reason(store, small) -> None:
    trial = replace(small.trials[0], settings=small.trials[0].settings | {"batch_size": 100_000})
    record = run_one(store, trial)
    assert record["outcome"] == "failed"
    assert "batch size 100000 is larger than the data" in record["reason"]
    trace = store.folder(trial.key) / "private" / "traceback.txt"
    assert "Traceback" in trace.read_text()
    assert trace.parent.stat().st_mode & 0o077 == 0
    assert record["begun"] is False  # and nothing is spent


@pytest.mark.parametrize("after", [1, 4])
def test_a_run_that_fails_on_its_way_says_what_it_has_spent(store, small, after) -> None:
    """Whoever chooses among runs has seen that it failed, and in the store what it was before."""
    trial, left = small.trials[0], [after]

    def pulse() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ValueError("out of the blue")

    record = run_one(store, trial, checkpoint_seconds=0, pulse=pulse)
    assert record["outcome"] == "failed"
    assert "blue" not in json.dumps(record)
    assert "steps_taken" not in record  # a step with somebody in its batch
    plan = make_trial_plan(trial, load_problem(trial.problem, 0, 0.1), Accounts(None))
    assert record["epsilon"] == pytest.approx(plan.guarantee().epsilon)
    assert record["event"]
    assert "begun" not in record


def test_a_try_that_cannot_be_gone_on_with_is_not_forgotten(store, small) -> None:
    """Its noise was another one: who chooses has seen three runs, of which two are in the store."""

    def fail() -> None:
        raise ValueError

    trial = small.trials[0]
    assert run_one(store, trial, checkpoint_seconds=0, pulse=fail)["outcome"] == "failed"
    for path in store.working(trial.key).rglob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:200])
    store.forget(trial.key)
    again, other = run_one(store, trial), run_one(store, small.trials[1])
    assert again["tried_before"] is True
    assert "tried_before" not in other
    (choice,) = price_choices([again, other])
    assert (choice.runs, choice.selection_epsilon) == (3, None)


def test_a_run_that_cannot_go_on_does_not_say_that_it_spent_nothing(store, small, monkeypatch) -> None:
    trial = small.trials[0]

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        run_trial(trial, store, RunOptions(checkpoint_seconds=0, pulse=stop))
    monkeypatch.setattr("hush.bench.trial.load_problem", lambda *_: 1 / 0)
    record = run_trial(trial, store, RunOptions()).record
    assert record["outcome"] == "failed"
    assert not {"begun", "epsilon"} & set(record)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 4, 7])
def test_a_run_interrupted_inside_resumes_to_the_same_bits(tmp_path, small, after) -> None:
    trial = replace(small.trials[1], settings=small.trials[1].settings | {"epochs": 2})
    whole, broken = open_store(tmp_path / "whole"), open_store(tmp_path / "broken")
    straight = run_one(whole, trial)
    left = [after]

    def pulse() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Stop

    with pytest.raises(Stop):
        run_trial(trial, broken, RunOptions(checkpoint_seconds=0, pulse=pulse))
    assert not broken.has(trial.key)
    assert (broken.root / "working" / trial.key).stat().st_mode & 0o077 == 0
    resumed = run_one(broken, trial, checkpoint_seconds=0)
    assert resumed["resumed"] == 1
    assert results(resumed) == results(straight)
    for name in ("epochs.jsonl", "model.safetensors", "private/steps.safetensors"):
        assert (whole.folder(trial.key) / name).read_bytes() == (broken.folder(trial.key) / name).read_bytes()


def results(record: dict) -> dict:
    times = {"started", "seconds", "train_seconds", "evaluation_seconds", "inference_seconds", "resumed", "machine"}
    return {name: value for name, value in record.items() if name not in times}


def test_warnings_are_kept_in_the_private_part(store, small, monkeypatch) -> None:
    def noisy(*arguments):
        warnings.warn("row 3 looks odd", UserWarning, stacklevel=2)
        return make_trial_plan(*arguments)

    monkeypatch.setattr("hush.bench.trial.make_trial_plan", noisy)
    trial = small.trials[0]
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as outside of these tests, where warnings are errors
        assert run_one(store, trial)["outcome"] == "finished"
    kept = store.folder(trial.key) / "private" / "warnings.txt"
    assert kept.read_text() == "UserWarning: row 3 looks odd"


def test_calibration_is_done_once_for_all_learning_rates(tmp_path, small, monkeypatch) -> None:
    from hush.plan import Plan

    calls: list[float] = []
    real = Plan.with_epsilon
    monkeypatch.setattr(
        Plan, "with_epsilon", lambda self, epsilon, *a: (calls.append(epsilon), real(self, epsilon, *a))[1]
    )
    accounts, problem = Accounts(tmp_path), load_problem(small.trials[0].problem, 0, 0.1)
    settings = {"batch_size": 64, "epochs": 1, "delta": 1e-5, "epsilon": 3.0}
    plans = [
        make_trial_plan(
            replace(small.trials[0], settings=settings, options={"lr": lr, "clip": clip}), problem, accounts
        )
        for lr, clip in ((0.1, 1.0), (0.2, 1.0), (0.1, 2.0))
    ]
    assert calls == [3.0, 3.0]  # another learning rate is the same event; another clip is looked at anew
    assert plans[0].sigma == plans[1].sigma == pytest.approx(plans[2].sigma)
    assert plans[1].optimizer.lr == 0.2
    assert plans[0].guarantee().epsilon <= 3.0


@pytest.mark.parametrize(
    ("method", "more"),
    [("dp-bandmf", {}), ("auto", {}), ("dp-sgd", {"average": "ema:0.9"}), ("dp-sgd", {"sample_rate": 0.1})],
)
def test_a_spec_means_what_make_plan_means(store, small, method, more) -> None:
    settings = {"batch_size": 16, "epochs": 2, "delta": 1e-5, "epsilon": 3.0} | more
    trial = replace(small.trials[0], method=method, settings=settings, options={"lr": 0.1})
    problem = load_problem(trial.problem, 0, 0.1)
    public = {"examples": len(problem.train), "counted": True, "assumptions": problem.assumptions}
    wanted = make_plan(method, **public, **settings, lr=0.1)
    assert make_trial_plan(trial, problem, Accounts(None)).fingerprint() == wanted.fingerprint()
    if method == "dp-bandmf":
        assert wanted.sampler.groups == 4  # 8 where no ε is known
    record = run_one(store, trial)
    assert record["outcome"] == "finished"
    assert record["noise_multiplier"] == wanted.sigma
    assert record["planned_method"] == wanted.method


def test_an_estimate_knows_the_methods_that_need_epsilon(small) -> None:
    settings = {"batch_size": 64, "epochs": 1, "delta": 1e-5, "epsilon": 3.0}
    trials = [replace(small.trials[0], method=method, settings=settings) for method in ("auto", "dp-bandmf")]
    found = estimate(trials)
    assert (found.reason, found.timed) == ("", 2)


LAYERED = """
secret_seed = 1
[defaults]
problem = "digits-sanitized"
method = "sanitize"
noise_multiplier = 1.0
accept_claimed = true
batch_size = 256
epochs = 4
lr = 3e-3
[[grid]]
"""


def test_settings_of_a_layer_are_axes_that_reach_the_layer(write_spec) -> None:
    more = 'sanitize_width = [6, 9]\nsanitize_clip = 0.25\nsanitize_dropout = 0.5\ndropout_place = "before"\n'
    plain, *set_ = read_spec(write_spec(LAYERED + "\n[[grid]]\n" + more)).trials
    assert not MODEL_AXES.keys() & plain.config().keys()  # a setting that is not given is no part of a key
    assert len({plain.key, *(trial.key for trial in set_)}) == 3
    for trial, width in zip(set_, (6, 9), strict=True):
        problem = load_problem(trial.problem, 0, 0.1)
        plan = make_trial_plan(trial, problem, Accounts(None))
        layer = find_layer(configure_problem(trial, problem, plan).model())[1]
        layer.train()(torch.zeros(3, width))
        assert (layer.width, layer.clip, layer.dropout, layer.place) == (width, 0.25, 0.5, "before")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('initialisation = "kaiming"', "initialisation"),
        ('sanitize_scale = "per-number"', "sanitize_width"),
        ("sanitize_dropout = 1.5", "sanitize_dropout"),
        ("sanitize_clip = -1.0", "sanitize_clip"),
        ('stop = "soon"', "soon"),
    ],
)
def test_a_bad_setting_of_a_layer_is_found_before_the_first_run(write_spec, line, named) -> None:
    with pytest.raises(InvalidInputError, match=named):
        check_spec(read_spec(write_spec(LAYERED + line)))
    check_spec(read_spec(write_spec(LAYERED)))


def test_a_layer_for_a_method_without_one_is_a_failed_run(store, small) -> None:
    trial = replace(small.trials[0], settings=small.trials[0].settings | {"sanitize_clip": 0.25})
    assert run_one(store, trial)["outcome"] == "failed"
    assert "sanitize_clip" in store.record(trial.key)["reason"]


def test_a_run_stops_at_its_flag_and_all_planned_steps_are_counted(tmp_path, write_spec) -> None:
    early, never = read_spec(write_spec(LAYERED + 'stop = ["2:100", "2:0"]')).trials
    store = open_store(tmp_path / "store")
    stopped, whole = run_one(store, early), run_one(store, never)
    per_epoch = -(-stopped["examples"] // 256)
    assert (stopped["steps_taken"], stopped["stopped"]["after_epochs"]) == (2 * per_epoch, 2)
    assert (whole["steps_taken"], "stopped" in whole) == (4 * per_epoch, False)
    assert stopped["epsilon"] == whole["epsilon"] > stopped["stopped"]["epsilon_there"]
    lines = (store.folder(early.key) / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [per_epoch, 2 * per_epoch]

    class Killed(BaseException):
        pass

    taken = []

    def pulse() -> None:
        taken.append(1)
        if len(taken) == per_epoch + 2:
            raise Killed

    again = open_store(tmp_path / "again")
    with pytest.raises(Killed):
        run_trial(early, again, RunOptions(checkpoint_seconds=0.0, pulse=pulse))
    resumed = run_one(again, early)
    assert resumed["resumed"] == 1
    assert all(resumed[name] == stopped[name] for name in ("stopped", "test_accuracy", "epsilon"))


def test_epsilon_is_computed_for_a_bounded_number_of_epochs() -> None:
    assert pick_steps([1, 2, 3]) == [1, 2, 3]
    some = pick_steps(list(range(1, 501)))
    assert len(some) == POINTS
    assert (some[0], some[-1]) == (1, 500)


THEIRS = '''
"""Somebody else's optimizer: the sign of the noisy gradient."""
from dataclasses import dataclass
import torch
from hush.methods import PlanConfig as Setting
from hush.noise import Independent
from hush.clipping import ClippedSum

__version__ = "1.2"

@dataclass(frozen=True)
class SignRule:
    lr: float
    def init(self, params):
        return {}
    def step(self, params, release, state):
        update = {n: -self.lr * torch.sign(release.gradient[n]) for n in params}
        for n, p in params.items():
            p.add_(update[n])
        return update

def sign_sgd(setting: Setting, *, lr: float = 0.01):
    parts = {"query": ClippedSum(1.0), "noise": Independent(setting.total_steps), "optimizer": SignRule(lr)}
    return setting.plan("their-sign-sgd", sampler=setting.sampler(), **parts)
'''


def test_a_third_party_optimizer_is_a_row_in_a_spec(tmp_path, store, write_spec, monkeypatch) -> None:
    (tmp_path / "their_optimizers.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = """
[[grid]]
problem = "breast-cancer-logistic"
method = ["dp-sgd", "their_optimizers:sign_sgd"]
batch_size = 64
epochs = 2
noise_multiplier = 1.0
lr = [0.01, 0.05]
"""
    spec = read_spec(write_spec(text))
    from hush.bench.spec import check_spec

    check_spec(spec)
    assert sweep(spec, store, Inline()).summary() == {"runs": 4, "done": 4, "failed": 0, "skipped": 0, "diverged": 0}
    records = [store.record(t.key) for t in spec.trials if t.method != "dp-sgd"]
    assert [r["status"] for r in records] == ["proven", "proven"]
    assert all(r["test_accuracy"] > 0.6 for r in records)
    assert records[0]["versions"]["their_optimizers"] == "1.2"
    assert [t.key for t in read_spec(spec.path).trials] == [t.key for t in spec.trials]
    assert Path(store.folder(records[0]["key"]) / "model.safetensors").exists()
