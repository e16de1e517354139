"""The ledger adds up what was spent, never too little, and shows whether anybody touched it."""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import os
import signal
from pathlib import Path
from typing import ClassVar

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import BadInput, Refused
from hush.ledger.account import Account, BudgetSpent, Ledger, Spend, largest
from hush.ledger.chain import Damaged, NoTurns, entry_hash
from hush.ledger.total import FIXED, Cost, add_up
from hush.privacy import event_json
from hush.privacy.accounting import epsilon
from hush.privacy.renyi import divergences

GAUSS = dp_event.GaussianDpEvent
POISSON = dp_event.PoissonSampledDpEvent(0.01, GAUSS(1.0))


def poisson(steps: int, status: str = "proven", adjacency: str = "add-remove", delta: float = 1e-5) -> Cost:
    return Cost(adjacency, status, delta, dp_event.SelfComposedDpEvent(POISSON, steps))  # type: ignore[arg-type]


def gaussian(sigma: float, adjacency: str = "add-remove") -> Cost:
    return Cost(adjacency, "proven", 1e-5, GAUSS(sigma))  # type: ignore[arg-type]


def account(path: Path, run: str = "a", *, planned: int = 1000, block: int = 100, cost=poisson, dataset: str = "d"):
    return Account(Ledger(path), dataset, run=run, method="dp-sgd", planned=planned, cost=cost, block=block)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spent.jsonl"


class TestEvents:
    @pytest.mark.parametrize(
        "event",
        [
            GAUSS(1.25),
            dp_event.SelfComposedDpEvent(POISSON, 4700),
            dp_event.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2.0)),
            dp_event.ComposedDpEvent([GAUSS(1.0), dp_event.LaplaceDpEvent(3.0), dp_event.NoOpDpEvent()]),
            dp_event.RandomizedResponseDpEvent(0.3, 10),
            dp_event.RepeatAndSelectDpEvent(POISSON, 10.0, math.inf),
            dp_event.NonPrivateDpEvent(),
        ],
        ids=lambda e: type(e).__name__,
    )
    def test_come_back_as_they_were(self, event):
        text = json.dumps(event_json.to_json(event), allow_nan=False)
        assert event_json.from_json(json.loads(text)) == event

    def test_what_cannot_be_rebuilt_is_not_written(self):
        class Own:
            def delta_of(self, epsilon):
                return 0.0

        assert event_json.to_json(Own()) is None
        assert event_json.to_json(dp_event.ComposedDpEvent([GAUSS(1.0), Own()])) is None

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({"kind": "Popen", "args": "ls"}, "not a privacy event as hush writes it"),
            ({"kind": "Gaussian"}, "not a privacy event as hush writes it"),
            ({"kind": "Gaussian", "noise_multiplier": "ls"}, "a number was expected in a privacy event, got 'ls'"),
            (3, "not a privacy event as hush writes it: 3"),
        ],
    )
    def test_nothing_else_is_built(self, data, sentence):
        with pytest.raises(BadInput, match=sentence):
            event_json.from_json(data)


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
        with pytest.raises(BadInput, match="already has a spend 'census table'"):
            ledger.add("d", 0.5, 1e-6, run="census table")
        assert Ledger(path).total("d").epsilon == 0.5

    @given(most=st.integers(0, 50))
    def test_largest(self, most):
        assert largest(lambda n: n <= most, 0, 51) == most


class TestDamage:
    @pytest.fixture
    def full(self, path):
        a = account(path)
        for step in (1, 101, 201):
            a.cover(step)
        return path

    def edit(self, path, change):
        lines = path.read_text().splitlines()
        path.write_text("\n".join(change(lines)) + "\n")

    def test_an_edited_line(self, full):
        self.edit(full, lambda lines: [*lines[:2], lines[2].replace('"steps": 200', '"steps": 120'), *lines[3:]])
        with pytest.raises(Damaged, match="line 3 .* was edited"):
            Ledger(full)

    def test_an_edited_line_with_its_hash_made_new(self, full):
        def change(lines):
            entry = json.loads(lines[2])
            entry["steps"] = 120
            entry["hash"] = entry_hash(entry)
            return [*lines[:2], json.dumps(entry), *lines[3:]]

        self.edit(full, change)
        with pytest.raises(Damaged, match="line 4 .* does not follow"):
            Ledger(full)

    def test_a_removed_line(self, full):
        self.edit(full, lambda lines: [*lines[:2], *lines[3:]])
        with pytest.raises(Damaged, match="line 3 .* does not follow"):
            Ledger(full)

    def test_a_cut_off_end(self, full):
        self.edit(full, lambda lines: lines[:-1])
        with pytest.raises(Damaged, match="has 3 lines where its head file counts 4"):
            Ledger(full)

    def test_half_of_the_last_line_cut_off(self, full):
        full.write_bytes(full.read_bytes()[:-30])
        with pytest.raises(Damaged, match="cut off"):
            Ledger(full)

    def test_an_emptied_or_deleted_ledger(self, full):
        full.write_bytes(b"")
        with pytest.raises(Damaged, match="cut off"):
            Ledger(full)
        full.unlink()
        with pytest.raises(Damaged, match="cut off"):
            Ledger(full)

    def test_a_missing_or_foreign_head(self, full, tmp_path):
        head = full.with_name(full.name + ".head")
        kept = head.read_text()
        head.unlink()
        with pytest.raises(Damaged, match="is missing"):
            Ledger(full)
        account(tmp_path / "other.jsonl").cover(1)
        head.write_text((tmp_path / "other.jsonl.head").read_text())
        with pytest.raises(Damaged, match="does not belong to its head"):
            Ledger(full)
        head.write_text("{")
        with pytest.raises(Damaged, match="damaged"):
            Ledger(full)
        head.write_text(kept)
        Ledger(full)

    def test_a_line_that_was_never_finished_is_dropped(self, full):
        before = full.read_bytes()
        full.write_bytes(before + b'{"line": 5, "kind": "sp')
        assert Ledger(full).spends("d")["a"].steps == 300
        assert full.read_bytes() == before

    def test_a_line_without_its_head_is_kept(self, full):
        head = full.with_name(full.name + ".head")
        old = head.read_text()
        account(full).cover(301)
        head.write_text(old)  # killed between the line and the head
        assert Ledger(full).spends("d")["a"].steps == 400
        account(full).cover(401)
        assert json.loads(head.read_text())["lines"] == 6

    def test_not_a_ledger(self, path, tmp_path):
        path.write_text("hello\n")
        with pytest.raises(BadInput, match="is no ledger: it was left as it is"):
            Ledger(path)
        with pytest.raises(BadInput, match="does not exist"):
            Ledger(tmp_path / "no" / "such.jsonl")
        with pytest.raises(BadInput, match="there is no ledger"):
            Ledger(tmp_path / "none.jsonl", create=False)

    def test_a_name_for_a_dataset(self, path):
        for bad in ("", " ", "a\nb", "x" * 201):
            with pytest.raises(BadInput, match="needs a name"):
                account(path, dataset=bad)


def _write(path: str, name: str, count: int) -> None:
    for number in range(count):
        account(Path(path), f"{name}{number}").cover(1)


def test_processes_at_once_lose_no_entry(path) -> None:
    context = mp.get_context("fork")
    workers = [context.Process(target=_write, args=(str(path), name, 15)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert set(Ledger(path).spends("d")) == {f"{name}{n}" for name in "abcd" for n in range(15)}
    assert len(path.read_text().splitlines()) == 61


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_while_writing_it_covers_what_was_covered(path, call, number) -> None:
    """Kill at the n-th write, flush or rename: the ledger stays whole, and covers every step that went through."""
    account(path).cover(100)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        real, seen = getattr(os, call), 0

        def dying(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, call, dying)
        try:
            a = account(path)
            for step in range(101, 1000, 50):
                a.cover(step)
                os.write(writer, step.to_bytes(4, "little"))
        finally:
            os._exit(3)
    os.close(writer)
    told = b"".join(iter(lambda: os.read(reader, 4), b""))
    os.close(reader)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    released = int.from_bytes(told[-4:], "little") if told else 100
    ledger = Ledger(path)
    assert ledger.spends("d")["a"].steps >= released
    account(path).cover(1000)
    assert Ledger(path).spends("d")["a"].steps == 1000


def test_a_full_disk_leaves_the_ledger_whole(path, monkeypatch) -> None:
    a = account(path)
    a.cover(100)
    before = path.read_bytes()

    def full(descriptor, content, offset):
        monkeypatch.undo()
        os.pwrite(descriptor, content[:20], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        a.cover(101)
    assert path.read_bytes() == before
    a.cover(101)
    assert Ledger(path).spends("d")["a"].steps == 200


def test_lines_are_readable_and_hold_no_more_than_is_public(path) -> None:
    account(path).cover(1)
    entry = json.loads(path.read_text().splitlines()[1])
    assert set(entry) == {
        *("line", "at", "kind", "dataset", "run", "method", "steps", "planned", "adjacency", "status", "delta"),
        *("event", "points", "limit", "whole", "previous", "hash"),
    }
    assert entry["event"]["event"] == {
        "kind": "PoissonSampled",
        "sampling_probability": 0.01,
        "event": {"kind": "Gaussian", "noise_multiplier": 1.0},
    }


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


class TestFilesOfOthers:
    """Nothing is written before a file is known to be a ledger, and looking needs no permission to write."""

    @pytest.mark.parametrize("text", ["notes without an end of line", "notes\n", '{"a": 1}', "{", "\x00" * 100])
    @pytest.mark.parametrize("create", [True, False])
    def test_they_are_left_as_they_are(self, path, text, create):
        path.write_text(text)
        with pytest.raises(Damaged, match="is no ledger: it was left as it is"):
            Ledger(path, create=create)
        assert path.read_text() == text
        assert [p.name for p in path.parent.iterdir()] == [path.name]

    def test_looking_changes_nothing(self, path, monkeypatch):
        account(path).cover(1)
        torn = path.read_bytes() + b'{"line": 3, "kin'
        path.write_bytes(torn)
        head = path.with_name(path.name + ".head")
        kept = head.read_bytes()
        real = os.open

        def read_only(where, flags, *more):
            if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
                raise PermissionError(13, "Permission denied", str(where))
            return real(where, flags, *more)

        monkeypatch.setattr(os, "open", read_only)
        assert Ledger(path, create=False, write=False).spends("d")["a"].steps == 100
        assert (path.read_bytes(), head.read_bytes()) == (torn, kept)

    def test_a_first_line_that_was_never_finished(self, path):
        head = path.with_name(path.name + ".head")
        Ledger(path)
        whole = path.read_bytes()
        head.write_text(json.dumps({"lines": 0, "hash": "0" * 64}))
        path.write_bytes(whole[:25])  # killed while the first line was written
        assert Ledger(path).datasets() == []

    @pytest.mark.parametrize("what", ["", "directory", "fifo"])
    def test_what_is_no_file(self, tmp_path, what, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "fifo")
        for write in (True, False):
            with pytest.raises(BadInput, match="give the ledger's file name"):
                Ledger(what, create=write, write=write)


class TestTurns:
    def test_where_locking_fails_nothing_is_written(self, path, monkeypatch):
        account(path).cover(1)
        before = path.read_bytes()

        def refuse(descriptor, kind):
            raise OSError(37, "No locks available")

        monkeypatch.setattr("fcntl.flock", refuse)
        with pytest.raises(NoTurns, match=r"cannot be locked \(No locks available\).*local disk"):
            account(path, "b")
        assert path.read_bytes() == before

    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_a_line_of_another_writer_in_between_is_noticed(self, path, monkeypatch, moment):
        """The lock does nothing; somebody who read the file before writes right after our own line, or our head."""
        account(path).cover(1)
        ours, theirs = Ledger(path), Ledger(path)
        monkeypatch.setattr("fcntl.flock", lambda descriptor, kind: None)
        real, done = getattr(os, moment), []

        def and_then_another(*arguments):
            found = real(*arguments)
            if not done:
                done.append(True)
                try:
                    theirs._chain.append(kind="budget", dataset="d", epsilon=9.0, delta=1e-5)
                    done.append("theirs")
                except NoTurns:
                    pass
            return found

        with ours.turn(), theirs._chain.locked():
            monkeypatch.setattr(os, moment, and_then_another)
            try:
                ours._append(kind="budget", dataset="d", epsilon=1.0, delta=1e-5)
                done.append("ours")
            except NoTurns as error:
                assert "does not lock files" in str(error)  # noqa: PT017
        assert len({"ours", "theirs"} & set(done)) <= 1
        text = path.read_text()
        assert ('"epsilon": 1.0' in text) >= ("ours" in done)
        assert ('"epsilon": 9.0' in text) >= ("theirs" in done)


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
            assert "assumes that run 'a' was stopped" in found.sentence()
        with pytest.raises(Refused, match="was closed .* as stopped at step 100"):
            account(path, planned=240).cover(101)
        with pytest.raises(BadInput, match="nothing to close"):
            a.ledger.close("d", "a")
        with pytest.raises(BadInput, match="has no run 'b'"):
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


class TestAssumptions:
    def test_several_spends_assume_that_they_were_fixed_in_advance(self):
        one, two = add_up([poisson(10)], 1e-5), add_up([poisson(10), poisson(10)], 1e-5)
        assert one.assumptions == ()
        assert two.assumptions == (FIXED,)
        assert two.sentence().endswith(f"; proven; assumes that {FIXED}")

    def test_a_spend_brings_its_own(self, path):
        seed = "the secret seed stays secret"

        def seeded(steps):
            return Cost("add-remove", "proven", 1e-5, dp_event.SelfComposedDpEvent(POISSON, steps), (), (seed,))

        account(path, cost=seeded).cover(1000)
        account(path, "b").cover(1000)
        assert Ledger(path).total("d").assumptions == (seed, FIXED)

    def test_a_filter_needs_none(self, path):
        ledger = Ledger(path)
        ledger.set_budget("d", 2.0, 1e-5)
        assert ledger.filtered("d") is None
        account(path, planned=300).cover(1)
        account(path, "b", planned=300).cover(1)
        found = Ledger(path).filtered("d")
        joint = dp_event.SelfComposedDpEvent(POISSON, 200)
        assert found.holds
        assert found.spent == pytest.approx(divergences(joint, "add-remove")[found.order], rel=1e-9)
        # what it allows is what (ε, δ) follows from at this order, with a hundredth of δ set aside
        gauss = GAUSS(math.sqrt(found.order / 2 / found.allowed))
        assert epsilon(gauss, 0.99e-5, accountant="rdp", orders=(found.order,)) == pytest.approx(2.0, rel=1e-6)
        c = account(path, "c", planned=1000)
        c.cover(c.room())
        assert not Ledger(path).filtered("d").holds  # the exact total fits a little longer than the filter does
        Ledger(path).set_budget("d", 3.0, 1e-5)
        assert Ledger(path).filtered("d") is None  # a budget that was changed was not fixed in advance

    def test_a_budget_that_came_later_is_no_filter(self, path):
        account(path).cover(1)
        ledger = Ledger(path)
        ledger.set_budget("d", 2.0, 1e-5)
        assert ledger.filtered("d") is None


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


class TestCraftedLines:
    """Lines whose hash fits and whose content does not."""

    GOOD: ClassVar = {
        "kind": "spend",
        "dataset": "d",
        "run": "a",
        "method": "m",
        "steps": 1,
        "planned": 1,
        "at": "now",
        "adjacency": "add-remove",
        "status": "proven",
        "delta": 1e-5,
        "event": None,
        "points": [[1e-5, 1.0]],
    }

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"delta": d} for d in (0, 1, -1, 2.0, "x", None, [])),
            *({"points": p} for p in ([], [[1e-5, -1.0]], [[0, 1.0]], [[1.5, 1.0]], 3, [[1]], [["x", "y"]])),
            *({"status": s} for s in ("fine", None, 3)),
            *({"adjacency": s} for s in ("near", None)),
            *({"steps": n} for n in (0, -3, "x", None, 1e400)),
            *({"run": n} for n in (None, 3, {})),
            {"dataset": 3},
            {"event": {"kind": "Popen"}},
            {"kind": "budget", "epsilon": -1},
            {"kind": "budget", "epsilon": "x"},
            {"kind": "close", "run": "nobody"},
            {"kind": "else"},
            {"kind": ["spend"]},
        ],
        ids=str,
    )
    def test_are_refused(self, path, wrong):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**{k: v for k, v in {**self.GOOD, **wrong}.items() if v != math.inf})
        with pytest.raises(BadInput, match="line 2"):
            Ledger(path)

    def test_the_good_one_is_read(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**self.GOOD)
        assert Ledger(path).total("d").epsilon == 1.0


def test_no_total_is_proven_without_a_number() -> None:
    by_hand = Cost("add-remove", "proven", 1e-6, points=((1e-6, 0.5),))
    found = add_up([by_hand], 1e-7)
    assert (found.epsilon, found.status) == (math.inf, "none")
    assert found.sentence() == "no finite ε is proven at δ = 1e-7 (add-remove) over 1 spend"
    most = add_up([Cost("add-remove", "proven", 0.6, points=((0.6, 0.5),))] * 2)
    assert (most.delta, most.status) == (1.0, "none")
