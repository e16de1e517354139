"""An account enters steps before they are taken, counts a stop as it must, and exceeds no budget."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from spends import POISSON, account, poisson

from hush.errors import InvalidInputError, Refused
from hush.ledger.book import Ledger
from hush.ledger.entries import Spend
from hush.ledger.run_account import Account, BudgetSpent, largest
from hush.ledger.total import Cost, add_up


class TestReserving:
    def test_blocks_run_ahead_and_write_once_each(self, path):
        a = account(path, block=100)
        covered = []
        for step in range(1, 251):
            a.cover(step)
            covered.append(Ledger(path).spends("d")["a"].steps)
            assert covered[-1] >= step
        assert sorted(set(covered)) == [100, 200, 300]
        assert len(path.read_text().splitlines()) == 1 + 3

    def test_a_resumed_run_costs_nothing_twice(self, path):
        account(path).cover(150)
        before = Ledger(path).total("d")
        again = account(path)
        assert again.reserved == 150
        for step in range(1, 151):
            again.cover(step)
        assert Ledger(path).total("d") == before

    def test_a_lost_run_stays_spent(self, path):
        account(path, "lost").cover(1)
        account(path, "new").cover(1)
        found = Ledger(path).so_far("d")
        assert found.spends == 2
        assert found.epsilon == pytest.approx(add_up([poisson(200)], 1e-5).epsilon, rel=1e-9)

    def test_an_event_that_cannot_be_written_is_entered_as_a_whole(self, path):
        def stated(steps):
            return Cost("add-remove", "claimed", 1e-5, points=((1e-5, 2.0),))

        account(path, cost=stated).cover(1)
        spend = Ledger(path).spends("d")["a"]
        assert (spend.steps, spend.planned) == (1000, 1000)
        assert Ledger(path).total("d").epsilon == 2.0

    def test_datasets_do_not_mix(self, path):
        account(path, dataset="one").cover(1)
        account(path, dataset="two").cover(500)
        ledger = Ledger(path)
        assert ledger.datasets() == ["one", "two"]
        assert ledger.so_far("one").epsilon < ledger.so_far("two").epsilon

    def test_the_plan_bounds_the_block(self, path):
        account(path, planned=30).cover(1)
        assert Ledger(path).spends("d")["a"].steps == 30


class TestBudget:
    def test_training_stops_before_it_is_exceeded(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        a = account(path)
        room = a.room()
        assert add_up([poisson(room)], 1e-5).epsilon <= 1.0 < add_up([poisson(room + 1)], 1e-5).epsilon
        for step in range(1, room + 1):
            a.cover(step)
        assert Ledger(path).total("d").epsilon <= 1.0
        with pytest.raises(BudgetSpent, match=rf"step {room + 1} would bring dataset 'd' to ε = 1.*budget is ε = 1 "):
            a.cover(room + 1)
        assert Ledger(path).total("d").epsilon <= 1.0

    def test_others_leave_less_room(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        first, second = account(path, "a"), account(path, "b")
        alone = second.room()
        first.cover(100)
        second.cover(1)
        assert second.room() == alone - 100
        room = second.room()
        second.cover(room)
        with pytest.raises(BudgetSpent, match=rf"step {room + 1} would bring dataset 'd' to ε = 1.*budget is ε = 1 "):
            second.cover(room + 1)
        assert Ledger(path).spends("d")["b"].steps == room
        assert 0.99 < Ledger(path).so_far("d").epsilon <= 1.0

    def test_what_was_taken_is_entered_whatever_the_budget(self, path):
        Ledger(path).set_budget("d", 0.1, 1e-5)
        a = account(path)
        a.enter(500)
        assert Ledger(path).spends("d")["a"].steps == 500
        before = path.read_bytes()
        with pytest.raises(BudgetSpent, match=r"step 501 would bring dataset 'd' to ε = .*budget is ε = 0\.1 "):
            a.cover(501)
        assert path.read_bytes() == before

    def test_raising_it_makes_room(self, path):
        ledger = Ledger(path)
        ledger.set_budget("d", 0.5, 1e-5)
        a = account(path)
        with pytest.raises(BudgetSpent, match=r"step 900 would bring dataset 'd' to ε = 1\..*budget is ε = 0\.5 "):
            a.cover(900)
        assert "a" not in Ledger(path).spends("d")
        ledger.set_budget("d", 5.0, 1e-5)
        a.cover(900)
        assert Ledger(path).spends("d")["a"].steps >= 900

    def test_ordinary_training_fits_no_budget(self, path):
        Ledger(path).set_budget("d", 100.0, 1e-5)
        plain = account(path, cost=lambda n: Cost("add-remove", "none", 1e-5, dp_event.NonPrivateDpEvent()))
        with pytest.raises(BudgetSpent, match="ε = ∞"):
            plain.cover(1)

    def test_by_hand(self, path):
        ledger = Ledger(path)
        ledger.add("d", 0.5, 1e-6, run="census table")
        with pytest.raises(InvalidInputError, match="already has a spend 'census table'"):
            ledger.add("d", 0.5, 1e-6, run="census table")
        assert Ledger(path).total("d").epsilon == 0.5

    @given(most=st.integers(0, 50))
    def test_largest(self, most):
        assert largest(lambda n: n <= most, 0, 51) == most


class TestMoreThanThePlan:
    """Steps that are taken again with fresh noise are charged on top, and nothing lowers that again."""

    def test_an_addition_is_composed_with_the_plan(self, path):
        a = account(path, planned=1000)
        a.cover(300)
        a.add(dp_event.SelfComposedDpEvent(POISSON, 200), "steps 101 to 300, taken again with a fresh secret")
        assert Ledger(path).so_far("d").epsilon == pytest.approx(add_up([poisson(500)], 1e-5).epsilon, rel=1e-9)
        a.cover(1000)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(1200)], 1e-5).epsilon, rel=1e-9)
        (extra,) = a.additions()
        assert (extra.run, extra.part_of) == ("a+1", "a")
        assert extra.reason.startswith("steps 101 to 300")

    def test_it_stays_after_a_restart_and_one_name_charges_once(self, path):
        a = account(path)
        a.cover(100)
        for _ in range(3):
            account(path).add(POISSON, "taken again", name="7f")
        once = Ledger(path).so_far("d").epsilon
        assert once == pytest.approx(add_up([poisson(101)], 1e-5).epsilon, rel=1e-9)
        a.add(POISSON, "taken again", name="80")
        a.add(POISSON, "taken again")
        assert Ledger(path).so_far("d").epsilon == pytest.approx(add_up([poisson(103)], 1e-5).epsilon, rel=1e-9)

    def test_the_budget_counts_it(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        a = account(path)
        room = a.room()
        a.cover(1)
        a.add(dp_event.SelfComposedDpEvent(POISSON, 50), "taken again")
        assert a.room() == room - 50
        before = path.read_bytes()
        with pytest.raises(BudgetSpent, match=r"taken again would bring dataset 'd' to ε = .* budget is ε = 1 "):
            a.add(dp_event.SelfComposedDpEvent(POISSON, 1000), "taken again")
        assert path.read_bytes() == before
        a.add(dp_event.NonPrivateDpEvent(), "the same noise met another sum", fact=True)
        assert Ledger(path).total("d").epsilon == math.inf
        with pytest.raises(BudgetSpent, match=rf"step {room} would bring dataset 'd' to ε = ∞"):
            a.cover(room)

    def test_a_cost_keeps_what_it_says(self, path):
        a = account(path)
        a.add(Cost("zero-out", "claimed", 1e-6, points=((1e-6, 0.5),)), "a second release")
        found = Ledger(path).total("d")
        assert (found.epsilon, found.adjacency, found.status) == (0.5, "zero-out", "claimed")


class TestStops:
    """A stop is proven at all the steps that could have been taken; fewer count only if nobody had looked."""

    def test_a_run_that_stopped_is_counted_with_its_plan(self, path):
        account(path, planned=240).cover(87)
        ledger = Ledger(path)
        assert ledger.total("d").epsilon == pytest.approx(add_up([poisson(240)], 1e-5).epsilon, rel=1e-9)
        assert ledger.total("d").status == "proven"
        claimed = ledger.so_far("d")
        assert claimed.epsilon == pytest.approx(add_up([poisson(100)], 1e-5).epsilon, rel=1e-9)
        assert claimed.status == "claimed"
        assert claimed.sentence().endswith("not a guarantee: a run in it has an ε that is claimed and not proven")

    def test_the_two_agree_when_it_has_finished(self, path):
        account(path, planned=240).cover(240)
        assert Ledger(path).total("d") == Ledger(path).so_far("d")
        assert Ledger(path).total("d").status == "proven"

    def test_closed_as_stopped_blindly_its_steps_count_and_it_takes_no_more(self, path):
        a = account(path, planned=240)
        a.cover(87)
        a.ledger.close("d", "a")
        for ledger in (a.ledger, Ledger(path)):
            found = ledger.total("d")
            assert found == ledger.so_far("d")
            assert found.epsilon == pytest.approx(add_up([poisson(100)], 1e-5).epsilon, rel=1e-9)
            assert found.status == "proven"
            assert "run 'a' was stopped at step 100 without looking at anything that was released" in found.assumptions
            assert found.assumptions[0] in found.sentence()
        with pytest.raises(Refused, match="was closed .* as stopped at step 100"):
            account(path, planned=240).cover(101)
        with pytest.raises(InvalidInputError, match="nothing to close"):
            a.ledger.close("d", "a")
        with pytest.raises(InvalidInputError, match="has no run 'b'"):
            a.ledger.close("d", "b")

    def test_steps_taken_in_spite_of_it_count(self, path):
        a = account(path, planned=240)
        a.cover(1)
        a.ledger.close("d", "a")
        a.enter(150)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(240)], 1e-5).epsilon, rel=1e-9)

    def test_a_stop_by_the_budget_is_no_choice(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        a = account(path)
        a.cover(a.room())
        found = Ledger(path).total("d")
        assert found.epsilon <= 1.0
        assert found.status == "proven"
        other = account(path, "b", planned=50)
        with pytest.raises(BudgetSpent, match="step 50 would bring dataset 'd' to ε = 1.*budget is ε = 1 "):
            other.cover(50)
        assert Ledger(path).spends("d").keys() == {"a"}

    def test_lowering_the_budget_does_not_lower_what_could_have_been_taken(self, path):
        ledger = Ledger(path)
        ledger.set_budget("d", 1.0, 1e-5)
        a = account(path)
        room = a.room()
        a.cover(1)
        ledger.set_budget("d", add_up([poisson(200)], 1e-5).epsilon, 1e-5)
        a.cover(150)
        assert Ledger(path).spends("d")["a"].limit == room

    def test_an_older_line_that_does_not_say_what_its_plan_costs_is_claimed(self, path):
        ledger = Ledger(path)
        with ledger.turn():
            ledger.spend(Spend("old", "d", "dp-sgd", 87, 240, poisson(87)))
        found = Ledger(path).total("d")
        assert (found.status, found.epsilon) == ("claimed", add_up([poisson(87)], 1e-5).epsilon)


class TestNames:
    @pytest.mark.parametrize("name", ["Patients", "patients ", " PATIENTS", "ｐatients", "patientſ"])
    def test_one_dataset_however_it_is_typed(self, path, name):
        Ledger(path).set_budget("patients", 0.5, 1e-5)
        a = account(path, dataset=name)
        assert a.dataset == "patients"
        with pytest.raises(BudgetSpent, match=r"step 1000 would bring dataset 'patients' to .*budget is ε = 0\.5 "):
            a.cover(1000)
        a.cover(1)
        assert Ledger(path).datasets() == ["patients"]
        assert Ledger(path).spends(name).keys() == {"a"}

    @pytest.mark.parametrize("name", ["default", "patient", "other"])
    def test_beside_a_budget_an_unknown_name_must_be_declared(self, path, name):
        ledger = Ledger(path)
        ledger.set_budget("patients", 0.5, 1e-5)
        before = path.read_bytes()
        with pytest.raises(Refused, match=rf"no dataset '{name}' \(it has 'patients'\).*--new-dataset"):
            account(path, dataset=name)
        with pytest.raises(Refused, match="--new-dataset"):
            ledger.add(name, 1.0, 1e-6, run="by hand")
        assert path.read_bytes() == before
        new = Account(Ledger(path), name, run="a", method="dp-sgd", planned=10, cost=poisson, new_dataset=True)
        new.cover(1)
        account(path, "b", dataset=name.upper()).cover(1)  # known by now
        assert Ledger(path).datasets() == sorted([name, "patients"])

    def test_without_a_budget_names_are_free(self, path):
        account(path, dataset="one").cover(1)
        account(path, dataset="two").cover(1)
        assert Ledger(path).datasets() == ["one", "two"]
        assert [Ledger(path).spends(name)["a"].steps for name in ("one", "two")] == [100, 100]  # a block each
