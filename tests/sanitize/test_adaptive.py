"""The adaptive threshold, the funnel and their models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hush.datasets.models import Funnel, ResNet18, build_funnel
from hush.errors import InvalidInputError, UnsupportedModelError
from hush.per_example.model_checks import check_model
from hush.sanitize.adaptive import AdaptiveThreshold
from hush.sanitize.layer import Sanitize, find_layer, insert


def _model() -> nn.Module:
    first, second, head = nn.Linear(1, 1), nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        second.weight.copy_(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))  # Frobenius norm 5, spectral norm 5 as well …
        second.weight[0, 0] = 5.0  # … and now 7, where the spectral norm is 6.4
        head.weight.fill_(100.0)
    return insert(nn.Sequential(first, nn.Sequential(second, nn.ReLU()), head), "1", Sanitize(9.0, 1.0, width=2))


def test_c_follows_the_frobenius_norm_of_the_last_weight_before_the_layer() -> None:
    model = _model()
    assert AdaptiveThreshold(0.1).find_clip(model) == pytest.approx(0.7)
    assert find_layer(model)[1].clip == 9.0
    assert AdaptiveThreshold(0.1).adapt(model) == pytest.approx(0.7)
    layer = find_layer(model)[1]
    assert layer.clip == pytest.approx(0.7)
    assert layer.noise_std == pytest.approx(0.7 * 2**0.5)
    assert layer.mu == 2.0  # the noise follows C


def test_what_has_no_norm_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="threshold_share"):
        AdaptiveThreshold(0.0)
    with pytest.raises(InvalidInputError, match="'sanitize'"):
        AdaptiveThreshold(0.1).adapt(insert(nn.ReLU(), "", Sanitize(1.0, 1.0)))
    zero = nn.Linear(2, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(InvalidInputError, match="0"):
        AdaptiveThreshold(0.1).adapt(insert(nn.Sequential(zero), "0", Sanitize(1.0, 1.0)))


def test_the_funnel() -> None:
    layers = build_funnel(1152, 50)
    shapes = [(m.in_features, m.out_features) for m in layers if isinstance(m, nn.Linear)]
    assert shapes == [(1152, 400), (400, 200), (200, 100), (100, 50)]
    assert [type(layer) for layer in layers[1::2]] == [nn.ReLU] * 4


@pytest.mark.parametrize("width", [40, 60])
def test_the_layer_goes_after_the_body_of_the_papers_networks(width: int) -> None:
    model = insert(Funnel(1, 28, width=width), "body", Sanitize(1.0, 1.0))
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert find_layer(model)[1].width == width


@pytest.mark.parametrize(("width", "parameters"), [(16, 701_466), (64, 11_173_962)])
def test_resnet_by_width(width: int, parameters: int) -> None:
    model = insert(ResNet18(width=width), "body", Sanitize(0.5, 1.0))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert find_layer(model)[1].width == 8 * width
    check_model(model)


def test_batch_norm_is_an_option_that_private_training_refuses() -> None:
    model = ResNet18(width=16, norm="batch")
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert sum(p.numel() for p in model.parameters()) == 701_466
    with pytest.raises(UnsupportedModelError):
        check_model(model)
    with pytest.raises(InvalidInputError, match="'layer'"):
        ResNet18(norm="layer")
    with pytest.raises(InvalidInputError, match="16"):
        ResNet18(width=20)
