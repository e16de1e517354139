"""The hybrid's query: what is clipped, what is not, and that the head's sums are made of noisy rows alone."""

from __future__ import annotations

import math

import pytest
import torch
from networks import CLIP, WIDTH, N, data, losses, network, plan
from scipy import stats

from hush.clipping import Clipping, Start
from hush.data_source import as_source
from hush.errors import UnsupportedModelError
from hush.per_example.chunks import Chunk
from hush.per_example.model_rng import draw_noise, model_randomness
from hush.per_example.result import microbatch_scope
from hush.randomness import Secret, streams
from hush.sanitize.privatised import Hybrid
from hush.training import take_steps

NAMES = frozenset({"0.weight", "0.bias"})
STDS = {"rows": 2.0, "gradient": 0.02, "head": 0.0}


def sums_of(model, features, labels, seed=1):
    """The sums of one batch under the noise of one secret and step."""
    start = Start(model, losses, as_source(data()), lambda: Secret.from_seed(0, "t"), STDS)
    query, _ = Hybrid(Clipping(0.01)).prepare(start)
    places = torch.arange(len(features))
    piece = Chunk(places, places)
    secret = Secret.from_seed(seed, "test")
    with model_randomness(secret, 0, places, torch.device("cpu")), torch.enable_grad(), microbatch_scope(piece):
        return query.piece(model, losses, (features, labels), {})


def norm(named) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in named.values()))


def test_the_layers_before_are_clipped_and_the_head_is_not() -> None:
    features, labels = data()
    one = sums_of(network("sanitize-hybrid").train(), features[:1], labels[:1])
    assert set(one["gradient"]) == NAMES
    assert set(one["head"]) == {"3.weight", "3.bias"}
    assert norm(one["gradient"]) == pytest.approx(0.01, rel=1e-5)
    assert norm(one["head"]) > 0.1


def test_replacing_a_record_moves_the_gradient_by_two_clips_at_most() -> None:
    features, labels = data()
    model = network("sanitize-hybrid").train()
    base = sums_of(model, features, labels)
    for value in (50.0, -50.0, 1e20):
        other = features.clone()
        other[4] = value
        found = sums_of(model, other, labels)
        moved = {name: found["gradient"][name].double() - base["gradient"][name].double() for name in NAMES}
        assert norm(moved) <= 0.02 * (1 + 1e-4)


def test_the_head_sees_rows_with_noise_and_nothing_else() -> None:
    """Behind a layer that saturates, features differ and rows do not: the head's sums are the same bits, and with
    other noise they are others."""
    features, labels = data()
    model = network("sanitize-hybrid").train()
    with torch.no_grad():
        model[0].weight.abs_().mul_(1e3)
        model[0].bias.zero_()
    large, larger = features.abs() + 1.0, 2 * features.abs() + 3.0
    found = [sums_of(model, x, labels)["head"] for x in (large, larger)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    other = sums_of(model, large, labels, seed=2)["head"]
    assert not torch.equal(found[0]["3.weight"], other["3.weight"])


def test_an_example_without_a_finite_gradient_before_the_layer_still_counts_for_the_head() -> None:
    """Whether it is finite depends on raw features, so the head must not know."""
    features, labels = data()
    broken = features.clone()
    broken[2] = float("nan")
    model = network("sanitize-hybrid").train()
    zero = features.clone()
    zero[2] = 0.0
    with torch.no_grad():
        model[0].bias.zero_()  # a record of zeros has the row that NaN counts as
    found = [sums_of(model, x, labels) for x in (broken, zero)]
    assert all(bool(value.isfinite().all()) for sums in found for value in sums["gradient"].values())
    assert all(torch.equal(found[0]["head"][name], found[1]["head"][name]) for name in found[0]["head"])


def test_both_noises_are_those_that_were_accounted() -> None:
    p = plan("sanitize-hybrid", noise_multiplier=3.0, clip=0.2)
    stds = p.channel_stds()
    assert stds["rows"] == pytest.approx(3.0 * math.sqrt(2))
    assert stds["gradient"] == pytest.approx(3.0 * math.sqrt(2) * 0.2, rel=1e-3)
    assert stds["head"] == 0.0
    run = p.start(network("sanitize-hybrid"), losses, data(), secret=1)
    layer = run.model[1]
    assert layer.noise_std == pytest.approx(CLIP * stds["rows"] * math.sqrt(WIDTH), rel=1e-5)
    places = torch.arange(4000)
    noise = []
    for step in (0, 1):
        with model_randomness(Secret.from_seed(0, "t"), step, places, torch.device("cpu")):
            drawn = draw_noise(streams.HYBRID_ROWS, (WIDTH,), torch.device("cpu"))
        released = run._query.apart.layer.release(torch.zeros(4000, WIDTH), drawn)
        noise.append((released.double() / layer.noise_std).flatten())
    assert stats.kstest(noise[0].numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(1.05 * noise[0].numpy(), "norm").pvalue < 1e-4  # the wrong scale
    assert abs(float((noise[0] * noise[1]).mean())) < 0.03  # another step has other noise


def test_the_release_has_noise_before_the_layer_and_none_behind_it() -> None:
    p = plan("sanitize-hybrid", steps=1, batch_size=N, clip=1e-6)
    run = p.start(network("sanitize-hybrid"), losses, data(), secret=1)
    seen = {}
    release = run._noising.release

    def watch(channels, secret, step):
        seen["head"] = {name: value.clone() for name, value in channels["head"].items()}
        seen["release"] = release(channels, secret, step)
        return seen["release"]

    run._noising.release = watch
    for _ in take_steps(run):
        pass
    gradient = seen["release"].gradient
    assert set(gradient) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    for name, value in seen["head"].items():
        assert torch.equal(gradient[name], value / N)


def test_a_layer_with_a_draw_of_its_own_is_refused() -> None:
    model = network("sanitize-hybrid")
    model[1].draw = torch.zeros_like
    with pytest.raises(UnsupportedModelError):
        plan("sanitize-hybrid").start(model, losses, data())
