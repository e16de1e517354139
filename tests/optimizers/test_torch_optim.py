"""A scheduler that ends before its plan is refused before anything is spent; the check has no side effects."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, lr_scheduler

from hush import InvalidInputError, make_plan
from hush.optimizers import EMA, TorchOptim
from hush.optimizers.torch_optim import MOST_CHECKED, check_schedule
from hush.optimizers.wrappers import Grouped

STEPS = 6
SHORT = TorchOptim(
    lambda p: SGD(p.values(), lr=0.1, momentum=0.9), lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=2)
)
LONG = replace(SHORT, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=STEPS))
GOOD = {
    "one cycle": LONG.scheduler,
    "in sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1, 2), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
}


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def start(optimizer):
    plan = make_plan("dp-sgd", examples=24, batch_size=6, steps=STEPS, noise_multiplier=1.0)
    torch.manual_seed(0)
    data = torch.randn(24, 3), torch.arange(24) % 2
    return replace(plan, optimizer=optimizer).start(nn.Linear(3, 2), losses, data, secret=None)


@pytest.mark.parametrize(
    "optimizer",
    [SHORT, EMA(0.999, SHORT, STEPS), Grouped((("weight", LONG), ("*", SHORT)))],
    ids=["bare", "average", "group"],
)
def test_a_scheduler_that_is_too_short_is_refused_before_the_first_step(optimizer) -> None:
    with pytest.raises(InvalidInputError, match="OneCycleLR.*2.*plan's 6.*6"):
        start(optimizer)


@pytest.mark.parametrize("name", GOOD)
def test_one_that_is_long_enough_runs_as_if_nobody_had_tried_it(name) -> None:
    run = start(replace(SHORT, scheduler=GOOD[name]))
    rates, optimizer = [], SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    scheduler = GOOD[name](optimizer)
    for step in range(STEPS):
        rates.append(run.state()["rule"]["optimizer"].param_groups[0]["lr"])
        assert rates[-1] == optimizer.param_groups[0]["lr"]
        run.step(run.batch(step))
        optimizer.step()
        scheduler.step()
    assert len(set(rates)) > 1


def test_an_optimizer_that_was_made_before_is_left_as_it_is() -> None:
    params = {"w": nn.Parameter(torch.ones(2))}
    params["w"].grad = torch.ones(2)
    made = SGD(params.values(), lr=0.1)
    schedule = lr_scheduler.StepLR(made, 1, 0.5)
    check_schedule({"rule": {"optimizer": made, "scheduler": schedule}}, params, STEPS)
    assert (made.param_groups[0]["lr"], schedule.last_epoch) == (0.1, 0)
    assert params["w"].tolist() == [1.0, 1.0]


def test_a_plan_of_very_many_steps_is_not_tried() -> None:
    params = {"w": nn.Parameter(torch.ones(2))}
    check_schedule(SHORT.init(params), params, MOST_CHECKED + 1)


def test_functions_with_a_memory_are_not_tried_before_the_run() -> None:
    """No copy has their memory for itself: a trial would use it up."""
    calls = [0]

    def halve(_: int) -> float:
        calls[0] += 1
        return 0.5 ** calls[0]

    params = {"weight": nn.Parameter(torch.zeros(2))}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, halve)
    before = calls[0]
    check_schedule({"optimizer": optimizer, "scheduler": scheduler}, params, 5)
    together = torch.optim.lr_scheduler.ChainedScheduler([scheduler])
    check_schedule({"optimizer": optimizer, "scheduler": together}, params, 5)
    assert calls[0] == before
