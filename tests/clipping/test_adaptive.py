"""Adaptive clipping: follows a moving quantile, costs what the closed form says, and rescales."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dp_accounting import dp_event
from scipy import stats
from torch import nn

from hush.clipping import Adaptive, ClippedSum, Quantile
from hush.clipping.adaptive import CHANNEL
from hush.clipping.clipped import SMALLEST
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import make_plan
from hush.noise.base import NoisyGradient
from hush.optimizers import ClipUnits
from hush.randomness import Secret
from replay import recorded, sensitivities

EXAMPLES = 4000


def linear(model: nn.Module, content: torch.Tensor) -> torch.Tensor:
    """The loss w·x has gradient x, whatever w is: the data are the gradients."""
    return model(content)[:, 0]


def gradients(scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Rows whose norms are log-normal around ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(EXAMPLES, 3, generator=generator).double()
    norms = scale * torch.exp(0.5 * torch.randn(EXAMPLES, 1, generator=generator).double())
    return rows / rows.norm(dim=1, keepdim=True) * norms


def plan(**changes):
    how = {"examples": EXAMPLES, "batch_size": 256, "steps": 60, "noise_multiplier": 1.0, "lr": 1e-9}
    return make_plan("dp-sgd", **{**how, "clip_quantile": 0.5, "clip_mode": "normalised", **changes})


class Moving:
    """Data whose gradients change in the middle of the run; which half a step sees is public."""

    def __init__(self, *parts: torch.Tensor) -> None:
        self.parts, self.taken, self.each = parts, 0, 60

    def __len__(self) -> int:
        return EXAMPLES

    def take(self, indices: torch.Tensor) -> torch.Tensor:
        part = self.parts[min(self.taken // self.each, len(self.parts) - 1)]
        return part[indices]


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
def test_the_clip_follows_a_moving_quantile(quantile) -> None:
    first, second = gradients(0.2), gradients(5.0)
    source = Moving(first, second)
    p = plan(clip=1.0, clip_quantile=quantile, steps=120)
    run = p.start(nn.Linear(3, 1, bias=False).double(), linear, source, secret=3)
    clips = []
    for batch in run.batches():
        source.taken = batch.step
        run.step(batch)
        clips.append(run.state()["public"]["clip"])
    for part, clip in ((first, clips[55:60]), (second, clips[115:120])):
        wanted = float(torch.quantile(part.norm(dim=1), quantile))
        assert math.exp(sum(map(math.log, clip)) / 5) == pytest.approx(wanted, rel=0.2)
    assert clips[119] > 10 * clips[59]


def test_one_update_by_hand() -> None:
    """C ← C·exp(−η(b̃ − quantile)): with C = 2, η = 0.2, target ½ and a count of ¼ (so b̃ = ¾), 2e^−0.05."""
    release = NoisyGradient(0, {"gradient": {}, CHANNEL: {"count": torch.tensor(0.25)}}, {})
    assert Quantile(2.0, 0.5, 0.2).after(2.0, release) == pytest.approx(2 * math.exp(-0.05))
    assert Quantile(2.0, 0.5, 100.0).after(SMALLEST, release) == SMALLEST


def test_the_count_by_hand() -> None:
    """Three of four norms are at most the clip 1: the count is 3·½ − ½ = 1, the gradient is divided by the clip."""
    rows = torch.tensor([[0.4, 0.0], [0.9, 0.0], [0.0, 3.0], [0.0, 0.1]]).double()
    query = Adaptive(ClippedSum(99.0), Quantile(99.0), 1.0)
    model = nn.Linear(2, 1, bias=False).double()
    sums = query.piece(model, linear, rows, {"clip": 1.0, "query": {}})
    assert float(sums[CHANNEL]["count"]) == 1.0
    assert sums["gradient"]["weight"][0].tolist() == pytest.approx([1.3, 1.1])
    half = query.piece(model, linear, rows, {"clip": 0.5, "query": {}})
    assert float(half[CHANNEL]["count"]) == 0.0
    assert half["gradient"]["weight"][0].tolist() == pytest.approx([1.8, 1.2])


def test_the_event_is_the_closed_form() -> None:
    """MECHANISMS.md §4: σ = 1, σ_b = 12.8 leaves the gradient 1.00076, and the event is DP-SGD's."""
    p = plan(noise_multiplier=1.0)
    assert p.event() == make_plan("dp-sgd", examples=EXAMPLES, batch_size=256, steps=60, noise_multiplier=1.0).event()
    assert p.event() == dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(256 / EXAMPLES, dp_event.GaussianDpEvent(1.0)), 60
    )
    stds = p.channel_stds()
    charged = 1 + p.charge
    assert stds[CHANNEL] == 12.8  # L/20
    assert stds["gradient"] / charged == pytest.approx((1.0 - (2 * 12.8) ** -2) ** -0.5)
    assert stds["gradient"] / charged == pytest.approx(1.00076, abs=5e-6)
    other = plan(count_noise=1.0, noise_multiplier=0.5).channel_stds()["gradient"]
    assert other / charged == pytest.approx((4 - 0.25) ** -0.5)


def test_the_measured_sensitivity_is_the_bound() -> None:
    """Both channels together: ‖Δ/std‖ of one example is at most 1/σ, and it is reached."""
    x = gradients()
    p = plan(steps=8, sample_rate=1.0, clip=0.01, noise_multiplier=2.0)
    model = lambda: nn.Linear(3, 1, bias=False).double()  # noqa: E731
    steps = sensitivities(p, model, linear, x, x[:-1])
    stds = p.channel_stds()
    together = [math.sqrt(sum((step[c] / stds[c]) ** 2 for c in stds)) for step in steps]
    assert 1 / (1 + p.charge) * 0.999 / p.sigma < max(together) <= 1 / p.sigma
    assert max(step[CHANNEL] for step in steps) == pytest.approx(0.5)


def test_both_channels_are_noised_at_their_scale() -> None:
    p = plan(steps=300, sample_rate=1e-9)
    _, releases = recorded(p, nn.Linear(300, 1, bias=False).double(), linear, torch.zeros(EXAMPLES, 300).double())
    counts = torch.stack([r.values[CHANNEL]["count"] for r in releases]).numpy() * 256
    rows = torch.cat([r.gradient["weight"].flatten() for r in releases]).numpy() * 256
    for values, channel in ((counts, CHANNEL), (rows, "gradient")):
        std = p.channel_stds()[channel]
        assert releases[0].std[channel] * 256 == pytest.approx(std)
        assert stats.kstest(values / std, "norm").pvalue > 1e-6
        for wrong in (1 / 2, 2):
            assert stats.kstest(values / (std * wrong), "norm").pvalue < 1e-4


def test_plain_adaptive_clipping_is_in_the_datas_own_units() -> None:
    """The paper's release: Σ clip(gᵢ, C) + C·noise. The rule sees C times the release and C times its noise."""
    x = gradients(5.0)
    seen: list[tuple[float, NoisyGradient]] = []

    class Watching:
        def init(self, params):
            return {}

        def step(self, params, release, state):
            seen.append((float(release.noise_std), release))
            return {n: torch.zeros_like(p) for n, p in params.items()}

    p = plan(clip_mode="plain", clip=0.5, steps=20)
    assert isinstance(p.optimizer, ClipUnits)
    p = replace(p, optimizer=ClipUnits(Watching(), p.optimizer.quantile))
    run = p.start(nn.Linear(3, 1, bias=False).double(), linear, x, secret=Secret.from_seed(1))
    clips = []
    for batch in run.batches():
        clips.append(run.state()["public"]["clip"])
        run.step(batch)
    std = p.channel_stds()["gradient"] / 256
    assert [s for s, _ in seen] == pytest.approx([c * std for c in clips])
    assert clips[-1] > 2 * clips[0]


def test_plain_and_normalised_differ_by_the_clip_alone() -> None:
    """At a clip that never moves, ClipUnits times lr is a plain clipped sum."""
    x = gradients()
    how = {"clip": 0.4, "clip_rate": 1e-12, "lr": 0.1, "steps": 4}
    ends = []
    for mode, lr in (("plain", 0.1), ("normalised", 0.04)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False).double()
        p = plan(**{**how, "clip_mode": mode, "lr": lr})
        run = p.start(model, linear, x, secret=Secret.from_seed(1))
        for batch in run.batches():
            run.step(batch)
        ends.append(model.weight.detach())
    assert torch.allclose(*ends)


class TestRefusals:
    @pytest.mark.parametrize("method", ["dp-ftrl", "dp-bisr", "dp-bandmf"])
    def test_correlated_noise_unless_normalised(self, method):
        how = {"examples": 100, "batch_size": 10, "steps": 20, "noise_multiplier": 0.2}
        with pytest.raises(NotProvenError, match="clip_mode 'normalised'"):
            make_plan(method, **how, clip_quantile=0.5)
        with pytest.raises(NotProvenError, match="noise_end"):
            make_plan(method, **how, noise_end=0.5)
        normalised = make_plan(method, **how, clip_quantile=0.5, clip_mode="normalised")
        assert normalised.event() == make_plan(method, **how).event()
        assert normalised.query.channels["gradient"].bound == 1.0

    def test_a_count_that_takes_the_whole_budget(self):
        with pytest.raises(InvalidInputError, match="σ"):
            plan(count_noise=0.4)

    def test_bad_values(self):
        with pytest.raises(InvalidInputError, match="clip_quantile.*0.*1"):
            plan(clip_quantile=1.0)
        with pytest.raises(InvalidInputError, match="clip_quantile"):
            plan(clip_quantile=None, count_noise=3.0)


def test_calibration_holds_with_two_channels() -> None:
    p = plan(noise_multiplier=None, epsilon=0.25, steps=400)  # σ above 16, where a coarse search would overshoot 2σ_b
    assert 0.249 < p.guarantee().epsilon <= 0.25
    assert p.sigma > 16
    assert p.sigma < 2 * 12.8
