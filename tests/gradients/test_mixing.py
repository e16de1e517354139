"""Examples that meet are found out at the first batch, and nobody else is accused."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from meeting import WAYS, Mixed, X, Y, cross_entropy
from torch import nn

from hush.per_example.engine import CheckedLosses
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import GradientWarning


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
    with pytest.warns(GradientWarning):
        per_example_gradients(Written(), lambda m, c: cross_entropy(m, c) * m(c[0]).mean(), (x, y))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", WAYS)
def test_mixing_in_the_model_is_found_at_the_first_batch(way, dropout):
    with pytest.warns(GradientWarning):
        tape = per_example_gradients(Mixed(way, dropout=dropout), cross_entropy, (X, Y))
    assert type(tape).__name__ == "MaterializedGradients"


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
    with pytest.warns(GradientWarning):
        per_example_gradients(nn.Sequential(*layers), losses, (X, Y))


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
