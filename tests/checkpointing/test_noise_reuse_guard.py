"""The same noise is never added to two different sums: changed steps use fresh noise, and each attempt is charged."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from dp_accounting import dp_event
from torch import nn
from torch.utils.data import Dataset

from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import BLINDLY, SECRET_SEED, rounded_up
from hush.checkpointing import Checkpoints
from hush.checkpointing.noise_reuse_guard import read_releases
from hush.checkpointing.sum_log import ROW, SumLog
from hush.errors import BudgetExceededError, ResumeError, RunStateError
from hush.guarantees import Replay, ReplayHistory, account_attempts
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.noise import Independent, Stages
from hush.optimizers import SGD
from hush.per_example.augmentation import Augmented
from hush.plan import Plan
from hush.randomness import Secret, generator
from hush.sampling import SameOrder
from restored_runs import (
    BATCH,
    STEPS,
    N,
    Net,
    begun,
    data,
    go,
    losses,
    other_losses,
    plan,
    resumed,
    start,
    taken_back,
    weights,
)


def turned(by: float):
    return Augmented(losses, lambda content: (content[0] + by, content[1]), 2)


CHANGES = {
    "loss": ({}, {"losses": other_losses}),
    "augmentation": ({"losses": turned(0.0)}, {"losses": turned(0.01)}),
    "model code": ({}, {"model": Net(power=1.01)}),
}


@pytest.mark.parametrize("which", CHANGES)
def test_what_changed_the_sums_gets_fresh_noise_and_a_second_charge(which, tmp_path, capsys) -> None:
    before, after = CHANGES[which]
    p = plan()
    first = taken_back(p, tmp_path, 3, **before)
    assert first.guarantee.epsilon == pytest.approx(p.guarantee().epsilon, rel=1e-6)
    run = resumed(p, tmp_path, **after)
    assert run.secret.key != first.secret.key
    assert run.history.attempts == (Replay(0, STEPS), Replay(3, STEPS))
    both = plan(steps=STEPS + STEPS - 3, noise_multiplier=0.9)  # 8 steps and 5 again, all of the same kind
    assert run.guarantee.epsilon == pytest.approx(both.guarantee().epsilon, rel=1e-4)
    assert run.guarantee.status == "proven"
    again = "steps 4 to 8 were taken again with fresh noise, as their sums had changed or could not be compared"
    assert again in run.guarantee.reason
    assert BLINDLY in run.guarantee.conditions
    said = capsys.readouterr().err
    assert "the sums of step 4 are not those" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("which", CHANGES)
def test_unchanged_it_is_the_same_release_and_costs_nothing(which, tmp_path, capsys) -> None:
    before, _ = CHANGES[which]
    p = plan()
    first = taken_back(p, tmp_path, 3, **before)
    again = resumed(p, tmp_path, **before)
    assert torch.equal(weights(again), weights(first))
    assert again.guarantee == first.guarantee
    assert again.history == ReplayHistory((Replay(0, STEPS),))
    assert capsys.readouterr().err == ""


def test_the_difference_of_two_releases_carries_noise(tmp_path) -> None:
    """Noise a hundred times the clip: with the same noise on both, the difference would be the sums' alone."""
    p = replace(plan(noise_multiplier=100.0, clip=1.0), optimizer=SGD(1.0))

    def nothing(made: nn.Module, content) -> torch.Tensor:
        return 0.0 * losses(made, content)

    first = taken_back(p, tmp_path, STEPS - 1, losses=nothing)
    second = resumed(p, tmp_path, losses=losses)
    apart = (weights(first) - weights(second)).double().norm() * p.divisor
    expected = 100.0 * math.sqrt(2 * len(weights(first)))
    assert 0.6 < apart / expected < 1.4


class Rows(Dataset):
    """Read an item at a time; ``noisy`` gives another item at every reading."""

    def __init__(self, n: int, *, changed: int | None = None, noisy: bool = False) -> None:
        self.x, self.y = data(n)
        if changed is not None:
            self.x[changed, 0] += 1e-3
        self.noisy, self.reads = noisy, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        self.reads += 1
        return self.x[index] + (1e-3 * self.reads if self.noisy else 0.0), self.y[index]


def test_one_record_in_five_thousand_is_seen(tmp_path) -> None:
    p = plan(examples=5000, batch_size=4, steps=3)
    begun(p, tmp_path, 1, data=Rows(5000))
    with pytest.raises(ResumeError):
        resumed(p, tmp_path, 3, data=Rows(5000, changed=2345))
    again = resumed(p, tmp_path, 3, data=Rows(5000))
    assert again.guarantee.epsilon == pytest.approx(p.guarantee().epsilon, rel=1e-4)


def test_data_that_is_never_the_same_twice_is_seen_in_its_sums(tmp_path, capsys) -> None:
    p = plan(sample_rate=1.0)
    taken_back(p, tmp_path, 3, data=Rows(N, noisy=True))
    run = resumed(p, tmp_path, data=Rows(N, noisy=True))
    assert run.guarantee.epsilon > p.guarantee().epsilon
    assert "sums of step" in capsys.readouterr().err


def test_augmentation_by_torchs_generator_is_part_of_the_data(tmp_path) -> None:
    class Jittered(Rows):
        size = 0.1

        def __getitem__(self, index: int):
            return self.x[index] + self.size * torch.rand(()), self.y[index]

    begun(plan(), tmp_path, 3, data=Jittered(N))
    more = Jittered(N)
    more.size = 0.2
    with pytest.raises(ResumeError):
        resumed(plan(), tmp_path, data=more)
    resumed(plan(), tmp_path, data=Jittered(N))


def test_another_size_of_pieces_is_not_taken_over(tmp_path) -> None:
    p = plan(sample_rate=0.9)
    first = taken_back(p, tmp_path, 3, microbatch=7)
    assert torch.equal(weights(resumed(p, tmp_path, microbatch=11)), weights(first))  # the run's own pieces


def test_another_order_of_addition_counts(tmp_path) -> None:
    """What another number of threads does: sums that differ in their last bits."""
    p = plan(sample_rate=0.9)
    taken_back(p, tmp_path, 3, microbatch=7)
    run, kept = start(p), Checkpoints(tmp_path)
    kept.restore(run, kept.newest().saved)
    run._summing.microbatch = 11
    go(run, kept)
    kept.close()
    assert run.history.again == (Replay(3, STEPS),)


class TestBrokenOff:
    """Whatever ends the process while noise is changed: no taking goes uncounted."""

    def test_at_every_write(self, tmp_path, monkeypatch) -> None:
        p = plan()
        for number in range(1, 8):
            directory = tmp_path / str(number)
            taken_back(p, directory, 3)
            calls = 0
            with monkeypatch.context() as patch:
                real = SumLog.append

                def broken(self, *arguments, real=real, number=number):
                    nonlocal calls
                    calls += 1
                    if calls == number:
                        raise KeyboardInterrupt
                    real(self, *arguments)

                patch.setattr(SumLog, "append", broken)
                try:
                    resumed(p, directory, losses=other_losses)
                except KeyboardInterrupt:
                    assert calls == number
            run = resumed(p, directory, losses=other_losses)
            assert run.history.attempts == (Replay(0, STEPS), Replay(3, STEPS))

    def test_an_older_checkpoint_with_the_first_secret_goes_on_beside(self, tmp_path) -> None:
        """Fresh noise from step 3 on, then back to a checkpoint from before it: three stretches, all counted."""
        p = plan()
        first = taken_back(p, tmp_path, 3)
        (tmp_path / "old").write_bytes((tmp_path / "checkpoint-0000000003.safetensors").read_bytes())
        resumed(p, tmp_path, 6, losses=other_losses)
        for path in tmp_path.glob("checkpoint-*"):
            path.unlink()
        (tmp_path / "old").rename(tmp_path / "checkpoint-0000000003.safetensors")
        run = resumed(p, tmp_path)
        assert torch.equal(weights(run), weights(first))  # the first secret, the first sums
        assert run.history.attempts == (Replay(0, STEPS), Replay(3, 6))
        assert run.guarantee.epsilon == pytest.approx(plan(steps=STEPS + 3).guarantee().epsilon, rel=1e-4)


# The cost of replayed steps with fresh noise, and which state of a run is kept.


def composed(p: Plan, *events) -> float:
    return epsilon(dp_event.ComposedDpEvent(list(events)), p.delta, adjacency=p.neighbours)


@dataclass(frozen=True)
class Own:
    """Somebody else's sampler of fixed batches."""

    examples: int
    steps: int

    @property
    def participation(self) -> SameOrder:
        return SameOrder(N // BATCH, self.steps)

    @property
    def largest_batch(self) -> int:
        return BATCH

    def indices(self, secret: Secret, step: int, population: int) -> torch.Tensor:
        order = generator(secret, "mine", 0).permutation(population)
        return torch.from_numpy(order[step % (N // BATCH) * BATCH :][:BATCH])


class TestCosts:
    """E(1…s) ∘ E(t+1…T) where every step stands alone; two whole runs where noise or batches tie the steps together."""

    def cost(self, p: Plan, start: int, taken: int) -> float:
        return account_attempts(p, ReplayHistory((Replay(0, taken), Replay(start, start)), 1))[0].epsilon

    def test_a_schedule(self) -> None:
        p = replace(plan(), noise=Independent(STEPS, Stages(STEPS, 0.5, 4)))
        scales = [p.noise.std(t) for t in range(STEPS)]
        rate = BATCH / N
        steps = [dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(0.9 * s)) for s in scales]
        assert self.cost(p, 3, 6) == pytest.approx(composed(p, *steps[:6], *steps[3:]), rel=1e-4)

    def test_without_replacement(self) -> None:
        p = plan(sampling="fixed-size")
        assert self.cost(p, 3, 6) == pytest.approx(
            plan(sampling="fixed-size", steps=6 + STEPS - 3).guarantee().epsilon, rel=1e-6
        )

    @pytest.mark.parametrize("method", ["dp-ftrl", "dp-matrix-me", "dp-blt", "dp-bandmf"])
    def test_correlated_noise(self, method) -> None:
        p = plan(method)
        assert self.cost(p, 3, 6) == pytest.approx(composed(p, p.event(6), p.event(STEPS)), rel=1e-4)
        assert self.cost(p, 3, 6) > p.guarantee().epsilon

    @pytest.mark.parametrize("sampling", ["same-order", "shuffled"])
    def test_fixed_batches(self, sampling) -> None:
        p = plan(sampling=sampling)
        expected = composed(p, p.event(6), p.event(STEPS))
        assert self.cost(p, 3, 6) == pytest.approx(expected, rel=1e-4)

    def test_dice(self) -> None:
        """Its mixture over the number of participations adds up: s and T steps are s + T."""
        p, both = plan("dp-dice"), plan("dp-dice", steps=6 + STEPS)
        assert self.cost(p, 3, 6) == pytest.approx(both.guarantee().epsilon, rel=1e-4)

    def test_several_times(self) -> None:
        p = plan()
        history = ReplayHistory((Replay(0, 6), Replay(3, 5), Replay(4, 4)), 2)
        found = account_attempts(p, history)[0]
        assert found.epsilon == pytest.approx(plan(steps=6 + 2 + STEPS - 4).guarantee().epsilon, rel=1e-4)

    @pytest.mark.parametrize("method", ["dp-sgd", "dp-ftrl", "dp-matrix-se", "dp-bandmf", "dp-dice", "dp-blt"])
    def test_every_method_goes_on(self, method, tmp_path) -> None:
        p = plan(method) if method != "dp-matrix-se" else plan(method, steps=N // BATCH)
        taken_back(p, tmp_path, 2)
        run = resumed(p, tmp_path, losses=other_losses)
        assert run.history.attempts == (Replay(0, p.steps), Replay(2, p.steps))
        assert run.guarantee.epsilon == pytest.approx(self.cost(p, 2, p.steps), rel=1e-4)
        back = start(p)
        kept = Checkpoints(tmp_path)
        kept.restore(back, kept.newest().saved)
        kept.close()
        assert back.guarantee == run.guarantee

    def test_fixed_batches_stay_and_coins_are_thrown_anew(self) -> None:
        for sampling, stays in (("same-order", True), ("shuffled", True), ("poisson", False), ("fixed-size", False)):
            run = start(plan(sampling=sampling, sample_rate=0.5 if sampling == "poisson" else None))
            before = [run.batch(step).indices for step in range(STEPS)]
            run.use_fresh_secret()
            after = [run.batch(step).indices for step in range(STEPS)]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) is stays

    def test_a_samplers_own_fixed_batches_stay(self) -> None:
        """Whatever stream somebody else's sampler takes its order from."""
        run = start(replace(plan(sampling="same-order"), sampler=Own(N, STEPS)))
        before = run.batch(1).indices
        run.use_fresh_secret()
        assert torch.equal(run.batch(1).indices, before)

    def test_groups_stay_too(self) -> None:
        run = start(plan("dp-bandmf"))
        groups = run.plan.sampler.participation.groups
        seen: dict[int, set[int]] = {group: set() for group in range(groups)}
        for _ in range(4):
            for step in range(STEPS):
                seen[step % groups] |= set(run.batch(step).indices.tolist())
            run.use_fresh_secret()
        assert groups > 1
        assert sum(len(members) for members in seen.values()) == len(set().union(*seen.values()))

    @pytest.mark.parametrize("method", ["dp-blt", "dp-bandmf", "dp-ftrl"])
    def test_the_noise_starts_anew(self, method) -> None:
        """No row of Z from before is in it: what the first secret's noise was has no part in what follows."""
        p, drawn = plan(method), []
        for steps in (0, 3):
            run = start(p)
            for batch in run.batches():
                if run.next == steps:
                    break
                run.step(batch)
            run.use_fresh_secret()
            if steps == 0:
                run._noising.start_anew(3)  # noise that has no steps before
            secret = replace(run.secret, key=bytes(32))
            drawn.append([torch.cat(list(run._noising.draw("gradient", 50, secret, step))) for step in range(3, STEPS)])
        assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


# Replayed steps appear in the statement and the ledger; a secret belongs to one run.


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
