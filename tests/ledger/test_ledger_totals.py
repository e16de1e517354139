"""The ledger adds up what was spent, never too little, and says what its sum assumes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from spends import GAUSS, POISSON, account, gaussian, poisson

from hush.accounting.accountant import epsilon
from hush.accounting.events import find_leaves, rebuild
from hush.accounting.renyi import divergences
from hush.errors import NotProvenError
from hush.ledger import total
from hush.ledger.book import Ledger
from hush.ledger.total import FIXED, Cost, add_up, coarsen


class TestTotal:
    def test_golden_one_run(self):
        # MECHANISMS.md §2: q = 0.01, T = 1000, σ = 1, δ = 1e-5, PLD add-remove
        assert round(add_up([poisson(1000)], 1e-5).epsilon, 3) == 1.828

    def test_two_halves_are_one_whole(self):
        halves = add_up([poisson(500), poisson(500)], 1e-5)
        assert halves.epsilon == pytest.approx(add_up([poisson(1000)], 1e-5).epsilon, rel=1e-9)
        assert halves.composition == "composed as one event"

    def test_gaussians_add_their_mu_squared(self):
        both = add_up([gaussian(math.sqrt(2)), gaussian(math.sqrt(2))], 1e-5)
        assert both.epsilon == pytest.approx(epsilon(GAUSS(1.0), 1e-5, accountant="gdp"), rel=1e-9)

    def test_zero_out_and_add_remove_agree_as_zero_out(self):
        both = add_up([poisson(500), poisson(500, adjacency="zero-out")], 1e-5)
        assert both.adjacency == "zero-out"
        assert both.epsilon == pytest.approx(add_up([poisson(1000)], 1e-5).epsilon, rel=1e-9)

    def test_replace_with_another_relation_is_stated_for_replace(self):
        # one Gaussian(σ) under add-remove is exactly Gaussian(σ/2) under replace: the bound must not be below that
        both = add_up([gaussian(4.0), gaussian(4.0, "replace")], 1e-5)
        truth = epsilon(dp_event.ComposedDpEvent([GAUSS(2.0), GAUSS(4.0)]), 1e-5, adjacency="replace", accountant="gdp")
        assert both.adjacency == "replace"
        assert truth < both.epsilon < 4 * truth
        assert "basic composition" in both.composition

    def test_what_no_accountant_can_join_is_added_up(self):
        fixed = Cost("replace", "proven", 1e-5, dp_event.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2.0)))
        sampled = poisson(10, adjacency="replace")  # PLD cannot account for the first, RDP not for this one
        both = add_up([fixed, sampled], 1e-5)
        parts = [add_up([c], 5e-6).epsilon for c in (fixed, sampled)]
        assert both.epsilon == pytest.approx(sum(parts))
        assert "basic composition" in both.composition

    @settings(max_examples=40, deadline=None)
    @given(sigmas=st.lists(st.floats(0.3, 30), min_size=1, max_size=4), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
    def test_more_spends_never_cost_less(self, sigmas, delta):
        costs = [gaussian(s) for s in sigmas]
        assert add_up([*costs, gaussian(5.0)], delta).epsilon > add_up(costs, delta).epsilon

    def test_stated_spends_take_their_own_delta(self):
        by_hand = Cost("add-remove", "proven", 1e-6, points=((1e-6, 0.5),))
        assert add_up([by_hand], 1e-5).epsilon == 0.5
        assert add_up([by_hand], 1e-7).epsilon == math.inf
        both = add_up([by_hand, gaussian(1.0)], 1e-5)
        assert both.epsilon == pytest.approx(0.5 + epsilon(GAUSS(1.0), 9e-6, accountant="gdp"))
        natural = add_up([by_hand, by_hand, gaussian(1.0)])
        assert natural.delta == pytest.approx(1.2e-5)
        assert math.isfinite(natural.epsilon)

    def test_of_several_points_the_cheapest_that_fits_is_used(self):
        points = Cost("add-remove", "proven", 1e-5, points=((1e-5, 1.0), (5e-6, 1.1), (1e-6, 1.5)))
        assert add_up([points], 1e-5).epsilon == 1.0
        assert add_up([points, points], 1e-5).epsilon == pytest.approx(2.2)
        assert add_up([points, points], 2e-5).epsilon == pytest.approx(2.0)

    @pytest.mark.parametrize(
        ("statuses", "worst", "word"),
        [
            (["proven", "proven"], "proven", "proven"),
            (["proven", "claimed"], "claimed", "not a guarantee"),
            (["claimed", "refuted"], "refuted", "not a guarantee"),
            (["proven", "none"], "none", "no privacy"),
        ],
    )
    def test_the_weakest_status_labels_the_total(self, statuses, worst, word):
        found = add_up([poisson(10, s) for s in statuses], 1e-5)
        assert found.status == worst
        assert word in found.sentence()
        assert (found.epsilon == math.inf) == (worst == "none")


class TestAssumptions:
    def test_several_spends_assume_that_they_were_fixed_in_advance(self):
        one, two = add_up([poisson(10)], 1e-5), add_up([poisson(10), poisson(10)], 1e-5)
        assert one.assumptions == ()
        assert two.assumptions == (FIXED,)
        assert two.sentence().endswith(f"; proven, on conditions: {FIXED}")

    def test_a_spend_brings_its_own(self, path):
        seed = "the secret seed stays secret"

        def seeded(steps):
            return Cost("add-remove", "proven", 1e-5, dp_event.SelfComposedDpEvent(POISSON, steps), (), (seed,))

        account(path, cost=seeded).charge()
        account(path, "b").charge()
        assert Ledger(path).total("d").assumptions == (seed, FIXED)

    def test_a_filter_needs_none(self, path):
        ledger = Ledger(path)
        ledger.set_budget("d", 2.0, 1e-5)
        assert ledger.filtered("d") is None
        account(path, planned=100).charge()
        account(path, "b", planned=100).charge()
        found = Ledger(path).filtered("d")
        joint = dp_event.SelfComposedDpEvent(POISSON, 200)
        assert found.holds
        assert found.spent == pytest.approx(divergences(joint, "add-remove")[found.order], rel=1e-9)
        # what it allows is what (ε, δ) follows from at this order, with a hundredth of δ set aside
        gauss = GAUSS(math.sqrt(found.order / 2 / found.allowed))
        assert epsilon(gauss, 0.99e-5, accountant="rdp", orders=(found.order,)) == pytest.approx(2.0, rel=1e-6)
        room = account(path, "c", planned=1000).room()
        account(path, "c", planned=room).charge()
        assert not Ledger(path).filtered("d").holds  # the exact total fits a little longer than the filter does
        Ledger(path).set_budget("d", 3.0, 1e-5)
        assert Ledger(path).filtered("d") is None  # a budget that was changed was not fixed in advance

    def test_a_budget_that_came_later_is_no_filter(self, path):
        account(path).charge()
        ledger = Ledger(path)
        ledger.set_budget("d", 2.0, 1e-5)
        assert ledger.filtered("d") is None


def different(number: int, rates: bool = False) -> list[Cost]:
    """So many runs that are all different: in their noise, and in their rates if asked for."""
    return [
        Cost("zero-out", "proven", 1e-5, dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(q, GAUSS(s)), 10))
        for i in range(number)
        for q, s in [(0.01 * (1 + (i % 17) / 17) if rates else 0.01, 20 * (1 + i / number))]
    ]


class TestMoreThanAnAccountantTakes:
    """Where a total cannot be composed as one event it is bound from above, and no total raises."""

    def test_a_thousand_and_one_different_runs_have_a_total(self, path):
        found = add_up(different(1001), 1e-5)
        assert found.status == "proven"
        assert "1001 different" in found.composition
        assert 0 < found.epsilon < math.inf

    def test_five_thousand_too(self):
        found = add_up(different(5000, rates=True), 1e-5)
        fewest = add_up([poisson(50_000, adjacency="zero-out")], 1e-5)  # the same at σ = 1, which is far dearer
        assert found.status == "proven"
        assert 0 < found.epsilon < fewest.epsilon

    @pytest.mark.parametrize("rates", [False, True])
    @pytest.mark.parametrize(("kinds", "delta"), [(5, 1e-5), (20, 1e-9)])
    def test_rounded_to_fewer_kinds_it_is_never_less(self, rates, kinds, delta):
        joint = dp_event.ComposedDpEvent([cost.event for cost in different(60, rates)])
        fewer = coarsen(find_leaves(joint), kinds)
        assert len(fewer.others) <= kinds
        assert sum(count for _, count in fewer.others) == 600
        exact, rounded = (epsilon(event, delta, adjacency="zero-out") for event in (joint, rebuild(fewer)))
        assert exact <= rounded < 2.5 * exact

    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_every_kind_is_replaced_by_one_that_costs_no_less(self, data):
        number, up = st.floats(1.0, 40.0), st.floats(0.001, 0.5)
        leaf = st.one_of(
            st.builds(lambda q, s: dp_event.PoissonSampledDpEvent(q, GAUSS(s)), up, number),
            st.builds(dp_event.LaplaceDpEvent, number),
            st.builds(lambda p: dp_event.RandomizedResponseDpEvent(p, 3), st.floats(0.2, 0.9)),
        )
        joint = dp_event.ComposedDpEvent(data.draw(st.lists(leaf, min_size=2, max_size=6)))
        fewer = coarsen(find_leaves(joint), data.draw(st.integers(1, 3)))
        exact, rounded = (epsilon(event, 1e-5, adjacency="zero-out") for event in (joint, rebuild(fewer)))
        assert rounded >= exact * (1 - 1e-6)

    def test_without_replacement_by_rdp(self):
        drawn = [dp_event.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2 + i / 50)) for i in range(4)]
        joint = dp_event.ComposedDpEvent(drawn)
        fewer = coarsen(find_leaves(joint), 2)
        exact, rounded = (epsilon(e, 1e-5, adjacency="replace", accountant="rdp") for e in (joint, rebuild(fewer)))
        assert exact <= rounded < 1.2 * exact

    def test_what_no_accountant_takes_together_is_two_parts_and_not_hundreds(self):
        """Without replacement only rdp has a bound, for Poisson under replace only pld."""
        fixed = Cost("replace", "proven", 1e-5, dp_event.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(9.0)))
        both = add_up([fixed, poisson(10, adjacency="replace")] * 20, 1e-5)
        halves = [add_up([c] * 20, 5e-6).epsilon for c in (fixed, poisson(10, adjacency="replace"))]
        assert both.epsilon == pytest.approx(sum(halves), rel=1e-9)
        assert "2 parts" in both.composition

    def test_where_an_accountant_fails_halves_are_added(self, monkeypatch):
        """As if the pld accountant found no grid for more than one kind of release at a time."""
        costs = [replace(poisson(10 + n), adjacency="replace", event=cost.event) for n, cost in enumerate(different(4))]
        exact, real = add_up(costs, 1e-5).epsilon, total.epsilon

        def refuse(event, delta, **how):
            if how["accountant"] == "rdp" or len(find_leaves(event).others) > 1:
                raise NotProvenError("no grid")
            return real(event, delta, **how)

        monkeypatch.setattr(total, "epsilon", refuse)
        found = add_up(costs, 1e-5)
        assert found.epsilon == pytest.approx(sum(add_up([c], 1e-5 / 4).epsilon for c in costs), rel=1e-9)
        assert found.epsilon > exact
        monkeypatch.setattr(total, "epsilon", lambda *_, **__: refuse(costs[0].event, 0, accountant="rdp"))
        assert (add_up(costs, 1e-5).epsilon, add_up(costs, 1e-5).status) == (math.inf, "none")

    def test_equal_spends_are_composed_once(self):
        many = [poisson(3) for _ in range(50)]
        assert add_up(many, 1e-5).epsilon == pytest.approx(add_up([poisson(150)], 1e-5).epsilon, rel=1e-9)
        hand = [Cost("add-remove", "proven", 1e-9, points=((1e-9, 0.25),))] * 40
        assert add_up(hand, 1e-5).epsilon == pytest.approx(10.0)
        assert add_up(hand).delta == pytest.approx(4e-8)


def test_no_total_is_proven_without_a_number() -> None:
    by_hand = Cost("add-remove", "proven", 1e-6, points=((1e-6, 0.5),))
    found = add_up([by_hand], 1e-7)
    assert (found.epsilon, found.status) == (math.inf, "none")
    assert found.sentence() == "no finite ε is proven at δ = 1e-7 (add-remove) over 1 spend"
    most = add_up([Cost("add-remove", "proven", 0.6, points=((0.6, 0.5),))] * 2)
    assert (most.delta, most.status) == (1.0, "none")
