"""Privacy loss distributions against exact values: never below, and close above, also where a plain FFT fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.pld import (
    DROPPED,
    CountedLeaf,
    Direction,
    Grid,
    _count_frequencies,
    _Tilted,
    chernoff_delta,
    compose,
    laplace,
    poisson_gaussian,
    randomized_response,
)


def numerical_epsilon(rate: float, sigma: float, steps: int, delta: float, direction: Direction = "remove") -> float:
    pair = poisson_gaussian(rate, sigma, direction, delta * 1e-7 / steps)
    return compose([CountedLeaf(pair.grid, pair.width, steps)], delta=delta).epsilon(delta)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8, 1e-12, 1e-30])
@pytest.mark.parametrize(
    ("sigma", "steps"), [(1.0, 1), (0.05, 1), (30.0, 1), (10.0, 100), (100.0, 10**4), (300.0, 10**6)]
)
def test_composed_gaussians_lie_just_above_the_exact_answer(sigma: float, steps: int, delta: float) -> None:
    exact = gaussian_epsilon(delta, math.sqrt(steps) / sigma)
    found = numerical_epsilon(1.0, sigma, steps, delta)
    assert exact <= found <= exact * (1 + 5e-5)


def test_many_steps_at_a_tiny_delta_agree_with_the_exact_answer() -> None:
    # why the composition is hush's own: here the rounding of a plain FFT (dp-accounting 0.6) is larger than δ, and puts
    # its ε a few percent too low or too high, depending on the processor
    exact = gaussian_epsilon(1e-13, 1.0)
    assert exact <= numerical_epsilon(1.0, 100.0, 10**4, 1e-13) <= exact * (1 + 5e-5)


def exact_delta(rate: float, sigma: float, epsilon: float, direction: Direction) -> float:
    """∫[P − e^ε Q]₊ of one step, by quadrature."""
    scale = 2 * sigma if direction == "replace" else sigma

    def mixture(z: float, centre: float) -> float:
        return (1 - rate) * norm.pdf(z, 0, scale) + rate * norm.pdf(z, centre, scale)

    def gap(z: float) -> float:
        plain, up, down = norm.pdf(z, 0, scale), mixture(z, 1), mixture(z, -1)
        p, q = {"remove": (up, plain), "add": (plain, up), "replace": (up, down)}[direction]
        return max(p - math.exp(epsilon) * q, 0.0)

    reach = 1 + 12 * scale
    return quad(gap, -reach, reach, limit=500, points=[-1, 0, 0.5, 1], epsabs=1e-14)[0]


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 0.7), (0.9, 2.0)])
def test_one_step_agrees_with_quadrature(rate: float, sigma: float, direction: Direction) -> None:
    pair = poisson_gaussian(rate, sigma, direction, 1e-25)
    top = {"remove": 1.0, "add": -math.log1p(-rate), "replace": 1.0}[direction]
    for epsilon in (0.05 * top, 0.3 * top, 0.8 * top):
        found = compose([CountedLeaf(pair.grid, pair.width, 1)], epsilon=epsilon).delta(epsilon)
        exact = exact_delta(rate, sigma, epsilon, direction)
        assert exact * (1 - 1e-6) - 1e-13 <= found <= exact * (1 + 5e-3) + 1e-12


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.01, 0.99),
    st.floats(0.3, 5.0),
    st.floats(0.01, 3.0),
    st.floats(0, math.pi),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_replace_is_worst_from_one_end_of_the_ball_to_the_other(
    rate: float, scale: float, epsilon: float, angle: float, first: float, second: float
) -> None:
    axis = np.linspace(-1 - 7 * scale, 1 + 7 * scale, 241)
    x, y = np.meshgrid(axis, axis)
    area = (axis[1] - axis[0]) ** 2

    def bump(a: float, b: float) -> np.ndarray:
        return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * scale**2)) / (2 * math.pi * scale**2)

    def divergence(u: tuple[float, float], v: tuple[float, float]) -> float:
        p, q = ((1 - rate) * bump(0, 0) + rate * bump(*w) for w in (u, v))
        return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * area)

    other = (second * math.cos(angle), second * math.sin(angle))
    assert divergence((first, 0.0), other) <= divergence((1.0, 0.0), (-1.0, 0.0)) + 1e-4


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-4, 1.0),
    st.floats(0.05, 50.0),
    st.sampled_from(["remove", "add", "replace"]),
    st.floats(1e-3, 0.3),
)
def test_a_grid_keeps_all_mass_and_never_lowers_the_loss(
    rate: float, sigma: float, direction: Direction, cell: float
) -> None:
    pair = poisson_gaussian(rate, sigma, direction, 1e-20)
    grid = pair.grid(cell * pair.width)
    assert grid.masses.min() >= 0
    assert grid.masses.sum() + grid.infinite == pytest.approx(1.0, abs=1e-12)
    rounding = 4e-16 * math.exp(-grid.losses[0])  # of one mass, at the smallest loss
    assert float(grid.masses @ np.exp(-grid.losses)) <= 1 + 1e-6 + rounding  # Q's mass on the same losses
    at = np.linspace(grid.losses[0], grid.losses[-1], 7)
    upper, lower = pair.tails(at)
    for epsilon, exact in zip(at, upper - np.exp(at) * lower, strict=True):
        above = grid.losses > epsilon
        found = grid.infinite - float(grid.masses[above] @ np.expm1(epsilon - grid.losses[above]))
        assert found >= exact - 1e-12 * max(1.0, math.exp(min(epsilon, 20.0)))


def test_laplace_and_randomised_response_losses() -> None:
    grid = laplace(2.0).grid(1e-3)
    assert grid.losses[[0, -1]] == pytest.approx([-0.5, 0.5], abs=1e-3)
    # an atom of 1/2 at +1/scale, and one of e^(−1/scale)/2 at −1/scale
    assert grid.masses[-3:].sum() == pytest.approx(0.5, abs=2e-3)
    assert grid.masses[:3].sum() == pytest.approx(0.5 * math.exp(-0.5), abs=2e-3)
    grid = randomized_response(0.4, 2, "replace").grid(1e-3)
    assert float(grid.masses @ grid.losses) == pytest.approx((0.8 - 0.2) * math.log(4), abs=1e-3)


def test_a_finer_grid_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [(0.01, 1.0, 1000, "remove"), (0.005, 0.5, 4000, "remove"), (0.01, 0.5, 1000, "replace")]
    coarse = [numerical_epsilon(q, s, t, 1e-5, d) for q, s, t, d in settings]
    monkeypatch.setattr("hush.accounting.pld.ACCURACY", 1e-7)
    fine = [numerical_epsilon(q, s, t, 1e-5, d) for q, s, t, d in settings]
    for a, b in zip(coarse, fine, strict=True):
        assert b <= a <= b * (1 + 2e-5)


class TestFrequenciesThatAreLeftOut:
    """In a long composition only the lowest frequencies are computed."""

    SIZE, COUNTS = 2**17, (300_000, 200_000, 7)

    def steps(self) -> list[_Tilted]:
        pairs = [
            poisson_gaussian(0.01, 20.0, "remove", 1e-18),
            poisson_gaussian(0.02, 30.0, "add", 1e-18),
            laplace(500.0),
        ]
        return [_Tilted.of(pair.grid(pairs[0].width / 400), 5.0) for pair in pairs]

    def test_they_are_as_small_as_is_charged(self) -> None:
        kept = _count_frequencies(self.steps(), self.COUNTS, self.SIZE)
        every = [step.frequencies(self.SIZE // 2 + 1, self.SIZE) for step in self.steps()]
        with np.errstate(divide="ignore"):
            logs = sum(count * np.log(np.abs(values)) for values, count in zip(every, self.COUNTS, strict=True))
        assert logs[kept:].max() <= math.log(DROPPED) < logs[: kept // 8].max()
        assert kept < self.SIZE // 50

    def test_the_lowest_are_those_of_a_whole_transform(self) -> None:
        for step in self.steps():
            whole = step.frequencies(self.SIZE // 2 + 1, self.SIZE)
            assert np.abs(step.frequencies(50, self.SIZE) - whole[:50]).max() < 1e-14

    def test_none_is_left_out_where_losses_come_in_lumps(self) -> None:
        lumps = Grid(1e-3, -50, np.where(np.arange(101) % 2, 0.0, 1 / 51), 0.0)  # every second cell is empty
        assert _count_frequencies([_Tilted.of(lumps, 5.0)], (10**6,), self.SIZE) == self.SIZE // 2 + 1

    @pytest.mark.parametrize("delta", [1e-3, 1e-9])
    def test_epsilon_is_the_same_without_leaving_any_out(self, delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
        found = numerical_epsilon(0.01, 20.0, 500_000, delta)
        monkeypatch.setattr("hush.accounting.pld._count_frequencies", lambda steps, counts, size: size // 2 + 1)
        assert found == pytest.approx(numerical_epsilon(0.01, 20.0, 500_000, delta), rel=1e-9)


def test_chernoff_shortcut_is_sound() -> None:
    pair = poisson_gaussian(0.05, 1.0, "add", 1e-15)
    parts = [CountedLeaf(pair.grid, pair.width, 500)]
    exact = compose(parts, delta=1e-5).epsilon(1e-5)
    assert chernoff_delta(parts, exact, 1e-4) > 1e-5
    assert chernoff_delta(parts, exact * 1.3, 1e-4) < 1e-5


def test_infinite_loss_is_counted() -> None:
    pair = poisson_gaussian(0.5, 1.0, "remove", 1e-4)  # cuts off far too much
    composed = compose([CountedLeaf(pair.grid, pair.width, 100)], delta=0.1)
    assert composed.product.infinite == pytest.approx(100 * pair.grid(1e-3).infinite, rel=0.02)
    assert composed.epsilon(1e-4) == math.inf
    assert composed.delta(1e3) >= composed.product.infinite
