"""Noise schedules: the noise added at each step, and the event that composes the steps' σ."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import event_of, find_sensitivity
from hush.matrix_factorization import Diagonal
from hush.methods import make_plan
from hush.noise import Independent, Stages
from hush.sampling import (
    CyclicPoissonSampled,
    OnePass,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)
from replay import recorded

HOW = {"examples": 1000, "batch_size": 50, "steps": 40, "noise_multiplier": 2.0}
SCALES = Diagonal(6, (1.0, 1.0, 0.5, 0.5, 0.25, 0.25))


def gaussian(sigma: float) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(sigma)


def poisson(sigma: float, rate: float = 0.1) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, gaussian(sigma))


def times(event: dp_event.DpEvent, count: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(event, count)


def composed(*events: dp_event.DpEvent) -> dp_event.DpEvent:
    return dp_event.ComposedDpEvent(list(events))


def without(sigma: float) -> dp_event.DpEvent:
    return dp_event.SampledWithoutReplacementDpEvent(50, 5, gaussian(sigma))


# participation, adjacency, event of the six steps above at scale 2
@pytest.mark.parametrize(
    ("participation", "adjacency", "event"),
    [
        (PoissonSampled(0.1, 6), "add-remove", composed(*(times(poisson(s), 2) for s in (2.0, 1.0, 0.5)))),
        (PoissonSampled(0.1, 6), "replace", composed(*(times(poisson(s), 2) for s in (1.0, 0.5, 0.25)))),
        (WithoutReplacement(50, 5, 6), "replace", composed(*(times(without(s), 2) for s in (1.0, 0.5, 0.25)))),
        # epochs of three steps: the least noise of each is what its example may meet
        (Reshuffled(3, 6), "zero-out", composed(times(gaussian(1.0), 1), times(gaussian(0.5), 1))),
        (CyclicPoissonSampled(2, 0.1, 6), "zero-out", composed(*(times(poisson(s), 1) for s in (2.0, 1.0, 0.5)))),
        (OnePass(6), "zero-out", gaussian(0.5)),
        (SameOrder(3, 6), "zero-out", gaussian(2.0 / math.sqrt(4 + 16))),  # steps 3 and 6
        (Separated(2, 3, 6), "zero-out", gaussian(2.0 / math.sqrt(4 + 16))),
    ],
)
def test_the_event_composes_the_steps_own_sigma(participation, adjacency, event) -> None:
    assert event_of(participation, SCALES, 2.0, adjacency, 6) == event


def test_the_first_steps() -> None:
    event = event_of(PoissonSampled(0.1, 6), SCALES, 2.0, "add-remove", 3)
    assert event == composed(times(poisson(2.0), 2), times(poisson(1.0), 1))
    assert event_of(PoissonSampled(0.1, 6), SCALES, 2.0, "add-remove", 2) == times(poisson(2.0), 2)


def test_a_constant_schedule_is_none() -> None:
    for participation in (PoissonSampled(0.1, 6), Reshuffled(3, 6)):
        adjacency = "add-remove" if isinstance(participation, PoissonSampled) else "zero-out"
        flat = event_of(participation, Diagonal(6, (1.0,) * 6), 2.0, adjacency, 6)
        assert flat == event_of(participation, Diagonal(6), 2.0, adjacency, 6)
    for kind in (SameOrder(4, 6), Separated(2, 2, 6), OnePass(6)):
        assert find_sensitivity(kind, Diagonal(6, (1.0,) * 6)) == pytest.approx(find_sensitivity(kind, Diagonal(6)))


@settings(max_examples=40, deadline=None)
@given(
    scales=st.lists(st.sampled_from([0.3, 0.5, 1.0, 2.0]), min_size=1, max_size=8),
    count=st.integers(1, 4),
    apart=st.integers(1, 4),
)
def test_separated_is_the_best_of_all_choices(scales, count, apart) -> None:
    steps = range(len(scales))
    best = 0.0
    for size in range(1, count + 1):
        for chosen in itertools.combinations(steps, size):
            if all(b - a >= apart for a, b in itertools.pairwise(chosen)):
                best = max(best, math.sqrt(sum(scales[t] ** -2 for t in chosen)))
    assert Diagonal(len(scales), tuple(scales)).separated(count, apart) == pytest.approx(best)


def test_stages() -> None:
    stages = Stages(10, 0.25, 5)
    assert [stages(t) for t in range(10)] == pytest.approx([0.25 ** (t // 2 / 4) for t in range(10)])
    assert len({stages(t) for t in range(10)}) == 5
    assert [Stages(3, 0.5, 10)(t) for t in range(3)] == pytest.approx([1.0, 0.5 ** (3 / 9), 0.5 ** (6 / 9)])
    assert Stages(10, 0.5, 1)(9) == 1.0
    with pytest.raises(InvalidInputError, match="noise_end"):
        Stages(10, 0.0)
    with pytest.raises(InvalidInputError, match="noise_schedule"):
        Independent(3, lambda step: 1.0 - step)


def linear(model: nn.Module, content: torch.Tensor) -> torch.Tensor:
    return model(content)[:, 0]


@pytest.mark.parametrize("sampling", ["poisson", "same-order"])
def test_every_step_has_the_noise_that_is_accounted(sampling) -> None:
    p = make_plan("dp-sgd", **HOW, noise_end=0.4, noise_stages=4, clip=0.5, lr=1e-9, sampling=sampling)
    _, releases = recorded(p, nn.Linear(400, 1, bias=False), linear, torch.full((1000, 400), 1e-6))  # noise alone
    scale = 2.0 * 0.5 * (1 + p.charge) * p.sensitivity
    assert p.sensitivity == (1.0 if sampling == "poisson" else pytest.approx(p.noise.structure.same_order(20)))
    for stage in range(4):
        std = scale * 0.4 ** (stage / 3)
        rows = torch.cat([releases[t].gradient["weight"].flatten() * 50 for t in range(10 * stage, 10 * stage + 10)])
        assert releases[10 * stage].noise_std * 50 == pytest.approx(std)
        assert stats.kstest(rows.numpy() / std, "norm").pvalue > 1e-4
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(rows.numpy() / (std * wrong), "norm").pvalue < 1e-9


def test_epsilon_lies_between_the_constant_ones() -> None:
    falling = make_plan("dp-sgd", **HOW, noise_end=0.5).guarantee().epsilon
    most = make_plan("dp-sgd", **{**HOW, "noise_multiplier": 1.0}).guarantee().epsilon
    least = make_plan("dp-sgd", **HOW).guarantee().epsilon
    assert least < falling < most


def test_calibration_reaches_the_epsilon() -> None:
    p = make_plan("dp-adam", **{**HOW, "noise_multiplier": None}, epsilon=1.5, noise_end=0.5, noise_stages=3)
    assert 1.49 < p.guarantee().epsilon <= 1.5


def test_a_different_noise_at_every_step_is_refused_in_words() -> None:
    from dataclasses import replace

    p = make_plan("dp-sgd", **{**HOW, "steps": 1500})
    with pytest.raises(NotProvenError):
        replace(p, noise=Independent(1500, lambda step: 1.0 + step / 1e4)).guarantee()
