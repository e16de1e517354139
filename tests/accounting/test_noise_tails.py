"""Tails of floating-point Gaussian noise: where they end and what δ they cost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from hush.accounting.accountant import epsilon
from hush.accounting.gaussian import gaussian_delta
from hush.accounting.noise_tails import REACH, SHARE, Tails, check_std, grid
from hush.errors import FormatError, InvalidInputError, NotProvenError
from hush.ledger.book import Ledger
from hush.ledger.chain import entry_hash
from hush.ledger.run_account import Account
from hush.ledger.total import WHOLE_ROW, Cost, add_up, use_filter
from hush.textbook.gaussian import NUMPY_REACH, private_mean


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


# δ outside the events (oversized batches, noise tails) is added to every total.


POISSON = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))


def losing(steps: int) -> Cost:
    """A run that loses a hundredth of its δ at once and a thousandth with every step."""
    return Cost("add-remove", "proven", 1e-5, dp_event.SelfComposedDpEvent(POISSON, steps), lost=1e-7 + 1e-8 * steps)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spent.jsonl"


class TestARunThatMayGoOn:
    def enter(self, path: Path) -> None:
        Account(Ledger(path), "d", run="a", method="dp-sgd", planned=400, cost=losing).charge()

    def test_its_plan_counts_with_all_that_the_plan_loses(self, path):
        self.enter(path)
        assert Ledger(path).total("d", 1e-5).epsilon == pytest.approx(add_up([losing(400)], 1e-5).epsilon, rel=1e-12)


def without(path: Path, *names: str) -> None:
    """Take fields out of the last line, as a version that did not write them would have left it."""
    lines = path.read_text().splitlines()
    entry: dict[str, Any] = {k: v for k, v in json.loads(lines[-1]).items() if k not in (*names, "hash")}
    entry["hash"] = entry_hash(entry)
    path.write_text("\n".join([*lines[:-1], json.dumps(entry, ensure_ascii=False)]) + "\n")
    head = path.with_name(path.name + ".head")
    head.write_text(json.dumps({"lines": len(lines), "hash": entry["hash"]}) + "\n")


class TestUnderReplace:
    def test_what_is_lost_is_multiplied_as_delta_is(self):
        """(ε, δ + lost) for one change is (2ε, (1 + e^ε)(δ + lost)) for two."""
        lost = 2e-8
        other = Cost("replace", "proven", 1e-5, points=((1e-9, 0.0),))
        gaussian = Cost("add-remove", "proven", 1e-5, dp_event.GaussianDpEvent(1.0), lost=lost)
        found = add_up([gaussian, other], 1e-5).epsilon
        each = found / 2
        inner = (1e-5 - 1e-9) / (1 + math.exp(each)) - lost
        assert each >= epsilon(dp_event.GaussianDpEvent(1.0), inner, accountant="gdp") * (1 - 1e-9)

    def test_where_the_lost_part_alone_is_too_much_nothing_is_proven(self):
        other = Cost("replace", "proven", 1e-5, points=((1e-9, 0.0),))
        gaussian = Cost("add-remove", "proven", 1e-5, dp_event.GaussianDpEvent(0.5), lost=9e-7)
        assert add_up([gaussian, other], 1e-5).status == "none"


class TestFilter:
    def test_its_bound_does_not_depend_on_what_later_runs_lose(self):
        """The order and the bound are fixed before the first run; what was lost since may only break it."""
        first = losing(10)
        few = use_filter(first, [replace(first, lost=0.0)], 3.0, 1e-5)
        many = use_filter(first, [replace(first, lost=9e-8)], 3.0, 1e-5)
        assert few is not None
        assert many is not None
        assert (few.order, few.allowed) == (many.order, many.allowed)

    def test_it_does_not_hold_where_more_was_lost_than_was_set_aside(self):
        first = losing(10)
        found = use_filter(first, [replace(first, lost=5e-6)], 3.0, 1e-5)
        assert found is not None
        assert not found.holds

    def test_it_states_no_more_than_is_proven_at_the_delta_that_is_left(self):
        first = replace(losing(10), lost=9e-8)
        found = use_filter(first, [first], 3.0, 1e-5)
        assert found is not None
        assert found.holds
        left = 1e-5 - 9e-8
        order = found.order
        converted = 3.0 + (math.log(left * (order - 1)) - order * math.log1p(-1 / order)) / (order - 1)
        assert found.allowed <= converted


@pytest.mark.parametrize("calibration", ["classic", "any-epsilon", "pei", "analytic"])
def test_a_private_mean_leaves_delta_for_its_tails(calibration):
    """δ of the Gaussian and the end of its tails are at most δ together."""
    found = private_mean([0.5, 0.25], 1.0, 0.5, 1e-6, np.random.default_rng(0), calibration=calibration)
    own = gaussian_delta(found.guarantee.epsilon, found.sensitivity / found.noise_std)
    tails = Tails(1, 1, found.sensitivity / found.noise_std, reach=NUMPY_REACH).cost(0.5)
    assert own + tails <= 1e-6 * (1 + 1e-9)


def test_a_line_of_a_version_without_lost_delta_is_refused(path):
    Account(Ledger(path), "d", run="a", method="dp-sgd", planned=100, cost=losing).charge()
    without(path, "limit", "whole", "whole_lost", "lost")
    with pytest.raises(FormatError, match="line 2"):
        Ledger(path)


def test_a_spend_by_hand_assumes_nothing(path):
    Ledger(path).add("d", 1.0, 1e-5, run="census")
    assert Ledger(path).total("d", 1e-5).assumptions == ()


class TestALossThatIsForOneEpsilon:
    """What tails cost beside the ε of a run is less than what they cost beside any: the rest is ``beside``."""

    run = Cost("add-remove", "proven", 1e-5, dp_event.GaussianDpEvent(3.0), lost=1e-9, composed=2e-7)

    def at(self, delta: float) -> float:
        return epsilon(dp_event.GaussianDpEvent(3.0), delta, accountant="gdp")

    def test_alone_and_at_its_own_delta_it_is_as_it_was_stated(self):
        assert add_up([self.run], 1e-5).epsilon == pytest.approx(self.at(1e-5 - 1e-9), rel=1e-12)
        assert add_up([self.run]).epsilon == add_up([self.run], 1e-5).epsilon

    def test_at_a_smaller_delta_its_epsilon_is_larger_and_all_is_charged(self):
        assert add_up([self.run], 1e-6).epsilon == pytest.approx(self.at(1e-6 - 1e-9 - 2e-7), rel=1e-12)

    def test_for_two_changes_all_is_charged(self):
        of_patients = replace(self.run, unit="patient_id")
        each = add_up([of_patients], 1e-5, scope=WHOLE_ROW).epsilon / 2
        inner = 1e-5 / (1 + math.exp(each)) - 1e-9 - 2e-7
        assert each >= self.at(inner) * (1 - 1e-9)
        assert add_up([of_patients], 1e-5, scope=of_patients.scope).epsilon == add_up([self.run], 1e-5).epsilon
