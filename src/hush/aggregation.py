"""The sums of a step: a batch is laid out on a fixed number of places and goes through the query in chunks.

Nothing here is released. A model that mixes or remembers examples raises `UnsupportedModelError`. Before the first step
it is checked that an example's arithmetic does not depend on other rows (`hush.per_example.chunks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, Named, State, Sums, add_sums, checksum, list_tensors, widen_sums
from hush.clipping import Query
from hush.data_source import Parts, Source, list_parts, refuse_other_parts, take_nothing, to_each
from hush.distributed.consistency import add_standing, mark_step, take_standing
from hush.distributed.group import ProcessGroup
from hush.errors import NotProvenError, RunStateError
from hush.per_example.chunks import (
    Chunk,
    Compute,
    RowDigests,
    Seats,
    check_batch_invariance,
    choose_engine,
    deterministic_kernels,
    synthetic_batch,
)
from hush.per_example.engine import ExamplesNotIndependent, SpotChecks, count_spot_checks
from hush.per_example.model_checks import ModelStateGuard, check_model, is_known_separate
from hush.per_example.model_rng import model_randomness
from hush.per_example.reads import ReadChecks, checking_reads
from hush.per_example.result import GradientWarning, microbatch_scope
from hush.privacy_unit import as_units
from hush.randomness import Secret, streams

if TYPE_CHECKING:
    from hush.plan import Plan

SEPARATE = "the model and its loss treat every example separately (checked at {} of {} steps)"
FORGETFUL = "the model and its loss keep nothing of one example for another"
EXTREMES = (1.0, 0.0, 1e4, 1e-40, math.nan, math.inf)  # factors for random inputs whose reads are compared


class Aggregator:
    """Sums a plan's query over one model, its losses and its data."""

    def __init__(
        self,
        plan: Plan,
        query: Query,
        model: nn.Module,
        params: Named,
        losses: Losses,
        source: Source,
        *,
        microbatch: int,
        ranks: ProcessGroup,
    ) -> None:
        self.losses, self.microbatch = losses, microbatch
        self.checked = 0  # number of inputs compared by the check of the arithmetic; 0 if it was not made
        self._plan, self._query, self._model, self._params = plan, query, model, params
        self._source, self._units, self._ranks = source, as_units(source), ranks
        self._device = next(iter(params.values())).device
        self._threads = torch.get_num_threads()
        self._untouched = self._watch_model()
        self._fresh = True  # no forward pass of this run was observed yet
        self._started = False
        self._reads = ReadChecks()
        self._restored: bool | None = None  # whether every step before a resume computed each example separately
        self._parts: Parts | None = None  # the public shapes, and the values that are not tensors

    def restore(self, microbatch: int, checked: int, *, begun: bool, isolated: bool | None = None) -> None:
        """Continue as another run did, with the current model; once it has ``begun``, only the run changes it."""
        self.microbatch, self.checked, self._restored = microbatch, checked, isolated if begun else None
        self._threads, self._untouched = torch.get_num_threads(), self._watch_model()
        if begun:
            self.settle()

    def settle(self) -> None:
        """Accept the current parameters as the optimizer's update."""
        if self._untouched is not None:
            self._untouched.note_written()

    def check_release(self) -> None:
        """Raise if the model was changed by anything other than the steps."""
        if self._untouched is not None:
            self._untouched.check_release()

    @property
    def _rigorous(self) -> bool:
        return self._plan.adds_noise and self._plan.arithmetic == "rigorous"

    def check_threads(self) -> None:
        """Raise if the number of threads changed and the last bits depend on it."""
        if self._rigorous and self._threads != torch.get_num_threads():
            raise RunStateError(
                f"rigorous arithmetic needs the same number of threads in all steps, and the run began with "
                f"{self._threads}: call torch.set_num_threads({self._threads}), or use fast arithmetic"
            )

    def sum_batch(self, secret: Secret, step: int, indices: Tensor, public: State) -> Sums:
        """The sums of a batch; raises if the model mixes or remembers examples."""
        if self._untouched is None:
            return self._sum_pieces(secret, step, indices, public)
        check_model(self._model)  # at every step, because user code can switch a layer's mode
        self.start(public)
        with self._untouched.during_forward(complete=self._fresh), self._kernels():
            sums = self._sum_pieces(secret, step, indices, public)
        self._fresh = self._fresh and not any(map(len, self.list_chosen(secret, step, indices)))
        return sums

    def _kernels(self) -> AbstractContextManager[None]:
        return deterministic_kernels() if self._rigorous else nullcontext()

    def start(self, public: State) -> None:
        """Check the arithmetic and choose the engine, once per process and after a resume."""
        if self._started or self._untouched is None or not self._plan.adds_noise:
            return
        with self._untouched.during_forward(complete=True), self._kernels():
            found = self.check_start(public)
        self.checked, self._started = self.checked or found, True

    def check_start(self, public: State) -> int:
        """Raise if an example's arithmetic depends on other rows; return the number of inputs compared.

        This runs before the first step, whatever its batch holds: the engine is chosen by public inputs, so no
        example's presence decides how the other gradients are computed. Fast arithmetic checks nothing else; there a
        model that fails on synthetic inputs may still run on the data."""
        nobody = Secret.from_seed(0, streams.BATCH_EFFECT)

        def compute(piece: Chunk, content: Any) -> RowDigests:
            digests = RowDigests(len(piece.places))
            with _noting_outputs(self._model, digests):
                self._sum_piece(nobody, 0, piece, self.losses, content, public, digests)
            return digests

        rows = self.seats().rows()
        self._settle_reads(compute, rows[-1])
        if self._rigorous:
            return check_batch_invariance(compute, self._source, rows, self._device)
        try:
            choose_engine(compute, self._source, max(2, -(-2 * rows[-1] // 3)), self._device)
        except GradientWarning:
            raise
        except Exception:  # a model that fails on synthetic inputs may still accept the data
            return 0
        return 0

    def _settle_reads(self, compute: Compute, rows: int) -> None:
        """Find out on synthetic inputs whether the model reads tensor values into Python, and whether they vary.

        If inputs and empty rows give different values, the model is computed one example at a time. A model that fails
        on synthetic inputs stays undecided: every batch is then tracked in full."""
        checks = self._reads
        checks.deciding = True
        try:
            if self._try_reads(compute, rows, 1.0):
                checks.settled = True
                for factor in EXTREMES if checks.found else ():
                    self._try_reads(compute, rows, factor)
        finally:
            checks.deciding = checks.batched = False

    def _try_reads(self, compute: Compute, rows: int, factor: float) -> bool:
        """Whether the model ran on random inputs times this factor; integers are 0 and 1 if the model accepts 1."""
        everywhere = torch.arange(rows)
        for below in (2, 1) if self._device.type == "cpu" else (1,):
            content = synthetic_batch(self._source, rows, 1, self._device, below=below)
            content = to_each(lambda t: t * factor if t.is_floating_point() else t, content)
            try:
                compute(Chunk(everywhere, everywhere, ((0, rows),)), content)
            except (GradientWarning, ExamplesNotIndependent):
                raise
            except Exception:  # a batch on which the model fails is not released
                continue
            return True
        return False

    @property
    def isolated(self) -> bool:
        """Whether every example was computed separately in all steps; False until this is known."""
        known = [self._restored, not self._reads.batched if self._started else None]
        return any(known) and False not in known

    def describe_separation(self) -> str:
        """The assumption about a model that is not known to treat its examples separately; empty if there is none.

        A model that is computed one example at a time may still remember an example (in a list, a global, a whole
        number). The number of checks is the planned one, which is public. The number of steps checked so far is not
        stated, because the secret selects these steps."""
        if not self._plan.adds_noise or is_known_separate(self._model, self.losses):
            return ""
        if self.isolated:
            return FORGETFUL
        return SEPARATE.format(count_spot_checks(self._plan.steps), self._plan.steps)

    def seats(self) -> Seats:
        """The places of a step, cut into chunks."""
        mode = self._plan.arithmetic if self._plan.adds_noise else "fast"
        return Seats.of(self._plan.room, self.microbatch, self._ranks.world, mode)

    def list_pieces(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """The data rows in each chunk of a step that this process computes."""
        units = self._units.at(secret, step)
        return [units.list_rows(indices[chosen]) for chosen in self.list_chosen(secret, step, indices)]

    def list_chosen(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """The examples of a batch in each chunk that this process computes."""
        return [piece.chosen for piece in self._seat(secret, step, indices)]

    def _watch_model(self) -> ModelStateGuard | None:
        return ModelStateGuard(self._model, self._params) if self._plan.adds_noise else None

    def _sum_pieces(self, secret: Secret, step: int, indices: Tensor, public: State) -> Sums:
        total: Sums | None = None
        units, pieces = self._units.at(secret, step), list(self._seat(secret, step, indices))
        for number, piece in enumerate(pieces):
            losses = self._watch_losses(secret, step, number, len(pieces))
            rows = units.take(indices[piece.chosen])
            self._check_parts(rows, len(piece.chosen))
            sums = self._sum_piece(secret, step, piece, losses, self._fill(piece, rows), public)
            total = add_sums(total, {c: {n: v.detach() for n, v in named.items()} for c, named in sums.items()})
        assert total is not None
        return total if self._ranks.world == 1 else self._add_ranks(widen_sums(total), secret, step, public)

    def _add_ranks(self, sums: Sums, secret: Secret, step: int, public: State) -> Sums:
        """The sums over all processes; each must be at the same step of the same run.

        Compared are parameters, buffers, public state, and the chunks of the batch."""
        mark = mark_step(secret, step, self.microbatch)
        at = checksum((mark, *self._params.values(), *self._model.buffers(), *list_tensors(public)))
        return take_standing(self._ranks.total(add_standing(sums, self._ranks, at)), at)

    def _seat(self, secret: Secret, step: int, indices: Tensor) -> Iterator[Chunk]:
        """This process's chunks of a step, with the examples on their places."""
        seats = self.seats()
        return seats.cut(seats.assign(secret, step, len(indices)), self._ranks.rank, self._ranks.world)

    def _fill(self, piece: Chunk, rows: Any) -> Any:
        """The rows of a chunk; empty places are rows of zeros."""
        return to_each(lambda t: piece.fill_empty(t.to(self._device)), rows)

    def _check_parts(self, rows: Any, count: int) -> None:
        """Raise unless the rows have the public shape (that of an empty batch), in either arithmetic.

        Rows padded to their batch would reveal who is in it. Values that are not tensors must equal those of an empty
        batch."""
        if self._plan.adds_noise:
            if self._parts is None:
                self._parts = list_parts(take_nothing(self._source))
            refuse_other_parts(self._parts, rows, count)

    def _sum_piece(
        self,
        secret: Secret,
        step: int,
        piece: Chunk,
        losses: Losses,
        content: Any,
        public: State,
        digests: RowDigests | None = None,
    ) -> Sums:
        query, checks = self._query, self._reads if self._plan.adds_noise else None
        if self._reads.found and len(piece.places):
            piece, content = self._add_empty_row(piece, content)
            if digests is not None:
                digests.rows = len(piece.places)
        randomness = model_randomness(secret, step, piece.places, self._device, self._units.most)
        with randomness, torch.enable_grad(), checking_reads(checks), microbatch_scope(piece, digests) as seen:
            sums = query.piece(self._model, losses, content, public)
        if piece.empty is not None and len(piece.empty) and not seen.recorded:
            raise NotProvenError(
                f"{type(query).__name__} does not take its gradients from "
                f"hush.per_example.gradients.per_example_gradients, so it would count empty places as examples: use "
                "that function, or fast arithmetic, whose ε is claimed and not proven"
            )
        return sums

    def _add_empty_row(self, piece: Chunk, content: Any) -> tuple[Chunk, Any]:
        """Append a row that is always empty and in no sum.

        A question that the model asks of all rows (is any of them padded?) then has the same answer whether or not
        the other rows are empty."""
        place, last = torch.tensor([self._plan.room.places]), torch.ones(1, dtype=torch.bool)
        empty = torch.zeros(len(piece.places), dtype=torch.bool) if piece.empty is None else piece.empty
        more = replace(piece, places=torch.cat([piece.places, place]), empty=torch.cat([empty, last]))
        return more, to_each(lambda t: torch.cat([t, t.new_zeros(1, *t.shape[1:])]), content)

    def _watch_losses(self, secret: Secret, step: int, piece: int, pieces: int) -> Losses:
        """The losses, inspected at the steps that the secret selects."""
        return SpotChecks(secret).inspect(self.losses, step, piece, pieces) if self._plan.adds_noise else self.losses


@contextmanager
def _noting_outputs(model: nn.Module, digests: RowDigests) -> Iterator[None]:
    """Within it, the model's outputs are recorded too."""

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is model:
            digests.add("the model's output", output)

    handle = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        yield
    finally:
        handle.remove()
