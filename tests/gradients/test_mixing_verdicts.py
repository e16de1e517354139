"""A verdict on whether examples meet belongs to one loss and one model, and is not made anew without need."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from meeting import X, Y, cross_entropy
from torch import nn

from hush.per_example import engine
from hush.per_example import engine as verdicts_engine
from hush.per_example.engine import REMEMBERED, identify_loss, verdict_of
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import GradientWarning


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
    with pytest.warns(GradientWarning):
        assert type(per_example_gradients(model, bad, (X, Y))).__name__ == "MaterializedGradients"
    assert type(per_example_gradients(model, good, (X, Y))).__name__ == "BookkeepingGradients"
    assert type(per_example_gradients(model, bad, (X, Y))).__name__ == "MaterializedGradients"


def test_a_verdict_belongs_to_the_modes_of_the_modules():
    class Switching(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out if self.training else out - out.mean(0)

    model = nn.Sequential(nn.Linear(4, 4), Switching(4, 3))
    assert type(per_example_gradients(model, cross_entropy, (X, Y))).__name__ == "BookkeepingGradients"
    model[1].eval()
    with pytest.warns(GradientWarning):
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
