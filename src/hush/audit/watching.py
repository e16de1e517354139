"""What the reader of a run sees: every release, taken where the rule takes it, after the noise; and the last model."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hush.audit.stage import Stage
from hush.named import Named, State
from hush.plan import Plan
from hush.queries.adaptive import CHANNEL
from hush.randomness import Secret
from hush.release import Release
from hush.rules import Rule
from hush.run import Run


@dataclass(frozen=True, eq=False)
class Seen:
    """One run: the released numbers where the canary's direction is not zero (a row for every step, as released times
    the public divisor), the noise in each step, and the released model; and, where the clip adapts, the noisy counts of
    unclipped examples with their noise."""

    released: NDArray[np.float64]
    stds: NDArray[np.float64]
    model: nn.Module
    counts: NDArray[np.float64]
    count_stds: NDArray[np.float64]

    def along(self, stage: Stage) -> NDArray[np.float64]:
        """The releases along the canary's direction."""
        return self.released @ stage.components


@dataclass(frozen=True, eq=False)
class Watching:
    """The plan's own rule, and what it was given: the releases, as every rule sees them."""

    rule: Rule
    stage: Stage
    values: list[NDArray[np.float64]] = field(default_factory=list)
    stds: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    count_stds: list[float] = field(default_factory=list)

    def init(self, params: Named) -> State:
        """The rule's own."""
        return self.rule.init(params)

    def step(self, params: Named, release: Release, state: State) -> Named:
        """Look, and let the rule go on."""
        self.values.append(self.stage.pick(release.gradient))
        self.stds.append(release.noise_std)
        if CHANNEL in release.values:
            self.counts.append(float(release.values[CHANNEL]["count"]))
            self.count_stds.append(release.std[CHANNEL])
        return self.rule.step(params, release, state)

    def forget(self) -> None:
        """Begin anew."""
        for kept in (self.values, self.stds, self.counts, self.count_stds):
            kept.clear()


class Game:
    """A plan on a stage, run as often as one likes, each time whole and with a secret of its own.

    Starting a run measures things that no secret changes (`hush.company`). So one run is started with the canary and
    one without it, and every further game goes back to its beginning with another secret; where the rule keeps an
    object that cannot be copied, every game starts a run."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.plan, self.stage = plan, stage
        self._started: dict[bool, tuple[Run, Watching, State]] = {}

    def watch(self, secret: Secret, *, present: bool, read: int | None = None) -> Seen:
        """Run the plan, with the canary or without it, and keep what its reader sees: all of it, or what there is after
        ``read`` steps, for a reader who does not wait for the rest."""
        run, watching = self._begin(secret, present)
        for batch in run.batches():
            run.step(batch)
            if run.next == read:
                break
        kept = (watching.values, watching.stds, watching.counts, watching.count_stds)
        released, stds, counts, count_stds = (np.asarray(part) * self.plan.divisor for part in kept)
        return Seen(released, stds, run.model, counts, count_stds)

    def _begin(self, secret: Secret, present: bool) -> tuple[Run, Watching]:
        if present in self._started:
            run, watching, start = self._started[present]
            run.restore({**copy.deepcopy(start), "secret": secret.to_json()}, compared=True)
            watching.forget()
            return run, watching
        watching = Watching(self.plan.rule, self.stage)
        data = self.stage.data(self.plan, present)
        watched = replace(self.plan, rule=watching)
        run = watched.start(self.stage.fresh_model(), self.stage.losses, data, secret=secret)
        start = run.state()
        if _is_plain(start):
            self._started[present] = run, watching, copy.deepcopy(start)
        return run, watching


def _is_plain(tree: object) -> bool:
    """Whether this is made of tensors, numbers and text alone."""
    if isinstance(tree, dict):
        return all(_is_plain(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return all(_is_plain(value) for value in tree)
    return tree is None or isinstance(tree, (torch.Tensor, bool, int, float, str))


@torch.no_grad()
def measure_loss(stage: Stage, model: nn.Module) -> float:
    """The canary's loss, for an amount of one, under a released model."""
    content = (*stage.canary, torch.ones(1, dtype=torch.bool), torch.ones(1))
    return float(stage.losses(model, content)[0])
