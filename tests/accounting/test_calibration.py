"""Calibration: golden σ, never too small, within 0.1 %, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.accounting.accountant import epsilon
from hush.accounting.calibration import largest_steps, smallest_sigma
from hush.accounting.gaussian import gaussian_mu
from hush.errors import InvalidInputError, NotProvenError


def dp_sgd(rate: float, steps: int) -> Callable[[float], dp_event.DpEvent]:
    return lambda sigma: dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps
    )


@pytest.mark.parametrize(
    ("batch", "target", "shown"),
    [
        # MECHANISMS.md §3: N = 50 000, q = L/N, T = 250·⌈N/L⌉, δ = 1e-5. The smallest σ is 4.294 for the first (finer
        # grids agree); dp-accounting's grid of 1e-4 makes it 4.296, and the margin of calibration 4.295
        (256, 1.0, "4.30"),
        (256, 5.0, "1.218"),
        (256, 10.0, "0.847"),
        (1024, 1.0, "8.50"),
        (1024, 5.0, "2.150"),
        (1024, 10.0, "1.327"),
    ],
)
def test_golden_sigmas(batch: int, target: float, shown: str) -> None:
    event_of = dp_sgd(batch / 50_000, 250 * math.ceil(50_000 / batch))
    sigma = smallest_sigma(event_of, target, 1e-5)
    assert f"{sigma:.{len(shown.partition('.')[2])}f}" == shown
    assert epsilon(event_of(sigma), 1e-5) <= target < epsilon(event_of(sigma * (1 - 1e-3)), 1e-5)


@pytest.mark.parametrize("target", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-3])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (1.0, 50), (0.3, 1)])
def test_safe_side_and_tight_everywhere(rate: float, steps: int, target: float, delta: float) -> None:
    event_of = dp_sgd(rate, steps)
    sigma = smallest_sigma(event_of, target, delta)
    assert epsilon(event_of(sigma), delta) <= target < epsilon(event_of(sigma * (1 - 1e-3)), delta)


def test_a_million_steps() -> None:
    event_of = dp_sgd(1e-3, 10**6)
    sigma = smallest_sigma(event_of, 1.0, 1e-12)
    assert epsilon(event_of(sigma), 1e-12) <= 1.0 < epsilon(event_of(sigma * (1 - 1e-3)), 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 100.0), st.floats(1e-12, 1e-2), st.integers(1, 10**6))
def test_exact_gaussians_need_the_analytic_sigma(target: float, delta: float, steps: int) -> None:
    def event_of(sigma: float) -> dp_event.DpEvent:
        return dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(sigma), steps)

    exact = math.sqrt(steps) / gaussian_mu(target, delta)
    for accountant in ("gdp", "pld"):
        assert exact * (1 - 1e-9) <= smallest_sigma(event_of, target, delta, accountant=accountant) <= exact * 1.001


def test_rdp_and_replace() -> None:
    def event_of(sigma: float) -> dp_event.DpEvent:
        return dp_event.SampledWithoutReplacementDpEvent(1000, 100, dp_event.GaussianDpEvent(sigma / 2))

    sigma = smallest_sigma(event_of, 0.5, 1e-5, adjacency="replace", accountant="rdp")
    assert epsilon(event_of(sigma), 1e-5, adjacency="replace", accountant="rdp") <= 0.5
    assert epsilon(event_of(sigma * 0.999), 1e-5, adjacency="replace", accountant="rdp") > 0.5


def test_few_questions_to_the_accountant() -> None:
    asked: list[float] = []

    def event_of(sigma: float) -> dp_event.DpEvent:
        asked.append(sigma)
        return dp_sgd(0.004, 5000)(sigma)

    smallest_sigma(event_of, 3.0, 1e-5)
    assert len(asked) <= 15


def test_impossible_and_pointless_targets_are_refused() -> None:
    def fixed(sigma: float) -> dp_event.DpEvent:
        return dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), dp_event.GaussianDpEvent(sigma)])

    with pytest.raises(NotProvenError, match="ε"):
        smallest_sigma(fixed, 1.0, 1e-5)
    with pytest.raises(NotProvenError, match="noise"):
        smallest_sigma(lambda _: dp_event.GaussianDpEvent(100.0), 1.0, 1e-5)
    with pytest.raises(InvalidInputError, match="epsilon"):
        smallest_sigma(dp_event.GaussianDpEvent, 0.0, 1e-5)
    with pytest.raises(InvalidInputError, match="epsilon"):
        smallest_sigma(dp_event.GaussianDpEvent, math.inf, 1e-5)
    with pytest.raises(InvalidInputError, match="delta"):
        smallest_sigma(dp_event.GaussianDpEvent, 1.0, 0.0)


def test_largest_steps() -> None:
    def event_of(steps: int) -> dp_event.DpEvent:
        return dp_sgd(1 / 235, steps)(1.0)

    # MECHANISMS.md §3: 4700 steps cost 1.566; so 1.5661 allows about as many
    steps = largest_steps(event_of, 1.5661, 1e-5)
    assert 4699 <= steps <= 4705
    assert epsilon(event_of(steps), 1e-5) <= 1.5661 < epsilon(event_of(steps + 1), 1e-5)
    with pytest.raises(NotProvenError):
        largest_steps(lambda t: dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), t), 1.0, 1e-5)
    with pytest.raises(NotProvenError):
        largest_steps(lambda _: dp_event.GaussianDpEvent(100.0), 1.0, 1e-5)
