"""New mechanisms written against the protocols alone, without special cases in shared code.

Each class is minimal: two points with public feedback, hidden state, a tall C, a single release of rows, and two ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from dp_accounting import dp_event
from torch import nn
from torch.nn import functional

from hush._internal.tensors import Named, State, Sums, trainable
from hush.accounting.events import find_leaves
from hush.clipping import PLAIN_SUM, Channel, Claim, ClippedSum, PlainSumProof, clip_factors, total_norms
from hush.distributed.group import init_distributed
from hush.errors import InvalidInputError, NotProvenError
from hush.matrix_factorization import Strategy
from hush.methods import make_plan
from hush.noise import Independent, Rows
from hush.noise.base import NoisyGradient
from hush.optimizers import SGD
from hush.per_example.augmentation import Point
from hush.per_example.gradients import per_example_gradients
from hush.plan import Plan
from hush.randomness import Secret
from hush.sampling import OnePass, Partitioned, Poisson
from replay import distance, recorded

N, STEPS = 24, 6


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, 5, generator=generator).double(), torch.randint(0, 3, (N,), generator=generator)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def plan(**parts: Any) -> Plan:
    base = make_plan("dp-sgd", examples=N, batch_size=6, steps=STEPS, noise_multiplier=0.5, lr=0.2, clip=1.0)
    return replace(base, **parts)


@dataclass(frozen=True)
class TwoPoint:
    """DiSK's query: a ∇(θ + γ·dir) + (1 − a) ∇(θ), clipped after the combination; dir is the last update."""

    clip: float
    a: float
    gamma: float

    @property
    def channels(self) -> Mapping[str, Channel]:
        return {"gradient": Channel(self.clip)}

    def init(self, params: Named) -> tuple[State, State]:
        return {"direction": {n: torch.zeros_like(p) for n, p in params.items()}}, {}

    def piece(self, model, losses, content, public: State) -> Sums:
        ahead = {n: p.detach() + self.gamma * public["direction"][n] for n, p in trainable(model).items()}
        tape = per_example_gradients(model, losses, content, points=[Point(self.a, ahead), Point(1 - self.a, None)])
        return {"gradient": tape.sum(clip_factors(total_norms(tape.squared_norms()), self.clip, "plain"))}

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return sums, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return {"direction": update}

    def claims(self, participation: Any, noise_std: Mapping[str, float], steps: int) -> PlainSumProof:
        return PLAIN_SUM


def combined_by_hand(at: nn.Module, direction: Named, query: TwoPoint, rows: torch.Tensor) -> Named:
    """Σ clip(a ∇(θ + γ·dir) + (1 − a) ∇(θ)), an example at a time."""
    total = {name: torch.zeros_like(p) for name, p in trainable(at).items()}
    for row in rows:
        one = tuple(part[row : row + 1] for part in data())
        combined = {name: torch.zeros_like(p) for name, p in total.items()}
        for weight, gamma in ((query.a, query.gamma), (1 - query.a, 0.0)):
            moved = model()
            moved.load_state_dict({n: p + gamma * direction[n] for n, p in at.state_dict().items()})
            params = dict(moved.named_parameters())
            found = torch.autograd.grad(losses(moved, one).sum(), list(params.values()))
            combined = {n: combined[n] + weight * g for n, g in zip(params, found, strict=True)}
        norm = math.sqrt(sum(float((g**2).sum()) for g in combined.values()))
        total = {n: total[n] + min(1.0, query.clip / norm) * combined[n] for n in total}
    return total


def test_two_points_with_public_feedback() -> None:
    """Every sum is the one by hand at the direction of the update before, and not the one without a direction."""
    p = plan(query=TwoPoint(1.0, 0.6, 5.0))
    sums, releases = recorded(p, model(), losses, data(), same="two points")
    secret, at = Secret.from_seed(1, "two points"), model()
    nowhere = direction = {name: torch.zeros_like(v) for name, v in at.state_dict().items()}
    for step in range(STEPS):
        rows = p.sampler.indices(secret, step, N)
        right = combined_by_hand(at, direction, p.query, rows)
        assert distance(sums[step]["gradient"], right) < 1e-6
        without = distance(combined_by_hand(at, nowhere, p.query, rows), right)
        assert without == 0 if step == 0 else without > 1e-2
        direction = {name: -0.2 * g for name, g in releases[step].gradient.items()}  # SGD's update, lr = 0.2
        at.load_state_dict({name: value + direction[name] for name, value in at.state_dict().items()})


def test_two_points_at_one_place_are_a_clipped_sum() -> None:
    query, secret = TwoPoint(1.0, 0.6, 0.0), "one place"
    plain, releases = recorded(plan(query=ClippedSum(1.0)), model(), losses, data(), same=secret)
    ours, _ = recorded(plan(query=query), model(), losses, data(), given=releases, same=secret)
    assert max(distance(a["gradient"], b["gradient"]) for a, b in zip(ours, plain, strict=True)) < 1e-6
    assert min(distance(b["gradient"], {n: 0 * g for n, g in b["gradient"].items()}) for b in plain) > 0.1


@dataclass(frozen=True)
class ErrorFeedback:
    """Dice's query: Σ clip(gᵢ, C₁) + clip(e, C₂) with e ← e + Σgᵢ − v kept inside."""

    c1: float
    c2: float

    @property
    def channels(self) -> Mapping[str, Channel]:
        return {"gradient": Channel(self.c1, proof="hidden-state")}

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {"error": {n: torch.zeros_like(p) for n, p in params.items()}}

    def piece(self, model, losses, content, public: State) -> Sums:
        tape = per_example_gradients(model, losses, content)
        weights = clip_factors(total_norms(tape.squared_norms()), self.c1, "plain")
        return {"clipped": tape.sum(weights), "raw": tape.sum((weights > 0).double())}

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        error = private["error"]
        norm = math.sqrt(sum(float((e**2).sum()) for e in error.values()))
        factor = min(1.0, self.c2 / norm) if norm else 1.0
        released = {n: c + factor * error[n] for n, c in sums["clipped"].items()}
        after = {n: error[n] + sums["raw"][n] - released[n] for n in error}
        return {"gradient": released}, {"error": after}

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(self, participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        each = noise_std["gradient"] / (self.c1 + 2 * self.c2)
        proven = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(each), steps)
        published = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise_std["gradient"] / self.c1), steps)
        return (
            Claim(published, "add-remove", "claimed", "the paper's"),
            Claim(proven, "add-remove", "proven", "the error may differ arbitrarily"),
        )


def test_hidden_state_and_claims_of_its_own() -> None:
    p = plan(query=ErrorFeedback(1.0, 0.5))
    proven, claimed = p.claims()
    assert (proven.status, claimed.status) == ("proven", "claimed")
    assert proven.epsilon > claimed.epsilon
    assert p.guarantee() == proven
    run = p.start(model(), losses, data(), secret=1)
    for batch in run.batches():
        run.step(batch)
    assert any(e.abs().max() > 0 for e in run.state()["private"]["error"].values())


def test_hidden_state_without_a_claim_is_refused() -> None:
    class Silent(ErrorFeedback):
        claims = property()  # type: ignore[assignment]

    with pytest.raises(InvalidInputError):
        plan(query=Silent(1.0, 0.5))


@dataclass(frozen=True)
class TwoLeafTree(Strategy):
    """A binary tree of two leaves as noise: C = [[1, 0], [0, 1], [1, 1]] is tall, three rows of Z for two steps.

    The prefix sums are estimated from complete nodes: step 1 sees node 0, step 2 the root, node 2. The noise of a step
    is the increment: z₀, then z₂ − z₀.
    """

    steps: int = 2
    bands: int | None = None
    restarts: int | None = None

    @property
    def structure(self) -> TwoLeafTree:
        return self

    @property
    def pieces(self) -> bool:
        return False

    def strategy(self) -> np.ndarray:
        return np.array([[1.0, 0], [0, 1], [1, 1]])

    def noise_map(self) -> np.ndarray:
        return np.array([[1.0, 0, 0], [-1, 0, 1]])

    def first(self, steps: int) -> TwoLeafTree:
        return self

    def init(self, like: torch.Tensor) -> State:
        return {"prefix": torch.zeros_like(like)}

    def draw(self, step: int, z: Rows, state: State) -> tuple[torch.Tensor, State]:
        prefix = z(0) if step == 0 else z(2)
        return prefix - state["prefix"], {"prefix": prefix}

    def std(self, step: int) -> float:
        return 1.0 if step == 0 else math.sqrt(2)


@dataclass(frozen=True)
class TallPair(TwoLeafTree):
    """Orthogonal columns in a tall C, [[1, 0], [0, 1], [1, 0], [0, 1]]; M has rows of norm one that are correlated."""

    bands: int | None = 1

    def strategy(self) -> np.ndarray:
        return np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]])

    def noise_map(self) -> np.ndarray:
        return np.array([[1.0, 0, 0, 0], [-0.5, 0.5, 0.5, 0.5]])

    def draw(self, step: int, z: Rows, state: State) -> tuple[torch.Tensor, State]:
        noise = z(0) if step == 0 else 0.5 * (z(1) + z(2) + z(3) - z(0))
        return noise, state

    def std(self, step: int) -> float:
        return 1.0


def test_orthogonal_columns_cost_their_own_norm_and_not_what_a_row_of_noise_suggests() -> None:
    """Rows of M of norm one would pass for DP-SGD's noise; CG + Z, which is what is proven, has columns of norm √2."""
    pair = TallPair()
    assert np.array_equal(pair.noise_map() @ pair.strategy(), np.eye(2))
    p = plan(noise=pair, sampler=Poisson(N, 0.5, 2), steps=2, query=ClippedSum(1.0), adjacency=None)
    (leaf,) = find_leaves(p.event()).others
    assert leaf[0].event.noise_multiplier == pytest.approx(p.sigma / math.sqrt(2))
    assert leaf[1] == 2
    assert find_leaves(p.event(2, start=1)).others[0][0].event.noise_multiplier == pytest.approx(p.sigma / math.sqrt(2))
    assert not pair.alike


def test_a_tall_c() -> None:
    p = plan(noise=TwoLeafTree(), sampler=Partitioned(N, 12, 2), steps=2, query=ClippedSum(1.0), adjacency=None)
    assert p.sensitivity == pytest.approx(math.sqrt(2))
    assert p.event() == dp_event.GaussianDpEvent(0.5)
    sums, releases = recorded(p, model(), losses, data())
    assert len(sums) == 2
    assert releases[1].noise_std == pytest.approx(0.5 * math.sqrt(2) * math.sqrt(2) * (1 + p.charge) / p.divisor)
    with pytest.raises(NotProvenError, match="noise"):
        replace(p, sampler=Poisson(N, 0.5, 2))


@dataclass(frozen=True)
class Rowwise:
    """Sanitise once: every example's clipped feature row goes to a row of its own, so the table is one bounded sum."""

    rows: int
    width: int
    clip: float

    @property
    def channels(self) -> Mapping[str, Channel]:
        return {"gradient": Channel(self.clip * math.sqrt(self.width))}

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {}

    def piece(self, model, losses, content, public: State) -> Sums:
        features, row = content
        table = features.new_zeros(self.rows, self.width)
        table[row] = features.clamp(-self.clip, self.clip)
        return {"gradient": {"table": table}}

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return sums, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(self, participation: Any, noise_std: Mapping[str, float], steps: int) -> PlainSumProof:
        return PLAIN_SUM


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(N, 5).double())


def test_a_single_release_of_rows() -> None:
    p = plan(
        sampler=Partitioned(N, N, 1),
        query=Rowwise(N, 5, 0.3),
        noise=Independent(1),
        optimizer=SGD(1.0),
        steps=1,
        divisor=1.0,
        sigma=5.0,
        adjacency="replace",
        arithmetic="fast",
    )
    assert p.sampler.participation == OnePass(1)
    assert p.guarantee().epsilon == pytest.approx(1.555, abs=5e-4)  # MECHANISMS.md §8: σ = 5, δ = 1e-5, μ = 2/σ
    table = Table()
    run = p.start(table, losses, (data()[0], torch.arange(N)), secret=1, microbatch=7)
    for batch in run.batches():
        run.step(batch)
    noise = -table.table.detach() - data()[0].clamp(-0.3, 0.3)
    assert noise.std() == pytest.approx(5.0 * 0.3 * math.sqrt(5), rel=0.2)


def _rank(rank: int, world: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=world)
    run = plan().start(model(), losses, data(), secret=1, ranks=init_distributed())
    for batch in run.batches():
        run.step(batch)
    torch.save(run.model.state_dict(), f"{path}/{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_take_the_steps_of_one(tmp_path) -> None:
    alone = plan().start(model(), losses, data(), secret=1)
    for batch in alone.batches():
        alone.step(batch)
    mp.spawn(_rank, args=(2, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in range(2))
    for name, value in alone.model.state_dict().items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(first[name], value, atol=1e-12)
