"""An account is charged once for a whole plan, counts a stop as it must, and exceeds no budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from spends import GAUSS, account, poisson

from hush.accounting.events import to_json
from hush.errors import BudgetExceededError, InvalidInputError, ResumeError
from hush.ledger.book import Ledger
from hush.ledger.entries import Spend, to_fields
from hush.ledger.run_account import Account, largest
from hush.ledger.total import Cost, add_up


class TestCharging:
    def test_a_run_is_charged_once_for_its_whole_plan(self, path):
        a = account(path)
        assert not a.charged
        for _ in range(3):
            a.charge()
            account(path).charge()
        assert a.charged
        assert len(path.read_text().splitlines()) == 1 + 1
        spend = Ledger(path).spends("d")["a"]
        assert (spend.steps, spend.planned) == (1000, 1000)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(1000)], 1e-5).epsilon, rel=1e-9)

    def test_a_lost_run_stays_spent(self, path):
        account(path, "lost").charge()
        account(path, "new").charge()
        found = Ledger(path).total("d")
        assert found.spends == 2
        assert found.epsilon == pytest.approx(add_up([poisson(2000)], 1e-5).epsilon, rel=1e-9)

    def test_an_event_that_cannot_be_written_is_entered_by_its_points(self, path):
        def stated(steps):
            return Cost("add-remove", "claimed", 1e-5, points=((1e-5, 2.0),))

        account(path, cost=stated).charge()
        spend = Ledger(path).spends("d")["a"]
        assert (spend.steps, spend.planned, spend.per_step) == (1000, 1000, False)
        assert Ledger(path).total("d").epsilon == 2.0

    def test_datasets_do_not_mix(self, path):
        account(path, dataset="one", planned=10).charge()
        account(path, dataset="two", planned=500).charge()
        ledger = Ledger(path)
        assert ledger.datasets() == ["one", "two"]
        assert ledger.total("one").epsilon < ledger.total("two").epsilon

    def test_a_line_that_reserved_a_part_of_the_plan_is_completed(self, path):
        """As a version left it that reserved steps in blocks, for a budget that had room for 400."""
        old = {"kind": "spend", "dataset": "d", "run": "a", "method": "dp-sgd", "steps": 100, "planned": 1000}
        priced = {"adjacency": "add-remove", "status": "proven", "delta": 1e-5, "points": [], "limit": 400}
        ledger = Ledger(path)
        with ledger._chain.locked() as chain:
            chain.append(
                at="now", **old, **priced, event=to_json(poisson(100).event), whole=to_json(poisson(400).event)
            )
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(400)], 1e-5).epsilon, rel=1e-9)
        a = account(path)
        assert not a.charged
        a.charge()
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(1000)], 1e-5).epsilon, rel=1e-9)


class TestBudget:
    def test_a_plan_that_does_not_fit_is_refused_and_what_fits_is_said(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        a = account(path)
        room = a.room()
        assert add_up([poisson(room)], 1e-5).epsilon <= 1.0 < add_up([poisson(room + 1)], 1e-5).epsilon
        before = path.read_bytes()
        for refused in (a.check, a.charge):
            with pytest.raises(BudgetExceededError, match=rf"1000 .*'d'.*ε = 1\.83 .*ε = 1 .* {room} of them"):
                refused()
        assert path.read_bytes() == before
        fitting = account(path, planned=room)
        fitting.charge()
        assert 0.99 < Ledger(path).total("d").epsilon <= 1.0

    def test_others_leave_less_room(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        alone = account(path, "b").room()
        account(path, "a", planned=100).charge()
        assert account(path, "b").room() == alone - 100

    def test_what_was_taken_is_entered_whatever_the_budget(self, path):
        Ledger(path).set_budget("d", 0.1, 1e-5)
        a = account(path, planned=500)
        a.charge(fact=True)
        assert Ledger(path).spends("d")["a"].steps == 500
        a.check()  # it is charged
        with pytest.raises(BudgetExceededError, match="'d'"):
            account(path, "b", planned=1).charge()

    def test_raising_it_makes_room(self, path):
        ledger = Ledger(path)
        assert ledger.budget("d", 0.5, 1e-5).epsilon == 0.5
        a = account(path, planned=900)
        with pytest.raises(BudgetExceededError, match=r"ε.*=.*1\..*ε.*=.*0\.5"):
            a.charge()
        assert "a" not in Ledger(path).spends("d")
        ledger.set_budget("d", 5.0, 1e-5)
        a.charge()
        assert Ledger(path).spends("d")["a"].steps == 900

    def test_ordinary_training_fits_no_budget(self, path):
        Ledger(path).set_budget("d", 100.0, 1e-5)
        plain = account(path, cost=lambda n: Cost("add-remove", "none", 1e-5, dp_event.NonPrivateDpEvent()))
        with pytest.raises(BudgetExceededError, match="ε = ∞"):
            plain.charge()

    def test_by_hand(self, path):
        ledger = Ledger(path)
        ledger.add("d", 0.5, 1e-6, run="census table")
        with pytest.raises(InvalidInputError, match="'census.*table'"):
            ledger.add("d", 0.5, 1e-6, run="census table")
        assert Ledger(path).total("d").epsilon == 0.5

    @given(most=st.integers(0, 50))
    def test_largest(self, most):
        assert largest(lambda n: n <= most, 0, 51) == most


class TestStops:
    """A stop is proven at all the steps that could have been taken; fewer count only if nobody had looked."""

    def test_closed_as_stopped_blindly_its_steps_count_and_it_takes_no_more(self, path):
        a = account(path, planned=240)
        a.charge()
        a.ledger.close("d", "a", 87)
        for ledger in (a.ledger, Ledger(path)):
            found = ledger.total("d")
            assert found.epsilon == pytest.approx(add_up([poisson(87)], 1e-5).epsilon, rel=1e-9)
            assert found.status == "proven"
            assert [text for text in found.assumptions if "run 'a' was stopped at step 87" in text]
        for again in (account(path, planned=240).check, account(path, "a+7f", planned=3).charge):
            with pytest.raises(ResumeError, match="'a'.* 87"):
                again()
        with pytest.raises(InvalidInputError, match="'a'.* 87"):
            a.ledger.close("d", "a", 50)
        with pytest.raises(InvalidInputError, match="'b'"):
            a.ledger.close("d", "b", 50)

    @pytest.mark.parametrize("steps", [240, 241])
    def test_a_run_that_took_all_its_steps_has_nothing_to_close(self, path, steps):
        a = account(path, planned=240)
        a.charge()
        with pytest.raises(InvalidInputError, match="240"):
            a.ledger.close("d", "a", steps)

    def test_what_is_beside_the_steps_stays(self, path):
        def both(steps):
            return replace(poisson(steps), event=dp_event.ComposedDpEvent([poisson(steps).event, GAUSS(3.0)]))

        a = account(path, planned=240, cost=both)
        a.charge()
        a.ledger.close("d", "a", 87)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([both(87)], 1e-5).epsilon, rel=1e-9)

    def test_an_event_that_is_not_made_of_steps_is_not_cut(self, path):
        a = account(path, planned=240, per_step=False)
        a.charge()
        before = path.read_bytes()
        with pytest.raises(InvalidInputError, match="'a'.* 240"):
            a.ledger.close("d", "a", 87)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 241}, {"steps": "x"}, {"event": {"kind": "Popen"}}])
    def test_a_crafted_closing_is_refused(self, path, wrong):
        a = account(path, planned=240)
        a.charge()
        line = {"kind": "close", "dataset": "d", "run": "a", "steps": 87, "blindly": True}
        with a.ledger._chain.locked() as chain:
            chain.append(at="now", **(line | wrong))
        with pytest.raises(InvalidInputError, match="3"):
            Ledger(path)

    def test_an_older_line_that_does_not_say_what_its_plan_costs_is_claimed(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked() as chain:
            fields = to_fields(Spend("old", "d", "dp-sgd", 87, 240, poisson(87)))
            chain.append(at="now", kind="spend", **{k: v for k, v in fields.items() if k != "limit"})
        found = Ledger(path).total("d")
        assert (found.status, found.epsilon) == ("claimed", add_up([poisson(87)], 1e-5).epsilon)


class TestNames:
    @pytest.mark.parametrize("name", ["Patients", "patients ", " PATIENTS", "ｐatients", "patientſ"])
    def test_one_dataset_however_it_is_typed(self, path, name):
        Ledger(path).set_budget("patients", 0.5, 1e-5)
        a = account(path, dataset=name)
        assert a.dataset == "patients"
        with pytest.raises(BudgetExceededError, match=r"1000.*.*'patients'.*ε.*=.*0\.5"):
            a.charge()
        account(path, dataset=name, planned=1).charge()
        assert Ledger(path).datasets() == ["patients"]
        assert Ledger(path).spends(name).keys() == {"a"}

    @pytest.mark.parametrize("name", ["default", "patient", "other"])
    def test_beside_a_budget_an_unknown_name_must_be_declared(self, path, name):
        ledger = Ledger(path)
        ledger.set_budget("patients", 0.5, 1e-5)
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError, match=rf"no dataset '{name}' \(it has 'patients'\).*--new-dataset"):
            account(path, dataset=name)
        with pytest.raises(BudgetExceededError, match="--new-dataset"):
            ledger.add(name, 1.0, 1e-6, run="by hand")
        assert path.read_bytes() == before
        new = Account(Ledger(path), name, run="a", method="dp-sgd", planned=10, cost=poisson, new_dataset=True)
        new.charge()
        account(path, "b", dataset=name.upper(), planned=10).charge()  # known by now
        assert Ledger(path).datasets() == sorted([name, "patients"])

    def test_without_a_budget_names_are_free(self, path):
        account(path, dataset="one").charge()
        account(path, dataset="two").charge()
        assert Ledger(path).datasets() == ["one", "two"]
        assert [Ledger(path).spends(name)["a"].steps for name in ("one", "two")] == [1000, 1000]
