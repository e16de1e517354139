"""A run that stops and goes on is entered in its ledger once, before each step is taken."""

from __future__ import annotations

import pytest

from hush.checkpointing import SECRETS, Checkpoints
from hush.errors import Refused
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.ledger.total import Scope
from hush.training import train
from stopping import METHODS, STEPS, plan, start, stopped


class TestLedger:
    def begin(self, tmp_path, after: int, *, steps: int = STEPS):
        run, kept = start(plan(steps=steps)), Checkpoints(tmp_path / "run")
        charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.begin(run)
        for _ in train(run, checkpoints=kept, every=max(1, steps // 10)):
            if run.next == after:
                break
        kept.close()

    def go_on(self, tmp_path, *, ledger: str = "l.jsonl", dataset: str = "d", steps: int = STEPS):
        run, kept = start(plan(steps=steps), secret=None), Checkpoints(tmp_path / "run")
        try:
            kept.restore(run, kept.newest().saved)
            charge(run, Ledger(tmp_path / ledger), dataset, kept)
            for _ in train(run, checkpoints=kept, every=1):
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

    def test_every_step_is_covered_before_it_is_taken(self, tmp_path):
        self.begin(tmp_path, 101, steps=250)
        assert [s.steps for s in Ledger(tmp_path / "l.jsonl").spends("d").values()] == [200]

    def test_another_ledger_or_dataset_is_refused(self, tmp_path):
        self.begin(tmp_path, 3)
        with pytest.raises(Refused, match="is entered for dataset 'd' in the ledger"):
            self.go_on(tmp_path, ledger="other.jsonl")
        with pytest.raises(Refused, match="and not in .* for 'e'"):
            self.go_on(tmp_path, dataset="e")

    def test_a_ledger_that_lost_its_entries_is_refused(self, tmp_path):
        Ledger(tmp_path / "l.jsonl")
        early = [(tmp_path / n).read_bytes() for n in ("l.jsonl", "l.jsonl.head")]
        self.begin(tmp_path, 3)
        for name, content in zip(("l.jsonl", "l.jsonl.head"), early, strict=True):
            (tmp_path / name).write_bytes(content)  # an old copy of both files came back
        with pytest.raises(Refused, match="covers 0 steps of this run"):
            self.go_on(tmp_path)

    def test_a_run_begun_without_one_is_entered_with_what_it_took(self, tmp_path):
        stopped(plan(), tmp_path / "run", 3)
        run, kept = start(plan(), secret=None), Checkpoints(tmp_path / "run")
        kept.restore(run, kept.newest().saved)
        account = charge(run, Ledger(tmp_path / "l.jsonl"), "d", kept)
        kept.close()
        assert account.reserved == 3
        self.go_on(tmp_path)
        assert [s.steps for s in Ledger(tmp_path / "l.jsonl").spends("d").values()] == [STEPS]

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_can_be_entered(self, method, tmp_path):
        p = plan(method)
        run = start(p)
        charge(run, Ledger(tmp_path / "l.jsonl"), "d")
        for _ in train(run):
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
