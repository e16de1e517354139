"""The cost of selection: golden values, and both numbers in the result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial
from scipy.special import gammaln

from hush.accounting.accountant import epsilon
from hush.accounting.selection import Trials, fixed_grid, price, random_trials
from hush.errors import InvalidInputError, NotProvenError

RUN = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(1 / 235, dp_event.GaussianDpEvent(1.0)), 4700)


@pytest.mark.parametrize(("shape", "shown"), [(1.0, 3.547), (0.0, 3.005), (math.inf, 3.815)])
def test_golden_random_trials(shape: float, shown: float) -> None:
    # MECHANISMS.md §9: base σ = 1, q = 1/235, T = 4700, mean 10 trials
    assert epsilon(random_trials(RUN, 10, shape), 1e-5, accountant="rdp") == pytest.approx(shown, abs=5e-4)


def test_golden_fixed_grid() -> None:
    # MECHANISMS.md §9: a grid of 60, by RDP; PLD is tighter
    assert epsilon(fixed_grid(RUN, 60), 1e-5, accountant="rdp") == pytest.approx(17.59, abs=5e-3)
    assert epsilon(fixed_grid(RUN, 60), 1e-5) == pytest.approx(16.45, abs=5e-3)


def test_both_prices_are_reported() -> None:
    both = price(RUN, random_trials(RUN, 10), 1e-5)
    assert both.winner.epsilon == pytest.approx(1.566, abs=5e-4)
    assert both.winner.accountant == "pld"
    assert both.selection.epsilon == pytest.approx(3.547, abs=5e-4)
    assert both.selection.accountant == "rdp"
    assert "not chosen" in both.winner.sentence()


def test_selection_is_refused_where_it_cannot_be_accounted() -> None:
    with pytest.raises(NotProvenError, match="'rdp'"):
        epsilon(random_trials(RUN, 10), 1e-5)
    with pytest.raises(InvalidInputError, match="1"):
        random_trials(RUN, 0.5)
    with pytest.raises(InvalidInputError, match="shape"):
        random_trials(RUN, 2, -1)
    tiny = dp_event.PoissonSampledDpEvent(1e-9, dp_event.GaussianDpEvent(100.0))
    with pytest.raises(NotProvenError):
        epsilon(random_trials(tiny, 10, math.inf), 1e-5, accountant="rdp")


@pytest.mark.parametrize(("shape", "mean"), [(1.0, 10.0), (0.0, 10.0), (0.5, 3.0), (math.inf, 4.0), (1.0, 1.0)])
def test_the_number_of_trials_has_the_distribution_that_is_accounted_for(shape: float, mean: float) -> None:
    """Definition 1 of Papernot and Steinke: P(K = k) by the formula, against the inverse that draws it."""
    trials = Trials(mean, shape)
    points = 20_000
    drawn = np.bincount([trials.count((i + 0.5) / points) for i in range(points)]) / points
    k = np.arange(len(drawn), dtype=float)
    if shape == math.inf:
        chances = np.exp(-mean + k * math.log(mean) - gammaln(k + 1))
    elif mean == 1.0:
        chances = (k == 1).astype(float)
    else:
        gamma = _gamma_truncated_negative_binomial(shape, mean)  # dp-accounting's own
        log = k * math.log1p(-gamma) + gammaln(k + shape) - gammaln(k + 1) if shape else k * math.log1p(-gamma)
        scale = math.gamma(shape) * (gamma**-shape - 1) if shape else -math.log(gamma) * np.maximum(k, 1)
        chances = np.where(k > 0, np.exp(np.where(k > 0, log, 0.0)) / scale, 0.0)
    assert np.abs(drawn - chances).max() < 2 / points
    assert (drawn * k).sum() == pytest.approx(mean, rel=5e-3)


def test_what_trials_lose_of_delta_is_counted_for_all_of_them() -> None:
    assert Trials(10.0, 1.0, 3.0).loss_factor == pytest.approx(10 * (1 + math.exp(3)))
    assert Trials(4.0).event(RUN) == random_trials(RUN, 4.0, 1.0)
