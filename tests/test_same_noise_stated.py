"""Steps taken again are stated on the card and entered in the ledger, and a secret is one run's."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from going_back import (
    STEPS,
    begun,
    data,
    losses,
    other_losses,
    plan,
    resumed,
    start,
    taken_back,
    weights,
)
from hush.accounting.guarantee import SECRET_SEED, rounded_up
from hush.checkpointing import Checkpoints
from hush.checkpointing.noise_reuse_guard import read_releases
from hush.checkpointing.sum_log import ROW, SumLog
from hush.errors import BudgetExceededError, RunStateError
from hush.guarantees import Replay
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge


class TestCard:
    def test_card_and_page_state_what_was_spent(self, tmp_path) -> None:
        p = plan()
        taken_back(p, tmp_path / "private", 3)
        run = resumed(p, tmp_path / "private", losses=other_losses)
        run.release(tmp_path / "out")
        card = json.loads((tmp_path / "out" / "privacy.json").read_text())
        assert card["guarantee"]["epsilon"] == run.guarantee.epsilon > p.guarantee().epsilon
        assert card["claims"][0] == card["guarantee"]
        page = (tmp_path / "out" / "PRIVACY.md").read_text()
        assert f"(epsilon, here {rounded_up(run.guarantee.epsilon)})" in page
        assert "teps 4 to 8 were taken again with fresh noise" in page

    def test_going_back_behind_a_release(self, tmp_path) -> None:
        """The newest checkpoint deleted after a release: the same again is nothing more, other sums are charged."""
        p = plan()
        first = taken_back(p, tmp_path / "private", 3)
        first.release(tmp_path / "one")
        again = resumed(p, tmp_path / "private")
        again.release(tmp_path / "two")
        assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
        assert again.guarantee == first.guarantee
        lines = (tmp_path / "private/releases.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [STEPS]

    def test_half_a_line_does_not_swallow_the_next_release(self, tmp_path) -> None:
        """A power cut in the middle of a line: its weights were not written, and the line after it counts."""
        p = plan()
        first = taken_back(p, tmp_path / "private", 3)
        first.release(tmp_path / "one")
        path = tmp_path / "private/releases.jsonl"
        line = path.read_bytes()
        path.write_bytes(line[:20])
        resumed(p, tmp_path / "private").release(tmp_path / "two")
        assert path.read_bytes() == line[:20] + b"\n" + line
        assert read_releases(path) == [json.loads(line)]

    def test_a_record_that_does_not_reach_a_release_is_none(self, tmp_path) -> None:
        p = plan()
        first = taken_back(p, tmp_path, 3)
        first.release(tmp_path / "one")
        (path,) = tmp_path.glob("sums-*")
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"\n") + 1 + 3 * ROW.itemsize])  # as long as the checkpoint needs
        run = resumed(p, tmp_path)
        assert run.history.attempts == (Replay(0, STEPS), Replay(3, STEPS))


class TestLedger:
    def test_steps_taken_again_are_entered_before_they_are_taken(self, tmp_path) -> None:
        p, ledger = plan(), tmp_path / "l.jsonl"
        begun(p, tmp_path / "run", 5, ledger)
        run = resumed(p, tmp_path / "run", 6, ledger)
        assert not run.history.again
        back = resumed(p, tmp_path / "run", 7, ledger, losses=losses)
        assert len(Ledger(ledger).spends("d")) == 1
        path = next((tmp_path / "run").glob("checkpoint-*7.safetensors"))
        path.unlink()
        seen = []

        def watched(made: nn.Module, content) -> torch.Tensor:
            seen.append(len(Ledger(ledger).spends("d")))
            return other_losses(made, content)

        back = resumed(p, tmp_path / "run", STEPS, ledger, losses=watched)
        assert back.history.attempts == (Replay(0, 7), Replay(6, STEPS))
        spends = Ledger(ledger).spends("d")
        assert [(s.steps, s.planned) for s in spends.values()] == [(STEPS, STEPS), (2, 2)]
        assert seen[-1] == 2
        assert Ledger(ledger).total("d", p.delta).epsilon >= back.guarantee.epsilon

    def test_a_budget_forbids_them(self, tmp_path) -> None:
        p, ledger = plan(), tmp_path / "l.jsonl"
        Ledger(ledger).set_budget("d", p.guarantee().epsilon * 1.01, p.delta)
        begun(p, tmp_path / "run", 5, ledger)
        (tmp_path / "run/checkpoint-0000000005.safetensors").unlink()
        before = ledger.read_bytes()
        with pytest.raises(BudgetExceededError, match="'d'"):
            resumed(p, tmp_path / "run", STEPS, ledger, losses=other_losses)
        assert ledger.read_bytes() == before
        assert SumLog.read(next((tmp_path / "run").glob("sums-*"))).attempts == [Replay(0, 5)]
        Ledger(ledger).set_budget("d", 10 * p.guarantee().epsilon, p.delta)
        run = resumed(p, tmp_path / "run", STEPS, ledger, losses=other_losses)
        assert run.history.attempts == (Replay(0, 5), Replay(4, STEPS))

    def test_begun_without_one_everything_is_entered(self, tmp_path) -> None:
        p, ledger = plan(), tmp_path / "l.jsonl"
        taken_back(p, tmp_path / "run", 3)
        resumed(p, tmp_path / "run", 6, losses=other_losses)
        run = resumed(p, tmp_path / "run", STEPS, ledger, losses=other_losses)
        assert Ledger(ledger).total("d", p.delta).epsilon == pytest.approx(run.guarantee.epsilon, rel=1e-4)

    def test_a_secret_is_one_runs(self, tmp_path) -> None:
        p, ledger = plan(), tmp_path / "l.jsonl"
        begun(p, tmp_path / "one", 2, ledger, secret=7)
        x, y = data()
        for other in ((x + 1e-3, y), (x, y)):
            with pytest.raises(RunStateError, match="run's"):
                begun(p, tmp_path / "two", 2, ledger, secret=7, data=other)
        begun(p, tmp_path / "three", 2, ledger, secret=8)
        resumed(p, tmp_path / "one", 4, ledger, secret=7)
        with pytest.raises(RunStateError):
            charge(start(p, secret=7), Ledger(ledger), "another name")


class TestSeed:
    def test_on_other_data_in_the_same_directory(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path, secret=7)
        x, y = data()
        with pytest.raises(RunStateError, match="plan"):
            begun(p, tmp_path, secret=7, data=(x + 1e-3, y))
        kept = Checkpoints(tmp_path)
        assert kept.newest().saved.step == STEPS  # nothing was thrown away for it
        kept.close()

    def test_with_another_loss_in_the_same_directory(self, tmp_path) -> None:
        p = plan()
        first = begun(p, tmp_path, secret=7)
        begun(plan(noise_multiplier=1.0), tmp_path, secret=7)  # another plan, another secret
        again = begun(p, tmp_path, secret=7)
        assert torch.equal(weights(again), weights(first))
        assert again.guarantee == first.guarantee
        other = begun(p, tmp_path, secret=7, losses=other_losses)
        assert other.history.attempts == (Replay(0, STEPS), Replay(0, STEPS))
        assert other.guarantee.epsilon == pytest.approx(plan(steps=2 * STEPS).guarantee().epsilon, rel=1e-4)
        assert SECRET_SEED in other.guarantee.conditions
