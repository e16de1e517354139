"""Conformance table of all queries: a new query is a row in PLANS."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hush.checkpointing.checkpoint import read_checkpoint, to_bytes
from hush.checkpointing.tree import revive
from hush.clipping import PLAIN_SUM, ClippedSum, Clipping, ErrorFeedback, TwoPoint, clip_factors, total_norms
from hush.clipping.clipped import STABILITY, by_layer
from hush.errors import InvalidInputError
from hush.methods import make_plan
from hush.per_example.gradients import per_example_gradients
from hush.plan import Plan
from replay import distance, recorded, sensitivities

N, CLIP, FEEDBACK = 30, 0.8, 0.5

# method, its options, and the largest distance of two neighbours' sums by channel, where it is not the bound
PLANS: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "plain": ("dp-sgd", {}, {}),
    "normalised": ("dp-sgd", {"clip_mode": "normalised"}, {}),
    "automatic": ("dp-sgd", {"clip_mode": "automatic"}, {}),
    "per-layer": ("dp-sgd", {"per_layer": True}, {}),
    "per-layer-normalised": ("dp-sgd", {"per_layer": True, "clip_mode": "normalised"}, {}),
    "per-layer-automatic": ("dp-sgd", {"per_layer": True, "clip_mode": "automatic"}, {}),
    "two-point": ("dp-disk", {}, {}),
    "two-point-one-gradient": ("dp-disk", {"kappa": 0.5, "gamma": 1.0}, {}),
    "two-point-none": ("dp-disk", {"kappa": 1.0}, {}),
    "two-point-per-layer": ("dp-disk", {"per_layer": True, "clip_mode": "normalised"}, {}),
    "adaptive": ("dp-sgd", {"clip_quantile": 0.5}, {}),
    "adaptive-normalised": ("dp-sgd", {"clip_quantile": 0.7, "clip_mode": "normalised", "clip_rate": 1.0}, {}),
    "adaptive-per-layer": ("dp-adam", {"clip_quantile": 0.5, "per_layer": True, "clip_mode": "normalised"}, {}),
    "adaptive-two-point": ("dp-disk", {"clip_quantile": 0.3}, {}),
    "error-feedback": ("dp-dice", {"clip_feedback": FEEDBACK}, {"gradient": CLIP + 2 * FEEDBACK}),
    "error-feedback-normalised": (
        "dp-dice",
        {"clip_feedback": FEEDBACK, "clip_mode": "normalised"},
        {"gradient": 1 + 2 * FEEDBACK / CLIP},
    ),
}


def plan(name: str, **changes: Any) -> Plan:
    method, options, _ = PLANS[name]
    how = {"examples": N, "batch_size": 15, "steps": 6, "noise_multiplier": 0.7, "clip": CLIP, "lr": 0.3}
    return make_plan(method, **{**how, **options, **changes})


def bounds(name: str) -> dict[str, float]:
    return {channel: c.bound for channel, c in plan(name).query.channels.items()} | PLANS[name][2]


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data(seed: int = 0, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(N, 5, generator=generator).double()
    return x, torch.randint(0, 3, (N,), generator=generator)


def mlp(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-2, 1.0, 1e3]), dropout=st.sampled_from([0.0, 0.4]))
def test_one_example_moves_no_channel_further_than_its_bound(name, seed, scale, dropout) -> None:
    x, y = data(seed, scale)
    steps = sensitivities(plan(name), lambda: mlp(seed, dropout), losses, (x, y), (x[:-1], y[:-1]), secret=seed)
    for channel, bound in bounds(name).items():
        assert max(step[channel] for step in steps) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_the_bound_is_needed(name) -> None:
    """Gradients far above the clip come close to the bound, so a bound that is a tenth smaller would be caught."""
    x, y = data(scale=1.0)
    steps = sensitivities(plan(name, sample_rate=1.0, clip=1e-3), mlp, losses, (x, y), (x[:-1], y[:-1]))
    expected = {c: v.bound for c, v in plan(name, clip=1e-3).query.channels.items()}
    for channel, bound in expected.items():
        assert max(step[channel] for step in steps) > 0.9 * bound


@pytest.mark.parametrize("name", PLANS)
def test_pieces_add_up(name) -> None:
    whole, releases = recorded(plan(name), mlp(), losses, data())
    pieces, _ = recorded(plan(name), mlp(), losses, data(), given=releases, microbatch=4)
    for a, b in zip(whole, pieces, strict=True):
        assert a.keys() == b.keys()
        assert all(
            distance(a[channel], b[channel]) < 1e-5 for channel in a
        )  # norms are bounds: engines differ a little


class Rows:
    """A source of examples that may hold values which are not finite."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[indices], self.y[indices]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_an_example_without_a_finite_gradient_is_in_no_sum(name, bad) -> None:
    x, y = data()
    x = x.clone()
    x[3] = bad
    kept = torch.arange(N) != 3
    with_it, releases = recorded(plan(name, sample_rate=1.0), mlp(), losses, Rows(x, y))
    without, _ = recorded(plan(name, sample_rate=1.0), mlp(), losses, (x[kept], y[kept]), given=releases)
    for a, b in zip(with_it, without, strict=True):
        assert all(distance(a[channel], b[channel]) < 1e-9 for channel in a)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def summed(name: str, private: Any = None) -> tuple[Any, Any, Any, Any]:
    """A query's public state, and what it makes of a batch in one piece: sums, channels and the next private state."""
    query, model = plan(name).query, mlp()
    public, own = query.init(dict(model.named_parameters()))
    sums = query.piece(model, losses, data(), public)
    return public, sums, *query.finish(sums, public, own if private is None else private(own))


@pytest.mark.parametrize("name", PLANS)
class TestGuarantees:
    """The list in `Query`, from its fourth line on; the tests above are the first three."""

    def test_what_comes_out_is_its_channels_and_no_other(self, name) -> None:
        assert set(summed(name)[2]) == set(plan(name).query.channels)

    def test_the_data_leave_the_public_state_alone(self, name) -> None:
        query, model = plan(name).query, mlp()
        public, private = query.init(dict(model.named_parameters()))
        before = copy.deepcopy(public)
        query.finish(query.piece(model, losses, data(), public), public, private)
        assert alike(public, before)

    def test_a_private_state_reaches_no_plain_sum(self, name) -> None:
        def filled(state: Any) -> Any:
            return {key: {n: torch.full_like(v, 0.01) for n, v in named.items()} for key, named in state.items()}

        usual, other = summed(name)[2], summed(name, filled)[2]
        for channel, declared in plan(name).query.channels.items():
            same = all(torch.equal(value, other[channel][n]) for n, value in usual[channel].items())
            assert same == (declared.proof == "sum")

    def test_plain_sums_go_by_the_table_and_others_claim(self, name) -> None:
        p = plan(name)
        said = p.query.claims(p.sampler.participation, p.channel_stds(), p.steps)
        assert (said == PLAIN_SUM) == all(channel.proof == "sum" for channel in p.query.channels.values())
        assert said == PLAIN_SUM or [claim.status for claim in said] == ["proven", "claimed"]


def regression(model: nn.Module, content) -> torch.Tensor:
    return 0.5 * (model(content[0])[:, 0] - content[1]) ** 2


@pytest.mark.parametrize("name", PLANS)
def test_converges_on_a_convex_problem_without_noise(name, no_noise) -> None:
    """Least squares with an exact solution: every gradient vanishes there, so clipping moves it nowhere. It ends before
    residuals are so small that they are rounding, in which an example alone differs from the same one in a batch."""
    x = data(scale=1.0)[0]
    truth = torch.tensor([0.5, -1.0, 0.3, 0.0, 0.2]).double()
    model = nn.Linear(5, 1).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    rate = 0.05 if PLANS[name][0] == "dp-adam" or "automatic" in name else 0.5
    p = plan(name, steps=150 if rate < 0.5 else 30, noise_multiplier=1e-9, lr=rate, sample_rate=1.0)
    run = p.start(model, regression, (x, x @ truth), secret=1)
    for batch in run.batches():
        run.step(batch)
    assert torch.allclose(model.weight[0], truth, atol=0.15), model.weight  # the adaptive clip has noise of its own


@pytest.mark.parametrize("name", PLANS)
def test_a_resumed_run_ends_in_the_same_bits(name, tmp_path) -> None:
    def start():
        return plan(name).start(mlp(dropout=0.3), losses, data(), secret=5)

    straight = start()
    for batch in straight.batches():
        straight.step(batch)
    first = start()
    for step in range(3):
        first.step(first.batch(step))
    (tmp_path / "state").write_bytes(to_bytes({}, first.state()))
    second = start()
    second.restore(revive(read_checkpoint(tmp_path / "state").state, second.state(), second.device), compared=True)
    for batch in second.batches():
        second.step(batch)
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", PLANS)
def test_frozen_parameters_stay(name) -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    run = plan(name, steps=3).start(model, losses, data(), secret=1)
    for batch in run.batches():
        run.step(batch)
    for n, p in model.named_parameters():
        assert torch.equal(p, before[n]) == (n == "0.weight")


class TestClipping:
    def norms(self, scale: float = 3.0) -> dict[str, torch.Tensor]:
        return per_example_gradients(mlp(), losses, data(scale=scale)).squared_norms()

    @pytest.mark.parametrize("mode", ["plain", "normalised", "automatic"])
    def test_flat_weights_are_the_textbook_factors(self, mode) -> None:
        squared = self.norms()
        norms = total_norms(squared)
        textbook = {
            "plain": torch.minimum(torch.ones(N).double(), CLIP / norms),
            "normalised": torch.minimum(torch.full((N,), 1 / CLIP).double(), 1 / norms),
            "automatic": 1 / (norms + STABILITY),
        }[mode]
        assert torch.allclose(Clipping(CLIP, mode).weigh(squared).weights, textbook)

    @pytest.mark.parametrize("mode", ["plain", "normalised", "automatic"])
    def test_every_layer_has_its_share(self, mode) -> None:
        clipping = Clipping(CLIP, mode, per_layer=True)
        squared = {n: s * 1e6 for n, s in self.norms().items()}
        weights = clipping.weigh(squared).weights
        layers = by_layer(squared)
        assert list(layers.values()) == [["0.weight", "0.bias"], ["3.weight", "3.bias"]]
        for names in layers.values():
            norm = torch.sqrt(sum(weights[n] ** 2 * squared[n] for n in names))
            assert torch.allclose(norm, torch.full((N,), clipping.bound / math.sqrt(2)).double(), rtol=1e-4)

    def test_small_gradients_are_left_alone_per_layer(self) -> None:
        squared = {n: s * 1e-12 for n, s in self.norms().items()}
        weighed = Clipping(CLIP, "plain", per_layer=True).weigh(squared)
        assert all(torch.equal(w, torch.ones(N).double()) for w in weighed.weights.values())
        assert not weighed.clipped.any()

    @pytest.mark.parametrize("norm", [0.0, 1e-300, 1e300, math.inf, math.nan])
    @pytest.mark.parametrize("mode", ["plain", "normalised", "automatic"])
    @pytest.mark.parametrize("clip", [1e-6, 1.0, 1e6])
    def test_edges(self, norm, mode, clip) -> None:
        factor = float(clip_factors(torch.tensor([norm]).double(), clip, mode))
        assert math.isfinite(factor)
        if not math.isfinite(norm):
            assert factor == 0
        else:
            assert factor * norm <= Clipping(clip, mode).bound * (1 + 1e-12)

    def test_bad_values_are_refused_by_name(self) -> None:
        with pytest.raises(InvalidInputError, match="clip"):
            ClippedSum(0.0)
        with pytest.raises(InvalidInputError, match="'automatc'.*'automatic'"):
            ClippedSum(1.0, "automatc")
        with pytest.raises(InvalidInputError, match="number"):
            TwoPoint(Clipping(math.nan), 0.5, 0.5)
        with pytest.raises(InvalidInputError, match="0.*1"):
            TwoPoint.of(Clipping(), 0.0, 0.5)
        with pytest.raises(InvalidInputError):
            ErrorFeedback(1.0, 1.0, "automatic")
        with pytest.raises(InvalidInputError, match="'automatic'"):
            plan("adaptive", clip_mode="automatic")


def test_the_plan_is_what_is_recorded() -> None:
    """The recording wrapper changes no event: what is measured above is what is accounted."""
    from replay import RecordingQuery

    for name in PLANS:
        p = plan(name)
        assert replace(p, query=RecordingQuery(p.query)).event() == p.event()
