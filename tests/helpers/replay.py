"""Record a run's sums and releases, and replay the releases into a run on a neighbouring dataset.

Sensitivity is a statement about one step given everything released before it. So both runs must stand at the same
parameters at every step: the second run is fed the first one's releases, and its own sums are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hush._internal.tensors import Named, State, Sums
from hush.clipping import Channel, Claim, PlainSumProof, Query
from hush.noise.base import NoisyGradient
from hush.optimizers import Optimizer
from hush.plan import Plan
from hush.randomness import Secret
from hush.sampling import Participation


@dataclass(frozen=True)
class RecordingQuery:
    """Any query, with the sums that go to the noise kept, and with an earlier run's releases to learn from."""

    query: Query
    given: list[NoisyGradient] | None = None
    seen: list[Sums] = field(default_factory=list)

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        return self.query.claims(participation, noise_std, steps)

    @property
    def channels(self) -> Mapping[str, Channel]:
        return self.query.channels

    def init(self, params: Named) -> tuple[State, State]:
        return self.query.init(params)

    def piece(self, model, losses, content: Any, public: State) -> Sums:
        return self.query.piece(model, losses, content, public)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        channels, private = self.query.finish(sums, public, private)
        self.seen.append(copy.deepcopy(channels))
        return channels, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return self.query.observe(release if self.given is None else self.given[release.step], update, public)


@dataclass(frozen=True)
class ReplayRule:
    """Any rule, with its releases kept, or replaced by those of an earlier run."""

    optimizer: Optimizer
    given: list[NoisyGradient] | None = None
    seen: list[NoisyGradient] = field(default_factory=list)

    def init(self, params: Named) -> State:
        return self.optimizer.init(params)

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        used = release if self.given is None else self.given[release.step]
        self.seen.append(copy.deepcopy(used))
        return self.optimizer.step(params, used, state)


def recorded(
    plan: Plan,
    model,
    losses,
    data,
    *,
    secret: int = 1,
    given: list[NoisyGradient] | None = None,
    same: str = "",
    **how: Any,
):
    """Run a plan to its end; return the sums that met the noise, and the releases that the rule saw."""
    query, optimizer = RecordingQuery(plan.query, given), ReplayRule(plan.optimizer, given)
    drawn = Secret.from_seed(
        secret, same or plan.fingerprint()
    )  # of the plan under test, whatever is recorded or replayed
    run = replace(plan, query=query, optimizer=optimizer).start(model, losses, data, secret=drawn, **how)
    for batch in run.batches():
        run.step(batch)
    return query.seen, optimizer.seen


def sensitivities(plan: Plan, make_model, losses, data, neighbour, *, secret: int = 1) -> list[dict[str, float]]:
    """By step and channel: how far the two sums lie apart, at equal parameters."""
    sums, releases = recorded(plan, make_model(), losses, data, secret=secret)
    others, _ = recorded(plan, make_model(), losses, neighbour, secret=secret, given=releases)
    return [{name: distance(a[name], b[name]) for name in a} for a, b in zip(sums, others, strict=True)]


def distance(first: Named, second: Named) -> float:
    """‖first − second‖ over all names, in double precision."""
    return float(
        torch.sqrt(sum(((first[n].detach().double() - second[n].detach().double()) ** 2).sum() for n in first))
    )
