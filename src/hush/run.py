"""A run: one plan on one dataset with one secret, a step at a time.

    data ─ sampler ─ batch ─ query (per-example gradients, clipped, summed) ─(+)─ rule ─ parameters
                                                             noise ──────────┘

`Run.step` is that picture, line by line. What it returns is private; what may be released is what `release` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, State, Sums, copy_into, trainable
from hush.accounting.guarantee import HOOKED, TRAINED, Guarantee
from hush.aggregation import Aggregator
from hush.clipping import NeedsPreparation, Start
from hush.data_source import Collated, Source
from hush.distributed.consistency import check_same_run, check_shareable, find_shards
from hush.distributed.group import MICROBATCH, Batch, NoiseReuseGuard, ProcessGroup, Record, SingleProcess, on_rank_zero
from hush.errors import InvalidInputError, Refused
from hush.guarantees import Replay, ReplayHistory, account_attempts, make_card, pick_secret
from hush.noise_addition import NoiseAdder
from hush.per_example.model_checks import check_model, list_hooks, note_training, refuse_new_hooks, was_trained
from hush.privacy_unit import as_units
from hush.randomness import Secret

if TYPE_CHECKING:
    from hush.plan import Mechanism
    from hush.release.description import Description


class Run:
    """Made by :meth:`hush.plan.Plan.start`; iterate ``batches()`` and hand each to ``step``."""

    def __init__(
        self,
        plan: Mechanism,
        model: nn.Module,
        losses: Losses,
        source: Source,
        secret: Secret,
        *,
        microbatch: int = MICROBATCH,
        ranks: ProcessGroup | None = None,
        noise_shards: bool = False,
    ) -> None:
        self._plan, self._model = plan, model
        self._ranks = ranks or SingleProcess()
        check_shareable(plan, self.ranks)
        self._next = 0
        self._source, self._secret = source, Secret.from_json(self.ranks.hear(secret.to_json()))
        self._params = trainable(model)
        if not self._params:
            raise InvalidInputError("the model has no parameter to train: every requires_grad is False")
        if plan.private:
            check_model(model)
        self.device = next(iter(self._params.values())).device
        self._query, taken = plan.query, source
        if plan.releases_rows and not isinstance(plan.query, NeedsPreparation):
            raise InvalidInputError(
                f"{type(plan.query).__name__} releases single records and cannot be prepared for a run: it needs every "
                "method of hush.clipping.NeedsPreparation"
            )
        if isinstance(plan.query, NeedsPreparation):
            start = Start(model, losses, source, lambda: self._secret, plan.channel_stds())
            self._query, taken = plan.query.prepare(start)
        self._coordinates = count_coordinates(plan, model, source)
        self._public, self._private = self._query.init(self._params)
        hooks = list_hooks(model)
        self._rule = plan.rule.init(self._params)
        if plan.private:
            refuse_new_hooks(model, hooks)
        self._trained_before, self._noted = was_trained(model), False
        self._whole = True
        self._charge: Callable[[], None] | None = None
        self._charged = False
        self._witness: NoiseReuseGuard | None = None
        self._history = ReplayHistory()
        self._drawn: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))
        self._noising = NoiseAdder(plan, self._params, find_shards(self.ranks, self.device) if noise_shards else None)
        self._summing = Aggregator(
            plan, self._query, model, self._params, losses, taken, microbatch=microbatch, ranks=self.ranks
        )
        rows = as_units(taken).rows
        if isinstance(rows, Collated):
            rows.follow(self._ahead)
        check_same_run(self.ranks, plan, model, source, self._secret, microbatch=microbatch, noise_shards=noise_shards)

    @property
    def plan(self) -> Mechanism:
        """What is run, and what its noise was made for: it stays."""
        return self._plan

    @property
    def model(self) -> nn.Module:
        """What is trained; another one cannot take its place."""
        return self._model

    @property
    def source(self) -> Source:
        """The data, as examples."""
        return self._source

    @property
    def ranks(self) -> ProcessGroup:
        """The processes that share the run."""
        return self._ranks

    @property
    def next(self) -> int:
        """The step that comes next, from 0: so many steps are taken."""
        return self._next

    @property
    def history(self) -> ReplayHistory:
        """What was taken, with which noise."""
        return self._history

    def recall(self, attempts: Sequence[Replay]) -> None:
        """Have it known what a record says was taken, which is more than the run knows where it was set back."""
        self._history = self._history.joined(attempts)

    def batches(self) -> Iterator[Batch]:
        """The batches that remain, in order."""
        while self.next < self.plan.steps:
            step = self.next
            yield self.batch(step)
            if self.next == step:
                raise InvalidInputError(
                    f"the batch of step {step} was not used: hand every batch to run.step before the next"
                )

    def batch(self, step: int) -> Batch:
        """The batch of a step: a pure function of the run's secret and the step."""
        self._drawn = step, self._draw(step)
        return Batch(step, self._drawn[1].clone(), self)  # a copy to look at: what the run uses stays its own

    def _draw(self, step: int) -> Tensor:
        secret = pick_secret(self._secret, self.plan.sampler.participation)
        return self.plan.sampler.indices(secret, step, len(self.source))

    def _ahead(self) -> Iterator[Tensor]:
        """The rows of every piece from the next step on, as they will be taken unless the secret changes."""
        for step in range(self.next, self.plan.steps):
            yield from self._summing.list_pieces(self._secret, step, self._draw(step))

    @torch.no_grad()
    def step(self, batch: Batch) -> Record:
        """Sum, add noise, update."""
        self._check(batch)
        if isinstance(self._query, NeedsPreparation):
            self._query.make_ready(batch.step)
        if self.ranks.world == 1:
            self.charge()
        sums, channels, private = self._sum(batch)
        while not self._may_add_noise(channels):
            sums, channels, private = self._sum(batch)
        self._whole, self._private = False, private
        if not self._noted:
            note_training(self._model)
            self._noted = True
        release = self._noising.release(channels, self._secret, self.next)
        update = self.plan.rule.step(self._params, release, self._rule)
        self._summing.settle()
        self._public = self._query.observe(release, update, self._public)
        self._next += 1
        self._history = self._history.reached(self._next)
        self._whole = True
        return Record(batch.step, sums.get("diagnostics", {}))

    def _may_add_noise(self, channels: Sums) -> bool:
        """Process 0 sees to it that the run is charged and that its noise has met no other sum; all hear it. False
        where the run has a fresh secret, so that the sums are to be made anew."""
        if self.ranks.world == 1:
            return self._witness is None or self._witness.meets(channels)

        def decide() -> dict[str, Any]:
            self.charge()
            met = self._witness is None or self._witness.meets(channels)
            return {"fresh": None if met else self._secret.to_json(), "history": self.history.to_json()}

        told = on_rank_zero(self.ranks, decide)
        if self.ranks.rank:
            self._history = ReplayHistory.from_json(told["history"])  # all that was taken, by the record of process 0
            if told["fresh"] is not None:
                self._change_secret(Secret.from_json(told["fresh"]), self.history)
        return told["fresh"] is None

    @property
    def secret(self) -> Secret:
        """What all sampling and noise derive from; whoever has it can subtract the noise."""
        return self._secret

    def charged_by(self, charge: Callable[[], None]) -> None:
        """Have ``charge()`` called once before the next noisy value, and again before the first after `renew` or
        `restore`: a ledger enters the plan there, or raises."""
        self._charge, self._charged = charge, False

    def charge(self) -> None:
        """Have the run charged, unless it is."""
        if self._charge is not None and not self._charged:
            self._charge()
            self._charged = True

    def witnessed_by(self, witness: NoiseReuseGuard) -> None:
        """Have ``witness.meets(sums)`` called before noise is drawn, and ``witness.releasing()`` before a release."""
        self._witness = witness if self.plan.private else None

    def renew(self) -> None:
        """Take the steps from here on with a fresh secret: fresh coins, fresh noise that starts anew, the same fixed
        batches. What the attempts cost together is in `hush.guarantees`."""
        if self.plan.releases_rows:
            raise Refused(
                f"method '{self.plan.method}' cannot go on with fresh noise, for every record would be released once "
                "more: train with the data, the code and the machine that this run began with, or start a new run with "
                "a secret of its own, which is charged in full"
            )
        self._change_secret(self._secret.renewed(), self.history.renewed(self.next))

    def _change_secret(self, secret: Secret, history: ReplayHistory) -> None:
        self._secret, self._history, self._charged = secret, history, False
        self._drawn = (-1, self._drawn[1])
        self._noising.start_anew(history.now.start)

    def prepare(self, write: Callable[[nn.Module], None]) -> None:
        """Have values that were released before training (`hush.data_release`) written into the model's buffers:
        before the first step, or the same ones again when the run goes on."""
        write(self.model)
        if self.next == 0:
            self._summing.restore(self.microbatch, self._summing.company, begun=False)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole plan with what this run adds: to its assumptions, and by steps taken again."""
        return self.claims()[0]

    def claims(self) -> tuple[Guarantee, ...]:
        """Every ε that is said about this run, the proven one first."""
        return account_attempts(self._stated(), self.history, self.coordinates)

    @property
    def coordinates(self) -> int:
        """How many numbers get noise at a time, at most."""
        return self._coordinates

    def release(
        self,
        directory: str | Path,
        *,
        description: Description | None = None,
        overwrite: bool = False,
        dataset: str = "",
        figures: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the released artefact, the folder that may be copied: weights, description and privacy card.

        ``description`` says how the network is built and what its inputs are (`hush.datasets.problem.Problem.describe`
        does for
        a problem); without it the weights are loaded by ``hush.load(directory, model=…)``. A release that is there is
        replaced only with ``overwrite``, and as a whole. ``dataset`` names the data on the card and its page, and
        ``figures`` go into the card (`hush.guarantees.make_card`). Of several processes only process 0 writes."""
        from hush.release.description import Description  # a service, in a layer above this one
        from hush.release.folder import check_room, write_release

        if self.ranks.rank:
            return Path(directory)
        check_room(Path(directory), overwrite=overwrite)
        self._summing.check_release()
        if self._witness is not None:
            self._witness.releasing()
        stated, taken = self._stated(), self.next
        card = make_card(stated, steps_taken=taken, history=self.history, coordinates=self.coordinates, figures=figures)
        card |= {"dataset": dataset, "date": date.today().isoformat()}
        told = description or Description("other")
        return write_release(Path(directory), self.model, card, told, overwrite=overwrite)

    def state(self) -> State:
        """Everything that a checkpoint needs, private parts and secret included; views, not copies."""
        if not self._whole:
            raise Refused(f"step {self.next} was broken off in the middle: go on from the last checkpoint instead")
        return {
            "step": self.next,
            "secret": self._secret.to_json(),
            "history": self.history.to_json(),
            "microbatch": self.microbatch,
            "world": self.ranks.world,
            "company": self._summing.company,
            "params": {name: p.detach() for name, p in self._params.items()},
            "buffers": {name: b.detach() for name, b in self.model.named_buffers()},
            "rule": self._rule,
            "public": self._public,
            "private": self._private,
            "noise": self._noising.state(),
        }

    @torch.no_grad()
    def restore(self, state: State, *, compared: bool = False) -> None:
        """Go on from another run's `state` of the same plan and data: the steps that follow are the same bits.

        Nothing is compared here. `hush.checkpointing.Checkpoints` does, and says so by ``compared``; it sees to it
        that no
        noise meets two sums (with another number of processes they differ in their last bits). Without anybody who
        does, a private run is not set back: the same noise on other sums gives away their difference.
        """
        if self.plan.private and self._witness is None and not compared:
            raise Refused(
                "a private run goes on from a checkpoint alone, for a state that was kept by hand does not know what "
                "its noise has met since: keep checkpoints, and go on by their restore (see "
                "docs/nothing-is-lost.md), or start a new run with a secret of its own, which is charged in full"
            )
        for kind, own in (("params", self._params), ("buffers", dict(self.model.named_buffers()))):
            copy_into(own, state[kind])
        self._next, self._whole, self._charged = state["step"], True, False
        self._secret, self._history = Secret.from_json(state["secret"]), ReplayHistory.from_json(state["history"])
        self._drawn = (-1, self._drawn[1])  # drawn by the secret before
        self._rule, self._public, self._private = state["rule"], state["public"], state["private"]
        if isinstance(self._query, NeedsPreparation):
            self._query.recall(self._public)
        self._noising.restore(state["noise"], self.history.now.start)
        self._summing.restore(state["microbatch"], state["company"], begun=self.next > 0)

    @property
    def losses(self) -> Losses:
        """The loss of every example of a batch."""
        return self._summing.losses

    @property
    def microbatch(self) -> int:
        """How many places a piece of a batch has at most."""
        return self._summing.microbatch

    def _stated(self) -> Mechanism:
        """The plan with what this run adds to its assumptions."""
        stated = self.plan.with_secret(self._secret)
        hooked, trained = HOOKED if list_hooks(self.model) else "", TRAINED if self._trained_before else ""
        return stated.assuming(self._summing.company).assuming(hooked).assuming(trained)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """No copy is made, by whatever means: it would have the same noise for other sums."""
        raise Refused(
            "a run cannot be copied, for two of them would add the same noise to different sums: start another run, or "
            "keep checkpoints (hush.checkpointing.Checkpoints)"
        )

    def _sum(self, batch: Batch) -> tuple[Sums, Sums, State]:
        """The sums of a batch, the channels that are made of them, and the query's next private state."""
        if self._drawn[0] != batch.step:
            self.batch(batch.step)
        sums = self._summing.sum_batch(self._secret, batch.step, self._drawn[1], self._public)
        return sums, *self._query.finish(sums, self._public, self._private)

    def _check(self, batch: Batch) -> None:
        if not isinstance(batch, Batch) or batch.run is not self:
            raise Refused(
                "this batch was not drawn by this run, so the guarantee would not cover it: "
                "take batches from run.batches()"
            )
        if batch.step != self.next:
            raise Refused(f"batch {batch.step} is out of order: the run is at step {self.next} of {self.plan.steps}")
        if not self._whole:
            raise Refused(
                f"step {self.next} was broken off after its noise was drawn, and taking it again would use that noise "
                "twice: go on from the last checkpoint instead"
            )
        if self.next >= self.plan.steps:
            raise Refused(f"the plan covers {self.plan.steps} steps and all are taken: make a plan with more steps")
        if self.plan.private and not self.plan.as_accounted:
            raise Refused("the query's bounds are not those that were accounted: make a new plan for other bounds")
        self._summing.check_threads()


def count_coordinates(plan: Mechanism, model: nn.Module, source: Source) -> int:
    """How many numbers get noise at a time, at most: as many as are trained, or as a released row has."""
    trained = max(1, sum(p.numel() for p in trainable(model).values()))
    rows = plan.query.count_numbers(model, source) if isinstance(plan.query, NeedsPreparation) else 0
    return max(trained, rows)
