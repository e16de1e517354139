"""A run that stops and goes on is entered in its ledger once, before each step is taken."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from hush.checkpointing import SECRETS, Checkpoints
from hush.errors import BudgetExceededError, InvalidInputError, ResumeError
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge, close_run, fit_budget
from hush.ledger.total import Scope
from hush.training import take_steps
from stopping import METHODS, STEPS, plan, start, stopped


@contextmanager
def locked(directory):
    kept = Checkpoints(directory)
    try:
        yield
    finally:
        kept.close()


class TestLedger:
    def begin(self, tmp_path, after: int, *, steps: int = STEPS):
        run, kept = start(plan(steps=steps)), Checkpoints(tmp_path / "run")
        charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.begin(run)
        for _ in take_steps(run, checkpoints=kept, every=max(1, steps // 10)):
            if run.next == after:
                break
        kept.close()

    def go_on(self, tmp_path, *, ledger: str = "l.jsonl", dataset: str = "d", steps: int = STEPS):
        run, kept = start(plan(steps=steps), secret=None), Checkpoints(tmp_path / "run")
        try:
            kept.restore(run, kept.newest().saved)
            charge(run, Ledger(tmp_path / ledger), dataset, kept)
            for _ in take_steps(run, checkpoints=kept, every=1):
                pass
        finally:
            kept.close()
        return run

    def test_a_resumed_run_is_entered_once(self, tmp_path):
        self.begin(tmp_path, 3)
        self.go_on(tmp_path)
        ledger = Ledger(tmp_path / "l.jsonl")
        assert [s.steps for s in ledger.spends("d").values()] == [STEPS]
        assert ledger.total("d").epsilon == pytest.approx(plan().guarantee().epsilon, rel=1e-9)

    def test_the_whole_plan_is_charged_before_the_first_step(self, tmp_path):
        run, kept = start(plan()), Checkpoints(tmp_path / "run")
        account = charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.begin(run)
        assert not account.charged  # nothing was released yet
        batch = run.batch(0)
        run.step(batch)
        kept.close()
        assert account.charged
        assert [(s.steps, s.planned) for s in Ledger(tmp_path / "l.jsonl").spends("d").values()] == [(STEPS, STEPS)]
        assert len((tmp_path / "l.jsonl").read_text().splitlines()) == 2

    def test_killed_between_its_first_checkpoint_and_the_charge_it_is_charged_when_it_goes_on(self, tmp_path):
        run, kept = start(plan()), Checkpoints(tmp_path / "run")
        charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.begin(run)
        kept.close()
        self.go_on(tmp_path)
        assert [s.steps for s in Ledger(tmp_path / "l.jsonl").spends("d").values()] == [STEPS]

    def test_a_budget_without_room_refuses_before_anything_is_written(self, tmp_path):
        ledger = Ledger(tmp_path / "l.jsonl")
        ledger.set_budget("d", plan().guarantee(STEPS - 1).epsilon, 1e-5)
        before = (tmp_path / "l.jsonl").read_bytes()
        run, kept = start(plan()), Checkpoints(tmp_path / "run")
        with pytest.raises(BudgetExceededError, match=f"{STEPS} .*'d'.* {STEPS - 1} of them"):
            charge(run, ledger, "d", kept)
        kept.close()
        assert (tmp_path / "l.jsonl").read_bytes() == before
        assert not list((tmp_path / "run").glob("checkpoint-*"))

    def test_a_plan_is_calibrated_to_what_is_left(self, tmp_path):
        ledger, made = Ledger(tmp_path / "l.jsonl"), plan()
        asked = made.guarantee().epsilon
        ledger.add("d", asked / 2, 1e-6, run="before")
        assert fit_budget(made.with_epsilon, asked, ledger, "d") == asked  # no budget, all fits
        ledger.set_budget("d", asked, 1e-5)
        coordinates = start(made).coordinates
        found = fit_budget(made.with_epsilon, asked, ledger, "d", coordinates=coordinates)
        assert 0.45 * asked < found < 0.5 * asked
        run = start(made.with_epsilon(found))
        charge(run, ledger, "d")
        run.step(run.batch(0))
        assert 0.95 * asked < Ledger(tmp_path / "l.jsonl").total("d").epsilon <= asked
        ledger.set_budget("d", asked / 2, 1e-5)
        with pytest.raises(BudgetExceededError, match="'d'"):
            fit_budget(made.with_epsilon, asked, ledger, "d", coordinates=coordinates)

    def test_a_total_that_cannot_be_read_any_more_stops_nothing(self, tmp_path):
        run = start(plan())
        account = charge(run, Ledger(tmp_path / "l.jsonl"), "d")
        for _ in take_steps(run):
            pass
        before = account.total()
        for name in ("l.jsonl", "l.jsonl.head"):
            (tmp_path / name).write_text("damaged")
        assert account.total() == before
        assert before.epsilon == pytest.approx(plan().guarantee().epsilon, rel=1e-9)

    def test_closing_takes_the_steps_from_the_log_of_sums(self, tmp_path):
        self.begin(tmp_path, 3)
        ledger = Ledger(tmp_path / "l.jsonl")
        (name,) = ledger.spends("d")
        with pytest.raises(InvalidInputError):
            close_run(ledger, "d", name, tmp_path / "nowhere")
        with locked(tmp_path / "run"), pytest.raises(InvalidInputError):
            close_run(ledger, "d", name, tmp_path / "run")
        assert close_run(ledger, "d", name, tmp_path / "run") == 3
        found = Ledger(tmp_path / "l.jsonl").total("d", 1e-5)
        assert found.status == "proven"
        assert plan(steps=2).guarantee().epsilon < found.epsilon < plan().guarantee().epsilon
        assert found.epsilon == pytest.approx(plan().guarantee(3).epsilon, rel=1e-3)
        with pytest.raises(ResumeError, match=f"'{name}'"):
            self.go_on(tmp_path)

    def test_steps_after_the_last_checkpoint_count_too(self, tmp_path):
        run, kept = start(plan()), Checkpoints(tmp_path / "run")
        charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.begin(run)
        for step in range(4):  # without a checkpoint after the first
            run.step(run.batch(step))
        kept.close()
        ledger = Ledger(tmp_path / "l.jsonl")
        (name,) = ledger.spends("d")
        assert close_run(ledger, "d", name, tmp_path / "run") == 4

    def test_without_its_log_or_once_released_a_run_is_not_closed(self, tmp_path):
        self.begin(tmp_path, 3)
        ledger = Ledger(tmp_path / "l.jsonl")
        (name,) = ledger.spends("d")
        (log,) = (tmp_path / "run").glob("sums-*")
        content, before = log.read_bytes(), (tmp_path / "l.jsonl").read_bytes()
        log.unlink()
        with pytest.raises(InvalidInputError):
            close_run(ledger, "d", name, tmp_path / "run")
        log.write_bytes(content)
        self.go_on(tmp_path).release(tmp_path / "out")
        with pytest.raises(InvalidInputError, match=f"'{name}'"):
            close_run(ledger, "d", name, tmp_path / "run")
        assert (tmp_path / "l.jsonl").read_bytes() == before

    def test_another_ledger_or_dataset_is_refused(self, tmp_path):
        self.begin(tmp_path, 3)
        with pytest.raises(ResumeError, match="'d'"):
            self.go_on(tmp_path, ledger="other.jsonl")
        with pytest.raises(ResumeError, match="'e'"):
            self.go_on(tmp_path, dataset="e")

    def test_a_ledger_that_lost_its_entries_is_refused(self, tmp_path):
        Ledger(tmp_path / "l.jsonl")
        early = [(tmp_path / n).read_bytes() for n in ("l.jsonl", "l.jsonl.head")]
        self.begin(tmp_path, 3)
        for name, content in zip(("l.jsonl", "l.jsonl.head"), early, strict=True):
            (tmp_path / name).write_bytes(content)  # an old copy of both files came back
        with pytest.raises(ResumeError):
            self.go_on(tmp_path)

    def test_a_run_begun_without_one_is_entered_with_what_it_took(self, tmp_path):
        stopped(plan(), tmp_path / "run", 3)
        run, kept = start(plan(), secret=None), Checkpoints(tmp_path / "run")
        kept.restore(run, kept.newest().saved)
        account = charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.close()
        assert account.charged
        self.go_on(tmp_path)
        assert [s.steps for s in Ledger(tmp_path / "l.jsonl").spends("d").values()] == [STEPS]

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_can_be_entered(self, method, tmp_path):
        p = plan(method)
        run = start(p)
        charge(run, Ledger(tmp_path / "l.jsonl"), "d")
        for _ in take_steps(run):
            pass
        stated = p.guarantee()
        book = Ledger(tmp_path / "l.jsonl")
        found = book.total("d", scope=Scope("example", stated.protects))
        if stated.protects != "example":
            assert book.total("d").status == "none"  # half of an example is no example
        assert found.status == stated.status
        assert found.adjacency == stated.adjacency
        assert found.epsilon == pytest.approx(stated.epsilon, rel=1e-6)

    def test_no_secret_is_in_it(self, tmp_path):
        self.begin(tmp_path, 3)
        key = start(plan()).secret.key.hex()
        assert key not in (tmp_path / "l.jsonl").read_text()
        assert key in (tmp_path / "run" / SECRETS).read_text()
