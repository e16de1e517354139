"""The same noise never meets two different sums: what changed takes fresh noise, and every taking is charged."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from hush.attempts import Attempt, History
from hush.charging import charge
from hush.checkpoint import Checkpoints
from hush.checkpoint.sums import ROW, TagFile, tag_of
from hush.checkpoint.witness import read_releases
from hush.claims import account_attempts
from hush.errors import Refused
from hush.gradients import Augmented
from hush.ledger.account import BudgetSpent, Ledger
from hush.loop import train
from hush.methods import make_plan
from hush.noise import Independent, Stages
from hush.plan import Plan
from hush.privacy.accounting import epsilon
from hush.privacy.guarantee import rounded_up
from hush.randomness import Secret, generator
from hush.randomness.cipher import compute_tag, encrypt_counters
from hush.rules import SGD
from hush.run import Run
from hush.sampling import Room, SameOrder

N, STEPS, BATCH = 40, 8, 10


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def other_losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none", label_smoothing=0.1)


def turned(by: float):
    return Augmented(losses, lambda content: (content[0] + by, content[1]), 2)


def data(n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


class Net(nn.Module):
    """Its weights have the same shapes whatever ``power`` is; what it computes differs."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.power = nn.Linear(6, 5), nn.Linear(5, 3), power

    def forward(self, x):
        return self.last(torch.tanh(self.power * self.first(x)))


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": BATCH, "steps": STEPS, "noise_multiplier": 0.9, "accept_claimed": True}
    return make_plan(method, **{**how, **changes})


def start(p: Plan, **how) -> Run:
    made, told = how.pop("model", None) or Net(), how.pop("losses", losses)
    return p.start(made, told, how.pop("data", None) or data(), **how)


def go(run: Run, kept: Checkpoints, until: int = STEPS) -> Run:
    for _ in train(run, checkpoints=kept, every=1):
        if run.next == until:
            break
    return run


def begun(p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, **how) -> Run:
    run, kept = start(p, **how), Checkpoints(directory)
    try:
        if ledger is not None:
            charge(run, Ledger(ledger), "d", kept)
        kept.begin(run)
        return go(run, kept, until)
    finally:
        kept.close()


def resumed(p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, **how) -> Run:
    run, kept = start(p, **how), Checkpoints(directory)
    try:
        kept.restore(run, kept.newest().saved)
        if ledger is not None:
            charge(run, Ledger(ledger), "d", kept)
        return go(run, kept, until)
    finally:
        kept.close()


def back_to(directory: Path, step: int, tmp: Path) -> None:
    """Only the checkpoint of that step is left, as after a kill or by somebody's hand."""
    for path in directory.glob("checkpoint-*"):
        path.unlink()
    (tmp / f"checkpoint-{step:010d}.safetensors").rename(directory / f"checkpoint-{step:010d}.safetensors")


def taken_back(p: Plan, directory: Path, step: int, **how) -> Run:
    """A finished run whose newest checkpoint is that of ``step``."""
    run, kept = start(p, **how), Checkpoints(directory)
    kept.begin(run)
    aside = directory / "aside"
    aside.mkdir()
    if step == 0:
        _copy(kept, aside)
    for _ in train(run, checkpoints=kept, every=1):
        if run.next == step:
            _copy(kept, aside)
    kept.close()
    back_to(directory, step, aside)
    return run


def _copy(kept: Checkpoints, aside: Path) -> None:
    newest = kept.files()[0]
    (aside / newest.name).write_bytes(newest.read_bytes())


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


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

    def room(self, chance: float) -> Room:
        return Room(BATCH)

    def indices(self, secret: Secret, step: int, population: int) -> torch.Tensor:
        order = generator(secret, "mine", 0).permutation(population)
        return torch.from_numpy(order[step % (N // BATCH) * BATCH :][:BATCH])


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
    assert run.history.attempts == (Attempt(0, STEPS), Attempt(3, STEPS))
    both = plan(steps=STEPS + STEPS - 3, noise_multiplier=0.9)  # 8 steps and 5 again, all of the same kind
    assert run.guarantee.epsilon == pytest.approx(both.guarantee().epsilon, rel=1e-4)
    assert run.guarantee.status == "proven"
    again = "steps 4 to 8 were taken again with fresh noise, as their sums had changed or could not be compared"
    assert again in run.guarantee.sentence()
    assert "nobody decided where to break off" in run.guarantee.sentence()
    said = capsys.readouterr().err
    assert "the sums of step 4 are not those that its noise has met before" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("which", CHANGES)
def test_unchanged_it_is_the_same_release_and_costs_nothing(which, tmp_path, capsys) -> None:
    before, _ = CHANGES[which]
    p = plan()
    first = taken_back(p, tmp_path, 3, **before)
    again = resumed(p, tmp_path, **before)
    assert torch.equal(weights(again), weights(first))
    assert again.guarantee == first.guarantee
    assert again.history == History((Attempt(0, STEPS),))
    assert capsys.readouterr().err == ""


def test_the_difference_of_two_releases_carries_noise(tmp_path) -> None:
    """Noise a hundred times the clip: with the same noise on both, the difference would be the sums' alone."""
    p = replace(plan(noise_multiplier=100.0, clip=1.0), rule=SGD(1.0))

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
    with pytest.raises(Refused, match="made on other data"):
        resumed(p, tmp_path, 3, data=Rows(5000, changed=2345))
    again = resumed(p, tmp_path, 3, data=Rows(5000))
    assert again.guarantee.epsilon == pytest.approx(p.guarantee().epsilon, rel=1e-4)


def test_data_that_is_never_the_same_twice_is_seen_in_its_sums(tmp_path, capsys) -> None:
    p = plan(sample_rate=1.0)
    taken_back(p, tmp_path, 3, data=Rows(N, noisy=True))
    run = resumed(p, tmp_path, data=Rows(N, noisy=True))
    assert run.guarantee.epsilon > p.guarantee().epsilon
    assert "not those that its noise has met before" in capsys.readouterr().err


def test_augmentation_by_torchs_generator_is_part_of_the_data(tmp_path) -> None:
    class Jittered(Rows):
        size = 0.1

        def __getitem__(self, index: int):
            return self.x[index] + self.size * torch.rand(()), self.y[index]

    begun(plan(), tmp_path, 3, data=Jittered(N))
    more = Jittered(N)
    more.size = 0.2
    with pytest.raises(Refused, match="made on other data"):
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
    assert run.history.again == (Attempt(3, STEPS),)


class TestTag:
    def test_it_is_gmac(self) -> None:
        """Against SP 800-38D written out: GHASH over the polynomial x¹²⁸ + x⁷ + x² + x + 1, then one block of AES."""
        key, step = bytes(range(32)), 77
        content = torch.arange(25, dtype=torch.float64).view(torch.uint8).numpy()
        blocks = [content[i : i + 16].tobytes().ljust(16, b"\0") for i in range(0, len(content), 16)]
        total, hashed = 0, encrypted(key, 0)
        for block in [*blocks, (8 * len(content)).to_bytes(8, "big") + bytes(8)]:
            total = times(total ^ int.from_bytes(block, "big"), hashed)
        expected = (total ^ encrypted(key, (step << 32) + 1)).to_bytes(16, "big")
        nonce, half = step.to_bytes(12, "big"), content[24:]
        for _ in range(2):
            assert compute_tag(key, nonce, [content]) == expected
            assert compute_tag(key, nonce, [content[:24], half]) == expected
            assert compute_tag(key, bytes(12), [half]) != compute_tag(key, bytes(12), [content])

    def test_every_bit_of_every_channel_counts(self) -> None:
        secret = Secret.fresh()
        base = {"gradient": {"w": torch.randn(3, 4), "b": torch.zeros(2)}, "unclipped": {"count": torch.tensor(2.5)}}
        tags = {tag_of(secret, 0, base), tag_of(secret, 1, base), tag_of(Secret.fresh(), 0, base)}
        for channel, name, twin in [
            ("gradient", "w", torch.nextafter(base["gradient"]["w"], torch.tensor(9.0))),
            ("gradient", "w", base["gradient"]["w"].reshape(4, 3)),
            ("gradient", "b", torch.tensor([0.0, -0.0])),
            ("gradient", "b", torch.zeros(1, dtype=torch.float64)),
            ("unclipped", "count", torch.tensor(3.5)),
        ]:
            tags.add(tag_of(secret, 0, {**base, channel: {**base[channel], name: twin}}))
        assert len(tags) == 8
        turned = {"gradient": {"w": base["gradient"]["w"].t().contiguous().t(), "b": torch.zeros(2)}}
        assert tag_of(secret, 0, {**base, **turned}) == tag_of(secret, 0, base)


def encrypted(key: bytes, number: int) -> int:
    return int.from_bytes(encrypt_counters(key, np.array([number], np.uint64), 1).tobytes(), "big")


def times(a: int, b: int) -> int:
    """The product of two elements of GF(2¹²⁸), the first bit being the constant term."""
    product = 0
    for bit in range(127, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xE1 << 120 if b & 1 else 0)
    return product


class TestRecord:
    def damaged(self, directory: Path, how: str) -> Path:
        (path,) = directory.glob("sums-*")
        content = path.read_bytes()
        start = content.index(b"\n") + 1
        changed = {
            "gone": None,
            "empty": b"",
            "cut": content[: start + 2 * ROW.itemsize],
            "a number": content[: start + 4] + b"\x07" + content[start + 5 :],
            "its head": b"{" + content,
        }[how]
        path.unlink() if changed is None else path.write_bytes(changed)
        return path

    @pytest.mark.parametrize("how", ["gone", "empty", "cut", "a number", "its head"])
    def test_without_it_all_that_was_planned_counts(self, how, tmp_path, capsys) -> None:
        p = plan()
        first = begun(p, tmp_path, 5)
        self.damaged(tmp_path, how)
        run = resumed(p, tmp_path)
        assert run.history.attempts == (Attempt(0, STEPS), Attempt(5, STEPS))
        assert run.secret.key != first.secret.key
        both = plan(steps=STEPS + STEPS - 5)
        assert run.guarantee.epsilon == pytest.approx(both.guarantee().epsilon, rel=1e-4)
        assert "the record of which sums the noise has met" in capsys.readouterr().err
        kept = Checkpoints(tmp_path)
        again = start(p)
        kept.restore(again, kept.newest().saved)
        kept.close()
        assert again.guarantee == run.guarantee

    def test_one_changed_tag_counts_from_its_step_on(self, tmp_path) -> None:
        p = plan()
        taken_back(p, tmp_path, 3)
        (path,) = tmp_path.glob("sums-*")
        content = bytearray(path.read_bytes())
        content[content.index(b"\n") + 1 + 5 * ROW.itemsize + 12] ^= 1
        path.write_bytes(bytes(content))
        assert resumed(p, tmp_path).history.attempts == (Attempt(0, STEPS), Attempt(5, STEPS))

    def test_half_a_tag_is_what_a_kill_left(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path, 5)
        (path,) = tmp_path.glob("sums-*")
        with path.open("ab") as file:
            file.write(b"\x00\x00\x00\x00\x05")
        run = resumed(p, tmp_path)
        assert not run.history.again
        assert TagFile.read(path).attempts == [Attempt(0, STEPS)]

    def test_it_says_nothing_without_the_secret_and_is_its_owners(self, tmp_path) -> None:
        for name in ("a", "b"):
            begun(plan(), tmp_path / name, 2)
        paths = [next((tmp_path / name).glob("sums-*")) for name in ("a", "b")]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
        tags = [set(TagFile.read(path).again.values()) for path in paths]
        assert len(tags[0] | tags[1]) == 4

    def test_a_finished_run_may_be_looked_at_without_it(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path)
        self.damaged(tmp_path, "gone")
        run = resumed(p, tmp_path)
        assert run.guarantee.epsilon == pytest.approx(p.guarantee().epsilon, rel=1e-4)


class TestCosts:
    """E(1…s) ∘ E(t+1…T) where every step stands alone; two whole runs where noise or batches tie the steps together."""

    def cost(self, p: Plan, start: int, taken: int) -> float:
        return account_attempts(p, History((Attempt(0, taken), Attempt(start, start)), 1))[0].epsilon

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
        history = History((Attempt(0, 6), Attempt(3, 5), Attempt(4, 4)), 2)
        found = account_attempts(p, history)[0]
        assert found.epsilon == pytest.approx(plan(steps=6 + 2 + STEPS - 4).guarantee().epsilon, rel=1e-4)

    @pytest.mark.parametrize("method", ["dp-sgd", "dp-ftrl", "dp-matrix-se", "dp-bandmf", "dp-dice", "dp-blt"])
    def test_every_method_goes_on(self, method, tmp_path) -> None:
        p = plan(method) if method != "dp-matrix-se" else plan(method, steps=N // BATCH)
        taken_back(p, tmp_path, 2)
        run = resumed(p, tmp_path, losses=other_losses)
        assert run.history.attempts == (Attempt(0, p.steps), Attempt(2, p.steps))
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
            run.renew()
            after = [run.batch(step).indices for step in range(STEPS)]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) is stays

    def test_a_samplers_own_fixed_batches_stay(self) -> None:
        """Whatever stream somebody else's sampler takes its order from."""
        run = start(replace(plan(sampling="same-order"), sampler=Own(N, STEPS)))
        before = run.batch(1).indices
        run.renew()
        assert torch.equal(run.batch(1).indices, before)

    def test_groups_stay_too(self) -> None:
        run = start(plan("dp-bandmf"))
        groups = run.plan.sampler.participation.groups
        seen: dict[int, set[int]] = {group: set() for group in range(groups)}
        for _ in range(4):
            for step in range(STEPS):
                seen[step % groups] |= set(run.batch(step).indices.tolist())
            run.renew()
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
            run.renew()
            if steps == 0:
                run._noising.start_anew(3)  # noise that has no steps before
            secret = replace(run.secret, key=bytes(32))
            drawn.append([torch.cat(list(run._noising.draw("gradient", 50, secret, step))) for step in range(3, STEPS)])
        assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


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
        assert run.history.attempts == (Attempt(0, STEPS), Attempt(3, STEPS))


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
        assert back.history.attempts == (Attempt(0, 7), Attempt(6, STEPS))
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
        with pytest.raises(BudgetSpent, match="would bring dataset 'd'"):
            resumed(p, tmp_path / "run", STEPS, ledger, losses=other_losses)
        assert ledger.read_bytes() == before
        assert TagFile.read(next((tmp_path / "run").glob("sums-*"))).attempts == [Attempt(0, 5)]
        Ledger(ledger).set_budget("d", 10 * p.guarantee().epsilon, p.delta)
        run = resumed(p, tmp_path / "run", STEPS, ledger, losses=other_losses)
        assert run.history.attempts == (Attempt(0, 5), Attempt(4, STEPS))

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
            with pytest.raises(Refused, match="the secret behind this run's noise was used before, by run"):
                begun(p, tmp_path / "two", 2, ledger, secret=7, data=other)
        begun(p, tmp_path / "three", 2, ledger, secret=8)
        resumed(p, tmp_path / "one", 4, ledger, secret=7)
        with pytest.raises(Refused, match="used before"):
            charge(start(p, secret=7), Ledger(ledger), "another name")


class TestSeed:
    def test_on_other_data_in_the_same_directory(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path, secret=7)
        x, y = data()
        with pytest.raises(
            Refused, match="this secret seed was used in this directory with the same plan on other data"
        ):
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
        assert other.history.attempts == (Attempt(0, STEPS), Attempt(0, STEPS))
        assert other.guarantee.epsilon == pytest.approx(plan(steps=2 * STEPS).guarantee().epsilon, rel=1e-4)
        assert "secret seed" in other.guarantee.sentence()


class TestBrokenOff:
    """Whatever ends the process while noise is changed: no taking goes uncounted."""

    def test_at_every_write(self, tmp_path, monkeypatch) -> None:
        p = plan()
        for number in range(1, 8):
            directory = tmp_path / str(number)
            taken_back(p, directory, 3)
            calls = 0
            with monkeypatch.context() as patch:
                real = TagFile.append

                def broken(self, *arguments, real=real, number=number):
                    nonlocal calls
                    calls += 1
                    if calls == number:
                        raise KeyboardInterrupt
                    real(self, *arguments)

                patch.setattr(TagFile, "append", broken)
                try:
                    resumed(p, directory, losses=other_losses)
                except KeyboardInterrupt:
                    assert calls == number
            run = resumed(p, directory, losses=other_losses)
            assert run.history.attempts == (Attempt(0, STEPS), Attempt(3, STEPS))

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
        assert run.history.attempts == (Attempt(0, STEPS), Attempt(3, 6))
        assert run.guarantee.epsilon == pytest.approx(plan(steps=STEPS + 3).guarantee().epsilon, rel=1e-4)
