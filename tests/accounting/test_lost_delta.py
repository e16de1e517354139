"""δ that no event knows (batches with more examples than places, the tails of the noise) is paid in every total."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from hush.accounting.accountant import epsilon
from hush.accounting.gaussian import gaussian_delta
from hush.accounting.noise_tails import Tails
from hush.ledger.book import Ledger
from hush.ledger.chain import entry_hash
from hush.ledger.entries import OLDER
from hush.ledger.run_account import Account
from hush.ledger.total import WHOLE_ROW, Cost, add_up, use_filter
from hush.textbook.gaussian import NUMPY_REACH, private_mean

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


class TestOlderLines:
    """A run that a version began which said neither how far a run can go nor what rounding costs."""

    def older(self, path: Path, planned: int) -> None:
        account = Account(Ledger(path), "d", run="a", method="dp-sgd", planned=planned, cost=losing)
        account.charge()
        without(path, "limit", "whole", "whole_lost", "lost")

    def test_they_say_what_they_assume(self, path):
        self.older(path, 100)
        found = Ledger(path).total("d", 1e-5)
        assert (found.status, found.assumptions) == ("proven", (OLDER,))
        assert "rounding moved no sum" in found.sentence()

    def test_a_spend_by_hand_assumes_nothing_of_the_kind(self, path):
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
