"""AdamBC subtracts the noise from the second moment; the Kalman filter averages and reports the remaining noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.noise.base import NoisyGradient
from hush.optimizers import SGD, AdamBC, KalmanFilter
from hush.plan import Plan

COORDINATES, STEPS = 4000, 120


def release(step: int, gradient: torch.Tensor, std: float) -> NoisyGradient:
    return NoisyGradient(step, {"gradient": {"w": gradient}}, {"gradient": std})


def second_moment(said: float, true: float, mean: float = 0.3) -> float:
    """The mean over coordinates of v̂ − ψ, for a constant gradient with noise ``true`` where ``said`` is declared."""
    generator = torch.Generator().manual_seed(0)
    params = {"w": nn.Parameter(torch.zeros(COORDINATES).double())}
    optimizer = AdamBC(1e-9)
    state = optimizer.init(params)
    for step in range(STEPS):
        noise = true * torch.randn(COORDINATES, generator=generator).double()
        optimizer.step(params, release(step, mean + noise, said), state)
    start = 1 - optimizer.beta2**STEPS
    return float((state["v"]["w"] / start - state["psi"] / start).mean())


@pytest.mark.parametrize("std", [0.5, 2.0])
def test_the_noiseless_second_moment_is_recovered(std) -> None:
    spread = math.sqrt(2 * std**4 + 4 * std**2 * 0.09) / math.sqrt(COORDINATES * STEPS)
    assert abs(second_moment(std, std) - 0.09) < 6 * spread
    assert abs(second_moment(0.0, std) - 0.09) > 100 * spread  # without the correction: std² too much
    assert abs(second_moment(std * 1.2, std) - 0.09) > 100 * spread  # nor does a wrong scale pass


def test_two_steps_by_hand() -> None:
    """Gradient 2 then 1, noise std ½ then 1, η = 0.1, β = (0.9, 0.999).

    Step 1: m̂ = 2, v̂ = 4, ψ = ¼: −0.1·2/√3.75.
    Step 2: m̂ = (0.18 + 0.1)/0.19, v̂ = (0.003996 + 0.001)/0.001999, ψ = (0.00024975 + 0.001)/0.001999.
    """
    params = {"w": nn.Parameter(torch.zeros(1).double())}
    optimizer = AdamBC(0.1)
    state = optimizer.init(params)
    first = optimizer.step(params, release(0, torch.tensor([2.0]).double(), 0.5), state)["w"]
    assert first.item() == pytest.approx(-0.2 / math.sqrt(3.75))
    second = optimizer.step(params, release(1, torch.tensor([1.0]).double(), 1.0), state)["w"]
    v, psi = 0.004996 / 0.001999, 0.00124975 / 0.001999
    assert second.item() == pytest.approx(-0.1 * (0.28 / 0.19) / math.sqrt(v - psi))


def test_the_floor_holds_where_noise_explains_everything() -> None:
    params = {"w": nn.Parameter(torch.zeros(1).double())}
    update = AdamBC(0.1, floor=1e-4).step(params, release(0, torch.tensor([0.5]).double(), 1.0), AdamBC().init(params))
    assert update["w"].item() == pytest.approx(-0.1 * 0.5 / 1e-2)


def linear(model: nn.Module, content: torch.Tensor) -> torch.Tensor:
    return model(content)[:, 0]


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 8),
        ({}, 64),
        ({"clip_mode": "normalised"}, 8),
        ({"clip_mode": "automatic"}, 8),
        ({"noise_end": 0.25, "noise_stages": 5}, 8),
        ({"clip_quantile": 0.5, "clip_mode": "normalised"}, 20),
        ({"sampling": "same-order", "sample_rate": None, "examples": 8}, 8),
    ],
)
def test_psi_is_the_noise_that_was_added(monkeypatch, options, batch) -> None:
    """No examples are sampled (or all are tiny), so the release is noise alone and v̂ − ψ has mean zero.

    The twin whose releases say a tenth more noise than they have fails.
    """
    how = {"examples": 100, "batch_size": batch, "steps": 60, "noise_multiplier": 0.9, "clip": 0.4, "sample_rate": 1e-9}
    p = make_plan("dp-adam-bc", **{**how, **options}, lr=1e-9)
    spread = math.sqrt(2 / (COORDINATES * 60)) * 2.5  # schedules weigh some steps more
    assert _v_over_psi(p) == pytest.approx(1.0, abs=5 * spread)
    monkeypatch.setattr(NoisyGradient, "noise_std", property(lambda release: 1.1 * release.std["gradient"]))
    assert abs(_v_over_psi(p) - 1.0) > 10 * spread


def _v_over_psi(p: Plan) -> float:
    model = nn.Linear(COORDINATES, 1, bias=False).double()
    x = torch.full((p.sampler.examples, COORDINATES), 1e-6).double()
    run = p.start(model, linear, x, secret=2)
    for batch in run.batches():
        run.step(batch)
    state = run.state()["rule"]
    return state["v"]["weight"].mean().item() / state["psi"]


def test_only_released_gradients_are_kept() -> None:
    params = {"w": nn.Parameter(torch.zeros(2))}
    assert set(AdamBC().init(params)) == {"m", "v", "psi", "taken"}


class TestKalman:
    def test_three_steps_by_hand(self) -> None:
        """κ = ¼, gradients 8, 4, 0: filtered 8, then 7, then 5.25."""
        params = {"w": nn.Parameter(torch.zeros(1).double())}
        optimizer = KalmanFilter(SGD(1.0), 0.25)
        state = optimizer.init(params)
        moved = [
            optimizer.step(params, release(t, torch.tensor([g]).double(), 1.0), state)["w"].item()
            for t, g in enumerate((8.0, 4.0, 0.0))
        ]
        assert moved == [-8.0, -7.0, -5.25]

    def test_the_noise_that_is_left(self) -> None:
        """It tends to κ/(2 − κ) of the variance; what the filter says is what is measured."""
        kappa, std = 0.3, 2.0
        generator = torch.Generator().manual_seed(0)
        params = {"w": nn.Parameter(torch.zeros(20_000).double())}
        optimizer = KalmanFilter(SGD(1e-9), kappa)
        state = optimizer.init(params)
        for step in range(60):
            optimizer.step(params, release(step, std * torch.randn(20_000, generator=generator).double(), std), state)
        assert state["variance"] == pytest.approx(std**2 * kappa / (2 - kappa), rel=1e-6)
        measured = state["filtered"]["w"].var().item()
        assert measured == pytest.approx(state["variance"], rel=0.05)
        assert measured != pytest.approx(std**2, rel=0.5)

    def test_the_rule_inside_is_told(self) -> None:
        """AdamBC behind a filter takes out the filtered noise, not the raw one."""
        params = {"w": nn.Parameter(torch.zeros(1).double())}
        optimizer = KalmanFilter(AdamBC(1e-9, beta2=0.5), 0.5)
        state = optimizer.init(params)
        for step in range(40):
            optimizer.step(params, release(step, torch.zeros(1).double(), 3.0), state)
        assert state["rule"]["psi"] == pytest.approx(9.0 * 0.5 / 1.5, rel=1e-6)

    def test_bad_gain(self) -> None:
        with pytest.raises(InvalidInputError, match="0.*1"):
            KalmanFilter(SGD(0.1), 1.5)
