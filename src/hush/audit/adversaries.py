"""Adversaries: each runs the plan as its user would, looks at what was released, and gives a score: high where the
canary seems to have taken part.

None of them is given the secret, the batches, the sums or the query's private state: what each of them sees is stated
in ``sees``, and is covered by the guarantee.
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
from hush.errors import NotProvenError
from hush.guarantees import has_proof
from hush.noise.base import NoisyGradient
from hush.optimizers import Optimizer
from hush.plan import Plan
from hush.randomness import Secret, streams
from hush.run import Run
from hush.sampling import SameOrder

# What the reader of a run sees: every release, taken where the rule takes it, after the noise; and the last model.


@dataclass(frozen=True, eq=False)
class Transcript:
    """One run: the released numbers where the canary's direction is not zero (a row for every step, as released times
    the public divisor), the noise in each step, and the released model; and, where the clip adapts, the noisy counts of
    unclipped examples with their noise."""

    released: NDArray[np.float64]
    stds: NDArray[np.float64]
    model: nn.Module
    counts: NDArray[np.float64]
    count_stds: NDArray[np.float64]

    def along(self, stage: CanarySetup) -> NDArray[np.float64]:
        """The releases along the canary's direction."""
        return self.released @ stage.components


@dataclass(frozen=True, eq=False)
class RecordingOptimizer:
    """The plan's own rule, and what it was given: the releases, as every rule sees them."""

    rule: Optimizer
    stage: CanarySetup
    values: list[NDArray[np.float64]] = field(default_factory=list)
    stds: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    count_stds: list[float] = field(default_factory=list)

    def init(self, params: Named) -> State:
        """The rule's own."""
        return self.rule.init(params)

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
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


class AuditGame:
    """A plan on a stage, run as often as one likes, each time whole and with a secret of its own.

    Starting a run measures things that no secret changes (`hush.per_example.chunks`). So one run is started with the
    canary and
    one without it, and every further game goes back to its beginning with another secret; where the rule keeps an
    object that cannot be copied, every game starts a run."""

    def __init__(self, plan: Plan, stage: CanarySetup) -> None:
        self.plan, self.stage = plan, stage
        self._started: dict[bool, tuple[Run, RecordingOptimizer, State]] = {}

    def watch(self, secret: Secret, *, present: bool, read: int | None = None) -> Transcript:
        """Run the plan, with the canary or without it, and keep what its reader sees: all of it, or what there is after
        ``read`` steps, for a reader who does not wait for the rest."""
        run, watching = self._begin(secret, present)
        for batch in run.batches():
            run.step(batch)
            if run.next == read:
                break
        kept = (watching.values, watching.stds, watching.counts, watching.count_stds)
        released, stds, counts, count_stds = (np.asarray(part) * self.plan.divisor for part in kept)
        return Transcript(released, stds, run.model, counts, count_stds)

    def _begin(self, secret: Secret, present: bool) -> tuple[Run, RecordingOptimizer]:
        if present in self._started:
            run, watching, start = self._started[present]
            run.restore({**copy.deepcopy(start), "secret": secret.to_json()}, compared=True)
            watching.forget()
            return run, watching
        watching = RecordingOptimizer(self.plan.rule, self.stage)
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
def measure_loss(stage: CanarySetup, model: nn.Module) -> float:
    """The canary's loss, for an amount of one, under a released model."""
    content = (*stage.canary, torch.ones(1, dtype=torch.bool), torch.ones(1))
    return float(stage.losses(model, content)[0])


HALF_ULP = 2.0**-24  # of a float32 number, relative to the power of two below it


class Adversary(Protocol):
    """Scores real runs of a plan."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def sees(self) -> str:
        """Which released values it looks at."""
        ...

    def applies(self, plan: Plan) -> bool:
        """Whether it can say anything about such a plan."""
        ...

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """Run the game's plan with this secret, with or without the canary, and score what was released."""
        ...


@dataclass(frozen=True)
class WhiteBox:
    """The canary's gradient at the clip in a direction of its own, read from every release by its likelihood, or from
    the first ``read`` of them: a reader need not wait for the last."""

    name: str = "white-box"
    sees: str = "every release"
    read: int | None = None

    def applies(self, plan: Plan) -> bool:
        """To every plan that releases noisy gradient sums, each of them bounded by itself."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The log-likelihood ratio of all releases along the canary's direction, and of the counts that set an adaptive
        clip where nobody else is counted."""
        return log_ratio(game.plan, _read(game, game.watch(secret, present=present, read=self.read)))


@dataclass(frozen=True)
class HiddenState:
    """One huge gradient, and what comes back of it in all later steps, whoever is in their batches."""

    name: str = "hidden-state"
    sees: str = "every release"

    def applies(self, plan: Plan) -> bool:
        """To plans whose query keeps a state that it does not release."""
        return _releases_gradients(plan, "hidden-state")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of all releases along the canary's direction, in units of its noise."""
        seen = game.watch(secret, present=present)
        return float(seen.along(game.stage).sum() / np.linalg.norm(seen.stds))


@dataclass(frozen=True)
class FixedPlaces:
    """Batches that are said to be sampled anew, read as if they came in the same order every epoch: the canary in the
    batch of this ``place`` (from 0), where the order of the data tells it, or in any of them."""

    name: str = "fixed-places"
    sees: str = "every release"
    place: int | None = None
    read: int | None = None

    def applies(self, plan: Plan) -> bool:
        """To plans of Poisson batches."""
        return _releases_gradients(plan, "sum") and plan.sampler.participation.poisson_rate is not None

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of the releases at the place; or the log-likelihood ratio, averaged over the b places."""
        part = game.plan.sampler.participation
        if part.poisson_rate is None:
            raise NotProvenError(f"{type(part).__name__} batches cannot be read in the same order: use Poisson batches")
        seen, places = game.watch(secret, present=present, read=self.read), max(1, round(1 / part.poisson_rate))
        if self.place is not None:
            return float(seen.along(game.stage)[self.place :: places].sum())
        return log_ratio(game.plan, _read(game, seen), SameOrder(places, part.steps))


@dataclass(frozen=True)
class BlackBox:
    """The canary's loss under the released model; for a mislabelled one (`make_mislabelled_stage`) a low loss says that
    the model was taught it."""

    name: str = "black-box"
    sees: str = "the released model"

    def applies(self, plan: Plan) -> bool:
        """To every plan that trains a model with noise."""
        return plan.private

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """How low the loss is."""
        return -measure_loss(game.stage, game.watch(secret, present=present).model)


@dataclass(frozen=True)
class LowBits:
    """The last bits of a release: noise alone is finer near zero than noise on top of the canary (Mironov 2012)."""

    name: str = "low-bits"
    sees: str = "every release, to its last bit"

    def applies(self, plan: Plan) -> bool:
        """To every plan that releases noisy gradient sums."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """Minus the number of released values that are finer than half an ulp of what the canary adds."""
        seen = game.watch(secret, present=present)
        adds = game.plan.query.channels["gradient"].bound * np.abs(game.stage.components)
        spacing = HALF_ULP * 2.0 ** np.floor(np.log2(adds))
        units = seen.released / spacing
        return -float((units != np.rint(units)).sum())


@dataclass(frozen=True)
class Difference:
    """Two runs, of which only the first can have the canary: where they share noise, it goes when one is subtracted."""

    name: str = "difference"
    sees: str = "every release of two runs"

    def applies(self, plan: Plan) -> bool:
        """To every plan that releases noisy gradient sums."""
        return _releases_gradients(plan, "sum")

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The difference along the canary's direction between the two, summed over all releases."""
        first = game.watch(secret, present=present)
        second = game.watch(secret.child(streams.AUDIT_SECOND), present=False)
        return float((first.along(game.stage) - second.along(game.stage)).sum())


@dataclass(frozen=True)
class FeatureCanary:
    """A feature that is zero in every other record: the weights that read it move if and only if the canary is in."""

    name: str = "feature-canary"
    sees: str = "the released model"

    def applies(self, plan: Plan) -> bool:
        """To plans that let the layers before a sanitisation layer learn from raw features."""
        channels = plan.query.channels
        return "rows" in channels and plan.private and not has_proof(plan)

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """How far those weights are from where they began."""
        before, after = game.stage.model, game.watch(secret, present=present).model
        return float(np.linalg.norm(game.stage.pick(after.state_dict()) - game.stage.pick(before.state_dict())))


@dataclass(frozen=True)
class ReleasedValues:
    """What stands for the canary alone, a released row or the answer for its label, read from the gradients that are
    made of it: the canary's loss is one from which it can be read."""

    name: str = "released-values"
    sees: str = "every gradient, which shows all that was released"

    def applies(self, plan: Plan) -> bool:
        """To plans that release rows or answers, and train on nothing else."""
        return plan.private and ("labels" in plan.query.channels or ("rows" in plan.query.channels and has_proof(plan)))

    def score(self, game: AuditGame, secret: Secret, *, present: bool) -> float:
        """The sum of all gradients along the canary's direction."""
        return float(game.watch(secret, present=present).along(game.stage).sum())


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
    """What the canary moves. It is always clipped, so it takes ½ from the count of the unclipped; what takes its place
    under `replace` does too, and under `zero-out` a gradient of zero would be counted, where the relation means one
    that is not."""
    channels = game.plan.query.channels
    readings = [Observation(seen.along(game.stage), seen.stds, channels["gradient"].bound)]
    if CHANNEL in channels and game.stage.alone and game.plan.neighbours == "add-remove":
        readings.append(Observation(seen.counts, seen.count_stds, -channels[CHANNEL].bound))
    return readings


def _releases_gradients(plan: Plan, proof: str) -> bool:
    """Whether the gradient is all that gets noise, and its bound is proven in this way."""
    channels = plan.query.channels
    return plan.private and "rows" not in channels and "gradient" in channels and channels["gradient"].proof == proof


def strongest(plan: Plan) -> Adversary:
    """The first that applies: those that see most come first."""
    return next(adversary for adversary in ALL if adversary.applies(plan))
