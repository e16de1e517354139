"""Where a Gaussian in floating point ends, and what that costs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from hush.accounting.gaussian import gaussian_delta
from hush.accounting.noise_tails import REACH, SHARE, Tails, check_std, grid
from hush.errors import InvalidInputError, NotProvenError


def test_golden_one_coordinate() -> None:
    # draws end at 10.197 σ, so that δ ≥ Q(9.197) = 1.8e-20 for one coordinate, one step and σ = 1
    assert round(REACH, 3) == 10.197
    assert Tails(1, 1, 1.0).cost() == pytest.approx(1.846e-20, rel=1e-3)
    smallest = math.sqrt(-2 * math.log(1 / 2.0**75))  # of hush._internal.noise_kernel: k = 0
    assert pytest.approx(smallest, rel=1e-12) == REACH


def truncated_delta(epsilon: float, mu: float, reach: float, rate: float) -> float:
    """∫[P − e^ε Q]₊, the worse direction, for one coordinate whose noise is conditioned on |z| ≤ reach."""
    kept = 1 - 2 * norm.sf(reach)

    def density(z: float, centre: float) -> float:
        return norm.pdf(z - centre) / kept if abs(z - centre) <= reach else 0.0

    def mixture(z: float) -> float:
        return (1 - rate) * density(z, 0.0) + rate * density(z, mu)

    def gap(z: float, one: bool) -> float:
        p, q = (mixture(z), density(z, 0.0)) if one else (density(z, 0.0), mixture(z))
        return max(p - math.exp(epsilon) * q, 0.0)

    ends = [-reach, mu - reach, reach, mu + reach]
    cuts = [*ends, *(0.5 * (a + b) for a, b in zip(ends, ends[1:], strict=False))]
    return max(quad(gap, ends[0], ends[-1], args=(one,), limit=800, points=cuts)[0] for one in (True, False))


@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize(("mu", "reach"), [(1.0, 3.0), (2.0, 4.0), (0.3, 3.5)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 6.0])
def test_the_bound_covers_the_truth_where_the_tails_are_short(mu, reach, rate, epsilon) -> None:
    """With a reach of 3 or 4 the loss is large enough to be integrated; the inequality is the same."""
    loss = truncated_delta(epsilon, mu, reach, rate)
    gauss = truncated_delta(epsilon, mu, 12.0, rate)
    kept = 1 - 2 * norm.sf(reach)
    assert loss <= gauss / kept + Tails(1, 1, mu, rate=rate, reach=reach).cost(epsilon) + 1e-12


def test_it_is_not_needlessly_large() -> None:
    # far out the whole δ is the tail: the bound is the truth but for d·Q(R − v₀)
    truth = truncated_delta(20.0, 1.0, 3.0, 1.0)
    assert truth <= Tails(1, 1, 1.0, reach=3.0).cost(20.0) <= 1.3 * truth
    assert gaussian_delta(20.0, 1.0) < 1e-3 * truth


@pytest.mark.parametrize("split", [1, 2, 5, 40])
def test_steps_that_share_one_shift_lose_it_once(split: int) -> None:
    """However μ² = 4 is divided among 40 steps, what lies beyond the reach is covered, and by less than 40 times μ."""
    steps, mu, reach = 40, 2.0, 4.0
    shifts = [mu / math.sqrt(split)] * split + [0.0] * (steps - split)
    beyond = sum(norm.sf(reach - shift) for shift in shifts)
    found = Tails(1, steps, mu, shared=True, reach=reach).cost()
    assert beyond <= found * (1 - 2 * norm.sf(reach)) ** steps * (1 + 1e-9)
    assert found < 0.3 * Tails(1, steps, mu, reach=reach).cost()
    assert Tails(1, 1, mu, shared=True, reach=reach).cost() == Tails(1, 1, mu, reach=reach).cost()


@given(st.integers(1, 10**9), st.integers(1, 10**7), st.floats(0.01, 20.0), st.floats(0.0, 100.0))
def test_it_grows_with_coordinates_steps_and_shift(coordinates, steps, mu, epsilon) -> None:
    found = Tails(coordinates, steps, mu).cost(epsilon)
    assert 0 < found <= 1
    assert Tails(2 * coordinates, steps, mu).cost(epsilon) >= found
    assert Tails(coordinates, 2 * steps, mu).cost(epsilon) >= found
    assert Tails(coordinates, steps, 1.1 * mu).cost(epsilon) >= found
    assert Tails(coordinates, steps, mu, rate=0.1).cost(epsilon) <= found


def test_what_the_sampler_cannot_deliver_is_refused_with_the_limit() -> None:
    assert Tails(10**6, 5000).check(1e-5) <= SHARE * 1e-5
    with pytest.raises(NotProvenError, match=r"1\.8e-17"):
        Tails(1, 1).check(1e-18)
    with pytest.raises(NotProvenError, match="100000"):
        Tails(100_000, 1000).check(1e-13)
    with pytest.raises(NotProvenError, match="δ"):
        Tails(10, 1, mu=20.0).check(1e-5)


@pytest.mark.parametrize("std", [2.0**-96, 1e-20, 1.0, 3e28])
def test_scales_that_work(std) -> None:
    check_std(std)
    assert std / 128 < grid(std) <= std / 64
    far = torch.tensor([REACH * std, grid(std)], dtype=torch.float64).float().double()
    assert bool(torch.isfinite(far).all())
    assert float(far[1]) == grid(std)  # the grid is no subnormal number of float32


@pytest.mark.parametrize("std", [0.0, 1e-200, 1e-30, 1e30, 1e308, math.inf, math.nan])
def test_scales_that_do_not_are_refused_with_the_limit(std) -> None:
    with pytest.raises(InvalidInputError, match=r"1\.26e-29"):
        check_std(std)
