"""A run: one plan on one dataset with one secret, taken step by step.

    data ─ sampler ─ batch ─ query (per-example gradients, clipped, summed) ─(+)─ optimizer ─ parameters
                                                             noise ──────────┘

>>> import torch, hush
>>> plan = hush.make_plan("dp-sgd", examples=100, batch_size=50, steps=2, epsilon=3, lr=1.0)
>>> run = plan.start(torch.nn.Linear(4, 1), lambda model, x: model(x).square().sum(1), torch.rand(100, 4))
>>> [record.step for record in run]  # one private step per iteration
[0, 1]
>>> run.spent.epsilon <= 3
True

`Run.step` is this diagram, line by line. What it returns is private; only what `release` writes may be published.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, State, Sums, copy_into, trainable
from hush.accounting.guarantee import CHECKED, HOOKED, TRAINED, UPDATED, Guarantee
from hush.aggregation import Aggregator
from hush.data_release import ReleasedData, Values
from hush.data_source import Collated, Source
from hush.distributed.consistency import check_same_run, check_shareable, find_shards
from hush.distributed.group import MICROBATCH, Batch, NoiseReuseGuard, ProcessGroup, Record, SingleProcess, on_rank_zero
from hush.errors import HushError, InvalidInputError, NotProvenError, ReleaseError, ResumeError, RunStateError
from hush.guarantees import Replay, ReplayHistory, account_attempts, account_steps, make_card, pick_secret
from hush.noise_addition import NoiseAdder
from hush.optimizers.torch_optim import runs_user_code
from hush.per_example.model_checks import check_model, list_hooks, note_training, refuse_new_hooks, was_trained
from hush.privacy_unit import as_units
from hush.randomness import Secret

if TYPE_CHECKING:
    from hush.data_release import TrainingData
    from hush.plan import Plan
    from hush.release.description import Description
    from hush.run_directory import RunDirectory


class Run:
    """A plan on data, made by `hush.start` or :meth:`hush.plan.Plan.start`.

    >>> for record in run:  # one private step per iteration  # doctest: +SKIP
    ...     print(run.spent)
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        losses: Losses,
        source: Source,
        secret: Secret,
        *,
        microbatch: int = MICROBATCH,
        ranks: ProcessGroup | None = None,
        noise_shards: bool = False,
        trained: TrainingData | None = None,
    ) -> None:
        self._plan, self._model = plan, model
        self._ranks = ranks or SingleProcess()
        check_shareable(plan, self.ranks)
        self._next = 0
        self._process, self._busy = os.getpid(), threading.Lock()
        self._source, self._secret = source, Secret.from_json(self.ranks.broadcast(secret.to_json()))
        self._params = trainable(model)
        if not self._params:
            raise InvalidInputError("the model has no parameter to train: every requires_grad is False")
        if plan.adds_noise:
            check_model(model)
        self.device = next(iter(self._params.values())).device
        taken = source if trained is None else trained.source
        self._released = taken if isinstance(taken, ReleasedData) else None
        self._coordinates = count_coordinates(model) if trained is None else trained.numbers
        self._public, self._private = plan.query.init(self._params)
        hooks = list_hooks(model)
        self._optimizer_state = plan.optimizer.init(self._params)
        if plan.adds_noise:
            refuse_new_hooks(model, hooks)
        self._trained_before, self._marked_trained = was_trained(model), False
        self._whole = True
        self._after_step: list[Callable[[Record], None]] = [] if trained is None else [*trained.after_step]
        self._private_folder: Path | None = None
        self.directory: RunDirectory | None = None  # set by `hush.start`
        self._closed = ""  # why the run takes no more steps
        self._charge: Callable[[], None] | None = None
        self._charged = False
        self._noise_guard: NoiseReuseGuard | None = None
        self._history = ReplayHistory()
        self._cached_batch: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))
        self._noising = NoiseAdder(plan, self._params, find_shards(self.ranks, self.device) if noise_shards else None)
        own = losses if trained is None else trained.losses
        self._summing = Aggregator(
            plan, plan.query, model, self._params, own, taken, microbatch=microbatch, ranks=self.ranks
        )
        rows = as_units(taken).rows
        if isinstance(rows, Collated):
            rows.follow(self._ahead)
        check_same_run(self.ranks, plan, model, source, self._secret, microbatch=microbatch, noise_shards=noise_shards)

    @property
    def plan(self) -> Plan:
        """The plan; it is fixed because the noise was generated for it."""
        return self._plan

    @property
    def model(self) -> nn.Module:
        """The model being trained; it cannot be replaced."""
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
        """The next step, counted from 0: the number of steps taken."""
        return self._next

    @property
    def history(self) -> ReplayHistory:
        """The steps taken, with the secret of each attempt."""
        return self._history

    def recall(self, attempts: Sequence[Replay]) -> None:
        """Merge the replay history found on disk; it may be ahead of a restored run."""
        self._history = self._history.joined(attempts)

    def __iter__(self) -> Iterator[Record]:
        """Take the remaining steps, one per iteration; the records are private."""
        while self.next < self.plan.steps:
            yield self.step()

    def batches(self) -> Iterator[Batch]:
        """The remaining batches, in order."""
        while self.next < self.plan.steps:
            step = self.next
            yield self.batch(step)
            if self.next == step:
                raise InvalidInputError(
                    f"the batch of step {step} was not used: pass every batch to run.step before taking the next"
                )

    def batch(self, step: int) -> Batch:
        """The batch of a step: a pure function of the run's secret and the step."""
        self._cached_batch = step, self._draw(step)
        return Batch(
            step, self._cached_batch[1].clone(), self
        )  # a copy, so that the caller cannot change the run's indices

    def _draw(self, step: int) -> Tensor:
        secret = pick_secret(self._secret, self.plan.sampler.participation)
        return self.plan.sampler.indices(secret, step, len(self.source))

    def _ahead(self) -> Iterator[Tensor]:
        """The rows of every chunk from the next step on, valid unless the secret changes."""
        for step in range(self.next, self.plan.steps):
            yield from self._summing.list_pieces(self._secret, step, self._draw(step))

    @torch.no_grad()
    def step(self, batch: Batch | None = None) -> Record:
        """Sum, add noise, update. One step at a time, and only in the process that started the run."""
        with self._alone():
            record = self._step(self.batch(self.next) if batch is None else batch)
        for call in self._after_step:
            call(record)
        return record

    def after_step(self, call: Callable[[Record], None]) -> None:
        """Call ``call(record)`` after every step; the record is private."""
        self._after_step.append(call)

    def close(self) -> None:
        """Write a checkpoint and unlock the run directory, so that the run can be resumed; take no more steps.

        A run without a directory is only in memory, and stays open."""
        if self.directory is None:
            return
        try:
            if not self._closed and self.next < self.plan.steps:
                self.directory.save_if_whole(self)
        finally:
            self._closed = self._closed or "was closed: resume it with hush.start(…, resume=True)"
            self.directory.close()

    def _step(self, batch: Batch) -> Record:
        self._check(batch)
        self.draw_data()
        self.check_arithmetic()
        if self.ranks.world == 1:
            self.charge()
        sums, channels, private = self._sum(batch)
        while not self._may_add_noise(channels):
            sums, channels, private = self._sum(batch)
        self._whole, self._private = False, private
        if not self._marked_trained:
            note_training(self._model)
            self._marked_trained = True
        release = self._noising.release(channels, self._secret, self.next)
        update = self.plan.optimizer.step(self._params, release, self._optimizer_state)
        self._summing.mark_updated()
        self._public = self.plan.query.observe(release, update, self._public)
        self._next += 1
        self._history = self._history.reached(self._next)
        self._whole = True
        return Record(batch.step, sums.get("diagnostics", {}))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise in a forked copy of the run, which would reuse its noise, and if a step is already being taken."""
        if os.getpid() != self._process:
            raise RunStateError(
                f"this run was started in process {self._process} and is used in process {os.getpid()}, where a fork "
                "would add the same noise to other sums: start the run in the process that trains"
            )
        if not self._busy.acquire(blocking=False):
            raise RunStateError(
                f"step {self.next} of this run is already being taken by another thread or by its own code: take one "
                "step at a time"
            )
        try:
            yield
        finally:
            self._busy.release()

    def draw_data(self) -> Values:
        """Release what the run trains on in place of the data, once; called by `step` before the first step.

        The ledger is charged before anything is drawn (`hush.data_release`). Empty if the run trains on the data."""
        return {} if self._released is None else self._released.draw(self, self._private_folder)

    def keep_in(self, folder: Path) -> None:
        """Save the values of `draw_data` in this private directory; called by `hush.checkpointing.Checkpoints`."""
        self._private_folder = folder
        if self._released is not None:
            self._released.save(self._secret.first, folder)

    def check_arithmetic(self) -> None:
        """Raise if an example's arithmetic depends on other rows; called by `step` before the first step.

        The check uses synthetic inputs and comes before anything is charged or released."""
        with torch.no_grad():
            self._summing.start(self._public)

    def _may_add_noise(self, channels: Sums) -> bool:
        """Charge the run and check that its noise was added to no other sum; process 0 decides and broadcasts.

        False if the run switched to a fresh secret, so that the sums must be recomputed."""
        if self.ranks.world == 1:
            return self._noise_guard is None or self._noise_guard.allows(channels)

        def decide() -> dict[str, Any]:
            self.charge()
            met = self._noise_guard is None or self._noise_guard.allows(channels)
            return {"fresh": None if met else self._secret.to_json(), "history": self.history.to_json()}

        answer = on_rank_zero(self.ranks, decide)
        if self.ranks.rank:
            self._history = ReplayHistory.from_json(answer["history"])  # every step taken, as recorded by process 0
            if answer["fresh"] is not None:
                self._change_secret(Secret.from_json(answer["fresh"]), self.history)
        return answer["fresh"] is None

    @property
    def secret(self) -> Secret:
        """The root of all sampling and noise; anyone who has it can subtract the noise."""
        return self._secret

    def charged_by(self, charge: Callable[[], None]) -> None:
        """Call ``charge()`` once before the next noisy value, and again after `use_fresh_secret` or `restore`.

        It enters the plan in a ledger, or raises."""
        self._charge, self._charged = charge, False

    def charge(self) -> None:
        """Charge the run unless it is charged already."""
        if self._charge is not None and not self._charged:
            self._charge()
            self._charged = True

    def guard_noise(self, guard: NoiseReuseGuard) -> None:
        """Call ``guard.allows(sums)`` before noise is drawn, and ``guard.before_release()`` before a release."""
        self._noise_guard = guard if self.plan.has_guarantee else None

    def use_fresh_secret(self) -> None:
        """Take the remaining steps with a fresh secret: new sampling and noise, the same fixed batches.

        `hush.guarantees` accounts for all attempts together."""
        self._change_secret(self._secret.renewed(), self.history.renewed(self.next))

    def _change_secret(self, secret: Secret, history: ReplayHistory) -> None:
        self._secret, self._history, self._charged = secret, history, False
        self._cached_batch = (-1, self._cached_batch[1])
        self._noising.start_anew(history.now.start)

    def prepare(self, write: Callable[[nn.Module], None]) -> None:
        """Write values that were released before training (`hush.data_release`) into the model's buffers.

        Allowed before the first step, or with the same values when the run is resumed."""
        write(self.model)
        if self.next == 0:
            self._summing.note_prepared()

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole plan, with this run's assumptions and the cost of repeated steps."""
        return self.claims()[0]

    @property
    def spent(self) -> Guarantee:
        """The guarantee of the steps taken so far; if steps were repeated, that of the whole plan."""
        if self.history.again or not self.plan.has_guarantee:
            return self.guarantee
        if self.next == 0 and not self.plan.composed and (self._released is None or not self._released.drawn):
            whole = self.guarantee
            return dataclasses.replace(whole, epsilon=0.0, event=None)
        return account_steps(self.stated(), max(1, self.next), self.coordinates)[0]

    def claims(self) -> tuple[Guarantee, ...]:
        """Every ε claimed for this run, the proven one first."""
        return account_attempts(self.stated(), self.history, self.coordinates)

    @property
    def coordinates(self) -> int:
        """The largest number of values that get noise in one step."""
        return self._coordinates

    def release(
        self,
        directory: str | Path | None = None,
        *,
        description: Description | None = None,
        overwrite: bool = False,
        dataset: str = "",
        metrics: Mapping[str, Any] | None = None,
        model: nn.Module | None = None,
    ) -> Path:
        """Write the release, the folder that may be published: weights, description and privacy card.

        Only process 0 writes. Without ``directory`` the release is that of the run directory, and the run ends: its
        secret is deleted, and it takes no more steps.

        Args:
            description: what the model predicts and what its inputs are, for `hush.predict` and `hush.export`:
                ``hush.Description("classification", classes=("no", "yes"), inputs=hush.Inputs("arrays", (20,)))`` for
                rows of 20 numbers. Without it, load the weights with ``hush.load(directory, model=…)`` and call the
                model.
            overwrite: replace an existing release, as a whole.
            dataset: name of the data on the card and its page.
            metrics: entries for the card (`hush.guarantees.make_card`).
            model: written in place of the trained model. It must be computed from the trained model and released
                values only, for example with outputs for the released classes.
        """
        from hush.release.description import Description  # a service, in a layer above this one
        from hush.release.folder import check_room, write_release

        if directory is None:
            if self.directory is None:
                raise InvalidInputError("this run has no directory: give the folder of the release")
            if model is not None or overwrite:
                raise InvalidInputError(
                    "the release of the run directory is of the trained model, and replaces nothing: give another "
                    "folder for it, run.release(folder, …), or leave out model and overwrite"
                )
            path = self.directory.publish(self, description=description, dataset=dataset, metrics=metrics)
            self._closed = "was released, and its secret is deleted: start a new run in another directory"
            return path
        if self.ranks.rank:
            return Path(directory)
        check_room(Path(directory), overwrite=overwrite)
        self._summing.check_release()
        if self._noise_guard is not None:
            self._noise_guard.before_release()
        answer = description or Description("other")
        return write_release(
            Path(directory), model or self.model, self._card(dataset, metrics), answer, overwrite=overwrite
        )

    def check_release(self, *, description: Description | None = None, dataset: str = "") -> int:
        """Pack the release in memory before the first step, so that a run that cannot be released spends nothing.

        Returns the size of the release in bytes; raises `ReleaseError` if it cannot be packed."""
        from hush.release.description import Description
        from hush.release.folder import pack_release

        answer = description or Description("other")
        try:
            content = pack_release(self.model, self._card(dataset, None), answer)
            Description.from_json(answer.to_json(), None if answer.schema is None else answer.schema.to_json())
        except HushError as error:
            raise ReleaseError(f"this run could be trained but not released: {error}") from error
        except Exception as error:  # its text may quote the data, so only its type is shown
            raise ReleaseError(
                f"this run could be trained but not released: packing its files raises {type(error).__name__}; check "
                "the names of columns and classes, and the model's state_dict"
            ) from error
        return sum(map(len, content.values()))

    def _card(self, dataset: str, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        taken, history = self.next, self.history
        card = make_card(
            self.stated(), steps_taken=taken, history=history, coordinates=self.coordinates, metrics=metrics
        )
        return {**card, "gradients": self._summing.paths, "dataset": dataset, "date": date.today().isoformat()}

    def state(self) -> State:
        """Everything needed to continue the run, including private parts and the secret; views, not copies.

        A checkpoint leaves out the secret, which has its own file."""
        if not self._whole:
            raise RunStateError(f"step {self.next} was interrupted: resume from the last checkpoint instead")
        return {
            "step": self.next,
            "secret": self._secret.to_json(),
            "history": self.history.to_json(),
            "microbatch": self.microbatch,
            "chunk_rows": self._summing.rows,
            "world": self.ranks.world,
            "checked": self._summing.checked,
            "isolated": self._summing.isolated,
            "paths": self._summing.paths,
            "params": {name: p.detach() for name, p in self._params.items()},
            "buffers": {name: b.detach() for name, b in self.model.named_buffers()},
            "rule": self._optimizer_state,
            "public": self._public,
            "private": self._private,
            "noise": self._noising.state(),
        }

    @torch.no_grad()
    def restore(self, state: State, *, compared: bool = False) -> None:
        """Continue from the `state` of a run of the same plan and data; the next steps are bit-identical.

        Nothing is compared here. `hush.checkpointing.Checkpoints` compares, passes ``compared`` and prevents noise
        reuse (sums differ in their last bits if the number of processes changes). Otherwise a private run cannot be
        restored: the same noise on two different sums reveals their difference.
        """
        with self._alone():
            self._restore(state, compared)

    def _restore(self, state: State, compared: bool) -> None:
        if self.plan.adds_noise and self._noise_guard is None and not compared:
            raise ResumeError(
                "a private run can only be restored from a checkpoint, because a saved state does not know which sums "
                "its noise was added to since: write checkpoints and use their restore (see docs/nothing-is-lost.md), "
                "or start a new run with its own secret, which is charged in full"
            )
        for kind, own in (("params", self._params), ("buffers", dict(self.model.named_buffers()))):
            copy_into(own, state[kind])
        self._next, self._whole, self._charged = state["step"], True, False
        self._secret, self._history = Secret.from_json(state["secret"]), ReplayHistory.from_json(state["history"])
        self._cached_batch = (-1, self._cached_batch[1])  # it was drawn with the previous secret
        self._optimizer_state, self._public, self._private = state["rule"], state["public"], state["private"]
        self._noising.restore(state["noise"], self.history.now.start)
        begun, isolated = self.next > 0, bool(state.get("isolated", False))
        self._summing.restore(
            state["microbatch"], state["chunk_rows"], state["checked"], begun=begun, isolated=isolated
        )
        self._summing.paths = state.get("paths", {})

    @property
    def losses(self) -> Losses:
        """The loss function: one loss per example of a batch."""
        return self._summing.losses

    @property
    def microbatch(self) -> int:
        """The largest number of examples that are computed before their gradients are summed."""
        return self._summing.microbatch

    def stated(self) -> Plan:
        """The plan with every assumption that this run adds, including those known before its first step."""
        stated = self.plan.with_secret(self._secret)
        hooked, trained = HOOKED if list_hooks(self.model) else "", TRAINED if self._trained_before else ""
        updated = UPDATED if runs_user_code(self.plan.optimizer, self._optimizer_state) else ""
        checked = self._summing.checked
        stated = stated.with_arithmetic(CHECKED.format(checked) if checked else "")
        stated = stated.assuming(self._summing.describe_separation())
        return stated.assuming(hooked).assuming(updated).assuming(trained)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise: a copy of a run would add the same noise to other sums."""
        raise RunStateError(
            "a run cannot be copied, because two copies would add the same noise to different sums: start another run, "
            "or write checkpoints (hush.checkpointing.Checkpoints)"
        )

    def _sum(self, batch: Batch) -> tuple[Sums, Sums, State]:
        """The sums of a batch, the channels built from them, and the query's next private state."""
        if self._cached_batch[0] != batch.step:
            self.batch(batch.step)
        sums = self._summing.sum_batch(self._secret, batch.step, self._cached_batch[1], self._public)
        return sums, *self.plan.query.finish(sums, self._public, self._private)

    def _check(self, batch: Batch) -> None:
        if not isinstance(batch, Batch) or batch.run is not self:
            raise RunStateError(
                "this batch was not drawn by this run, so the guarantee does not cover it: take batches from "
                "run.batches()"
            )
        if self._closed:
            raise RunStateError(f"this run {self._closed}")
        if batch.step != self.next:
            raise RunStateError(
                f"batch {batch.step} is out of order: the run is at step {self.next} of {self.plan.steps}"
            )
        if not self._whole:
            raise RunStateError(
                f"step {self.next} was interrupted after its noise was drawn, and repeating it would use that noise "
                "twice: resume from the last checkpoint instead"
            )
        if self.next >= self.plan.steps:
            raise RunStateError(f"the plan has {self.plan.steps} steps and all are taken: make a plan with more steps")
        if self.plan.adds_noise and not self.plan.as_accounted:
            raise NotProvenError(
                "the query's bounds differ from those that were accounted: make a new plan for these bounds"
            )
        self._summing.check_threads()


def count_coordinates(model: nn.Module) -> int:
    """The number of values that get noise in a step: all trained parameters."""
    return max(1, sum(p.numel() for p in trainable(model).values()))
