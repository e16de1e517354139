"""Ledger totals: never too small, with their assumptions."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.accounting.accountant import epsilon
from hush.accounting.events import find_leaves, rebuild
from hush.accounting.renyi import divergences
from hush.errors import BudgetExceededError, InvalidInputError, NotProvenError
from hush.ledger import total
from hush.ledger.book import Ledger
from hush.ledger.entries import Budget
from hush.ledger.run_account import Account, cost_of
from hush.ledger.total import FIXED, Cost, Scope, add_up, coarsen, count_changes, group_privacy, use_filter
from hush.methods import make_plan
from ledger_accounts import GAUSS, POISSON, SPEND_LINE, account, gaussian, poisson


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


# Datasets and their parts: composable spends are added, others give an infinite total.


GAUSS_SCOPED = dp_event.GaussianDpEvent
ROW, PATIENT, HOUSEHOLD = "example", "patient_id", "household"
UNITS, PARTS = (ROW, PATIENT, HOUSEHOLD), ("example", "features", "labels")


def stated(eps: float, delta: float = 1e-6, adjacency: Any = "add-remove", unit: str = ROW, part: Any = "example"):
    return Cost(adjacency, "proven", delta, points=((delta, eps),), unit=unit, protects=part)


def gaussian_scoped(sigma: float, adjacency: Any = "add-remove", unit: str = ROW, part: Any = "example") -> Cost:
    return Cost(adjacency, "proven", 1e-5, GAUSS_SCOPED(sigma), unit=unit, protects=part)


def total_scoped(costs: list[Cost], unit: str = ROW, part: Any = "example", delta: float | None = None, **caps: int):
    return add_up(costs, delta, scope=Scope(unit, part), caps=caps)


class TestGroups:
    def test_golden_three_rows(self):
        # (3ε, δ(1 + e^ε + e^{2ε})) by hand at ε = 0.5, δ = 1e-6: 1 + 1.6487213 + 2.7182818 = 5.3670031
        found = total_scoped([stated(0.5)], PATIENT, patient_id=3)
        assert found.epsilon == 1.5
        assert found.delta == pytest.approx(5.3670031e-6, rel=1e-7)
        assert (found.adjacency, found.status) == ("add-remove", "proven")
        assert found.assumptions == (
            "no patient_id has more than 3 rows, which is public and was not counted in the data",
        )

    def test_replacing_a_person_is_twice_as_many_rows(self):
        # with a spend under replace beside it: 2·3 removals and additions, Σ_{j<6} e^{j/2} = 29.4200… (by hand)
        found = total_scoped([stated(0.5), stated(0.0, 1e-9, "replace", PATIENT)], PATIENT, patient_id=3)
        assert (found.adjacency, found.epsilon) == ("replace", 3.0)
        assert found.delta == pytest.approx(1e-6 * sum(math.exp(j / 2) for j in range(6)) + 1e-9, rel=1e-9)

    @pytest.mark.parametrize(("eps", "count"), [(0.0, 5), (1e-12, 7), (0.3, 4), (2.0, 2), (1.0, 1), (3.0, 9)])
    def test_the_sum_is_never_below_its_terms(self, eps, count):
        grown, times = group_privacy(1e-9, eps, count)
        exact = math.fsum(math.exp(j * eps) for j in range(count)) * 1e-9
        assert exact * (1 - 1e-15) <= grown <= exact * (1 + 1e-9)
        assert times == count * eps

    def test_what_is_too_large_for_a_number_is_infinite(self):
        assert group_privacy(1e-9, 100.0, 9) == (math.inf, 900.0)
        assert group_privacy(1e-9, math.inf, 9)[1] == math.inf
        assert total_scoped([stated(100.0)], PATIENT, delta=1e-5, patient_id=9).epsilon == math.inf

    def test_an_event_bears_as_many_changes_as_rows(self):
        # never below the truth, which for a Gaussian is three times its μ; and by the formula at some smaller δ
        found = total_scoped([gaussian_scoped(10.0)], PATIENT, delta=1e-5, patient_id=3).epsilon
        assert found > epsilon(GAUSS_SCOPED(10.0 / 3), 1e-5, accountant="gdp")
        inner = 1e-5 / sum(math.exp(j * found / 3) for j in range(3))
        assert epsilon(GAUSS_SCOPED(10.0), inner, accountant="gdp") <= found / 3
        assert found / 3 <= epsilon(GAUSS_SCOPED(10.0), inner / 8, accountant="gdp")

    def test_lost_delta_is_lost_by_every_change(self):
        lost = Cost("add-remove", "proven", 1e-5, GAUSS_SCOPED(10.0), lost=2e-6)
        assert (
            total_scoped([lost], PATIENT, delta=1e-5, patient_id=3).epsilon
            > total_scoped([gaussian_scoped(10.0)], PATIENT, delta=1e-5, patient_id=3).epsilon
        )
        assert total_scoped([lost], PATIENT, delta=5e-6, patient_id=3).epsilon == math.inf  # three times 2e-6 is more

    @pytest.mark.parametrize(
        ("spent", "asked", "adjacency", "relation", "changes"),
        [
            (ROW, ROW, "add-remove", "add-remove", 1),
            (ROW, ROW, "add-remove", "replace", 2),
            (ROW, ROW, "replace", "replace", 1),
            (ROW, PATIENT, "add-remove", "add-remove", 4),
            (ROW, PATIENT, "zero-out", "zero-out", 4),
            (ROW, PATIENT, "replace", "replace", 4),
            (ROW, PATIENT, "zero-out", "replace", 8),
            (PATIENT, ROW, "add-remove", "add-remove", 2),  # the person goes, and comes back with a row more
            (PATIENT, ROW, "zero-out", "zero-out", 2),
            (PATIENT, ROW, "add-remove", "replace", 2),
            (PATIENT, ROW, "replace", "replace", 1),
            (PATIENT, PATIENT, "zero-out", "replace", 2),
        ],
    )
    def test_how_many_changes(self, spent, asked, adjacency, relation, changes):
        assert count_changes(Scope(spent), Scope(asked), {PATIENT: 4}, adjacency, relation) == changes

    def test_a_clipped_mean_turns_around_when_a_row_comes(self):
        """Why a row of a person counts twice: the sum moves by 2c, where the person going moves it by c."""
        clip = 1.0

        def contribution(rows: list[float]) -> float:
            mean = sum(rows) / len(rows)
            return mean * min(1.0, clip / abs(mean))

        before, after = contribution([1.0]), contribution([1.0, -3.0])
        assert abs(before) == abs(after) == clip
        assert abs(after - before) == 2 * clip


class TestParts:
    COSTS = (stated(1.0), stated(2.0, adjacency="replace", part="features"))

    def test_golden_three_totals(self):
        found = {part: total_scoped(list(self.COSTS), part=part) for part in PARTS}
        assert found["features"].epsilon == 4.0  # 2·1 + 2
        assert found["features"].delta == pytest.approx(1e-6 * (1 + math.e) + 1e-6, rel=1e-12)
        assert (found["features"].adjacency, found["features"].status) == ("replace", "proven")
        assert found["example"].epsilon == found["labels"].epsilon == math.inf
        assert {found[part].status for part in ("example", "labels")} == {"none"}

    def test_halves_do_not_make_a_whole(self):
        """Each run may publish the half that it does not protect; together all is public."""
        both = [stated(1.0, adjacency="replace", part="features"), stated(1.0, adjacency="replace", part="labels")]
        assert {total_scoped(both, part=part).epsilon for part in PARTS} == {math.inf}

    def test_labels_alone(self):
        only = [stated(1.0, adjacency="replace", part="labels")]
        assert [total_scoped(only, part=part).epsilon for part in PARTS] == [math.inf, math.inf, 1.0]

    def test_a_whole_example_covers_each_of_its_parts(self):
        assert [total_scoped([stated(1.0, adjacency="replace")], part=part).epsilon for part in PARTS] == [1.0] * 3

    def test_the_sentence_says_why(self):
        found = total_scoped(list(self.COSTS))
        assert found.sentence().startswith("no finite ε is proven")
        assert "one is about features only, and takes the labels, and who is in the data, to be public" in (
            found.sentence()
        )
        assert "for the features of one example" in total_scoped(list(self.COSTS), part="features").sentence()


class TestUnits:
    def test_a_row_is_nothing_per_person_without_a_cap(self):
        found = total_scoped([stated(0.1)], PATIENT)
        assert (found.epsilon, found.status) == (math.inf, "none")
        assert "hush ledger cap" in found.sentence()
        assert total_scoped([stated(0.1)], PATIENT, household=2).epsilon == math.inf  # a cap of another unit

    def test_a_person_bounds_a_row(self):
        assert total_scoped([stated(0.5, unit=PATIENT)]).epsilon == 1.0
        assert total_scoped([stated(0.5, unit=PATIENT)]).delta == pytest.approx(1e-6 * (1 + math.exp(0.5)), rel=1e-12)
        under_replace = total_scoped([stated(0.5, adjacency="replace", unit=PATIENT)])
        assert (under_replace.epsilon, under_replace.delta) == (0.5, 1e-6)
        assert under_replace.assumptions == ("whose a row is (its patient_id) is public",)

    def test_units_say_nothing_about_each_other(self):
        assert total_scoped([stated(0.5, unit=PATIENT)], HOUSEHOLD).epsilon == math.inf
        assert total_scoped([stated(0.5, unit=PATIENT)], HOUSEHOLD, household=9, patient_id=9).epsilon == math.inf

    def test_ordinary_training_has_none_for_anybody(self):
        plain = Cost("add-remove", "none", 1e-5, dp_event.NonPrivateDpEvent(), unit=PATIENT)
        found = [
            total_scoped([plain, gaussian_scoped(4.0, unit=PATIENT)], unit, part) for unit in UNITS for part in PARTS
        ]
        assert {(t.epsilon, t.status) for t in found} == {(math.inf, "none")}

    def test_a_claimed_spend_makes_the_total_claimed(self):
        claimed = Cost("replace", "claimed", 1e-6, points=((1e-6, 1.0),), protects="features")
        assert total_scoped([claimed], part="features").status == "claimed"
        assert total_scoped([claimed]).status == "none"

    def test_events_of_one_number_of_changes_are_one_event(self):
        rows = [gaussian_scoped(20.0), gaussian_scoped(20.0)]
        assert total_scoped(rows, PATIENT, delta=1e-5, patient_id=3).composition == "composed as one event"


COSTS = st.builds(
    lambda make, size, adjacency, unit, part: make(
        size, "replace" if part != "example" and adjacency == "add-remove" else adjacency, unit, part
    ),
    st.sampled_from([gaussian_scoped, lambda size, *about: stated(1 / size, 1e-9, *about)]),
    st.floats(3.0, 60.0),
    st.sampled_from(["add-remove", "zero-out", "replace"]),
    st.sampled_from(UNITS),
    st.sampled_from(["example", "example", "example", "features", "labels"]),
)
SCOPES = [(unit, part) for unit in UNITS for part in PARTS]


class TestForAnySpends:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(COSTS, min_size=1, max_size=4), COSTS, st.sampled_from(SCOPES))
    def test_one_more_never_lowers_a_total(self, costs, one_more, scope):
        before, after = (total_scoped(some, *scope, delta=1e-5, patient_id=2) for some in (costs, [*costs, one_more]))
        assert after.epsilon >= before.epsilon * (1 - 1e-9)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(COSTS, min_size=2, max_size=3), st.sampled_from(SCOPES))
    def test_the_order_does_not_matter(self, costs, scope):
        found = [total_scoped(list(some), *scope, delta=1e-5, patient_id=2).epsilon for some in permutations(costs)]
        assert found == pytest.approx([found[0]] * len(found), rel=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(COSTS, min_size=1, max_size=5))
    def test_half_protected_is_never_whole(self, costs):
        halves = {cost.protects for cost in costs} - {"example"}
        for unit, part in SCOPES:
            if halves - {part}:
                assert total_scoped(costs, unit, part, patient_id=2, household=2).epsilon == math.inf

    @settings(max_examples=30, deadline=None)
    @given(st.lists(COSTS, min_size=1, max_size=3), st.sampled_from(SCOPES))
    def test_a_looser_cap_never_lowers_a_total(self, costs, scope):
        tight, loose = (total_scoped(costs, *scope, delta=1e-5, patient_id=m, household=m).epsilon for m in (2, 3))
        assert loose >= tight * (1 - 1e-9)


class TestLines:
    def test_whole_rows_are_written_as_ever(self, path):
        Ledger(path).add("d", 1.0, 1e-6, run="a")
        Ledger(path).set_budget("d", 3.0, 1e-5)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["ledger", "spend", "budget"]
        assert not any({"unit", "protects"} & line.keys() for line in lines)

    def test_others_are_of_a_kind_that_an_older_reader_refuses(self, path):
        ledger = Ledger(path)
        ledger.add("d", 1.0, 1e-6, run="a", scope=Scope(PATIENT))
        ledger.add("d", 1.0, 1e-6, run="b", adjacency="replace", scope=Scope(ROW, "features"))
        ledger.set_budget("d", 3.0, 1e-5, scope=Scope(PATIENT, "features"))
        ledger.cap("d", PATIENT, 9)
        kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
        assert kinds == ["ledger", "scoped spend", "scoped spend", "scoped budget", "cap"]
        again = Ledger(path)
        assert [s.cost.scope for s in again.spends("d").values()] == [Scope(PATIENT), Scope(ROW, "features")]
        assert again.budget("d") == Budget(3.0, 1e-5, Scope(PATIENT, "features"))
        assert again.caps("d") == {PATIENT: 9}

    def test_the_last_cap_counts(self, path):
        ledger = Ledger(path)
        ledger.add("d", 0.5, 1e-6, run="a")
        for rows in (9, 3):
            ledger.cap("d", PATIENT, rows)
        assert Ledger(path).total("d", scope=Scope(PATIENT)).epsilon == 1.5

    SCOPED = {
        **SPEND_LINE,
        "kind": "scoped spend",
        "adjacency": "replace",
        "unit": PATIENT,
        "protects": "features",
    }

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"protects": p} for p in ("half", "nothing", "Example", "", None, [], 3)),
            *({"unit": u} for u in ("", " ", None, 3, [], "a\nb", "x" * 201)),
            {"unit": ROW, "protects": "example"},  # whole rows, hidden under the other kind
            {"kind": "spend"},  # a unit where readers do not look for one
            {"adjacency": "add-remove"},
            {"kind": "scoped budget", "epsilon": 1.0, "protects": "half"},
            {"kind": "budget", "epsilon": 1.0},
            *({"kind": "cap", "rows": rows} for rows in (0, -1, 1.5, "x", None)),
            {"kind": "cap", "rows": 3, "unit": ROW},
            {"kind": "cap", "rows": 3, "dataset": 3},
        ],
        ids=str,
    )
    def test_crafted_ones_are_refused(self, path, wrong):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**{**self.SCOPED, **wrong})
        with pytest.raises(InvalidInputError, match="2"):
            Ledger(path)

    def test_the_good_one_is_read(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**self.SCOPED)
        assert Ledger(path).total("d", scope=Scope(PATIENT, "features")).epsilon == 1.0
        assert Ledger(path).total("d").epsilon == math.inf

    def test_a_missing_part_is_no_default(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**{key: value for key, value in self.SCOPED.items() if key != "protects"})
        with pytest.raises(InvalidInputError, match="2"):
            Ledger(path)

    def test_a_later_line_does_not_change_what_a_run_is_about(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**self.SCOPED)
            ledger._chain.append(**{**self.SCOPED, "steps": 2, "planned": 2, "limit": 2, "protects": "labels"})
        with pytest.raises(InvalidInputError, match="'a'"):
            Ledger(path)


def book(path: Path, run: str = "run", planned: int = 100, **about: Any) -> Account:
    def cost(steps: int) -> Cost:
        return gaussian_scoped(20.0 / math.sqrt(steps), **about)

    return Account(Ledger(path), "d", run=run, method="m", planned=planned, cost=cost)


class TestBudgets:
    """No run gets past a budget by being about something else."""

    @pytest.mark.parametrize("part", ["features", "labels"])
    def test_half_a_run_does_not_fit_a_budget_for_whole_rows(self, path, part):
        Ledger(path).set_budget("d", 1e6, 1e-5)
        with pytest.raises(BudgetExceededError, match=f"one example.*about {part} only.*--protects"):
            book(path, adjacency="replace", part=part).charge()
        assert Ledger(path).spends("d") == {}

    def test_another_unit_spends_the_same_budget(self, path):
        """Per person under add-remove is twice as much per row, whatever the unit is called."""
        Ledger(path).set_budget("d", 1.0, 1e-5)
        rows = book(path, "rows").room()
        for unit in (PATIENT, "Example", "row"):
            assert 0 < book(path, unit, unit=unit).room() < rows
        book(path, PATIENT, unit=PATIENT, planned=1).charge()
        assert book(path, "rows").room() < rows

    def test_rows_do_not_fit_a_budget_per_person(self, path):
        Ledger(path).set_budget("d", 5.0, 1e-5, scope=Scope(PATIENT))
        with pytest.raises(BudgetExceededError, match="--unit patient_id"):
            book(path).charge()
        with pytest.raises(BudgetExceededError):
            book(path, unit=HOUSEHOLD).charge()
        waiting = book(path, "rows")
        assert waiting.room() == 0
        Ledger(path).cap("d", PATIENT, 3)
        book(path, planned=10).charge()
        assert 0 < book(path, "rows").room() < book(path, PATIENT, unit=PATIENT).room()
        assert Ledger(path).total("d").assumptions[0].startswith("no patient_id has more than 3 rows")

    def test_raising_a_budget_keeps_what_it_is_for(self, path):
        ledger = Ledger(path)
        ledger.set_budget("d", 1.0, 1e-5, scope=Scope(PATIENT, "features"))
        ledger.set_budget("d", 2.0, 1e-5)
        assert ledger.budget("d") == Budget(2.0, 1e-5, Scope(PATIENT, "features"))
        ledger.set_budget("d", 2.0, 1e-5, scope=Scope())
        assert ledger.budget("d") == Budget(2.0, 1e-5)

    def test_a_filter_takes_spends_of_one_scope_only(self):
        rows, people = gaussian_scoped(30.0), gaussian_scoped(30.0, unit=PATIENT)
        assert use_filter(rows, [rows], 2.0, 1e-5) is not None
        assert use_filter(rows, [rows, people], 2.0, 1e-5) is None
        assert use_filter(people, [people], 2.0, 1e-5) is None  # the budget is for rows
        found = use_filter(people, [people], 2.0, 1e-5, scope=Scope(PATIENT))
        assert found is not None
        assert found.holds

    def test_a_ledger_of_one_unit_speaks_of_that(self, path):
        ledger = Ledger(path)
        ledger.add("d", 0.5, 1e-6, run="a", scope=Scope(PATIENT))
        assert ledger.total("d").scope == Scope(PATIENT)
        assert ledger.total("d").epsilon == 0.5
        ledger.add("d", 0.5, 1e-6, run="b", adjacency="replace", scope=Scope(PATIENT, "labels"))
        assert ledger.total("d").epsilon == math.inf  # the first total is never about a part unless a budget is
        assert [s.protects for s in ledger.scopes("d")] == ["example", "example", "features", "labels", *PARTS[1:]]


class TestCharges:
    """What a plan's run is charged for is about the plan's unit, and about what its claim protects."""

    def test_the_plans_unit(self):
        plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=1, noise_multiplier=2.0)
        assert cost_of(plan)(3).scope == Scope()
        assert cost_of(replace(plan, unit=PATIENT))(3).scope == Scope(PATIENT)
        nothing = make_plan("sgd", examples=600, batch_size=60, epochs=1)
        assert cost_of(replace(nothing, unit=PATIENT))(3).scope == Scope(PATIENT)

    def test_what_the_claim_protects(self, monkeypatch):
        plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=1, noise_multiplier=2.0)
        [guarantee] = plan.claims()
        half = replace(guarantee, protects="features")
        monkeypatch.setattr("hush.ledger.run_account.account_steps", lambda plan: (half,))
        assert cost_of(plan)(3).scope == Scope(ROW, "features")


def draw_cost(draws: random.Random) -> Cost:
    """A spend of any unit, part, relation and form."""
    part = draws.choice(["example", "example", "example", "features", "labels"])
    near = draws.choice(["add-remove", "zero-out", "replace"]) if part == "example" else "replace"
    about = {"unit": draws.choice(["example", "patient_id", "household"]), "protects": part}
    if draws.random() < 0.3:
        return Cost(near, "proven", 1e-7, points=((1e-7, draws.uniform(0.01, 0.5)),), **about)
    gaussian = dp_event.GaussianDpEvent(draws.uniform(5, 30))
    return Cost(near, "proven", 1e-6, gaussian, lost=1e-10, composed=draws.choice([0.0, 1e-9]), **about)


@pytest.mark.parametrize("seed", range(20))
def test_one_spend_or_one_row_more_never_makes_a_total_smaller_or_finite(seed: int) -> None:
    draws = random.Random(seed)
    costs, more = [draw_cost(draws) for _ in range(draws.randint(1, 4))], draw_cost(draws)
    rows = draws.randint(1, 3)
    for caps in ({}, {"patient_id": rows}):
        for asked in (Scope(), Scope("patient_id"), Scope("household"), Scope("patient_id", "labels")):
            found = add_up(costs, 1e-5, scope=asked, caps=caps).epsilon
            assert add_up([*costs, more], 1e-5, scope=asked, caps=caps).epsilon >= found * (1 - 1e-9)
            wider = dict.fromkeys(caps, rows + 1)
            assert add_up(costs, 1e-5, scope=asked, caps=wider).epsilon >= found * (1 - 1e-9)
            if any(c.unit != asked.unit and asked.unit != "example" and asked.unit not in caps for c in costs):
                assert found == math.inf
            if any(c.protects not in ("example", asked.protects) for c in costs):
                assert found == math.inf
