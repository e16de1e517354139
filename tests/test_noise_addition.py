"""Noisy gradients lie on a public grid with sufficient noise tails: low-order bits and tails disclose nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from hush._internal.tensors import State
from hush.accounting.noise_tails import grid
from hush.distributed.group import SingleProcess
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.noise import Independent, Rows
from hush.noise.base import add_noise
from hush.noise_addition import NoiseAdder
from hush.randomness import BLOCK, Secret, normal_of_key
from replay import recorded


def released(value: torch.Tensor, std: float, divisor: float = 1.0) -> torch.Tensor:
    total = value.clone()
    add_noise([total], [torch.randn(value.numel(), dtype=torch.float64)], std, grid(std), divisor)
    return total


def off_the_grid(value: torch.Tensor, std: float) -> int:
    points = value.double() / grid(std)
    return int((points != points.round()).sum())


@pytest.mark.parametrize("std", [1e-9, 0.003, 1.0, 1.5, 700.0])
def test_the_grid_is_a_power_of_two_well_below_the_noise(std: float) -> None:
    assert math.log2(grid(std)).is_integer()
    assert std / 2**7 < grid(std) <= std / 2**6


@pytest.mark.parametrize("shape", [(100_000,), (300, 400), (7, 5, 3, 3)])
def test_a_release_lies_on_the_grid_whatever_the_sum_was(shape: tuple[int, ...]) -> None:
    """The twin that adds float32 noise to a float32 sum, as is usual, shows the sum's last bits."""
    torch.manual_seed(0)
    value, std = torch.randn(shape) * 0.37, 1.3
    assert off_the_grid(released(value, std), std) == 0
    assert off_the_grid(value + std * torch.randn(shape), std) > 0.9 * value.numel()
    last = value.to(memory_format=torch.channels_last) if value.dim() == 4 else value.t() if value.dim() == 2 else value
    assert off_the_grid(released(last, std), std) == 0


def test_the_noise_is_as_it_was_but_for_the_rounding() -> None:
    torch.manual_seed(0)
    value, noise, std = torch.randn(50_000), torch.randn(50_000, dtype=torch.float64), 2.7
    total = value.clone()
    add_noise([total[:20_000], total[20_000:]], noise.clone().split(7_777), std, grid(std), 10.0)
    exact = (value.double() + std * noise) / 10.0
    assert (total - exact).abs().max() <= 0.5001 * grid(std) / 10.0
    assert abs(float((total - exact).mean())) < 4 * grid(std) / 10.0 / math.sqrt(12 * 50_000)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk", "dp-dice", "dp-ftrl", "dp-blt", "dp-matrix-me"])
def test_every_method_releases_the_grid(method: str) -> None:
    plan = make_plan(method, examples=16, batch_size=8, steps=4, noise_multiplier=1.0, lr=0.1)
    data = torch.randn(16, 6)
    _, releases = recorded(plan, nn.Linear(6, 2), lambda m, x: m(x[0]).square().sum(1), (data,), secret=3)
    for release in releases:
        std = plan.channel_stds()["gradient"] * plan.noise.std(release.step)
        for value in release.gradient.values():
            assert off_the_grid(value * 8.0, std) == 0


def test_the_sum_cannot_be_told_from_the_last_bits() -> None:
    """Where value and noise nearly cancel, a release used to be impossible for a neighbour's sum; now it never is."""
    plan = make_plan("dp-sgd", examples=64, batch_size=64, steps=1, sample_rate=1.0, noise_multiplier=7.0)
    x = nn.functional.normalize(torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))) * 0.999
    sums, releases = recorded(plan, nn.Linear(4096, 1, bias=False), lambda m, c: m(c[0])[:, 0], (x,), secret=1)
    noisy, sum_ = 64.0 * releases[0].gradient["weight"].double(), sums[0]["gradient"]["weight"].double()
    near = noisy.abs() < 0.1 * sum_.abs()
    assert int(near.sum()) > 0
    assert torch.equal(noisy, (noisy / grid(7.0)).round() * grid(7.0))


def test_how_far_the_noise_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all bits zero the radius is largest; the angle is then 1/8 turn before the first axis."""
    monkeypatch.setattr("hush.randomness.cipher.Keystream.fill", lambda self, buffer: buffer.fill(0))
    found = normal_of_key(b"0" * 32, BLOCK, torch.float64)[[0, BLOCK // 2]]
    assert float(found.norm()) == pytest.approx(math.sqrt(150 * math.log(2)), rel=1e-12)


def test_pieces_of_a_vector_are_the_vector() -> None:
    whole = normal_of_key(b"1" * 32, 3 * BLOCK + 5, torch.float64)
    for start in range(0, len(whole), BLOCK):
        part = whole[start : start + BLOCK]
        assert torch.equal(normal_of_key(b"1" * 32, len(part), torch.float64, start), part)


def test_a_large_model_gets_its_noise_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same release, whatever the pieces; with all of it at once as the twin."""
    plan = make_plan("dp-sgd", examples=8, batch_size=4, steps=2, noise_multiplier=1.0, noise_end=0.5, noise_stages=2)
    found = []
    for piece in (BLOCK, 10 * BLOCK):
        monkeypatch.setattr("hush.noise_addition.PIECE", piece)
        model = nn.Linear(300, 301)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        data = (torch.ones(8, 300),)
        found.append(recorded(plan, model, lambda m, x: m(x[0]).square().sum(1), data, secret=3)[1])
    for one, other in zip(*found, strict=True):
        for name, value in one.gradient.items():
            assert torch.equal(value, other.gradient[name])
            assert value.flatten()[-1] != 0.0


class Walking(Independent):
    """Keeps what it gave, and still says that it can be drawn in pieces."""

    def init(self, like: torch.Tensor) -> State:
        return {"last": torch.zeros(())}

    def draw(self, step: int, z: Rows, state: State) -> tuple[torch.Tensor, State]:
        return z(step) + 0.0 * state["last"], {"last": z(step)[0]}


def test_noise_with_a_state_that_says_it_comes_in_pieces_is_refused() -> None:
    made = make_plan("dp-sgd", examples=8, batch_size=4, steps=2, noise_multiplier=1.0)
    run = replace(made, noise=Walking(2)).start(nn.Linear(3, 1), lambda m, x: m(x[0]).sum(1), (torch.ones(8, 3),))
    with pytest.raises(InvalidInputError):
        run.step(next(run.batches()))


def test_in_slices_it_is_refused_too() -> None:
    made = make_plan("dp-sgd", examples=8, batch_size=4, steps=2, noise_multiplier=1.0)
    noising = NoiseAdder(replace(made, noise=Walking(2)), {"w": torch.zeros(3)}, SingleProcess())
    with pytest.raises(InvalidInputError):
        next(noising.draw("gradient", 3, Secret(b"1" * 32), 0))


ONE_BAND = {
    "dp-sgd": {},
    "dp-bandmf": {"bands": 1, "sample_rate": None},
    "dp-matrix-me": {"batch_size": 8},  # one batch an epoch
    "dp-matrix-me-lambda": {"tau": 1},
    "dp-matrix-se-lambda": {"tau": 1},
    "dp-ftrl": {"restart": True, "batch_size": 8},
}


@pytest.mark.parametrize("method", ONE_BAND)
def test_no_two_coordinates_share_their_noise(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Noise that is independent over steps comes from streams of several kinds; some keep a block for all pieces."""
    monkeypatch.setattr("hush.noise_addition.PIECE", BLOCK)
    how = {"examples": 8, "batch_size": 4, "steps": 2, "noise_multiplier": 1.0} | ONE_BAND[method]
    plan = make_plan(method, **how)
    model = nn.Linear(256, 300)
    model.weight.data.zero_()
    zeros = (torch.zeros(8, 256),)
    _, releases = recorded(plan, model, lambda m, x: 0.0 * m(x[0]).square().sum(1), zeros, secret=3)
    noise = [r.gradient["weight"].flatten() for r in releases]
    for step, one in enumerate(noise):
        first, second = one[:BLOCK], one[BLOCK : 2 * BLOCK]
        assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03
        assert float(one.std()) == pytest.approx(plan.noise_std * plan.noise.std(step) / plan.divisor, rel=0.02)
    assert not torch.equal(noise[0], noise[1])


def test_noise_is_left_as_it_was_handed_out() -> None:
    kept = torch.randn(10, dtype=torch.float64)
    before = kept.clone()
    add_noise([torch.zeros(10)], [kept], 3.0, grid(3.0), 2.0)
    assert torch.equal(kept, before)


def test_noise_of_another_length_is_refused() -> None:
    for length in (3, 5):
        with pytest.raises(RuntimeError):
            add_noise([torch.zeros(4)], [torch.zeros(length, dtype=torch.float64)], 1.0, 2**-10, 1.0)
    add_noise([torch.zeros(0), torch.zeros(2), torch.zeros(0)], [torch.zeros(2).double()], 1.0, 2**-10, 1.0)
    add_noise([torch.zeros(0)], [], 1.0, 2**-10, 1.0)


def test_a_run_draws_its_noise_in_float64() -> None:
    plan = make_plan("dp-ftrl", examples=16, batch_size=8, steps=3, noise_multiplier=1.0)
    run = plan.start(nn.Linear(6, 2), lambda m, x: m(x[0]).square().sum(1), (torch.randn(16, 6),))
    for batch in run.batches():
        run.step(batch)
    assert run.state()["noise"]["gradient"]["state"]["stack"].dtype == torch.float64


def test_a_schedule_is_asked_once() -> None:
    """One that answers less the second time is run as it was accounted."""
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 1.0 if asked.count(step) == 1 else 0.001

    noise = Independent(4, schedule)
    assert [noise.std(t) for t in range(4)] == list(noise.structure.scales) == [1.0] * 4
    drawn, _ = noise.draw(2, lambda row: torch.ones(3), {})
    assert drawn.tolist() == [1.0] * 3
