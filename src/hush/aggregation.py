"""The sums of a step: a batch goes through the query in chunks of one public number of rows.

Nothing here is released. A model that mixes or remembers examples raises `UnsupportedModelError`. Before the first step
it is checked that an example's arithmetic does not depend on other rows (`hush.per_example.chunks`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, Named, State, Sums, checksum, list_tensors
from hush.clipping import Query
from hush.data_source import Parts, Source, list_parts, refuse_other_parts, take_nothing, tensors_of, to_each
from hush.distributed.consistency import append_checksum, check_same, mark_step, split_checksum
from hush.distributed.group import ProcessGroup
from hush.errors import ExamplesNotIndependent, NotProvenError, RunStateError
from hush.per_example.chunks import (
    FAN,
    Chunk,
    Compute,
    Cut,
    RowDigests,
    RowsNotIndependent,
    check_batch_invariance,
    choose_engine,
    choose_rows,
    deterministic_kernels,
    list_sizes,
    synthetic_batch,
    varied,
    whole_chunk,
)
from hush.per_example.engine import SpotChecks, count_spot_checks
from hush.per_example.functional import ModelParts, keeping_parts
from hush.per_example.gradients import list_kinds
from hush.per_example.model_checks import (
    ModelStateGuard,
    check_model,
    check_surroundings,
    has_known_augmentation,
    is_known_separate,
)
from hush.per_example.model_rng import model_randomness
from hush.per_example.reads import ReadChecks, checking_reads
from hush.per_example.result import BlockSums, GradientWarning, microbatch_scope
from hush.privacy_unit import as_units
from hush.randomness import Secret, streams

if TYPE_CHECKING:
    from hush.plan import Plan

SEPARATE = "the model and its loss treat every example separately (checked at {} of {} steps)"
FORGETFUL = "the model and its loss use nothing of one example for another"
EMPTY_PLACE = 2**40  # the number of the row that is empty in every chunk of a model that reads values
KEPT = 2**25 - 2**16  # bytes: glibc counts blocks of up to 32 MiB, with what it adds to them
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
        self.rows = ranks.broadcast(find_rows(plan, model, source, microbatch))  # of a chunk
        self.checked = 0  # number of inputs compared by the check of the arithmetic; 0 if it was not made
        self.paths: dict[str, list[str]] = {}  # the kinds of modules by gradient path, once that is known
        self._plan, self._query, self._model, self._params = plan, query, model, params
        self._rigorous = is_rigorous(plan)
        self._source, self._units, self._ranks = source, as_units(source), ranks
        self._device = next(iter(params.values())).device
        self._threads = torch.get_num_threads()
        self._untouched = self._watch_model()
        self._model_parts = ModelParts.of(model)
        self._fresh = True  # no forward pass of this run was observed yet
        self._started = False
        self._reads = ReadChecks()
        self._restored: bool | None = None  # whether every step before a resume computed each example separately
        self._parts: Parts | None = None  # the public shapes, and the values that are not tensors
        self._shapes: list[Any] = []  # of the last tuple of tensors that has them
        self._buffers: list[list[Tensor]] = []  # the rows of each chunk of a block

    def restore(self, microbatch: int, rows: int, checked: int, *, begun: bool, isolated: bool | None = None) -> None:
        """Continue as another run did, with the current model; once it has ``begun``, only the run changes it."""
        threads = torch.get_num_threads()
        # A check that passed in this process covers other weights: it varies them itself.
        self._started = self._started and (rows, threads) == (self.rows, self._threads)
        self.microbatch, self.rows, self.checked = microbatch, rows, checked
        self._restored, self._buffers = isolated if begun else None, []
        self._threads, self._untouched = threads, self._watch_model()
        if begun:
            self.mark_updated()

    def note_prepared(self) -> None:
        """Accept values that were written into the model's buffers before the first step."""
        self._started, self._untouched = False, self._watch_model()

    def mark_updated(self) -> None:
        """Accept the current parameters as the optimizer's update."""
        if self._untouched is not None:
            self._untouched.note_written()

    def check_release(self) -> None:
        """Raise if the model was changed by anything other than the steps."""
        if self._untouched is not None:
            self._untouched.check_release()

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
            with self._keeping_parts():
                return self._sum_blocks(secret, step, indices, public)
        check_surroundings()
        check_model(self._model)  # at every step, because user code can switch a layer's mode
        self.start(public)
        with self._untouched.during_forward(complete=self._fresh), self._kernels(), self._keeping_parts():
            sums = self._sum_blocks(secret, step, indices, public)
        self._fresh = self._fresh and not any(map(len, self.list_chosen(secret, step, indices)))
        return sums

    def _kernels(self) -> AbstractContextManager[None]:
        return deterministic_kernels() if self._rigorous else nullcontext()

    def _keeping_parts(self) -> AbstractContextManager[None]:
        self._model_parts = self._model_parts.renewed()
        return keeping_parts(self._model_parts)

    def start(self, public: State) -> None:
        """Check the arithmetic and choose the engine, once per process, number of threads and number of rows."""
        if self._started or self._untouched is None or not self._plan.adds_noise:
            return
        self.check_threads()
        _keep_freed_memory()
        with self._untouched.during_forward(complete=True), self._kernels(), self._keeping_parts():
            found = self.check_start(public)
            self.paths = self.paths or list_kinds(self._model, self.losses)  # no data was read yet, so this is public
        self.checked, self._started = self.checked or found, True

    def check_start(self, public: State) -> int:
        """Raise if an example's arithmetic depends on other rows; return the number of inputs compared.

        This runs before the first step, whatever its batch holds: the engine is chosen by public inputs, so no
        example's presence decides how the other gradients are computed. Fast arithmetic checks nothing else; there a
        model that fails on synthetic inputs may still run on the data."""
        nobody = Secret.from_seed(0, streams.BATCH_EFFECT)

        def compute(piece: Chunk, content: Any, step: int = 0) -> RowDigests:
            digests = RowDigests(len(piece.places), self._cut(len(piece.places)).starts)
            with _noting_outputs(self._model, digests):
                self._sum_chunk(nobody, step, piece, self.losses, content, public, BlockSums(2), digests)
            return digests

        if self._rigorous:
            self._settle_reads(compute, max(2, self.rows))
            return self._check_rows(compute)
        rows = min(self.microbatch, max(2, round(_expected_batch(self._plan))))
        self._settle_reads(compute, rows)
        try:
            choose_engine(compute, self._source, max(2, rows), self._device)
        except (GradientWarning, ExamplesNotIndependent):
            raise
        except Exception:  # a model that fails on synthetic inputs may still accept the data
            return 0
        return 0

    def _check_rows(self, compute: Compute) -> int:
        """Find a number of rows per chunk for which the check passes on every process, the planned one first.

        A chunk of one row has no other rows and one position. Returns the number of inputs compared."""
        moving, planned = self._plan.neighbours == "add-remove", self.rows
        for rows in dict.fromkeys((planned, *reversed(list_sizes(self.microbatch)), 1)):
            compared, digest, failed = 0, "", False
            try:
                compared, digest = check_batch_invariance(
                    compute,
                    self._source,
                    rows,
                    self._device,
                    moving=moving,
                    params=self._params,
                    padding=int(self._reads.found),
                )
            except RowsNotIndependent:
                if rows == 1:
                    raise
                failed = True
            if self._ranks.world > 1:
                failed = _is_any(self._ranks, failed)
                check_same(self._ranks, {} if failed else {"arithmetic": digest})
            if not failed:
                break
        self.rows, self._buffers = rows, []
        if rows == 1 < planned:
            warnings.warn(
                "the arithmetic of an example depends on other rows of its chunk, so every example is computed in a "
                "chunk of its own, which is slow: let the model treat each row separately, or use fast arithmetic, "
                "whose ε is claimed and not proven",
                GradientWarning,
                stacklevel=2,
            )
        return compared

    def _settle_reads(self, compute: Callable[..., RowDigests], rows: int) -> None:
        """Find out on synthetic inputs whether the model reads tensor values into Python, and whether they vary with
        the inputs, and for empty rows with the weights and the model's random numbers.

        If inputs and empty rows give different values, the model is computed one example at a time. A model that fails
        on synthetic inputs stays undecided: every batch is then tracked in full."""
        checks = self._reads
        checks.deciding = True
        try:
            if self._try_reads(compute, rows, 1.0):
                checks.settled = True
                for step, factor in enumerate(EXTREMES) if checks.found else ():
                    with varied(self._params if step else {}, step):
                        self._try_reads(partial(compute, step=step), rows, factor)
        finally:
            checks.settle()

    def _try_reads(self, compute: Compute, rows: int, factor: float) -> bool:
        """Whether the model ran on random inputs times this factor; integers are 0 and 1 if the model accepts 1."""
        for below in (2, 1) if self._device.type == "cpu" else (1,):
            content = synthetic_batch(self._source, rows, 1, self._device, below=below)
            content = to_each(lambda t: t * factor if t.is_floating_point() else t, content)
            try:
                compute(replace(whole_chunk(rows), empty=None), content)
            except (GradientWarning, ExamplesNotIndependent):
                raise
            except Exception:  # a batch on which the model fails is not released
                continue
            return True
        return False

    @property
    def isolated(self) -> bool:
        """Whether every example was computed separately in all steps; False until this is known."""
        alone = self._rigorous and self.rows == 1
        known = [self._restored, alone or not self._reads.batched if self._started else None]
        return any(known) and False not in known

    def describe_separation(self) -> str:
        """The assumption about a model that is not known to treat its examples separately; empty if there is none.

        A model that is computed one example at a time may still remember an example (in a list, a global, a whole
        number). The number of checks is the planned one, which is public. The number of steps checked so far is not
        stated, because the secret selects these steps."""
        if not self._plan.adds_noise or is_known_separate(self._model, self.losses):
            return ""
        if self.isolated and (self.rows == 1 or has_known_augmentation(self.losses)):
            return FORGETFUL
        return SEPARATE.format(count_spot_checks(self._plan.steps), self._plan.steps)

    def list_pieces(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """The data rows in each chunk of a step that this process computes."""
        units = self._units.at(secret, step)
        return [units.list_rows(indices[chosen]) for chosen in self.list_chosen(secret, step, indices)]

    def list_chosen(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """The examples of a batch in each chunk that this process computes."""
        return [chunk.chosen for block in self._list_blocks(secret, step, indices) for chunk in block]

    def _watch_model(self) -> ModelStateGuard | None:
        return ModelStateGuard(self._model, self._params) if self._plan.adds_noise else None

    def _sum_blocks(self, secret: Secret, step: int, indices: Tensor, public: State) -> Sums:
        total, units, blocks = _Total(), self._units.at(secret, step), self._list_blocks(secret, step, indices)
        count, number, starts = sum(map(len, blocks)), 0, self._cut(self.rows).starts
        for block in blocks:
            sums, found = BlockSums(len(block), starts), Sums()
            for at, chunk in enumerate(block):
                losses = self._watch_losses(secret, step, number, count)
                rows = units.take(indices[chunk.chosen])
                self._check_parts(rows, len(chunk.chosen))
                content = self._fill(chunk, rows, at)
                _join_chunk(found, self._sum_chunk(secret, step, chunk, losses, content, public, sums), sums)
                number += 1
            if not sums.complete:
                raise NotProvenError(
                    f"{type(self._query).__name__} sums the gradients of some chunks of a batch and not of others: "
                    "let piece sum in the same way whatever the chunk holds"
                )
            total.add(found)
        return total.finish() if self._ranks.world == 1 else self._add_ranks(total.finish(), secret, step, public)

    def _add_ranks(self, sums: Sums, secret: Secret, step: int, public: State) -> Sums:
        """The sums over all processes; each must be at the same step of the same run.

        Compared are parameters, buffers, public state, and the chunks of the batch."""
        mark = mark_step(secret, step, self.microbatch, self.rows)
        at = checksum((mark, *self._params.values(), *self._model.buffers(), *list_tensors(public)))
        return split_checksum(self._ranks.all_reduce(append_checksum(sums, self._ranks, at)), at)

    def _cut(self, rows: int) -> Cut:
        return Cut.of(rows, self.microbatch, "rigorous" if self._rigorous else "fast")

    def _list_blocks(self, secret: Secret, step: int, indices: Tensor) -> list[list[Chunk]]:
        """This process's chunks of a step, by block; a chunk of several blocks is listed alone."""
        cut = self._cut(self.rows)
        return cut.cut(cut.order(secret, step, len(indices)), self._ranks.rank, self._ranks.world)

    def _fill(self, chunk: Chunk, rows: Any, at: int) -> Any:
        """The rows of chunk ``at`` of a block on the model's device; in rigorous arithmetic in the memory that all
        such chunks use, with zeros in empty rows."""
        if chunk.empty is None:
            return to_each(lambda t: t.to(self._device), rows)
        if at == len(self._buffers):
            shape = len(chunk.places)
            self._buffers.append([t.new_zeros(shape, *t.shape[1:], device=self._device) for t in tensors_of(rows)])
        own, filled = iter(self._buffers[at]), len(chunk.chosen)

        def copy(t: Tensor) -> Tensor:
            buffer = next(own)
            buffer[:filled] = t
            buffer[filled:] = 0
            return buffer

        return to_each(copy, rows)

    def _check_parts(self, rows: Any, count: int) -> None:
        """Raise unless the rows have the public shape (that of an empty batch), in either arithmetic.

        Rows padded to their batch would reveal who is in it. Values that are not tensors must equal those of an empty
        batch."""
        if not self._plan.adds_noise:
            return
        shapes: list[Any] = []
        if type(rows) is tuple:  # all there is to compare in a tuple of tensors
            plain = [None if type(t) is not Tensor or t.is_nested else t for t in rows]
            shapes = [t if t is None else (t.dtype, t.shape[1:], t.layout, t.shape[:1] == (count,)) for t in plain]
        if shapes and None not in shapes and shapes == self._shapes:
            return
        if self._parts is None:
            self._parts = list_parts(take_nothing(self._source))
        refuse_other_parts(self._parts, rows, count)
        self._shapes = shapes

    def _sum_chunk(
        self,
        secret: Secret,
        step: int,
        piece: Chunk,
        losses: Losses,
        content: Any,
        public: State,
        block: BlockSums,
        digests: RowDigests | None = None,
    ) -> Sums:
        query, checks = self._query, self._reads if self._plan.adds_noise else None
        if self._reads.found and len(piece.places):
            piece, content = self._add_empty_row(piece, content)
            if digests is not None:
                digests.rows = len(piece.places)
        randomness = model_randomness(secret, step, piece.places, self._device, self._units.most)
        scope = microbatch_scope(piece, self._params, block, digests)
        with randomness, torch.enable_grad(), checking_reads(checks), scope as seen:
            sums = query.piece(self._model, losses, content, public)
        if piece.empty is not None and len(piece.empty) and not seen.recorded:
            raise NotProvenError(
                f"{type(query).__name__} does not take its gradients from "
                f"hush.per_example.gradients.per_example_gradients, so it would count empty rows as examples: use "
                "that function, or fast arithmetic, whose ε is claimed and not proven"
            )
        return sums

    def _add_empty_row(self, piece: Chunk, content: Any) -> tuple[Chunk, Any]:
        """Append a row that is always empty and in no sum.

        A question that the model asks of all rows (is any of them padded?) then has the same answer whether or not
        the other rows are empty."""
        place, last = torch.tensor([EMPTY_PLACE]), torch.ones(1, dtype=torch.bool)
        empty = torch.zeros(len(piece.places), dtype=torch.bool) if piece.empty is None else piece.empty
        more = replace(piece, places=torch.cat([piece.places, place]), empty=torch.cat([empty, last]))
        return more, to_each(lambda t: torch.cat([t, t.new_zeros(1, *t.shape[1:])]), content)

    def _watch_losses(self, secret: Secret, step: int, piece: int, pieces: int) -> Losses:
        """The losses, inspected at the steps that the secret selects."""
        return SpotChecks(secret).inspect(self.losses, step, piece, pieces) if self._plan.adds_noise else self.losses


class _Total:
    """A float64 sum of blocks in levels: `FAN` blocks are added one after the other, then `FAN` such sums."""

    def __init__(self) -> None:
        self._levels: list[Sums] = []
        self._counts: list[int] = []

    def add(self, sums: Sums, level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append({})
            self._counts.append(0)
        _add_into(self._levels[level], sums)
        self._counts[level] += 1
        if self._counts[level] == FAN:
            full, self._levels[level], self._counts[level] = self._levels[level], Sums(), 0
            self.add(full, level + 1)

    def finish(self) -> Sums:
        """The whole sum."""
        total, *others = [level for level in self._levels if level]
        for other in others:
            _add_into(total, other)
        return total


def _add_into(total: Sums, sums: Sums) -> None:
    """Add sums in float64."""
    for channel, named in sums.items():
        own = total.setdefault(channel, {})
        for name, value in named.items():
            if name in own:
                own[name].add_(value.detach())
            else:
                own[name] = value.detach().to(torch.float64, copy=True)


def _join_chunk(found: Sums, sums: Sums, block: BlockSums) -> None:
    """Add the sums of a chunk to those of its block, without the ones that the block computes with its last chunk."""
    for channel, named in sums.items():
        own = found.setdefault(channel, {})
        for name, value in named.items():
            if block.zeros and block.zeros.get(name) is value:
                continue
            own[name] = own[name].double() + value.detach() if name in own else value


def _is_any(ranks: ProcessGroup, flag: bool) -> bool:
    """Whether the flag of any process is set."""
    return bool(ranks.all_reduce({"flag": {"": torch.tensor([float(flag)], dtype=torch.float64)}})["flag"][""].item())


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of a chunk's tensors for the next chunk.

    glibc returns a freed block to the system if it is larger than every block that was freed before (mallopt(3),
    M_MMAP_THRESHOLD), and the top of the heap if twice as much is free. Every chunk would then fault in and clear its
    pages again: up to a quarter of a step. Freeing one block of the largest size that counts prevents it."""
    torch.empty(KEPT, dtype=torch.uint8)


def is_rigorous(plan: Plan) -> bool:
    """Whether sums are computed in rigorous arithmetic: only where noise is added to them."""
    return plan.adds_noise and plan.arithmetic == "rigorous"


def find_rows(plan: Plan, model: nn.Module, source: Source, microbatch: int) -> int:
    """The number of rows of a chunk that the cost model chooses, from public numbers."""
    if not is_rigorous(plan):
        return microbatch
    shapes, rate = [p.shape for p in model.parameters()], plan.sampler.participation.poisson_rate
    return choose_rows(
        shapes,
        take_nothing(source),
        _expected_batch(plan),
        microbatch,
        steps=plan.steps,
        random=rate is not None and rate < 1,
        moving=plan.neighbours == "add-remove",
    )


def _expected_batch(plan: Plan) -> float:
    return float(getattr(plan.sampler, "expected_batch", plan.divisor))


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
