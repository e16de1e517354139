"""A run that stops anywhere resumes to the same bits."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import Dataset

from hush.checkpointing import SECRETS, Checkpoints, Unreadable
from hush.checkpointing.checkpoint import describe_difference, read_checkpoint, to_bytes
from hush.errors import BudgetExceededError, HushError, InvalidInputError, ResumeError, RunStateError
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge, close_run, fit_budget
from hush.ledger.total import Scope
from hush.optimizers import SGD, Adam, TorchOptim
from hush.plan import Plan
from hush.training import take_steps
from resumed_runs import METHODS, STEPS, N, data, losses, model, plan, resumed, same, start, stopped, straight


def torch_rule(optimizer, scheduler=None) -> TorchOptim:
    return TorchOptim(lambda params: optimizer(list(params.values())), scheduler)


RULES = {
    "sgd-momentum": SGD(0.3, momentum=0.9),
    "adam": Adam(0.05),
    "adamw-cosine": torch_rule(
        lambda p: torch.optim.AdamW(p, lr=0.05), lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)
    ),
    "sgd-onecycle": torch_rule(
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda o: lr_scheduler.OneCycleLR(o, 0.5, STEPS)
    ),
    "sgd-multistep": torch_rule(
        lambda p: torch.optim.SGD(p, lr=0.1, nesterov=True, momentum=0.5), lambda o: lr_scheduler.MultiStepLR(o, [2, 4])
    ),
    "rmsprop-sequential": torch_rule(
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
        ),
    ),
    "adam-lambda": torch_rule(
        lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True), lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n))
    ),
}


@pytest.mark.parametrize("after", [0, 1, 4, STEPS])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_to_the_same_bits(method, after, tmp_path) -> None:
    p = plan(method)
    stopped(p, tmp_path, after)
    assert same(resumed(p, tmp_path), straight(p))


OPTIONS = [
    {"average": "ema:0.9"},
    {"average": "tail:0.5"},
    {"clip_quantile": 0.5},
    {"clip_quantile": 0.5, "clip_mode": "normalised"},
    {"noise_end": 0.5, "noise_stages": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_goes_on_to_the_same_bits(options, tmp_path) -> None:
    p = plan("dp-adam", **options)
    stopped(p, tmp_path, 4)
    assert same(resumed(p, tmp_path), straight(p))


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled", "same-order"])
def test_every_sampling_goes_on_to_the_same_bits(sampling, tmp_path) -> None:
    p = plan(sampling=sampling)
    stopped(p, tmp_path, 4)
    assert same(resumed(p, tmp_path), straight(p))


@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("optimizer", list(RULES))
def test_every_rule_goes_on_to_the_same_bits(optimizer, after, tmp_path) -> None:
    p = replace(plan(), optimizer=RULES[optimizer])
    stopped(p, tmp_path, after)
    assert same(resumed(p, tmp_path), straight(p))


def test_twice_stopped_and_with_pieces(tmp_path) -> None:
    p = plan("dp-adam", sample_rate=0.8)
    stopped(p, tmp_path, 2, microbatch=5)
    run, kept = start(p, secret=None), Checkpoints(tmp_path)
    kept.restore(run, kept.newest().saved)
    assert run.microbatch == 5  # the pieces decide the order of a sum and the dropout, so they are the run's own
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == 5:
            break
    kept.close()
    assert same(resumed(p, tmp_path), straight(p, microbatch=5))


def test_a_run_without_restored_state_is_another_one(tmp_path) -> None:
    """The comparison above can fail: with Adam's moments lost, the bits differ."""
    p = plan("dp-adam")
    stopped(p, tmp_path, 4)
    run, kept = start(p, secret=None), Checkpoints(tmp_path)
    saved = kept.newest().saved
    saved.state["rule"]["m"]["0.weight"].zero_()
    kept.restore(run, saved)
    for _ in take_steps(run):
        pass
    kept.close()
    assert not same(run.model.state_dict(), straight(p))


def test_batch_norm_in_ordinary_training_keeps_its_statistics(tmp_path) -> None:
    def normed(seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    p = plan("sgd")
    stopped(p, tmp_path, 4, model=normed())
    assert same(resumed(p, tmp_path, model=normed(9)), straight(p, model=normed()))


# Checkpoint files: readable by the owner only, damage detected, no log line lost.


class TestFile:
    def test_holds_everything_for_its_owner_alone(self, tmp_path):
        directory = tmp_path / "out" / "private"
        stopped(plan("dp-adam"), directory, 4)
        assert directory.stat().st_mode & 0o777 == 0o700
        for path in directory.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
        kept = Checkpoints(directory)
        assert [p.name for p in kept.files()] == [f"checkpoint-000000000{n}.safetensors" for n in (4, 3)]
        state = read_checkpoint(kept.files()[0]).state
        kept.close()
        assert set(state) >= {"step", "params", "rule", "public", "private", "noise"}
        assert state["step"] == 4

    def test_any_safetensors_reader_opens_it(self, tmp_path):
        stopped(plan(), tmp_path, 1)
        with safe_open(tmp_path / "checkpoint-0000000001.safetensors", "pt") as file:
            assert file.get_tensor("state.params.0.weight").shape == (5, 6)
            assert json.loads(file.metadata()["hush"])["step"] == 1

    def test_scratch_is_left_out_and_odd_values_come_back(self, tmp_path):
        state = {
            "step": 1,
            "_scratch": object(),
            "a": {"b": torch.ones(2), "_c": torch.ones(3)},
            "a.b": torch.zeros(1),
            "n": [1, 2.5, math.inf, None, True, (1, "x")],
            "i": {3: torch.tensor(1.0, dtype=torch.bfloat16)},
            "e": torch.empty(0, 2),
            "t": torch.arange(6).reshape(2, 3).t(),
        }
        path = tmp_path / "x"
        path.write_bytes(to_bytes({}, state))
        back = read_checkpoint(path).state
        assert set(back) == {"step", "a", "a.b", "n", "i", "e", "t"}
        assert set(back["a"]) == {"b"}
        assert torch.equal(back["a"]["b"], torch.ones(2))
        assert torch.equal(back["a.b"], torch.zeros(1))
        assert back["n"] == state["n"]
        assert back["i"][3].dtype == torch.bfloat16
        assert torch.equal(back["t"], state["t"])

    def test_what_would_need_code_to_load_is_refused(self):
        with pytest.raises(ResumeError, match=r"'state\.rule\.f'"):
            to_bytes({}, {"step": 0, "rule": {"f": lambda: 0}})

    @pytest.mark.parametrize("how", ["cut", "empty", "flipped", "head", "text"])
    def test_damage_is_seen(self, how, tmp_path):
        stopped(plan(), tmp_path, 3)
        path = tmp_path / "checkpoint-0000000003.safetensors"
        damage(path, how)
        with pytest.raises(Unreadable, match="damaged|cut short"):
            read_checkpoint(path)

    def test_one_of_an_earlier_version_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hush.checkpointing.checkpoint.FORMAT", "hush checkpoint 2")
        stopped(plan(), tmp_path, 3)
        monkeypatch.undo()
        with pytest.raises(Unreadable):
            read_checkpoint(tmp_path / "checkpoint-0000000003.safetensors")

    def test_every_byte_counts(self, tmp_path):
        stopped(plan(), tmp_path, 1)
        path = tmp_path / "checkpoint-0000000001.safetensors"
        good = path.read_bytes()
        for place in range(0, len(good), 37):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            try:
                state = read_checkpoint(path).state
            except Unreadable:
                continue
            path.write_bytes(good)  # only a change that means nothing (JSON's own spaces) may pass
            assert torch.equal(state["params"]["0.weight"], read_checkpoint(path).state["params"]["0.weight"])

    @pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
    def test_the_one_before_is_used(self, how, tmp_path):
        p = plan("dp-adam")
        stopped(p, tmp_path, 5)
        damage(tmp_path / "checkpoint-0000000005.safetensors", how)
        kept = Checkpoints(tmp_path)
        found = kept.newest()
        kept.close()
        assert found.saved is not None
        assert found.saved.step == 4
        assert "checkpoint-0000000005" in found.damaged[0]
        assert same(resumed(p, tmp_path), straight(p))
        assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == STEPS


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    changed = {
        "cut": content[:-7],
        "empty": b"",
        "flipped": content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
        "head": content[:20] + b"xxxx" + content[24:],
        "text": content.replace(b"dp-sgd", b"dp-xxx"),
    }
    path.write_bytes(changed[how])


class TestLog:
    def test_no_line_is_lost_or_doubled(self, tmp_path):
        p = plan()
        run, kept = start(p), Checkpoints(tmp_path)
        kept.begin(run)
        for _ in take_steps(run, checkpoints=kept, every=3):
            if run.next == 5:
                break
        kept._flush_log()  # lines of steps 3 and 4 reached the disk, their checkpoint did not
        kept.close()
        resumed(p, tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(STEPS))
        whole = tmp_path / "whole"
        stopped(p, whole, STEPS)
        assert (whole / "steps.jsonl").read_text() == (tmp_path / "steps.jsonl").read_text()

    def test_half_a_line_is_cut(self, tmp_path):
        p = plan()
        stopped(p, tmp_path, 4)
        with (tmp_path / "steps.jsonl").open("a") as file:
            file.write('{"step": 4, "lo')
        resumed(p, tmp_path)
        assert [json.loads(x)["step"] for x in (tmp_path / "steps.jsonl").read_text().splitlines()] == list(
            range(STEPS)
        )


# A checkpoint of another run is refused with the reason.


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


# A stopped and resumed run has one ledger entry, written before each step.


@contextmanager
def locked(directory):
    kept = Checkpoints(directory)
    try:
        yield
    finally:
        kept.close()


def charged() -> Plan:
    """The plan, with what the finite precision of its noise costs."""
    return plan().with_tails(start(plan()).coordinates)


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
        assert ledger.total("d").epsilon == pytest.approx(charged().guarantee().epsilon, rel=1e-9)

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
        ledger.set_budget("d", charged().guarantee(STEPS - 1).epsilon, 1e-5)
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
        assert before.epsilon == pytest.approx(charged().guarantee().epsilon, rel=1e-9)

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
