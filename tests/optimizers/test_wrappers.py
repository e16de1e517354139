"""Optimizers composed with wrappers, and a plan composed of parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hush import Plan, clipping, noise, optimizers, sampling
from hush.errors import InvalidInputError, NotProvenError
from hush.noise import NoisyGradient
from hush.optimizers import EMA, SGD, KalmanFilter, TailAverage, chain
from hush.optimizers.wrappers import bind_steps, parse_average


def test_parts_as_documented() -> None:
    plan = Plan.calibrated(
        sampler=sampling.CyclicPoisson(examples=60_000, batch_size=256, groups=8, steps=4_700),
        query=clipping.ClippedSum(clip=1.0, mode="normalised"),
        noise=noise.Banded(bands=8),
        optimizer=optimizers.chain(
            optimizers.KalmanFilter(kappa=0.7), optimizers.SGD(lr=1.0, momentum=0.9), optimizers.EMA(0.999)
        ),
        epsilon=3,
        delta=1e-5,
    )
    assert 2.99 < plan.guarantee().epsilon <= 3
    assert plan.guarantee().status == "proven"
    assert plan.steps == 4_700
    assert plan.divisor == pytest.approx(256)
    assert plan.optimizer == EMA(0.999, KalmanFilter(SGD(1.0, momentum=0.9), 0.7), 4_700)
    assert plan.noise.structure.bands == 8
    with pytest.raises(NotProvenError):
        replace(plan, sampler=sampling.Poisson(examples=60_000, rate=256 / 60_000, steps=4_700))


def test_a_chain_is_the_nested_wrappers() -> None:
    parts = chain(KalmanFilter(kappa=0.5), SGD(1.0), EMA(0.9), TailAverage(0.5))
    assert parts == TailAverage(0.5, EMA(0.9, KalmanFilter(SGD(1.0), 0.5)))
    assert chain(SGD(1.0)) == SGD(1.0)
    assert bind_steps(parts, 7) == TailAverage(0.5, EMA(0.9, KalmanFilter(SGD(1.0), 0.5), 7), 7)
    assert bind_steps(EMA(0.9, SGD(1.0), 3), 7) == EMA(0.9, SGD(1.0), 3)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (KalmanFilter(kappa=0.5),),
        (SGD(1.0), SGD(2.0)),
        (EMA(0.9), SGD(1.0)),
        (SGD(1.0), KalmanFilter(kappa=0.5)),
    ],
    ids=["empty", "no optimizer", "two optimizers", "average first", "filter last"],
)
def test_chains_in_the_wrong_order(parts) -> None:
    with pytest.raises(InvalidInputError):
        chain(*parts)


def test_a_wrapper_alone_does_not_run() -> None:
    params = {"w": torch.nn.Parameter(torch.zeros(1))}
    with pytest.raises(InvalidInputError, match="KalmanFilter"):
        KalmanFilter(kappa=0.5).init(params)
    average = EMA(0.9, SGD(1.0))
    gradient = NoisyGradient(0, {"gradient": {"w": torch.ones(1)}}, {"gradient": 0.0})
    with pytest.raises(InvalidInputError, match="steps"):
        average.step(params, gradient, average.init(params))


def test_a_cyclic_sampler_by_batch_size_or_rate() -> None:
    by_size = sampling.CyclicPoisson(examples=1000, batch_size=50, groups=4, steps=8)
    assert by_size == sampling.CyclicPoisson(1000, 4, 0.2, 8)
    assert by_size.expected_batch == pytest.approx(50)
    for wrong in ({}, {"rate": 0.2, "batch_size": 50}, {"batch_size": 251}):
        with pytest.raises(InvalidInputError):
            sampling.CyclicPoisson(1000, 4, steps=8, **wrong)


# Averages of iterates: against hand-computed values, without changing the iterates.


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
