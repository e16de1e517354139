"""What is checked of a model while it is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hush import UnsupportedModelError, make_plan
from hush._internal.tensors import trainable
from hush.per_example.model_checks import SMALL, _Bits

SIDE = 64  # a weight of SMALL numbers
ORDERS = {"upside down": lambda w: w.flip(0), "rolled": lambda w: w.roll(1), "transposed": lambda w: w.t()}


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("side", [SIDE - 1, SIDE, 2 * SIDE + 1])
def test_another_order_of_a_parameters_numbers_is_a_change(side: int, order: str) -> None:
    params = trainable(nn.Sequential(nn.Linear(3, side), nn.Linear(side, side)))
    before = _Bits.of(params)
    assert before.find_changed(params) == []
    with torch.no_grad():
        params["1.weight"].copy_(ORDERS[order](params["1.weight"]).clone())
    assert before.find_changed(params) == ["1.weight"]


def test_a_large_weight_turned_around_between_two_steps_is_noticed(tmp_path) -> None:
    assert SIDE * SIDE >= SMALL
    x, y = torch.randn(24, SIDE, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
    plan = make_plan("dp-sgd", examples=24, batch_size=6, steps=3, noise_multiplier=1.0)
    run = plan.start(nn.Linear(SIDE, SIDE), losses, (x, y), secret=1)
    run.step(run.batch(0))
    run.model.weight.data.copy_(run.model.weight.data.flip(0))
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.step(run.batch(1))
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.release(tmp_path / "release")
