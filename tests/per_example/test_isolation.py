"""Models that start to mix examples later stop the run, by checks at secret steps that change no bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from hush import UnsupportedModelError, make_plan
from hush.errors import ExamplesNotIndependent
from hush.per_example.engine import PERIOD, PICKED, CheckedLosses, SpotChecks
from hush.per_example.gradients import per_example_gradients
from hush.per_example.isolation import rows_agree
from hush.randomness import Secret
from mixing_models import WAYS, Mixed, X, Y, cross_entropy

pytestmark = pytest.mark.full_start_check


def watched_run(monkeypatch, model, losses, *, checks=True, steps=12, **options):
    every = {"period": 1} if checks else {"period": 10**9, "first": -1}
    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, **every))
    given = {"examples": 24, "batch_size": 12, "steps": steps, "noise_multiplier": 2.0, "delta": 1e-3} | options
    return make_plan(given.pop("method", "dp-sgd"), **given).start(model, losses, (X, Y), secret=5)


def taken(run):
    done = 0
    for batch in run.batches():
        run.step(batch)
        done += 1
    return done


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "a little of the mean"])
def test_mixing_that_begins_later_stops_the_run(monkeypatch, tmp_path, way, dropout):
    model = Mixed(way, dropout=dropout, begins=1000)
    run = watched_run(monkeypatch, model, cross_entropy)
    for step in range(5):
        run.step(run.batch(step))
    weights = {name: p.clone() for name, p in model.named_parameters()}
    model.begins = 0
    with pytest.raises(ExamplesNotIndependent, match="5"):
        run.step(run.batch(5))
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    with pytest.raises(UnsupportedModelError, match="5"):
        run.step(run.batch(5))
    with pytest.raises(UnsupportedModelError, match="5"):
        run.release(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_twin_without_checks_goes_on(monkeypatch):
    model = Mixed("batch statistics", begins=1000)
    run = watched_run(monkeypatch, model, cross_entropy, checks=False)
    for step in range(5):
        run.step(run.batch(step))
    model.begins = 0
    run.step(run.batch(5))
    assert run.next == 6


def test_mixing_that_begins_by_a_counter_stops_the_run(monkeypatch):
    model = Mixed("softmax over the batch", begins=1000)
    run = watched_run(monkeypatch, model, cross_entropy)
    run.step(run.batch(0))
    model.begins = model.forwards + 20
    with pytest.raises(ExamplesNotIndependent, match="step"):
        taken(run)
    assert 0 < run.next < 12


class Remembering(nn.Module):
    """Compares examples with those of the last forward, which it keeps outside of its buffers."""

    def __init__(self, way):
        super().__init__()
        self.linear, self.way, self.last, self.bank = nn.Linear(4, 3), way, None, {}

    def forward(self, x):
        out = self.linear(x)
        last = self.last[0] if isinstance(self.last, tuple) else self.bank.get("last", self.last)
        seen = out if last is None else out + last.mean(0)
        if self.way == "bank":
            self.bank["last"] = out.detach()
        else:
            self.last = (out.detach(),) if self.way == "tuple" else out.detach()
        return seen


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("way", ["attribute", "tuple"])
def test_what_a_forward_leaves_on_the_model_is_forgotten(way, engine):
    model = Remembering(way)
    first = per_example_gradients(model, cross_entropy, (X, Y), engine=engine)
    assert model.last is None
    again = per_example_gradients(model, cross_entropy, (X, Y), engine=engine)
    assert torch.equal(first.losses, again.losses)


def test_what_a_forward_leaves_is_there_for_the_loss():
    class Kept(nn.Linear):
        def forward(self, x):
            self.penalty = x.square().sum(1)
            return super().forward(x)

    model = Kept(4, 3)
    tape = per_example_gradients(model, lambda m, c: cross_entropy(m, c) + m.penalty, (X, Y))
    torch.testing.assert_close(tape.losses, cross_entropy(model, (X, Y)) + X.square().sum(1))
    assert type(tape).__name__ == "BookkeepingGradients"


@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk", "dp-dice"])
def test_a_loss_that_begins_to_mix_stops_every_method(monkeypatch, method):
    together = []

    def losses(model, content):
        values = cross_entropy(model, content)
        return values * values.detach().mean() if together else values

    run = watched_run(monkeypatch, nn.Linear(4, 3), losses, method=method)
    run.step(run.batch(0))
    together.append(True)
    with pytest.raises(ExamplesNotIndependent, match="1"):
        run.step(run.batch(1))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk"])
def test_checks_change_no_bit_of_the_training(monkeypatch, method, dropout):
    def weights(checks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3))
        assert taken(watched_run(monkeypatch, model, cross_entropy, checks=checks, method=method)) == 12
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(True), weights(False))


def checked(secret, steps=100 * PERIOD, pieces=1):
    watch = SpotChecks(secret)
    found = {(t, k): watch.inspect(cross_entropy, t, k, pieces) for t in range(steps) for k in range(pieces)}
    return {at: each.picks for at, each in found.items() if isinstance(each, CheckedLosses)}


def test_which_steps_are_checked_is_known_to_the_secret_alone():
    one, other = checked(Secret(b"1" * 32)), checked(Secret(b"2" * 32))
    assert one == checked(Secret(b"1" * 32))
    assert {(0, 0), (1, 0), (2, 0)} <= one.keys() & other.keys()
    assert len(one.keys() & other.keys()) < 10
    assert all(len(picks) == PICKED and min(picks) >= 0 and max(picks) < 1 for picks in one.values())
    blocks = [step // PERIOD for step, _ in one if step > 2]
    assert sorted(set(blocks) | {0}) == list(range(100))  # one in every period
    assert len(blocks) <= 100
    assert len({step % PERIOD for step, _ in one}) > 30


def test_one_piece_of_a_step_is_checked():
    found = checked(Secret(b"1" * 32), pieces=3)
    steps = [step for step, _ in found]
    assert len(steps) == len(set(steps))
    assert {piece for _, piece in found} == {0, 1, 2}


HUGE = X.clone()
HUGE[7] = 3e30  # its square is finite in float64 alone


def skipping(model, content):
    """A batch with a loss that is not finite counts for nothing."""
    values = cross_entropy(model, content) + 1e-9 * content[0].square().square().sum(1)
    return values * torch.isfinite(values).all()


def replacing(model, content):
    values = cross_entropy(model, content)
    total = content[0].square().sum()
    return torch.where(torch.isfinite(total), values, values.detach() * 0 + 30 * model(content[0])[:, 0].sin())


def shrinking(model, content):
    """A little of the others' size, but only where it overflows."""
    values = cross_entropy(model, content)
    return values / torch.where(torch.isfinite(content[0].square().sum()), 1.0, 1.2)


@pytest.mark.parametrize("losses", [skipping, replacing, shrinking])
@pytest.mark.parametrize("arithmetic", ["fast", "rigorous"])
def test_what_float32_alone_shows_is_not_excused(monkeypatch, losses, arithmetic):
    every = {"period": 1}
    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, **every))
    monkeypatch.setattr("hush.aggregation.check_batch_invariance", lambda *given, **more: (1, ""))
    plan = make_plan(
        "dp-sgd", examples=24, batch_size=12, steps=4, noise_multiplier=2.0, delta=1e-3, arithmetic=arithmetic
    )
    run = plan.start(nn.Linear(4, 3), losses, (HUGE, Y), secret=5)
    odd = next(step for step in range(4) if 7 in run.batch(step).indices)
    for step in range(odd):
        run.step(run.batch(step))
    with pytest.raises(ExamplesNotIndependent):
        run.step(run.batch(odd))
    assert run.next == odd


def test_a_kink_that_rounding_flips_is_not_mixing(monkeypatch):
    """Labels within rounding of the prediction: the sign of a residual depends on the number of rows."""
    torch.manual_seed(0)
    model = nn.Linear(64, 1)
    x = torch.randn(203, 64)
    y = model(x).detach().squeeze(1)

    def losses(model, content):
        return (model(content[0]).squeeze(1) - content[1]).abs()

    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, period=1))
    plan = make_plan("dp-sgd", examples=203, batch_size=101, steps=3, noise_multiplier=2.0, delta=1e-3, lr=1e-12)
    run = plan.start(model, losses, (x, y), secret=1)
    assert taken(run) == 3


def test_a_huge_example_does_not_hide_what_happens_to_another():
    """Both are compared in one check, each with its own size."""

    def losses(model, content):
        values = cross_entropy(model, content)
        return values * (1 + 0.5 * torch.tanh(content[0].detach().abs().max() / 1e9))

    x = X.clone()
    x[7] = 1e12
    model, content, which = nn.Linear(4, 3), (x, Y), torch.tensor([3, 7])
    mixed = per_example_gradients(model, losses, content, engine="book-keeping")
    honest = per_example_gradients(model, cross_entropy, content, engine="book-keeping")
    assert rows_agree(honest, which, honest, at=which)
    assert not rows_agree(mixed, which, honest, at=which)
    only_third = torch.where(torch.arange(24) == 3, 1.5, 1.0)  # the huge one as it is, the other half as large again
    shown = per_example_gradients(model, lambda m, c: cross_entropy(m, c) * only_third, content, engine="book-keeping")
    assert not rows_agree(shown, which, honest, at=which)


@pytest.mark.parametrize("size", [1e25, 1e30])
def test_a_norm_that_overflows_is_not_mixing(monkeypatch, size):
    """Numbers that are finite in float32, with a norm that is not."""
    x = X.clone()
    x[::2] *= size
    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, period=1))
    plan = make_plan("dp-sgd", examples=24, batch_size=12, steps=6, noise_multiplier=2.0, delta=1e-3)
    assert taken(plan.start(nn.Linear(4, 3), cross_entropy, (x, Y), secret=5)) == 6
