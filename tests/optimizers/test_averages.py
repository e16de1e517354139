"""Averages of iterates: by hand, and without touching the iterates."""

from __future__ import annotations

import pytest
import torch

from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient
from hush.optimizers import SGD
from hush.optimizers.wrappers import EMA, TailAverage, parse_average


def iterates(optimizer, steps: int) -> list[float]:
    params = {"w": torch.nn.Parameter(torch.tensor([0.0]))}
    state, seen = optimizer.init(params), []
    for step in range(steps):
        optimizer.step(params, NoisyGradient(step, {"gradient": {"w": torch.tensor([-1.0])}}, {"gradient": 0.0}), state)
        seen.append(params["w"].item())
    return seen


def test_tail_is_the_mean_of_the_last_iterates() -> None:
    assert iterates(SGD(1.0), 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert iterates(TailAverage(0.5, SGD(1.0), 8), 8) == [1, 2, 3, 4, 5, 6, 7, pytest.approx(6.5)]
    assert iterates(TailAverage(1.0, SGD(1.0), 8), 8)[-1] == pytest.approx(4.5)
    assert iterates(TailAverage(0.01, SGD(1.0), 8), 8)[-1] == pytest.approx(8.0)


def test_ema_by_hand() -> None:
    average, expected = 0.0, []
    for step, iterate in enumerate(range(1, 31)):
        beta = min(0.5, (1 + step) / (10 + step))
        average = beta * average + (1 - beta) * iterate
        expected.append(average)
    assert iterates(EMA(0.5, SGD(1.0), 30), 30)[-1] == pytest.approx(expected[-1], rel=1e-6)


def test_names() -> None:
    assert parse_average("ema") == EMA(0.999)
    assert parse_average("tail:0.1") == TailAverage(0.1)
    with pytest.raises(InvalidInputError):
        parse_average("emma")
    with pytest.raises(InvalidInputError):
        parse_average("ema:x")
    with pytest.raises(InvalidInputError):
        EMA(1.0, SGD(1.0), 5)
