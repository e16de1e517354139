"""Every term bounds the exact norm of its gradient, on adversarial inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adversarial_inputs import TERMS, cancelling, sides_of
from hush.per_example.conv import Windowed
from hush.per_example.embedding import Lookup
from hush.per_example.result import Weights
from hush.per_example.rounding import SPARE, gamma
from hush.per_example.terms import FEW, Materialized, OuterProduct, Recomputed


def two_sum(values):
    """Exact sums along the first axis, rounded once (Shewchuk, by way of math.fsum)."""
    flat = values.reshape(len(values), -1)
    return np.array([math.fsum(column) for column in flat.T])


def two_product(a, b):
    """a·b = high + low exactly, by Dekker's splitting."""
    high = a * b
    parts = []
    for v in (a, b):
        c = v * 134217729.0
        big = c - (c - v)
        parts.append((big, v - big))
    (ah, al), (bh, bl) = parts
    return high, ((ah * bh - high) + ah * bl + al * bh) + al * bl


def exact_norm(term, i):
    """‖gᵢ‖ of what the term stands for: products and sums without any rounding but the last."""
    if isinstance(term, OuterProduct):
        a, b = term.a[i], term.b[i]
        groups = [(a, b)]
    else:
        groups = []
        for windows, narrow in term.unfold(i, i + 1, 1):
            groups += [(w.t(), v.t()) for w, v in zip(windows, narrow, strict=True)]
    total = 0.0
    for a, b in groups:
        left, right = (t.double().numpy() for t in (a, b))
        high, low = two_product(left[:, :, None], right[:, None, :])
        total += float(np.square(two_sum(np.concatenate([high, low]))).sum())
    return math.sqrt(total)


def in_float64(term):
    """The term of the same numbers, whose own rounding is negligible beside float32's."""
    if isinstance(term, OuterProduct):
        return OuterProduct(term.a.double(), term.b.double())
    return Windowed(term.rule, term.x.double(), term.gy.double(), term.weight.double())


@pytest.mark.parametrize("kind", ["plain", "opposite", "powers", "alternating"])
@pytest.mark.parametrize("name", TERMS)
def test_rows_are_within_their_reach(name, kind):
    generator = torch.Generator().manual_seed(len(name))
    term = cancelling(TERMS[name](generator, torch.float32), kind, generator)
    reach = term.reach()
    off = (term.rows(0, 3).double() - in_float64(term).rows(0, 3)).flatten(1).norm(dim=1)
    assert bool((off <= reach.s * gamma(reach.roundings + SPARE, torch.float32)).all())
    assert bool((in_float64(term).rows(0, 3).flatten(1).norm(dim=1) <= reach.s * (1 + 1e-6)).all())  # Σ‖a_p‖‖b_p‖


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "opposite", "powers", "alternating", "huge", "tiny"])
@pytest.mark.parametrize("name", TERMS)
def test_every_term_bounds_its_exact_norm(name, kind, dtype):
    generator = torch.Generator().manual_seed(len(name))
    term = cancelling(TERMS[name](generator, dtype), kind, generator)
    bound = term.bound_squares().sqrt()
    for i in range(2):
        assert exact_norm(term, i) <= float(bound[i])
    if kind == "plain":
        assert float(bound[0]) <= exact_norm(term, 0) * 1.01  # and it is close where nothing cancels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["outer, gram", "outer, held", "outer, again", "windows, gram", "windows, held"])
def test_a_climb_towards_underestimated_norms_does_not_arrive(name, dtype):
    """Random steps that keep whatever makes the bound smaller beside the exact norm."""
    generator = torch.Generator().manual_seed(0)
    term = cancelling(TERMS[name](generator, dtype), "opposite", generator)
    best, worst = term, exact_norm(term, 0) / float(term.bound_squares().sqrt()[0])
    for step in range(25):
        sides = [t.clone() for t in sides_of(best)]
        side = sides[step % 2].view(len(sides[step % 2]), -1)
        some = torch.randint(0, side.shape[1], (max(1, side.shape[1] // 8),), generator=generator)
        side[0, some] *= 2.0 ** torch.randint(-6, 7, some.shape, generator=generator) * (-1) ** step
        tried = type(term)(*sides) if isinstance(term, OuterProduct) else Windowed(term.rule, *sides, term.weight)
        ratio = exact_norm(tried, 0) / float(tried.bound_squares().sqrt()[0])
        assert ratio <= 1
        if ratio > worst:
            best, worst = tried, ratio


def lookup(generator, dtype):
    tokens = torch.randint(0, 3, (3, 12), generator=generator)
    return tokens, torch.randn(3, 12, 40, generator=generator, dtype=torch.float64).to(dtype)


def test_rows_and_lookups_bound_what_they_add():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        tokens, b = lookup(generator, dtype)
        b[:, ::2] = -b[:, 1::2] * (1 + 1e-6)  # positions of one token cancel
        term = Lookup.of(tokens, b, torch.Size((3, 40)))
        rows = term.rows(0, 3)
        assert torch.equal(rows, Materialized(rows).rows(0, 3))
        exact = rows.double().flatten(1).square().sum(1)
        assert bool((term.bound_squares() >= exact).all())
        assert bool((term.bound_squares() <= exact * 1.001).all())
        assert bool((Materialized(rows).bound_squares() >= exact).all())


def random_sides(positions, inputs, outputs):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, positions, size, generator=generator) for size in (inputs, outputs)]


@pytest.mark.parametrize(
    ("positions", "inputs", "outputs", "form"),
    [
        (64, 128, 512, Materialized),  # of a small transformer: 1.6 times the size of its factors
        (64, 512, 512, Recomputed),
        (FEW, 512, 512, OuterProduct),
        (1, 512, 512, OuterProduct),
    ],
)
def test_large_gradients_of_many_positions_are_computed_again(positions, inputs, outputs, form):
    assert type(OuterProduct(*random_sides(positions, inputs, outputs)).choose_form()) is form


def test_gradients_that_are_computed_again_have_the_sum_and_norms_of_those_that_are_held():
    a, b = random_sides(20, 600, 500)  # groups of one example
    again, held = Recomputed(a, b), Materialized(OuterProduct(a, b).rows(0, 5))
    weights = Weights.of(torch.tensor([0.5, 0.0, 1.0, 0.25, 0.125]), torch.float32)
    torch.testing.assert_close(again.sum(weights), held.sum(weights))
    torch.testing.assert_close(again.add_sum(again.sum(weights), weights), 2 * held.sum(weights))
    torch.testing.assert_close(again.bound_squares(certain=False), held.bound_squares(certain=False), rtol=1e-5, atol=0)
    part = Weights.of(torch.tensor([0.5, 2.0]), torch.float32, 0, 2)
    torch.testing.assert_close(again.sum(part), held.sum(part))


def test_gradients_that_could_overflow_when_they_are_computed_again_get_no_weight():
    a, b = torch.full((2, 20, 2000), 1.0), torch.full((2, 20, 3000), 1.0)
    a[0], b[0] = 4e17, 4e17
    bound = Recomputed(a, b).bound_squares()
    assert torch.isfinite(OuterProduct(a, b).bound_squares()).all()
    assert torch.isinf(bound).tolist() == [True, False]
