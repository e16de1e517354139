"""The price of selection: golden values, and both numbers reported."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event

from hush.errors import BadInput, Refused
from hush.privacy.accounting import epsilon
from hush.privacy.selection import fixed_grid, price, random_trials

RUN = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(1 / 235, dp_event.GaussianDpEvent(1.0)), 4700)


@pytest.mark.parametrize(("shape", "shown"), [(1.0, 3.547), (0.0, 3.005), (math.inf, 3.815)])
def test_golden_random_trials(shape: float, shown: float) -> None:
    # MECHANISMS.md §9: base σ = 1, q = 1/235, T = 4700, mean 10 trials
    assert epsilon(random_trials(RUN, 10, shape), 1e-5, accountant="rdp") == pytest.approx(shown, abs=5e-4)


def test_golden_fixed_grid() -> None:
    # MECHANISMS.md §9: a grid of 60, by RDP; PLD is tighter
    assert epsilon(fixed_grid(RUN, 60), 1e-5, accountant="rdp") == pytest.approx(17.59, abs=5e-3)
    assert epsilon(fixed_grid(RUN, 60), 1e-5) < 17.0


def test_both_prices_are_reported() -> None:
    both = price(RUN, random_trials(RUN, 10), 1e-5)
    assert both.winner.epsilon == pytest.approx(1.566, abs=5e-4)
    assert both.winner.accountant == "pld"
    assert both.selection.epsilon == pytest.approx(3.547, abs=5e-4)
    assert both.selection.accountant == "rdp"
    assert "not chosen" in both.winner.sentence()


def test_selection_is_refused_where_it_cannot_be_accounted() -> None:
    with pytest.raises(Refused, match="use accountant 'rdp'"):
        epsilon(random_trials(RUN, 10), 1e-5)
    with pytest.raises(BadInput, match="at least 1"):
        random_trials(RUN, 0.5)
    with pytest.raises(BadInput, match="shape"):
        random_trials(RUN, 2, -1)
    tiny = dp_event.PoissonSampledDpEvent(1e-9, dp_event.GaussianDpEvent(100.0))
    with pytest.raises(Refused, match="too small"):
        epsilon(random_trials(tiny, 10, math.inf), 1e-5, accountant="rdp")
