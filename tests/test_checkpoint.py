"""A run that stops anywhere goes on to the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from hush.checkpointing import Checkpoints
from hush.optimizers import SGD, Adam, TorchOptim
from hush.training import take_steps
from stopping import METHODS, STEPS, plan, resumed, same, start, stopped, straight


def torch_rule(optimizer, scheduler=None) -> TorchOptim:
    return TorchOptim(lambda params: optimizer(list(params.values())), scheduler)


RULES = {
    "sgd-momentum": SGD(0.3, momentum=0.9),
    "adam": Adam(0.05),
    "adamw-cosine": torch_rule(
        lambda p: torch.optim.AdamW(p, lr=0.05), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)
    ),
    "sgd-onecycle": torch_rule(
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda o: lr_scheduler.OneCycleLR(o, 0.5, STEPS)
    ),
    "sgd-multistep": torch_rule(
        lambda p: torch.optim.SGD(p, lr=0.1, nesterov=True, momentum=0.5), lambda o: lr_scheduler.MultiStepLR(o, [2, 4])
    ),
    "rmsprop-sequential": torch_rule(
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
        ),
    ),
    "adam-lambda": torch_rule(
        lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True), lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n))
    ),
}


@pytest.mark.parametrize("after", [0, 1, 4, STEPS])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_to_the_same_bits(method, after, tmp_path) -> None:
    p = plan(method)
    stopped(p, tmp_path, after)
    assert same(resumed(p, tmp_path), straight(p))


OPTIONS = [
    {"average": "ema:0.9"},
    {"average": "tail:0.5"},
    {"clip_quantile": 0.5},
    {"clip_quantile": 0.5, "clip_mode": "normalised"},
    {"noise_end": 0.5, "noise_stages": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_goes_on_to_the_same_bits(options, tmp_path) -> None:
    p = plan("dp-adam", **options)
    stopped(p, tmp_path, 4)
    assert same(resumed(p, tmp_path), straight(p))


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled", "same-order"])
def test_every_sampling_goes_on_to_the_same_bits(sampling, tmp_path) -> None:
    p = plan(sampling=sampling)
    stopped(p, tmp_path, 4)
    assert same(resumed(p, tmp_path), straight(p))


@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("rule", list(RULES))
def test_every_rule_goes_on_to_the_same_bits(optimizer, after, tmp_path) -> None:
    p = replace(plan(), optimizer=RULES[optimizer])
    stopped(p, tmp_path, after)
    assert same(resumed(p, tmp_path), straight(p))


def test_twice_stopped_and_with_pieces(tmp_path) -> None:
    p = plan("dp-adam", sample_rate=0.8)
    stopped(p, tmp_path, 2, microbatch=5)
    run, kept = start(p, secret=None), Checkpoints(tmp_path)
    kept.restore(run, kept.newest().saved)
    assert run.microbatch == 5  # the pieces decide the order of a sum and the dropout, so they are the run's own
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == 5:
            break
    kept.close()
    assert same(resumed(p, tmp_path), straight(p, microbatch=5))


def test_a_run_without_restored_state_is_another_one(tmp_path) -> None:
    """The comparison above can fail: with Adam's moments lost, the bits differ."""
    p = plan("dp-adam")
    stopped(p, tmp_path, 4)
    run, kept = start(p, secret=None), Checkpoints(tmp_path)
    saved = kept.newest().saved
    saved.state["rule"]["m"]["0.weight"].zero_()
    kept.restore(run, saved)
    for _ in take_steps(run):
        pass
    kept.close()
    assert not same(run.model.state_dict(), straight(p))


def test_batch_norm_in_ordinary_training_keeps_its_statistics(tmp_path) -> None:
    def normed(seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    p = plan("sgd")
    stopped(p, tmp_path, 4, model=normed())
    assert same(resumed(p, tmp_path, model=normed(9)), straight(p, model=normed()))
