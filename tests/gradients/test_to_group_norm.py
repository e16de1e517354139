"""A model with GroupNorm in place of BatchNorm: what it computes depends on the example, and it can be trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hush import make_plan, to_group_norm

WIDTHS = (4, 8, 16, 32, 64)
ROWS = 24


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def of_rows(width: int) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 2)), draw(ROWS, 6)


def of_sequences(width: int) -> tuple[nn.Module, Tensor]:
    layers = nn.Conv1d(2, width, 3), nn.BatchNorm1d(width), nn.Flatten(), nn.Linear(4 * width, 2)
    return nn.Sequential(*layers), draw(ROWS, 2, 6)


def of_pooled_pictures(width: int) -> tuple[nn.Module, Tensor]:
    """Maps of 1 × 1, as the last ones of many networks are."""
    layers = nn.Conv2d(1, width, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 2)
    return nn.Sequential(*layers), draw(ROWS, 1, 6, 6)


def of_pooled_volumes(width: int) -> tuple[nn.Module, Tensor]:
    layers = nn.Conv3d(1, width, 3), nn.AdaptiveAvgPool3d(1), nn.BatchNorm3d(width), nn.Flatten(), nn.Linear(width, 2)
    return nn.Sequential(*layers), draw(ROWS, 1, 3, 3, 3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [of_rows, of_sequences, of_pooled_pictures, of_pooled_volumes])
def test_outputs_vary_and_a_private_step_runs(make, width: int) -> None:
    model, x = make(width)
    model = to_group_norm(model)
    at = next(k for k, layer in enumerate(model) if isinstance(layer, nn.GroupNorm))
    sizes = model[: at + 1](x).detach().abs().round(decimals=3)
    assert len(sizes.unique()) > 2 * ROWS  # neither 0 everywhere nor ±1
    plan = make_plan("dp-sgd", examples=ROWS, batch_size=6, steps=1, noise_multiplier=1.0)
    run = plan.start(model, losses, (x, torch.arange(ROWS) % 2), secret=1)
    run.step(run.batch(0))


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (nn.BatchNorm1d(64), 1),
        (nn.BatchNorm2d(3), 1),
        (nn.BatchNorm2d(6), 1),
        (nn.BatchNorm2d(16), 4),
        (nn.BatchNorm2d(24), 6),
        (nn.BatchNorm2d(128), 32),
        (nn.BatchNorm3d(256), 32),
        (nn.InstanceNorm2d(8, track_running_stats=True), 8),
    ],
)
def test_the_number_of_groups(layer: nn.Module, groups: int) -> None:
    assert to_group_norm(layer).num_groups == groups


def test_scale_and_shift_are_kept() -> None:
    old = nn.BatchNorm1d(8)
    nn.init.normal_(old.weight)
    new = to_group_norm(old)
    assert torch.equal(new.weight, old.weight)
    assert torch.equal(new.bias, old.bias)
