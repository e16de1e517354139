"""The same noise never meets two different sums: what changed takes fresh noise, and every taking is charged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from going_back import (
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
from hush.accounting.guarantee import BLINDLY
from hush.checkpointing import Checkpoints
from hush.checkpointing.sum_log import SumLog
from hush.errors import ResumeError
from hush.guarantees import Replay, ReplayHistory
from hush.optimizers import SGD
from hush.per_example.augmentation import Augmented


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
