"""A checkpoint that does not belong to a run is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from hush.checkpointing import Checkpoints
from hush.checkpointing.checkpoint import describe_difference, read_checkpoint
from hush.errors import HushError, InvalidInputError, ResumeError, RunStateError
from hush.optimizers import SGD
from hush.plan import Plan
from hush.training import take_steps
from stopping import STEPS, N, data, losses, model, plan, resumed, same, start, stopped, straight


class Rows(Dataset):
    def __init__(self, seed: int = 0, noisy: bool = False) -> None:
        self.x, self.y = data(seed)
        self.noisy, self.reads = noisy, 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int):
        self.reads += 1
        return self.x[index] + (self.reads if self.noisy else 0), self.y[index]


class TestRefusals:
    def refuse(self, directory: Path, p: Plan, text: str, kind: type[HushError] = ResumeError, **how) -> None:
        run, kept = start(p, **{"secret": None, **how}), Checkpoints(directory)
        try:
            with pytest.raises(kind, match=text):
                kept.restore(run, kept.newest().saved)
        finally:
            kept.close()

    def test_another_plan(self, tmp_path):
        stopped(plan(), tmp_path, 3)
        self.refuse(tmp_path, plan(noise_multiplier=0.8), r"another plan \(sigma was 0.7 and is 0.8\)")
        self.refuse(tmp_path, plan("dp-adam"), "another plan")

    def test_of_lists_only_what_differs_is_told(self):
        told = describe_difference("assumptions", ["a", "b", "c"], ["a", "d", "c"])
        assert told == "assumptions no longer has 'b' and now has 'd'"
        assert describe_difference("--set", ["lr=1"], []) == "--set no longer has 'lr=1'"
        assert describe_difference("--set", ["a", "b"], ["b", "a"]) == "--set is in another order"
        assert describe_difference("shape", [2, 3], [2, 4]) == "shape was [2, 3] and is [2, 4]"
        assert describe_difference("--epsilon", 1.0, 2.5) == "--epsilon was 1 and is 2.5"
        assert describe_difference("--data", {"path": "/a"}, {"path": "/b"}) == "--data was '/a' and is '/b'"

    def test_other_data(self, tmp_path):
        stopped(plan(), tmp_path, 3)
        x, y = data()
        moved = x.clone()
        moved[-1, -1] += 1e-6
        self.refuse(tmp_path, plan(), "other data", data=(moved, y))
        self.refuse(tmp_path, plan(), "other data", data=(x[:-1], y[:-1]))

    def test_another_dataset_object(self, tmp_path):
        stopped(plan(), tmp_path, 3, data=Rows())
        self.refuse(tmp_path, plan(), "other data", data=Rows(seed=1))
        assert same(resumed(plan(), tmp_path, data=Rows()), straight(plan()))

    def test_data_that_is_never_the_same_twice_is_known_by_its_length(self, tmp_path):
        stopped(plan(), tmp_path, 3, data=Rows(noisy=True))
        weights = resumed(plan(), tmp_path, data=Rows(noisy=True))
        assert not same(weights, straight(plan()))  # the steps were taken on what was read then
        assert read_checkpoint(tmp_path / f"checkpoint-{STEPS:010d}.safetensors").step == STEPS

    def test_the_digest_of_the_data_says_nothing_without_the_secret(self, tmp_path):
        for name, secret in (("a", 1), ("b", 2)):
            stopped(plan(), tmp_path / name, 1, secret=secret)
        first, second = (read_checkpoint(tmp_path / n / "checkpoint-0000000001.safetensors").facts for n in "ab")
        assert first["digests"]["data"] != second["digests"]["data"]

    def test_another_model(self, tmp_path):
        stopped(plan(), tmp_path, 3)
        other = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3))
        self.refuse(tmp_path, plan(), "0.bias", InvalidInputError, model=other)

    def test_other_frozen_weights(self, tmp_path):
        def frozen(seed: int) -> nn.Module:
            torch.manual_seed(seed)
            made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
            made[0].requires_grad_(False)
            return made

        stopped(plan(), tmp_path, 3, model=frozen(0))
        self.refuse(tmp_path, plan(), "other frozen weights", model=frozen(1))
        assert same(resumed(plan(), tmp_path, model=frozen(0)), straight(plan(), model=frozen(0)))

    def test_another_secret_seed(self, tmp_path):
        stopped(plan(), tmp_path, 3)
        self.refuse(tmp_path, plan(), "another secret", secret=4)

    def test_two_at_once(self, tmp_path):
        first = Checkpoints(tmp_path / "private")
        with pytest.raises(InvalidInputError):
            Checkpoints(tmp_path / "private")
        first.close()
        Checkpoints(tmp_path / "private").close()

    @pytest.mark.parametrize("where", ["before the noise", "after the noise"])
    def test_a_step_broken_off_in_the_middle(self, where, tmp_path, monkeypatch):
        def breaks(made: nn.Module, content) -> torch.Tensor:
            if run.next == 2 and where == "before the noise":
                raise KeyboardInterrupt
            return losses(made, content)

        def broken(optimizer, params, release, state):
            if release.step == 2 and where == "after the noise":
                raise KeyboardInterrupt
            return step(optimizer, params, release, state)

        step = SGD.step
        monkeypatch.setattr(SGD, "step", broken)
        run, kept = plan().start(model(), breaks, data(), secret=3), Checkpoints(tmp_path)
        kept.begin(run)
        steps = take_steps(run, checkpoints=kept, every=1)
        next(steps), next(steps)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
        if where == "after the noise":
            with pytest.raises(RunStateError):
                kept.save(run)
        else:
            kept.save(run)  # nothing has changed yet
        kept.close()
        monkeypatch.undo()
        assert same(resumed(plan(), tmp_path), straight(plan()))
