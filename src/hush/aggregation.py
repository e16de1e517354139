"""The sums of a step: a batch on its public places, piece by piece through the query.

Nothing here is released. A model that mixes examples or remembers them is refused, and what the rows beside an example
do to its last bits is met before the first step (`hush.per_example.chunks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hush._internal.tensors import Losses, Named, State, Sums, add_sums, checksum, list_tensors, widen_sums
from hush.accounting.guarantee import ROUNDING, rounded_up
from hush.clipping import ADDED, Query
from hush.data_source import Parts, Source, list_parts, refuse_other_parts, tensors_of, to_each
from hush.distributed.consistency import add_standing, mark_step, take_standing
from hush.distributed.group import ProcessGroup
from hush.errors import Refused
from hush.per_example.chunks import (
    Chunk,
    Seats,
    Summed,
    check_batch_invariance,
    effect_of_extra_row,
    synthetic_batch,
)
from hush.per_example.engine import ExamplesNotIndependent, SpotChecks, count_spot_checks
from hush.per_example.model_checks import ModelStateGuard, check_model, is_known_separate
from hush.per_example.model_rng import model_randomness
from hush.per_example.reads import ReadChecks, checking_reads
from hush.per_example.result import GradientWarning, microbatch_scope
from hush.privacy_unit import as_units
from hush.randomness import Secret

if TYPE_CHECKING:
    from hush.plan import Mechanism

COMPANY = ROUNDING + " ({}; rigorous arithmetic rules it out)"
SEPARATE = "the model and its loss treat every example separately (checked at {} of {} steps)"
EXTREMES = (1.0, 0.0, 1e4, 1e-40, math.nan, math.inf)  # times random inputs: their reads are compared


class Aggregator:
    """One model, its losses and its data, as a mechanism's query sums over them."""

    def __init__(
        self,
        mechanism: Mechanism,
        query: Query,
        model: nn.Module,
        params: Named,
        losses: Losses,
        source: Source,
        *,
        microbatch: int,
        ranks: ProcessGroup,
    ) -> None:
        self.losses, self.microbatch, self.company = losses, microbatch, ""
        self._mechanism, self._query, self._model, self._params = mechanism, query, model, params
        self._source, self._units, self._ranks = source, as_units(source), ranks
        self._device = next(iter(params.values())).device
        self._threads = torch.get_num_threads()
        self._untouched = self._watch_model()
        self._fresh = True  # no forward of this run has been seen yet
        self._met = False
        self._reads = ReadChecks()
        self._restored: bool | None = None  # whether the steps before a resume computed every example by itself
        self._shapes: list[torch.Size] | None = None  # of the rows, in rigorous arithmetic
        self._parts: Parts | None = None  # what every batch holds beside tensors

    def restore(self, microbatch: int, company: str, *, begun: bool, isolated: bool | None = None) -> None:
        """Go on as another run did, with the model as it is now; once it has ``begun``, nobody else may change it."""
        self.microbatch, self.company, self._restored = microbatch, company, isolated if begun else None
        self._threads, self._untouched = torch.get_num_threads(), self._watch_model()
        if begun:
            self.settle()

    def settle(self) -> None:
        """The rule has changed the parameters: they are as they should be."""
        if self._untouched is not None:
            self._untouched.note_written()

    def check_release(self) -> None:
        """Refuse to release a model that holds more than the steps put into it."""
        if self._untouched is not None:
            self._untouched.check_release()

    def check_threads(self) -> None:
        """Refuse another number of threads where the last bits depend on it."""
        if self._mechanism.arithmetic == "rigorous" and self._threads != torch.get_num_threads():
            raise Refused(
                f"rigorous arithmetic needs the same number of threads throughout: the run began with {self._threads}"
            )

    def sum_batch(self, secret: Secret, step: int, indices: Tensor, public: State) -> Sums:
        """The sums of a batch by a model that neither mixes examples nor remembers them."""
        if self._untouched is None:
            return self._sum_pieces(secret, step, indices, public)
        check_model(self._model)  # again: a layer may be in another mode by now
        with self._untouched.during_forward(complete=self._fresh):
            if not self._met and self._mechanism.noisy:
                found = self.meet_company(public)  # after a resume too: it picks this process's engine
                self.company, self._met = self.company or found, True
            sums = self._sum_pieces(secret, step, indices, public)
        self._fresh = self._fresh and not any(map(len, self.list_chosen(secret, step, indices)))
        return sums

    def meet_company(self, public: State) -> str:
        """What is assumed about the rows beside an example: nothing in rigorous arithmetic, where it is checked.

        It comes before the first step, whoever is in its batch: the engine that is picked here is picked by public
        inputs, and nobody's presence decides how everybody else's gradient is computed."""
        nobody = Secret.from_seed(0, "company")

        def summed(piece: Chunk, content: Any) -> Sums:
            sums = self._sum_piece(nobody, 0, piece, self.losses, content, public)
            return {name: sums[name] for name in bounds}

        bounds = {name: c.bound for name, c in self._mechanism.channels.items() if c.proof in ADDED}
        rows = self.seats().rows()
        self._settle_reads(summed, rows[-1])
        if self._mechanism.arithmetic == "rigorous":
            check_batch_invariance(summed, self._source, rows, self._device)
            return ""
        try:
            moved = effect_of_extra_row(summed, self._source, -(-2 * rows[-1] // 3), bounds, self._device)
        except GradientWarning:
            raise
        except Exception:  # whatever a model says to made-up inputs: it may take the data
            return COMPANY.format("it could not be measured on random inputs, and the data picked the engine")
        size = rounded_up(moved, 1)
        return COMPANY.format(f"one row more moved a sum of random inputs by {size} of an example's bound")

    def _settle_reads(self, summed: Summed, rows: int) -> None:
        """Find out on made-up inputs whether the model reads values into Python, and whether they decide them.

        Where they read other values than empty rows do, the model is computed one example at a time. A model that does
        not run on made-up inputs stays unsettled: every batch is watched thoroughly."""
        checks = self._reads
        checks.deciding = True
        try:
            if self._try_reads(summed, rows, 1.0):
                checks.settled = True
                for factor in EXTREMES if checks.found else ():
                    self._try_reads(summed, rows, factor)
        finally:
            checks.deciding = checks.batched = False

    def _try_reads(self, summed: Summed, rows: int, factor: float) -> bool:
        """Whether the model ran on random inputs times this factor; integers are 0 and 1 where the model takes 1."""
        everywhere = torch.arange(rows)
        for below in (2, 1) if self._device.type == "cpu" else (1,):
            content = synthetic_batch(self._source, rows, 1, self._device, below=below)
            content = to_each(lambda t: t * factor if t.is_floating_point() else t, content)
            try:
                summed(Chunk(everywhere, everywhere, ((0, rows),)), content)
            except (GradientWarning, ExamplesNotIndependent):
                raise
            except Exception:  # whatever a model says to made-up inputs: a batch on which it stops is not released
                continue
            return True
        return False

    @property
    def isolated(self) -> bool:
        """Whether every example was computed by itself in all steps; not before that is known."""
        known = [self._restored, not self._reads.batched if self._met else None]
        return any(known) and False not in known

    def describe_separation(self) -> str:
        """What is assumed of a model that computes its examples together; empty where nothing is.

        The number of checks is the planned one, which is public. How many steps were checked by now is not said: which
        ones are is derived from the secret."""
        if not self._mechanism.noisy or self.isolated or is_known_separate(self._model, self.losses):
            return ""
        return SEPARATE.format(count_spot_checks(self._mechanism.steps), self._mechanism.steps)

    def seats(self) -> Seats:
        """The places of a step, cut into pieces."""
        mode = self._mechanism.arithmetic if self._mechanism.private else "default"
        return Seats.of(self._mechanism.room, self.microbatch, self._ranks.world, mode)

    def list_pieces(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """The rows of the data in each piece of a step that this process takes."""
        units = self._units.at(secret, step)
        return [units.list_rows(indices[chosen]) for chosen in self.list_chosen(secret, step, indices)]

    def list_chosen(self, secret: Secret, step: int, indices: Tensor) -> list[Tensor]:
        """Which examples of a batch are in each piece that this process takes."""
        return [piece.chosen for piece in self._seat(secret, step, indices)]

    def _watch_model(self) -> ModelStateGuard | None:
        return ModelStateGuard(self._model, self._params) if self._mechanism.private else None

    def _sum_pieces(self, secret: Secret, step: int, indices: Tensor, public: State) -> Sums:
        total: Sums | None = None
        units, pieces = self._units.at(secret, step), list(self._seat(secret, step, indices))
        for number, piece in enumerate(pieces):
            losses = self._watch_losses(secret, step, number, len(pieces))
            rows = units.take(indices[piece.chosen])
            self._check_parts(rows)
            sums = self._sum_piece(secret, step, piece, losses, self._fill(piece, rows), public)
            total = add_sums(total, {c: {n: v.detach() for n, v in named.items()} for c, named in sums.items()})
        assert total is not None
        return total if self._ranks.world == 1 else self._add_ranks(widen_sums(total), secret, step, public)

    def _add_ranks(self, sums: Sums, secret: Secret, step: int, public: State) -> Sums:
        """The sums over all processes, of which each must stand at the same step of the same run: its parameters,
        buffers and public state, and the pieces that its batch is cut into."""
        mark = mark_step(secret, step, self.microbatch)
        at = checksum((mark, *self._params.values(), *self._model.buffers(), *list_tensors(public)))
        return take_standing(self._ranks.total(add_standing(sums, self._ranks, at)), at)

    def _seat(self, secret: Secret, step: int, indices: Tensor) -> Iterator[Chunk]:
        """This process's pieces of a step, with the examples on their places."""
        seats = self.seats()
        return seats.cut(seats.assign(secret, step, len(indices)), self._ranks.rank, self._ranks.world)

    def _fill(self, piece: Chunk, rows: Any) -> Any:
        """A piece's rows; empty places are rows of zeros."""
        if piece.empty is not None:
            self._check_shape(rows)
        return to_each(lambda t: piece.fill_empty(t.to(self._device)), rows)

    def _check_parts(self, rows: Any) -> None:
        """What a batch holds beside tensors is what no examples at all have there."""
        if self._mechanism.private:
            if self._parts is None:
                with torch.random.fork_rng(devices=[]):  # a dataset may draw, and nothing is to draw otherwise for this
                    self._parts = list_parts(self._source.take(torch.empty(0, dtype=torch.int64)))
            refuse_other_parts(self._parts, rows)

    def _check_shape(self, rows: Any) -> None:
        """Rigorous arithmetic has rows of one public shape: padded to their batch, they would tell who is in it."""
        shapes = [t.shape[1:] for t in tensors_of(rows)]
        self._shapes = shapes if self._shapes is None else self._shapes
        if shapes != self._shapes:
            raise Refused(
                "rigorous arithmetic needs rows of one shape, and that of these data changes with the batch: pad every "
                "example to the same length, or use the default arithmetic"
            )

    def _sum_piece(self, secret: Secret, step: int, piece: Chunk, losses: Losses, content: Any, public: State) -> Sums:
        query, checks = self._query, self._reads if self._mechanism.noisy else None
        if self._reads.found and len(piece.places):
            piece, content = self._add_empty_row(piece, content)
        randomness = model_randomness(secret, step, piece.places, self._device, self._units.most)
        with randomness, torch.enable_grad(), checking_reads(checks), microbatch_scope(piece) as seen:
            sums = query.piece(self._model, losses, content, public)
        if piece.empty is not None and len(piece.empty) and not seen.recorded:
            raise Refused(
                f"{type(query).__name__} does not take its gradients from "
                f"hush.per_example.gradients.per_example_gradients, so it would "
                "count empty places as examples: use the default arithmetic"
            )
        return sums

    def _add_empty_row(self, piece: Chunk, content: Any) -> tuple[Chunk, Any]:
        """One row more, that is always empty and in no sum: what a model asks of all its rows (is any of them padded?)
        has the same answer whether or not the others are empty."""
        place, last = torch.tensor([self._mechanism.room.places]), torch.ones(1, dtype=torch.bool)
        empty = torch.zeros(len(piece.places), dtype=torch.bool) if piece.empty is None else piece.empty
        more = replace(piece, places=torch.cat([piece.places, place]), empty=torch.cat([empty, last]))
        return more, to_each(lambda t: torch.cat([t, t.new_zeros(1, *t.shape[1:])]), content)

    def _watch_losses(self, secret: Secret, step: int, piece: int, pieces: int) -> Losses:
        """The losses, inspected at the steps that the secret picks."""
        return SpotChecks(secret).inspect(self.losses, step, piece, pieces) if self._mechanism.noisy else self.losses
