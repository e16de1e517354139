"""For a fixed secret, an added example changes no other example's random numbers and moves the sum by its own clipped
gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from hush import make_plan
from hush.clipping.clipped import Clipping, clipped_sums
from hush.datasets.images import mirrored, shifted
from hush.per_example.augmentation import Augmented, Point
from hush.per_example.functional import record_one_by_one
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.per_example.result import GradientWarning
from hush.randomness import Secret
from replay import recorded, sensitivities

SECRET = Secret.from_seed(3, "draws")
CPU = torch.device("cpu")
PLACES = torch.tensor([0, 1, 2, 4, 5, 9])
WITH = torch.tensor([0, 1, 2, 7, 4, 5, 9])  # one more, in the middle
OTHERS = torch.tensor([0, 1, 2, 4, 5, 6])  # the rows of the places above among these


def wave(model, content):
    return model(content).flatten(1).sin().sum(1)


def made(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double()


def inputs(n, *shape):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Layer(nn.Module):
    """A linear layer, then something random."""

    def __init__(self, random):
        super().__init__()
        self.fc, self.random = nn.Linear(3, 8), random

    def forward(self, x):
        return self.random(self.fc(x))


class Reparameterised(nn.Module):
    """The middle of a variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.out = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        mean = self.mean(x)
        return self.out(mean + self.spread(x).exp() * torch.randn_like(mean))


class Odd(nn.Module):
    """No rule covers its parameter, so torch.func maps it alone, dropout included."""

    def __init__(self):
        super().__init__()
        self.matrix, self.dropout = nn.Parameter(0.3 * torch.randn(3, 3)), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(torch.atan2(x, self.matrix.sum(0).exp()))


def depth_for_all(x):
    return x * (torch.rand(()) < 0.5)


def skipped(x):
    """Layers that are left out for all, by a branch in Python, with dropout in what is left."""
    for _ in range(4):
        if torch.rand([]) < 0.5:
            x = F.dropout(x + 1, 0.5)
    return x


def depth_as_tensor(x):
    return x * torch.empty(1, 1, dtype=x.dtype).bernoulli_(0.5) + x * torch.randn(1, 8, dtype=x.dtype)


def depth_by_example(x):
    return x * x.new_empty(x.shape[0], 1).bernoulli_(0.5)


def sequence_first(x):
    """(n, 8) as a sequence of 4 steps before the examples."""
    steps = x.view(x.shape[0], 4, 2).transpose(0, 1)
    return F.dropout(steps, 0.5).transpose(0, 1).flatten(1)


def mixed_in(x):
    """A table that all examples share, as long as some batches are."""
    return x + torch.randn(6, 8, dtype=x.dtype).sum(0) + F.dropout(x, 0.5)


def many(x):
    x = F.dropout1d(x[:, None].expand(-1, 2, -1), 0.3).sum(1) + F.alpha_dropout(x, 0.2, training=True)
    x = x + F.gumbel_softmax(x) + torch.bernoulli(x.sigmoid()) + torch.rand_like(x) + torch.normal(x.detach(), 0.5)
    return x + torch.randint(0, 3, (len(x), 1)) + x[:, torch.randperm(8)]


MODELS = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.4), nn.Linear(9, 8), nn.Dropout(0.2)),
    "variational": Reparameterised,
    "depth for all": lambda: Layer(depth_for_all),
    "skipped": lambda: Layer(skipped),
    "depth as tensor": lambda: Layer(depth_as_tensor),
    "depth by example": lambda: Layer(depth_by_example),
    "sequence first": lambda: Layer(sequence_first),
    "shared table": lambda: Layer(mixed_in),
    "many": lambda: Layer(many),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Linear(3, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    ),
    "lstm": lambda: nn.Sequential(nn.Unflatten(1, (3, 1)), nn.LSTM(1, 4, 2, dropout=0.5, batch_first=True)),
}


def losses_of(model, content):
    out = model(content)
    return wave(lambda _: out[0] if isinstance(out, tuple) else out, content)


def tape(model, content, places, engine="book-keeping", losses=losses_of, points=None, step=0):
    with model_randomness(SECRET, step, places, CPU):
        if engine == "one by one":
            return record_alone(model, losses, content, points)
        return per_example_gradients(model, losses, content, engine=engine, points=points)


def record_alone(model, losses, content, points):
    from hush.per_example.gradients import _draw_all
    from hush.per_example.model_rng import probe_rng

    with probe_rng(model, losses, lambda few: _draw_all(model, losses, few), content, len(content)):
        return record_one_by_one(model, losses, content, len(content), points or [Point()])


def close(ours, right, rows=slice(None)):
    torch.testing.assert_close(ours.losses[rows], right.losses, rtol=1e-9, atol=1e-9)
    for name, value in right.squared_norms().items():
        torch.testing.assert_close(ours.squared_norms()[name][rows], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ["book-keeping", "functional", "one by one"])
@pytest.mark.parametrize("name", MODELS)
def test_one_example_more_changes_nobody_elses_gradient(name, engine):
    model, x = made(MODELS[name]), inputs(7, 3)
    right = tape(model, x[OTHERS], PLACES, engine)
    close(tape(model, x, WITH, engine), right, OTHERS)
    other = tape(model, x[OTHERS], PLACES, engine, step=1)
    assert not torch.allclose(other.losses, right.losses)  # another step draws other numbers


@pytest.mark.parametrize("engine", ["functional", "one by one"])
@pytest.mark.parametrize("name", MODELS)
def test_engines_draw_the_same(name, engine):
    model, x = made(MODELS[name]), inputs(7, 3)
    right, ours = tape(model, x, WITH), tape(model, x, WITH, engine)
    close(ours, right)
    for key, value in right.sum(torch.ones(7, dtype=torch.float64)).items():
        torch.testing.assert_close(ours.sum(torch.ones(7, dtype=torch.float64))[key], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_the_rows_does_not_matter(name):
    model, x, turned = made(MODELS[name]), inputs(7, 3), torch.tensor([3, 6, 0, 2, 1, 5, 4])
    close(tape(model, x[turned], WITH[turned]), _taken(tape(model, x, WITH), turned))


def _taken(whole, rows):
    class Some:
        losses = whole.losses[rows]

        def squared_norms(self):
            return {name: value[rows] for name, value in whole.squared_norms().items()}

    return Some()


def test_a_module_mapped_alone_draws_the_same():
    model, x = made(lambda: nn.Sequential(nn.Linear(3, 3), Odd(), nn.Linear(3, 2))), inputs(7, 3)
    with pytest.warns(GradientWarning, match="'1'"):
        ours = tape(model, x, WITH, "auto")
    close(ours, tape(model, x, WITH, "functional"))


def test_several_rows_an_example_are_left_to_the_reference():
    def folded(x):
        return F.dropout(x.view(-1, 4), 0.5).view(x.shape[0], 8)

    model, x = made(lambda: Layer(folded)), inputs(7, 3)
    with pytest.warns(GradientWarning, match="examples"):
        ours = tape(model, x, WITH, "auto")
    close(ours, tape(model, x[OTHERS], PLACES, "one by one"), OTHERS)


def test_what_torch_func_cannot_draw_is_drawn_one_by_one():
    class Sampled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 8)

        def forward(self, x):
            return torch.distributions.Normal(self.fc(x), 1.0).rsample()

    model, x = made(Sampled), inputs(7, 3)
    lone = tape(model, x[:1], WITH[:1], "auto")  # nothing to compare with yet
    ours = tape(model, x, WITH, "auto")
    assert type(ours).__name__ == "BookkeepingGradients"
    close(ours, tape(model, x, WITH, "one by one"))
    close(ours, lone, slice(1))


@pytest.mark.parametrize("engine", ["book-keeping", "functional", "one by one"])
def test_both_points_see_the_same_draws(engine):
    # the two points have equal parameters and opposite coefficients: with equal masks nothing is left
    model, x = made(MODELS["dropout"]), inputs(7, 3)
    same = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = tape(model, x, WITH, engine, points=[Point(1.0), Point(-1.0, same)])
    assert max(float(value.max()) for value in found.squared_norms(certain=False).values()) < 1e-10
    alone = tape(model, x, WITH, engine, points=[Point(1.0)])
    assert min(float(value.max()) for value in alone.squared_norms().values()) > 1e-3


def test_checkpointed_activations_are_computed_again_with_the_same_mask():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.saved = nn.Linear(3, 8), nn.Linear(8, 4), False

        def forward(self, x):
            part = lambda z: self.second(F.dropout(self.first(z), 0.5).sin())  # noqa: E731
            return checkpoint(part, x, use_reentrant=False) if self.saved else part(x)

    model, x = made(Kept), inputs(7, 3)
    right = tape(model, x, WITH)
    model.saved = True
    with pytest.warns(GradientWarning):
        close(tape(model, x, WITH, "auto"), right)


def test_a_view_follows_its_place():
    images, seen = torch.rand(7, 1, 6, 6, generator=torch.Generator().manual_seed(0)), []

    def augment(x):
        seen.append(mirrored(shifted(2)(x)))
        return seen[-1]

    model = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3))).float()
    twice = Augmented(wave, augment, 2)
    tape(model, images[OTHERS], PLACES, losses=twice)
    first = seen[-2:]
    tape(model, images, WITH, losses=twice)
    second = seen[-2:]
    assert all(torch.equal(b[OTHERS], a) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])  # two views are two draws


X = torch.randn(40, 6, generator=torch.Generator().manual_seed(5))
Y = torch.arange(40) % 3


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def dropped():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 3)
        )


def test_adding_an_example_moves_the_sum_by_one_clip_under_dropout():
    plan = make_plan("dp-sgd", examples=40, batch_size=30, steps=4, noise_multiplier=1.0, delta=1e-3, clip=0.1)
    more = torch.cat([X, 30 * torch.ones(1, 6)]), torch.cat([Y, torch.tensor([1])])
    moved = [step["gradient"] for step in sensitivities(plan, dropped, cross_entropy, more, (X, Y))]
    assert 0.099 < max(moved) <= 0.1 * 1.0001  # when one mask followed the other in the batch: several clips


def test_for_a_fixed_secret_one_place_more_adds_its_own_clipped_gradient():
    model, clipping = dropped(), Clipping(0.1)
    sums = []
    for rows in (torch.arange(40), torch.cat([torch.arange(17), torch.arange(18, 40)])):
        with model_randomness(SECRET, 0, 3 * rows, CPU):
            sums.append(
                clipped_sums(per_example_gradients(model, cross_entropy, (X[rows], Y[rows])), clipping)["gradient"]
            )
    moved = torch.sqrt(sum((sums[0][n].double() - sums[1][n].double()).square().sum() for n in sums[0]))
    assert 0.01 < moved <= 0.1 * 1.0001


@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk", "sgd"])
def test_the_cut_into_pieces_changes_no_mask(method):
    options = {} if method == "sgd" else {"noise_multiplier": 1.0, "delta": 1e-3, "clip": 0.1}
    plan = make_plan(method, examples=40, batch_size=20, steps=3, **options)
    whole, releases = recorded(plan, dropped().double(), cross_entropy, (X.double(), Y))
    cut, _ = recorded(plan, dropped().double(), cross_entropy, (X.double(), Y), given=releases, microbatch=4)
    for a, b in zip(whole, cut, strict=True):
        for name, value in a["gradient"].items():
            torch.testing.assert_close(b["gradient"][name], value, rtol=1e-9, atol=1e-12)


def test_a_resumed_run_draws_the_same_bits():
    plan = make_plan("dp-sgd", examples=40, batch_size=20, steps=4, noise_multiplier=1.0, delta=1e-3)

    def finished(run):
        for batch in run.batches():
            run.step(batch)
        return [p.detach().clone() for p in run.model.parameters()]

    straight = plan.start(dropped(), cross_entropy, (X, Y), secret=1)
    stopped = plan.start(dropped(), cross_entropy, (X, Y), secret=1)
    stopped.step(stopped.batch(0))
    resumed = plan.start(dropped(), cross_entropy, (X, Y), secret=9)
    resumed.restore(stopped.state(), compared=True)
    assert all(torch.equal(a, b) for a, b in zip(finished(straight), finished(resumed), strict=True))
