"""Models that mix examples are detected at the first batch; other models are not reported."""

from __future__ import annotations

import functools
import gc
import math
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import hush
from hush.errors import ExamplesNotIndependent
from hush.methods import make_plan
from hush.per_example import engine
from hush.per_example import engine as verdicts_engine
from hush.per_example.engine import REMEMBERED, CheckedLosses, identify_loss, verdict_of
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import GradientWarning
from mixing_models import WAYS, Mixed, X, Y, cross_entropy


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
            tape = per_example_gradients(model, CheckedLosses(cross_entropy, 7, (0.1, 0.8)), content)
        assert type(tape).__name__ == "BookkeepingGradients"


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
        assert type(per_example_gradients(Written(), cross_entropy, (x, y))).__name__ == "BookkeepingGradients"
    with pytest.raises(ExamplesNotIndependent):
        per_example_gradients(Written(), lambda m, c: cross_entropy(m, c) * m(c[0]).mean(), (x, y))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", WAYS)
def test_mixing_in_the_model_is_found_at_the_first_batch(way, dropout):
    with pytest.raises(ExamplesNotIndependent):
        per_example_gradients(Mixed(way, dropout=dropout), cross_entropy, (X, Y))


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
    with pytest.raises(ExamplesNotIndependent):
        per_example_gradients(nn.Sequential(*layers), losses, (X, Y))


def test_a_contrastive_loss_is_refused_before_anything_is_charged(tmp_path):
    ledger, settings = tmp_path / "ledger.jsonl", {"epsilon": 8.0, "batch_size": 8, "steps": 5, "dataset": "d"}
    with pytest.raises(ExamplesNotIndependent):
        hush.train(nn.Linear(4, 3), contrastive, (X, Y), directory=tmp_path / "run", ledger=ledger, **settings)
    assert not hush.Ledger(ledger).spends("d")
    hush.train(nn.Linear(4, 3), cross_entropy, (X, Y), directory=tmp_path / "other", ledger=ledger, **settings)
    assert len(hush.Ledger(ledger).spends("d")) == 1


def test_a_contrastive_loss_trains_without_privacy_and_without_an_epsilon():
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    run = make_plan("sgd", examples=24, batch_size=8, steps=5, lr=0.1).start(model, contrastive, (X, Y))
    for batch in run.batches():
        run.step(batch)
    assert not torch.equal(model.weight, before)  # no example is computed alone, where this loss is zero
    assert (run.guarantee.status, run.guarantee.epsilon) == ("none", math.inf)


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

    with pytest.warns(GradientWarning) as found:
        per_example_gradients(Layer(), cross_entropy, (X, Y))
    assert "independent" not in str(found[0].message)


# A mixing verdict is specific to one loss and one model, and is cached.


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
    assert type(per_example_gradients(model, good, (X, Y))).__name__ == "BookkeepingGradients"
    for _ in range(2):
        with pytest.raises(ExamplesNotIndependent):
            per_example_gradients(model, bad, (X, Y))
        assert type(per_example_gradients(model, good, (X, Y))).__name__ == "BookkeepingGradients"


def test_a_verdict_belongs_to_the_modes_of_the_modules():
    class Switching(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out if self.training else out - out.mean(0)

    model = nn.Sequential(nn.Linear(4, 4), Switching(4, 3))
    assert type(per_example_gradients(model, cross_entropy, (X, Y))).__name__ == "BookkeepingGradients"
    model[1].eval()
    with pytest.raises(ExamplesNotIndependent):
        per_example_gradients(model, cross_entropy, (X, Y))


@pytest.fixture
def comparisons(monkeypatch):
    """How often a first comparison is made."""
    made, compare = [], engine._compare_engines

    def counted(case, verdict):
        made.append(case)
        compare(case, verdict)

    monkeypatch.setattr(engine, "_compare_engines", counted)
    return made


def test_a_loss_that_is_made_anew_is_not_compared_anew(comparisons):
    model, weight = nn.Linear(4, 3), torch.ones(3)
    for _ in range(30):
        per_example_gradients(
            model, lambda m, c: F.cross_entropy(m(c[0]), c[1], weight, reduction="none") * 2.0, (X, Y)
        )
    assert len(comparisons) == 1


def test_a_loss_with_another_closure_at_every_step_is_compared_so_often(comparisons):
    model = nn.Linear(4, 3)
    for step in range(5 * REMEMBERED):
        per_example_gradients(model, lambda m, c, scale=1.0 + step: scale * cross_entropy(m, c), (X, Y))
        per_example_gradients(model, lambda m, c, parts=[step]: parts[0] * cross_entropy(m, c), (X, Y))
    assert len(comparisons) == 2 * REMEMBERED
    table = verdicts_engine._VERDICTS[model]
    assert len(table.by_loss) <= REMEMBERED
    assert len(table.by_code) <= REMEMBERED


def test_what_was_compared_is_not_kept_alive():
    def compared():
        model = nn.Linear(4, 3)
        per_example_gradients(model, lambda m, c: cross_entropy(model, c), (X, Y))
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
