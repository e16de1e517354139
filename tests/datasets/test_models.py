"""Models of the literature: exact parameter counts, shapes, and no layer that mixes examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hush.datasets import catalogue
from hush.datasets.models import VAE, Funnel, ResNet18, lenet5, logistic, mlp, p1, p2, small_cnn, vae_losses
from hush.errors import InvalidInputError
from hush.randomness import seeded
from hush.tabular.columns import Category, Encoder, Number

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
# Published counts, but for the funnel: there by hand, convolutions 320 + 18 496 + 73 856 (colour: 896), then
# 1152·400 + 400 (colour 2048·400 + 400), 80 200, 20 100, 5 050 and the head 510.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], int]] = {
    "mlp": (lambda: mlp([784, 512, 256, 128, 10], dropout=0.2), GREY, 567_434),
    "two-layer": (lambda: mlp([784, 128, 10]), GREY, 101_770),
    "lenet": (lenet5, GREY, 61_706),
    "p1": (p1, COLOUR, 258_762),
    "p2": (p2, GREY, 225_034),
    "resnet18": (ResNet18, COLOUR, 11_173_962),
    "funnel, grey": (lambda: Funnel(1, 28), GREY, 92_672 + 461_200 + 80_200 + 20_100 + 5_050 + 510),
    "funnel, colour": (lambda: Funnel(3, 32), COLOUR, 93_248 + 819_600 + 80_200 + 20_100 + 5_050 + 510),
}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_number_of_parameters_and_shape(name: str) -> None:
    build, shape, count = MODELS[name]
    model = build().eval()
    assert parameters(model) == count
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_an_example_does_not_feel_the_others(name: str) -> None:
    build, shape, _ = MODELS[name]
    with seeded(0):
        model = build().eval()
        images = torch.rand(3, *shape)
    changed = images.clone()
    changed[1:] *= -5
    assert torch.allclose(model(images)[0], model(changed)[0], atol=1e-6)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def test_vae_parameters_and_shapes() -> None:
    model = VAE()
    assert parameters(model) == 1_875_265
    rebuilt, mean, log_variance = model(torch.rand(2, *GREY))
    assert rebuilt.shape == (2, *GREY)
    assert mean.shape == log_variance.shape == (2, 32)


def test_vae_loss_by_hand() -> None:
    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return images + 0.5, torch.full((2, 32), 2.0), torch.zeros(2, 32)

    # 784 · 0.25 squared error, and ½ · 32 · (4 + 1 − 0 − 1) = 64
    assert vae_losses(Fixed(), (torch.rand(2, *GREY),)).tolist() == pytest.approx([196 + 64] * 2, rel=1e-5)


def test_a_vae_draws_in_training_only() -> None:
    with seeded(0):
        model, images = VAE(), torch.rand(2, *GREY)
    assert not torch.equal(model(images)[0], model(images)[0])
    model.eval()
    assert torch.equal(model(images)[0], model(images)[0])


def test_a_body_and_head_meet_at_the_penultimate_layer() -> None:
    funnel = Funnel(1, 28, width=40)
    activations = funnel.body(torch.rand(2, *GREY))
    assert activations.shape == (2, 40)
    assert (activations >= 0).all()  # a ReLU: the range of a clipped activation is C, not 2C
    assert ResNet18().body(torch.rand(1, *COLOUR)).shape == (1, 512)


def test_released_weights_of_a_funnel_go_by_places_that_stay() -> None:
    weights = [name for name in Funnel(1, 8).state_dict() if name.endswith("weight")]
    assert weights == [*(f"body.{place}.weight" for place in (0, 3, 6, 10, 12, 14, 16)), "head.weight"]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 23), (2, 4, 4)])
def test_a_cnn_for_any_size(shape: tuple[int, int, int]) -> None:
    assert small_cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_lenet_of_other_sizes() -> None:
    assert lenet5((3, 32, 40), 5)(torch.zeros(2, 3, 32, 40)).shape == (2, 5)
    with pytest.raises(InvalidInputError, match="8×8.*'lenet'"):
        lenet5((1, 8, 8))


def test_logistic_is_linear() -> None:
    assert parameters(logistic(30, 2)) == 62


def test_the_encoder_by_hand() -> None:
    columns = [
        Category("job", values=("a", "b")),
        Number("age", 0, 100),
        Number("free"),
        Category("hashed", buckets=3),
    ]
    encoder = Encoder(columns)
    rows = torch.tensor([[1.0, 75.0, 0.0, 2.0], [2.0, 500.0, 0.0, 0.0]])
    out = encoder(rows)
    assert out.shape == (2, encoder.width) == (2, 3 + 1 + 8 + 3)
    assert out[0].tolist() == [0.5, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1]  # cos(0) = 1 thrice, then the slots
    assert out[1].tolist() == [1.0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0]  # clamped; the slot for anything else
    assert not list(encoder.parameters())
    assert not encoder.state_dict()


def test_the_encoder_is_bounded_and_works_by_row_under_vmap() -> None:
    encoder = Encoder([Number("x"), Category("k", buckets=4)])
    rows = torch.tensor([[1e30, 1.0], [-1e30, 3.0], [1e-30, 0.0]])
    out = encoder(rows)
    assert torch.isfinite(out).all()
    assert out.abs().max() < 20
    each = torch.func.vmap(lambda row: encoder(row.unsqueeze(0)).squeeze(0))(rows)
    assert torch.equal(each, out)


def test_published_initial_weights_have_their_deviations_and_the_default_stays() -> None:
    task = catalogue.load("digits-sanitized")
    with seeded(5):
        own = task.model().state_dict()
    with seeded(5):
        default = task.initialised("torch").model().state_dict()
    with seeded(5):
        published = task.initialised("published").model()
    assert all(torch.equal(own[name], default[name]) for name in own)
    linear = [m for m in published.modules() if isinstance(m, nn.Linear) and m.weight.numel() > 5000]
    kernels = [m for m in published.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 5000]
    assert linear
    assert kernels
    for layer in linear:  # uniform on ±√(6/(in + out))
        assert float(layer.weight.detach().abs().max()) == pytest.approx((6 / sum(layer.weight.shape)) ** 0.5, rel=0.01)
    for kernel in kernels:  # N(0, 2/fan-in)
        assert float(kernel.weight.detach().std()) == pytest.approx((2 / kernel.weight[0].numel()) ** 0.5, rel=0.05)
    assert not any(m.bias.any() for m in (*linear, *kernels))


def test_frozen_weights_are_not_initialised_again() -> None:
    task = catalogue.load("digits-sanitized-frozen")
    with seeded(5):
        own = dict(task.model().named_parameters())
    with seeded(5):
        published = dict(task.initialised("published").model().named_parameters())
    frozen = {name for name, value in own.items() if not value.requires_grad}
    assert frozen
    assert {name for name in own if torch.equal(own[name], published[name])} >= frozen
