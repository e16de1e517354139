"""Augmentation multiplicity: views are averaged before clipping, so an example contributes one bounded vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hush.per_example.augmentation import Augmented, Point
from hush.per_example.gradients import per_example_gradients


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def jitter(content):
    return content[0] + 0.3 * torch.randn_like(content[0]), content[1]


def setting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, (torch.randn(7, 4).double(), torch.randint(0, 3, (7,)))


@pytest.mark.parametrize("engine", ["auto", "functional"])
def test_the_gradient_is_the_mean_over_the_views(engine) -> None:
    model, content = setting()
    torch.manual_seed(5)
    tape = per_example_gradients(model, Augmented(losses, jitter, 3), content, engine=engine)
    torch.manual_seed(5)
    views = [jitter(content) for _ in range(3)]
    weights = torch.rand(7).double()
    alone = [per_example_gradients(model, losses, view, engine="functional") for view in views]
    held = {n: sum(t.gradients[n] for t in alone) / 3 for n in alone[0].gradients}
    for name, value in tape.sum(weights).items():
        assert torch.allclose(value, torch.einsum("n,n...->...", weights, held[name]), atol=1e-12)
        squares = held[name].flatten(1).square().sum(1)
        assert torch.allclose(tape.squared_norms()[name], squares, atol=1e-12)


def test_all_points_see_the_same_views() -> None:
    model, content = setting()
    other = {n: p.detach() + 0.1 for n, p in model.named_parameters()}
    points = Augmented(losses, jitter, 2).points(content, [Point(0.4, other), Point(0.6)])
    assert [p.coefficient for p in points] == [0.2, 0.2, 0.3, 0.3]
    assert points[0].content is points[2].content
    assert points[1].content is points[3].content


def test_called_as_losses_it_is_the_mean() -> None:
    model, content = setting()
    same = Augmented(losses, lambda c: c, 4)
    assert torch.allclose(same(model, content), losses(model, content))
