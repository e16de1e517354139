"""What steps cost that are taken again with fresh noise, and what of a run stays and what starts anew."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from dp_accounting import dp_event

from going_back import (
    BATCH,
    STEPS,
    N,
    other_losses,
    plan,
    resumed,
    start,
    taken_back,
)
from hush.accounting.accountant import epsilon
from hush.checkpointing import Checkpoints
from hush.guarantees import Replay, ReplayHistory, account_attempts
from hush.noise import Independent, Stages
from hush.plan import Plan
from hush.randomness import Secret, generator
from hush.sampling import SameOrder


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
