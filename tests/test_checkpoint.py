"""A run that stops anywhere goes on to the same bits, and what does not belong to it is refused with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import Dataset

from hush.charging import charge
from hush.checkpoint import Checkpoints, Unreadable
from hush.checkpoint.directory import tell_difference
from hush.checkpoint.file import read_checkpoint, to_bytes
from hush.errors import BadInput, HushError, Refused
from hush.ledger.account import Ledger
from hush.ledger.scope import Scope
from hush.loop import train
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.rules import SGD, Adam, TorchOptim

N, STEPS = 40, 7


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3))


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": 8, "steps": STEPS, "accept_claimed": True, **changes}
    if method != "sgd":
        how.setdefault("noise_multiplier", 2.0 if method == "dp-dice" else 0.7)  # its memory moves far
    return make_plan(method, **how)


def start(p: Plan, *, secret: int | None = 3, **how):
    return p.start(how.pop("model", None) or model(), losses, how.pop("data", None) or data(), secret=secret, **how)


def straight(p: Plan, **how) -> dict[str, torch.Tensor]:
    run = start(p, **how)
    for _ in train(run):
        pass
    return {n: v.clone() for n, v in run.model.state_dict().items()}


def stopped(p: Plan, directory: Path, after: int, **how) -> None:
    """A run that is stopped after some steps, with a checkpoint there."""
    run, kept = start(p, **how), Checkpoints(directory)
    kept.begin(run)
    steps = train(run, checkpoints=kept, every=1)
    for _ in range(after):
        next(steps)
    assert run.next == after
    kept.close()


def resumed(p: Plan, directory: Path, **how) -> dict[str, torch.Tensor]:
    run, kept = start(p, **{"secret": None, "model": model(seed=99), **how}), Checkpoints(directory)
    saved = kept.newest().saved
    assert saved is not None
    kept.restore(run, saved)
    for _ in train(run, checkpoints=kept, every=3):
        pass
    kept.close()
    return run.model.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def torch_rule(optimizer, scheduler=None) -> TorchOptim:
    return TorchOptim(lambda params: optimizer(list(params.values())), scheduler)


METHODS = [name for name in catalogue() if not name.startswith("sanitize")]  # these need a layer: tests/sanitize
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
@pytest.mark.parametrize("rule", list(RULES))
def test_every_rule_goes_on_to_the_same_bits(rule, after, tmp_path) -> None:
    p = replace(plan(), rule=RULES[rule])
    stopped(p, tmp_path, after)
    assert same(resumed(p, tmp_path), straight(p))


def test_twice_stopped_and_with_pieces(tmp_path) -> None:
    p = plan("dp-adam", sample_rate=0.8)
    stopped(p, tmp_path, 2, microbatch=5)
    run, kept = start(p, secret=None), Checkpoints(tmp_path)
    kept.restore(run, kept.newest().saved)
    assert run.microbatch == 5  # the pieces decide the order of a sum and the dropout, so they are the run's own
    for _ in train(run, checkpoints=kept, every=1):
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
    for _ in train(run):
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
        assert set(state) >= {"step", "secret", "params", "rule", "public", "private", "noise"}
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
        with pytest.raises(Refused, match=r"'state\.rule\.f' holds a function"):
            to_bytes({}, {"step": 0, "rule": {"f": lambda: 0}})

    @pytest.mark.parametrize("how", ["cut", "empty", "flipped", "head", "text"])
    def test_damage_is_seen(self, how, tmp_path):
        stopped(plan(), tmp_path, 3)
        path = tmp_path / "checkpoint-0000000003.safetensors"
        damage(path, how)
        with pytest.raises(Unreadable, match="damaged|cut short"):
            read_checkpoint(path)

    def test_one_of_an_earlier_version_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hush.checkpoint.file.FORMAT", "hush checkpoint 2")
        stopped(plan(), tmp_path, 3)
        monkeypatch.undo()
        with pytest.raises(Unreadable, match="another version of hush.*finish the run with that version"):
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
            assert state["secret"] == read_checkpoint(path).state["secret"]

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
        for _ in train(run, checkpoints=kept, every=3):
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
    def refuse(self, directory: Path, p: Plan, text: str, kind: type[HushError] = Refused, **how) -> None:
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
        told = tell_difference("assumptions", ["a", "b", "c"], ["a", "d", "c"])
        assert told == "assumptions no longer has 'b' and now has 'd'"
        assert tell_difference("--set", ["lr=1"], []) == "--set no longer has 'lr=1'"
        assert tell_difference("--set", ["a", "b"], ["b", "a"]) == "--set is in another order"
        assert tell_difference("shape", [2, 3], [2, 4]) == "shape was [2, 3] and is [2, 4]"
        assert tell_difference("--epsilon", 1.0, 2.5) == "--epsilon was 1 and is 2.5"
        assert tell_difference("--data", {"path": "/a"}, {"path": "/b"}) == "--data was '/a' and is '/b'"

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
        self.refuse(tmp_path, plan(), "the saved model is another one: it differs in 0.bias", BadInput, model=other)

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
        with pytest.raises(BadInput, match="another process is training in"):
            Checkpoints(tmp_path / "private")
        first.close()
        Checkpoints(tmp_path / "private").close()

    @pytest.mark.parametrize("where", ["before the noise", "after the noise"])
    def test_a_step_broken_off_in_the_middle(self, where, tmp_path, monkeypatch):
        def breaks(made: nn.Module, content) -> torch.Tensor:
            if run.next == 2 and where == "before the noise":
                raise KeyboardInterrupt
            return losses(made, content)

        def broken(rule, params, release, state):
            if release.step == 2 and where == "after the noise":
                raise KeyboardInterrupt
            return step(rule, params, release, state)

        step = SGD.step
        monkeypatch.setattr(SGD, "step", broken)
        run, kept = plan().start(model(), breaks, data(), secret=3), Checkpoints(tmp_path)
        kept.begin(run)
        steps = train(run, checkpoints=kept, every=1)
        next(steps), next(steps)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
        if where == "after the noise":
            with pytest.raises(Refused, match="broken off in the middle"):
                kept.save(run)
        else:
            kept.save(run)  # nothing has changed yet
        kept.close()
        monkeypatch.undo()
        assert same(resumed(plan(), tmp_path), straight(plan()))


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
        assert key in json.dumps(read_checkpoint(next((tmp_path / "run").glob("*3.safetensors"))).state["secret"])
