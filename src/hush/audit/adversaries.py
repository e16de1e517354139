"""Adversaries: each runs the plan as a user would, reads the releases, and computes a score that is high if the canary
seems to have taken part.

No adversary has the secret, the batches, the sums or the query's private state: ``sees`` states what it reads, all of
which the guarantee covers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hush._internal.tensors import Named, State
from hush.audit.canary import CanarySetup
from hush.audit.likelihood import Observation, log_ratio
from hush.clipping.adaptive import CHANNEL
from hush.data_release import Values
from hush.errors import NotProvenError
from hush.guarantees import has_proof
from hush.noise.base import NoisyGradient
from hush.optimizers import Optimizer
from hush.plan import Plan
from hush.randomness import Secret, streams
from hush.run import Run
from hush.sampling import SameOrder


@dataclass(frozen=True, eq=False)
class Transcript:
    """What is visible of one run: the released numbers where the canary's direction is not zero (one row per step,
    times the public divisor), the noise of each step, and the released model; with an adaptive clip also the noisy
    counts of unclipped examples and their noise."""

    released: NDArray[np.float64]
    stds: NDArray[np.float64]
    model: nn.Module
    counts: NDArray[np.float64]
    count_stds: NDArray[np.float64]

    def along(self, setup: CanarySetup) -> NDArray[np.float64]:
        """The releases along the canary's direction."""
        return self.released @ setup.components


@dataclass(frozen=True, eq=False)
class RecordingOptimizer:
    """Wraps the plan's optimizer and records the noisy gradients that it receives."""

    optimizer: Optimizer
    setup: CanarySetup
    values: list[NDArray[np.float64]] = field(default_factory=list)
    stds: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    count_stds: list[float] = field(default_factory=list)

    def init(self, params: Named) -> State:
        return self.optimizer.init(params)

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        self.values.append(self.setup.pick(release.gradient))
        self.stds.append(release.noise_std)
        if CHANNEL in release.values:
            self.counts.append(float(release.values[CHANNEL]["count"]))
            self.count_stds.append(release.std[CHANNEL])
        return self.optimizer.step(params, release, state)

    def forget(self) -> None:
        """Clear the recording."""
        for kept in (self.values, self.stds, self.counts, self.count_stds):
            kept.clear()


class AuditGame:
    """A plan on a setup, which can be run any number of times, each time with a new secret.

    Starting a run measures quantities that do not depend on the secret (`hush.per_example.chunks`). One run is
    therefore started with the canary and one without, and every later game restores its initial state with another
    secret. If the optimizer's state cannot be copied, every game starts a new run."""

    def __init__(self, plan: Plan, setup: CanarySetup) -> None:
        self.plan, self.setup = plan, setup
        self._started: dict[bool, tuple[Run, RecordingOptimizer, State]] = {}

    def run(self, secret: Secret, *, present: bool, read: int | None = None) -> Transcript:
        """Run the plan with or without the canary and return what is visible of it: all steps, or the first
        ``read``."""
        run, recorder = self._begin(secret, present)
        for batch in run.batches():
            run.step(batch)
            if run.next == read:
                break
        kept = (recorder.values, recorder.stds, recorder.counts, recorder.count_stds)
        released, stds, counts, count_stds = (np.asarray(part) * self.plan.divisor for part in kept)
        return Transcript(released, stds, run.model, counts, count_stds)

    def draw(self, secret: Secret, *, present: bool) -> Values:
        """What a run releases in place of the data, with or without the canary; nothing is trained."""
        run, _ = self._begin(secret, present)
        return run.draw_data()

    def _begin(self, secret: Secret, present: bool) -> tuple[Run, RecordingOptimizer]:
        if present in self._started:
            run, recorder, start = self._started[present]
            run.restore({**copy.deepcopy(start), "secret": secret.to_json()}, compared=True)
            recorder.forget()
            return run, recorder
        recorder = RecordingOptimizer(self.plan.optimizer, self.setup)
        data = self.setup.data(self.plan, present)
        watched = replace(self.plan, optimizer=recorder)
        run = watched.start(self.setup.fresh_model(), self.setup.losses, data, secret=secret)
        start = run.state()
        if _is_plain(start):
            self._started[present] = run, recorder, copy.deepcopy(start)
        return run, recorder


def _is_plain(tree: object) -> bool:
    """Whether this holds only tensors, numbers and text."""
    if isinstance(tree, dict):
        return all(_is_plain(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return all(_is_plain(value) for value in tree)
    return tree is None or isinstance(tree, (torch.Tensor, bool, int, float, str))


@torch.no_grad()
def measure_loss(setup: CanarySetup, model: nn.Module) -> float:
    """The canary's loss, for an amount of one, under a released model."""
    content = (*setup.canary, torch.ones(1, dtype=torch.bool), torch.ones(1))
    return float(setup.losses(model, content)[0])


HALF_ULP = 2.0**-24  # of a float32 number, relative to the power of two below it


class Adversary(Protocol):
    """Scores real runs of a plan."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    @property
    def sees(self) -> str:
        """The released values it reads."""
        ...

    def applies(self, plan: Plan) -> bool:
        """Whether it can score this plan."""
        ...

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """Run the game's plan with this secret, with or without the canary, and score the releases."""
        ...


@dataclass(frozen=True)
class WhiteBox:
    """The likelihood of the canary's gradient, which has the norm of the clip and its own direction, given every
    release or the first ``read`` of them."""

    name: str = "white-box"
    sees: str = "every release"
    read: int | None = None

    def applies(self, plan: Plan) -> bool:
        """Plans that release noisy gradient sums, each with its own bound."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The log-likelihood ratio of all releases along the canary's direction, and of the counts of an adaptive clip
        if only the canary is counted."""
        return log_ratio(game.plan, _read(game, game.run(secret, present=present, read=self.read)))


@dataclass(frozen=True)
class HiddenState:
    """One huge gradient, and its effect on all later steps, independent of their batches."""

    name: str = "hidden-state"
    sees: str = "every release"

    def applies(self, plan: Plan) -> bool:
        """Plans whose query has a private state."""
        return _releases_gradients(plan, "hidden-state")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of all releases along the canary's direction, in units of its noise."""
        seen = game.run(secret, present=present)
        return float(seen.along(game.setup).sum() / np.linalg.norm(seen.stds))


@dataclass(frozen=True)
class FixedPlaces:
    """Batches that claim to be sampled independently, read as if they had the same order every epoch: with the canary
    in batch ``place`` (from 0) if the order of the data reveals it, or in any batch."""

    name: str = "fixed-places"
    sees: str = "every release"
    place: int | None = None
    read: int | None = None

    def applies(self, plan: Plan) -> bool:
        """Plans with Poisson batches."""
        return _releases_gradients(plan, "sum") and plan.sampler.participation.poisson_rate is not None

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of the releases at the place, or the log-likelihood ratio averaged over the b places."""
        part = game.plan.sampler.participation
        if part.poisson_rate is None:
            raise NotProvenError(f"{type(part).__name__} batches cannot be read in the same order: use Poisson batches")
        seen, places = game.run(secret, present=present, read=self.read), max(1, round(1 / part.poisson_rate))
        if self.place is not None:
            return float(seen.along(game.setup)[self.place :: places].sum())
        return log_ratio(game.plan, _read(game, seen), SameOrder(places, part.steps))


@dataclass(frozen=True)
class BlackBox:
    """The canary's loss under the released model; for a mislabelled canary (`make_mislabelled_setup`) a low loss
    indicates that the model was trained on it."""

    name: str = "black-box"
    sees: str = "the released model"

    def applies(self, plan: Plan) -> bool:
        """All private plans."""
        return plan.has_guarantee

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        return -measure_loss(game.setup, game.run(secret, present=present).model)


@dataclass(frozen=True)
class LowBits:
    """The last bits of a release: noise alone is finer near zero than noise on top of the canary (Mironov 2012)."""

    name: str = "low-bits"
    sees: str = "every release, to its last bit"

    def applies(self, plan: Plan) -> bool:
        """Plans that release noisy gradient sums."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """Minus the number of released values finer than half an ulp of the canary's contribution."""
        seen = game.run(secret, present=present)
        adds = game.plan.query.channels["gradient"].bound * np.abs(game.setup.components)
        spacing = HALF_ULP * 2.0 ** np.floor(np.log2(adds))
        units = seen.released / spacing
        return -float((units != np.rint(units)).sum())


@dataclass(frozen=True)
class Difference:
    """Two runs, of which only the first may have the canary: noise that they share cancels in the difference."""

    name: str = "difference"
    sees: str = "every release of two runs"

    def applies(self, plan: Plan) -> bool:
        """Plans that release noisy gradient sums."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The difference along the canary's direction, summed over all releases."""
        first = game.run(secret, present=present)
        second = game.run(secret.child(streams.AUDIT_SECOND), present=False)
        return float((first.along(game.setup) - second.along(game.setup)).sum())


@dataclass(frozen=True)
class FeatureCanary:
    """A feature that is zero in all other records: its weights change if and only if the canary takes part."""

    name: str = "feature-canary"
    sees: str = "the released model"

    def applies(self, plan: Plan) -> bool:
        """Plans that train the layers before a sanitisation layer on raw features."""
        return plan.trains_on is not None and not has_proof(plan)

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The distance of these weights from their initial values."""
        before, after = game.setup.model, game.run(secret, present=present).model
        return float(np.linalg.norm(game.setup.pick(after.state_dict()) - game.setup.pick(before.state_dict())))


@dataclass(frozen=True)
class ReleasedValues:
    """The released row or randomised label of the canary: all that training sees of it."""

    name: str = "released-values"
    sees: str = "every released row and label"

    def applies(self, plan: Plan) -> bool:
        """Plans that release rows or randomised labels and train on nothing else."""
        return plan.trains_on is not None and has_proof(plan)

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of the numbers of the canary, the last record."""
        values = game.draw(secret, present=present)
        return float(sum(value[-1].double().sum() for value in values.values()))


ALL: tuple[Adversary, ...] = (
    WhiteBox(),
    HiddenState(),
    ReleasedValues(),
    FeatureCanary(),
    FixedPlaces(),
    Difference(),
    LowBits(),
    BlackBox(),
)


def _read(game: AuditGame, seen: Transcript) -> list[Observation]:
    """The observed quantities that the canary changes. The canary is always clipped, so it changes the count of the
    unclipped by −½. Its replacement under `replace` does the same; under `zero-out` a zero gradient would be counted,
    whereas the adjacency means a contribution that is not counted."""
    channels = game.plan.query.channels
    readings = [Observation(seen.along(game.setup), seen.stds, channels["gradient"].bound)]
    if CHANNEL in channels and game.setup.alone and game.plan.neighbours == "add-remove":
        readings.append(Observation(seen.counts, seen.count_stds, -channels[CHANNEL].bound))
    return readings


def _releases_gradients(plan: Plan, proof: str) -> bool:
    """Whether only the gradient gets noise, with this kind of proof."""
    channels = plan.query.channels
    return plan.adds_noise and "gradient" in channels and channels["gradient"].proof == proof


def strongest(plan: Plan) -> Adversary:
    """The first adversary that applies; `ALL` lists those that see most first."""
    return next(adversary for adversary in ALL if adversary.applies(plan))
