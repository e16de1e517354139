"""Convolutions of channels-last images: the same gradients as in the default memory format."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adversarial_inputs import TERMS, put_last
from hush.datasets.models import ImageLayers, p1, p2, put_channels_last, small_cnn
from hush.datasets.problem import cross_entropy
from hush.per_example.conv import Convolution, Windowed, _multiply
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import Weights
from hush.per_example.terms import Materialized, TurnedRows

ONE_GROUP = ["windows, gram", "windows, held", "windows, strided", "windows, transposed"]


def make_pair(name: str) -> tuple[Windowed, Windowed]:
    usual = TERMS[name](torch.Generator().manual_seed(3), torch.float64)
    return usual, put_last(usual)


@pytest.mark.parametrize("name", ONE_GROUP)
def test_rows_norms_and_sums_are_those_of_the_usual_order(name: str) -> None:
    usual, last = make_pair(name)
    assert last.turned
    assert not usual.turned
    expected = usual.rows(0, 3)
    assert torch.allclose(last.rows(0, 3), expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(last.rows(1, 3), last.rows(0, 3)[1:], rtol=1e-12, atol=1e-12)
    assert torch.allclose(last.bound_squares(certain=False), usual.bound_squares(certain=False), rtol=1e-10)
    weights = Weights.of(torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64), torch.float64)
    total = 0.5 * expected[0] + 2.0 * expected[2]
    for term in (last, last.hold()):
        assert torch.allclose(term.sum(weights), total, rtol=1e-10, atol=1e-10)
        assert torch.allclose(term.sum_in_double(weights), total, rtol=1e-10, atol=1e-10)
        assert term.sum(weights).is_contiguous()


@pytest.mark.parametrize("outputs", [3, 9, 40])
@pytest.mark.parametrize("given", [False, True])
def test_products_are_made_either_way_round(outputs: int, given: bool) -> None:
    """Windows of nine numbers beside fewer, as many and more outputs."""
    narrow, windows = torch.randn(4, outputs, 25).double(), torch.randn(4, 25, 9).double()
    out = torch.full((4, outputs, 9), torch.nan, dtype=torch.float64) if given else None
    found = _multiply(narrow, windows, out)
    assert torch.allclose(found, narrow @ windows, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous()
    assert out is None or out.data_ptr() == found.data_ptr()


def test_several_groups_are_not_turned() -> None:
    usual, last = make_pair("windows, grouped")
    assert not last.turned
    assert torch.equal(last.rows(0, 3), usual.rows(0, 3))


def test_what_is_held_is_the_gradient_and_only_the_order_of_memory_differs() -> None:
    usual, last = make_pair("windows, held")
    plain, turned = usual.hold(), last.hold()
    assert isinstance(plain, Materialized)
    assert isinstance(turned, TurnedRows)
    assert turned.rows(0, 3).shape == plain.rows(0, 3).shape == (3, *usual.weight.shape)
    assert turned.reach().roundings == 0
    assert torch.allclose(turned.bound_squares(), plain.bound_squares(), rtol=1e-10)


def test_a_row_of_weight_zero_adds_nothing_even_if_it_is_not_finite() -> None:
    _, last = make_pair("windows, held")
    gy = last.gy.clone()
    gy[1] = torch.nan
    broken = Windowed(last.rule, last.x, gy, last.weight)
    assert broken.turned
    weights = Weights.of(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), torch.float64)
    for term in (broken, broken.hold()):
        assert bool(torch.isfinite(term.sum(weights)).all())


@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (3, 1)])
def test_images_are_put_in_order_without_a_change(channels: int, padding: int) -> None:
    images = torch.randn(5, channels, 8, 6)
    there = put_channels_last(images)
    assert torch.equal(there, images)
    convolution = nn.Conv2d(channels, 4, 3, padding=padding)
    assert convolution(there).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(convolution(there), convolution(images), atol=1e-5)
    if channels == 1:
        assert there.data_ptr() == images.data_ptr()  # only its strides are others


@pytest.mark.parametrize(("build", "shape"), [(p1, (3, 32, 32)), (p2, (1, 28, 28))])
def test_a_model_in_this_order_computes_the_same(build, shape) -> None:
    model, images = build().double(), torch.randn(2, *shape, dtype=torch.float64)
    assert isinstance(model, ImageLayers)
    assert torch.allclose(model(images), nn.Sequential(*model)(images), rtol=1e-10)


@pytest.mark.parametrize(("build", "shape"), [(p1, (3, 32, 32)), (p2, (1, 28, 28))])
def test_torch_func_maps_a_model_in_this_order(build, shape) -> None:
    model, content = build(), (torch.randn(3, *shape), torch.tensor([0, 1, 2]))
    found, right = (
        per_example_gradients(model, cross_entropy, content, engine=e) for e in ("functional", "book-keeping")
    )
    for name, norms in right.squared_norms(certain=False).items():
        assert torch.allclose(found.squared_norms(certain=False)[name], norms, rtol=1e-3)


def test_a_model_for_images_of_one_s_own_takes_one_image_as_well() -> None:
    model = small_cnn((1, 12, 10), 3).eval()
    images = torch.randn(4, 1, 12, 10)
    with torch.no_grad():
        assert torch.allclose(model(images[:1]), model(images)[:1], atol=1e-5)


def test_a_convolution_knows_which_order_it_was_given() -> None:
    rule = Convolution.of(2, 1, 1, 1, 1, (3, 3))
    x, weight = torch.randn(4, 4, 9, 9), torch.randn(6, 4, 3, 3)  # too few channels for the library
    gy = torch.randn(4, 6, 9, 9)
    assert isinstance(rule.term(x, gy, weight), Materialized)
    last = [t.contiguous(memory_format=torch.channels_last) for t in (x, gy)]
    assert isinstance(rule.term(*last, weight), TurnedRows)
    mixed = rule.term(last[0], gy, weight)  # an output's gradient that came back in the usual order
    assert isinstance(mixed, TurnedRows)
    assert torch.allclose(mixed.rows(0, 4), rule.term(x, gy, weight).rows(0, 4), atol=1e-4)


def _make_term(rule: Convolution, inputs: int, outputs: int, side: int, last: bool) -> Windowed:
    generator = torch.Generator().manual_seed(5)
    shape = (inputs, outputs, 3, 3) if rule.transposed else (outputs, inputs, 3, 3)
    weight, x = torch.randn(shape, generator=generator), torch.randn(20, inputs, side, side, generator=generator)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    return Windowed(rule, x, torch.randn_like(rule.forward(x, weight, None)), weight)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        Convolution.of(2, 1, 0, 1, 1, (3, 3)),
        Convolution.of(2, (2, 1), (1, 2), 1, 1, (3, 3)),
        Convolution.of(2, 1, 1, (2, 1), 1, (3, 3)),
        Convolution.transpose(2, 2, 1, 0, 1, 1),
        Convolution.transpose(2, 2, 1, 1, 1, 1),
    ],
)
def test_rows_from_the_library_are_the_gradients(rule: Convolution, last: bool) -> None:
    term = _make_term(rule, 8, 16, 9, last)
    assert term._suits_library()
    found, expected = term.materialize().rows(0, 20), term.hold().rows(0, 20)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert found[3].abs().max() > 1
    broken = term.gy.clone()
    broken[3] = torch.nan
    again = Windowed(rule, term.x, broken, term.weight).materialize().rows(0, 20)
    assert bool(again[3].isnan().all())
    others = [i for i in range(20) if i != 3]
    assert torch.equal(again[others], found[others])  # bits of the other examples


def test_rows_from_the_library_where_they_are_slow_or_impossible() -> None:
    """Few channels, float64, and a transposed convolution with more output padding than stride."""
    assert not _make_term(Convolution.of(2, 1, 0, 1, 1, (3, 3)), 1, 16, 9, False)._suits_library()
    usual = _make_term(Convolution.of(2, 1, 0, 1, 1, (3, 3)), 8, 16, 9, False)
    assert not Windowed(usual.rule, usual.x.double(), usual.gy.double(), usual.weight.double())._suits_library()
    odd = _make_term(Convolution.transpose(2, 1, 0, 1, 1, 2), 8, 16, 9, False)
    assert not odd._suits_library()
    assert torch.equal(odd.materialize().rows(0, 20), odd.hold().rows(0, 20))
