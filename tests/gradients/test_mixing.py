"""Examples that meet are found out, from the start or when they begin to later, and nobody else is accused."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hush import Refused, make_plan
from hush.gradients import GradientWarning, Watch, automatic, record, verdicts
from hush.gradients.spot_checks import PERIOD, PICKED, Inspected, Mixing
from hush.gradients.verdicts import REMEMBERED, identify_loss, verdict_of
from hush.randomness import Secret


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def images(n, size):
    make = torch.Generator().manual_seed(5)
    return torch.randn(n, 3, size, size, generator=make), torch.arange(n) % 10


def norm(channels):
    return nn.GroupNorm(max(g for g in range(1, 33) if channels % g == 0), channels)


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """An inverted bottleneck with a depthwise convolution (Howard et al. 2019, "Searching for MobileNetV3")."""

    def __init__(self, inputs, wide, outputs, kernel, stride):
        super().__init__()
        self.same = inputs == outputs and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            norm(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            norm(wide),
            nn.Hardswish(),
            Squeeze(wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            norm(outputs),
        )

    def forward(self, x):
        return x + self.layers(x) if self.same else self.layers(x)


def mobile_net():
    blocks = [(16, 16, 16, 3, 2), (16, 72, 24, 3, 2), (24, 88, 24, 3, 1), (24, 96, 40, 5, 2), (40, 240, 40, 5, 1)]
    blocks += [(40, 120, 48, 5, 1), (48, 288, 96, 5, 2), (96, 576, 96, 5, 1), (96, 576, 96, 5, 1)]
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), norm(16), nn.Hardswish()]
    head = [nn.Conv2d(96, 576, 1, bias=False), norm(576), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stem, *(Inverted(*b) for b in blocks), *head, nn.Linear(576, 10))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        first = [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*first, nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs))
        same = inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.layers(x) + self.short(x))


def res_net_18(width=16):
    layers, inputs = [nn.Conv2d(3, width, 7, 2, 3, bias=False), norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for outputs in (width, 2 * width, 4 * width, 8 * width):
        layers += [Residual(inputs, outputs, 1 if outputs == width else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class LastStep(nn.Module):
    """A bidirectional LSTM read at its last step, where one direction has seen one token."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(64, 10)
        self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=True)

    def forward(self, tokens):
        return self.head(self.lstm(self.table(tokens))[0][:, -1])


TOKENS = (torch.randint(0, 50, (8, 20), generator=torch.Generator().manual_seed(5)), torch.arange(8) % 10)
INNOCENT = {
    "depthwise, 32": (mobile_net, images(8, 32), 2),
    "depthwise, 64": (mobile_net, images(8, 64), 2),
    "bidirectional LSTM": (LastStep, TOKENS, 4),
    "ResNet-18": (res_net_18, images(6, 32), 9),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_rounding_is_not_called_mixing(name):
    make, content, seeds = INNOCENT[name]
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = make()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tape = record(model, Inspected(cross_entropy, 7, (0.1, 0.8)), content)
        assert type(tape).__name__ == "BookTape"


class Written(nn.Module):
    """A forward with a float32 written into it: it does not run in float64."""

    def __init__(self):
        super().__init__()
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.linear(x).to(torch.float32))


def test_a_model_that_cannot_run_in_float64_is_judged_in_float32():
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(RuntimeError, match="dtype"):
        Written().double()(x.double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(record(Written(), cross_entropy, (x, y))).__name__ == "BookTape"
    with pytest.warns(GradientWarning, match="not independent"):
        record(Written(), lambda m, c: cross_entropy(m, c) * m(c[0]).mean(), (x, y))


X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3


class Mixed(nn.Module):
    """Examples meet in a way of choice, from a forward on, or at a flag."""

    def __init__(self, way, *, dropout=0.0, begins=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.head, self.dropout = nn.Linear(4, 4), nn.Linear(4, 3), nn.Dropout(dropout)
        self.way, self.begins, self.forwards = way, begins, 0

    def forward(self, x):
        self.forwards += 1
        x = self.dropout(self.first(x))
        return self.head(WAYS[self.way](x) if self.forwards > self.begins else x)


WAYS = {
    "batch statistics": lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False) + 0.1).sqrt(),
    "a little of the mean": lambda x: x + 1e-4 * x.mean(0),
    "reshaped": lambda x: x.t().reshape(x.shape),
    "softmax over the batch": lambda x: x * x.softmax(0),
    "attention over the batch": lambda x: (x @ x.t()).softmax(1) @ x,
    "the largest of all": lambda x: x * (x > 0.9 * x.detach().max()),
}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", WAYS)
def test_mixing_in_the_model_is_found_at_the_first_batch(way, dropout):
    with pytest.warns(GradientWarning, match="not independent"):
        tape = record(Mixed(way, dropout=dropout), cross_entropy, (X, Y))
    assert type(tape).__name__ == "HeldTape"


def contrastive(model, content):
    """Every example against all others of its batch."""
    out = F.normalize(model(content[0]), dim=1)
    return F.cross_entropy(out @ out.t(), torch.arange(len(out)), reduction="none")


def hardest_four(model, content):
    losses = cross_entropy(model, content)
    return losses * (losses >= losses.detach().topk(min(4, len(losses))).values[-1])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("losses", [contrastive, hardest_four])
def test_mixing_in_the_loss_alone_is_found_at_the_first_batch(losses, dropout):
    layers = [nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3)]
    with pytest.warns(GradientWarning, match="not independent"):
        record(nn.Sequential(*layers), losses, (X, Y))


def watched_run(monkeypatch, model, losses, *, checks=True, steps=12, **options):
    every = {"period": 1} if checks else {"period": 10**9, "first": -1}
    monkeypatch.setattr("hush.summing.Watch", functools.partial(Watch, **every))
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
    with pytest.raises(Mixing, match=r"at step 5 .* Nothing of this step was released"):
        run.step(run.batch(5))
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    with pytest.raises(Refused, match="at step 5"):
        run.step(run.batch(5))
    with pytest.raises(Refused, match="at step 5"):
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
    run = watched_run(monkeypatch, Mixed("softmax over the batch", begins=20), cross_entropy)
    with pytest.raises(Mixing, match="Nothing of this step was released"):
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
    first = record(model, cross_entropy, (X, Y), engine=engine)
    assert model.last is None
    again = record(model, cross_entropy, (X, Y), engine=engine)
    assert torch.equal(first.losses, again.losses)


def test_what_a_forward_leaves_is_there_for_the_loss():
    class Kept(nn.Linear):
        def forward(self, x):
            self.penalty = x.square().sum(1)
            return super().forward(x)

    model = Kept(4, 3)
    tape = record(model, lambda m, c: cross_entropy(m, c) + m.penalty, (X, Y))
    torch.testing.assert_close(tape.losses, cross_entropy(model, (X, Y)) + X.square().sum(1))
    assert type(tape).__name__ == "BookTape"


@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk", "dp-dice"])
def test_a_loss_that_begins_to_mix_stops_every_method(monkeypatch, method):
    together = []

    def losses(model, content):
        values = cross_entropy(model, content)
        return values * values.detach().mean() if together else values

    run = watched_run(monkeypatch, nn.Linear(4, 3), losses, method=method)
    run.step(run.batch(0))
    together.append(True)
    with pytest.raises(Mixing, match="at step 1"):
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
    watch = Watch(secret)
    found = {(t, k): watch.inspect(cross_entropy, t, k, pieces) for t in range(steps) for k in range(pieces)}
    return {at: each.picks for at, each in found.items() if isinstance(each, Inspected)}


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


def factory(mixing):
    def losses(model, content):
        values = cross_entropy(model, content)
        return values * values.detach().mean() if mixing else values

    return losses


class Loss(nn.Module):
    def __init__(self, mixing):
        super().__init__()
        self.mixing = mixing

    def forward(self, model, content):
        return factory(self.mixing)(model, content)

    def losses(self, model, content):
        return self(model, content)


def choose(model, content, mixing=False):
    return factory(mixing)(model, content)


PAIRS = {
    "closures": (factory(False), factory(True)),
    "bound methods": (Loss(False).losses, Loss(True).losses),
    "modules": (Loss(False), Loss(True)),
    "partials": (functools.partial(choose, mixing=False), functools.partial(choose, mixing=True)),
    "partials of values": (functools.partial(choose, mixing=0), functools.partial(choose, mixing=1)),
    "closures of closures": (lambda m, c, f=factory(False): f(m, c), lambda m, c, f=factory(True): f(m, c)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_verdict_belongs_to_one_loss(name):
    model, (good, bad) = nn.Linear(4, 3), PAIRS[name]
    assert type(record(model, good, (X, Y))).__name__ == "BookTape"
    with pytest.warns(GradientWarning, match="not independent"):
        assert type(record(model, bad, (X, Y))).__name__ == "HeldTape"
    assert type(record(model, good, (X, Y))).__name__ == "BookTape"
    assert type(record(model, bad, (X, Y))).__name__ == "HeldTape"


def test_a_verdict_belongs_to_the_modes_of_the_modules():
    class Switching(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out if self.training else out - out.mean(0)

    model = nn.Sequential(nn.Linear(4, 4), Switching(4, 3))
    assert type(record(model, cross_entropy, (X, Y))).__name__ == "BookTape"
    model[1].eval()
    with pytest.warns(GradientWarning, match="not independent"):
        record(model, cross_entropy, (X, Y))


@pytest.fixture
def comparisons(monkeypatch):
    """How often a first comparison is made."""
    made, compare = [], automatic._compare_engines

    def counted(case, verdict):
        made.append(case)
        compare(case, verdict)

    monkeypatch.setattr(automatic, "_compare_engines", counted)
    return made


def test_a_loss_that_is_made_anew_is_not_compared_anew(comparisons):
    model, weight = nn.Linear(4, 3), torch.ones(3)
    for _ in range(30):
        record(model, lambda m, c: F.cross_entropy(m(c[0]), c[1], weight, reduction="none") * 2.0, (X, Y))
    assert len(comparisons) == 1


def test_a_loss_with_another_closure_at_every_step_is_compared_so_often(comparisons):
    model = nn.Linear(4, 3)
    for step in range(5 * REMEMBERED):
        record(model, lambda m, c, scale=1.0 + step: scale * cross_entropy(m, c), (X, Y))
        record(model, lambda m, c, parts=[step]: parts[0] * cross_entropy(m, c), (X, Y))
    assert len(comparisons) == 2 * REMEMBERED
    table = verdicts._VERDICTS[model]
    assert len(table.by_loss) <= REMEMBERED
    assert len(table.by_code) <= REMEMBERED


def test_what_was_compared_is_not_kept_alive():
    def compared():
        model = nn.Linear(4, 3)
        record(model, lambda m, c: cross_entropy(model, c), (X, Y))
        return weakref.ref(model)

    gone = compared()
    gc.collect()
    assert gone() is None


def test_identities():
    assert identify_loss(factory(False)) == identify_loss(factory(False))
    assert identify_loss(factory(False)) != identify_loss(factory(True))
    assert identify_loss(factory(1)) != identify_loss(factory(True))
    first, second = [1], [1]
    assert identify_loss(factory(first)) == identify_loss(factory(first))
    assert identify_loss(factory(first)) != identify_loss(factory(second))
    loss = Loss(False)
    assert identify_loss(loss.losses) == identify_loss(loss.losses)
    assert identify_loss(loss.losses) != identify_loss(Loss(False).losses)

    def recursive(n):
        return recursive(n - 1) if n else 0

    assert identify_loss(recursive) == identify_loss(recursive)
    assert verdict_of(nn.Linear(1, 1), recursive).engine == "book-keeping"


def test_a_gradient_that_rules_miss_is_not_called_mixing():
    class Swallowed(torch.autograd.Function):
        """A product whose backward forgets the weight where it is no ordinary parameter."""

        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, g):
            x, weight = ctx.saved_tensors
            return g * weight, (g * x).sum(0)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.linear = nn.Parameter(torch.rand(4)), nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(Swallowed.apply(x, self.weight))

    with pytest.warns(GradientWarning, match="one backward pass") as found:
        record(Layer(), cross_entropy, (X, Y))
    assert "independent" not in str(found[0].message)
