"""DiSK: without a filter it equals DP-SGD bit for bit; its gradient is the paper's combination of two points."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from hush.clipping import ClippedSum, Clipping, TwoPoint
from hush.clipping import two_point as module
from hush.methods import make_plan
from hush.optimizers import SGD, KalmanFilter
from hush.randomness import Secret
from replay import distance, recorded

HOW = {"examples": 24, "batch_size": 8, "steps": 6, "noise_multiplier": 0.5, "lr": 0.3, "clip": 0.7}


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(24, 5, generator=generator), torch.randint(0, 3, (24,), generator=generator)


def mlp() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def trained(plan) -> list[torch.Tensor]:
    model = mlp()
    run = plan.start(model, losses, data(), secret=Secret.from_seed(9))
    for batch in run.batches():
        run.step(batch)
    return [p.detach() for p in model.parameters()]


def test_without_filter_it_is_dp_sgd_bit_for_bit() -> None:
    for mode in ("plain", "normalised"):
        plain = trained(make_plan("dp-sgd", **HOW, clip_mode=mode))
        disk = trained(make_plan("dp-disk", **HOW, clip_mode=mode, kappa=1.0))
        filtered = trained(make_plan("dp-disk", **HOW, clip_mode=mode, kappa=0.7))
        assert all(torch.equal(a, b) for a, b in zip(plain, disk, strict=True))
        assert not any(torch.allclose(a, b) for a, b in zip(plain, filtered, strict=True))


def test_with_both_points_equal_it_is_dp_sgd_and_the_filter() -> None:
    base = make_plan("dp-sgd", **HOW)
    optimizer = KalmanFilter(SGD(0.3), 0.7)
    both = trained(replace(base, query=TwoPoint(Clipping(0.7), a=6 / 7, gamma=0.0), optimizer=optimizer))
    one = trained(replace(base, query=ClippedSum(0.7), optimizer=optimizer))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(both, one, strict=True))


def test_sigma_is_dp_sgds() -> None:
    """Clipping comes after the combination, so the event and the noise are DP-SGD's."""
    disk, plain = make_plan("dp-disk", **HOW), make_plan("dp-sgd", **HOW)
    assert disk.event() == plain.event()
    assert disk.channel_stds() == plain.channel_stds()
    assert disk.query.a == pytest.approx(6 / 7)  # κ = 0.7, γ = 0.5: 0.3/0.35


def test_the_combination_by_hand() -> None:
    """ℓ = w²x/2 has gradient wx: at w = 2, direction 0.5, γ = 0.4, a = 0.25: g = (0.25·2.2 + 0.75·2)x = 2.05x."""

    def square(model: nn.Module, content: torch.Tensor) -> torch.Tensor:
        return 0.5 * model.weight[0, 0] ** 2 * content

    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    query = TwoPoint(Clipping(100.0), a=0.25, gamma=0.4, engine="functional")
    public = {"direction": {"weight": torch.full((1, 1), 0.5)}}
    x = torch.tensor([1.0, 3.0])
    sums = query.piece(model, square, x, public)
    assert float(sums["gradient"]["weight"]) == pytest.approx(2.05 * 4)
    tight = TwoPoint(Clipping(1.0), a=0.25, gamma=0.4, engine="functional").piece(model, square, x, public)
    assert float(tight["gradient"]["weight"]) == pytest.approx(2.0)  # each clipped to 1, after the combination


def test_one_gradient_is_taken_where_one_is_enough(monkeypatch) -> None:
    points: list[int] = []
    real = module.per_example_gradients

    def counting(*arguments, **how):
        points.append(len(how["points"]))
        return real(*arguments, **how)

    monkeypatch.setattr(module, "per_example_gradients", counting)
    for kappa, gamma, expected in ((1.0, 0.5, 1), (0.5, 1.0, 1), (1 / 1.5, 0.5, 1), (0.7, 0.5, 2)):
        points.clear()
        recorded(make_plan("dp-disk", **HOW, kappa=kappa, gamma=gamma), mlp(), losses, data())
        assert set(points) == {expected}


def test_the_one_gradient_lies_ahead() -> None:
    """a = 1 is the clipped gradient at θ + γ·dir alone."""
    model = mlp().eval()
    direction = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    ahead = TwoPoint(Clipping(0.7), a=1.0, gamma=0.3).piece(model, losses, data(), {"direction": direction})
    here = ClippedSum(0.7).piece(model, losses, data(), {})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * direction[name]
    moved = ClippedSum(0.7).piece(model, losses, data(), {})
    assert distance(ahead["gradient"], moved["gradient"]) < 1e-4
    assert distance(ahead["gradient"], here["gradient"]) > 0.1


def test_the_direction_is_the_last_update() -> None:
    run = make_plan("dp-disk", **HOW).start(mlp(), losses, data(), secret=1)
    for batch in run.batches():
        before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
        run.step(batch)
        moved = {n: p.detach() - before[n] for n, p in run.model.named_parameters()}
        assert distance(run.state()["public"]["direction"], moved) < 1e-6
