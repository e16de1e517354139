"""A run: one plan on one dataset with one secret, a step at a time.

    data ─ sampler ─ batch ─ query (per-example gradients, clipped, summed) ─(+)─ rule ─ parameters
                                                             noise ──────────┘

`Run.step` is that picture, line by line. What it returns is private; what may be released is what `release` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from hush.arithmetic import Piece, Seats
from hush.artefact import card_page, write_artefact
from hush.attempts import History, drawing
from hush.company import check_neighbours, shift_of_one_row_more
from hush.draws import model_randomness
from hush.errors import BadInput, Refused
from hush.gradients import GradientWarning, Untouched, Watch, check_model, placed
from hush.named import Layout, Losses, Named, State, Sums, add_sums, in_double, trainable
from hush.normals import BLOCK
from hush.privacy.guarantee import Guarantee, rounded_up
from hush.randomness import Secret, normal
from hush.release import Release, add_noise, grid
from hush.source import Source, tensors_of, to_each

if TYPE_CHECKING:
    from hush.plan import Plan


ROUNDING = "rounding that varies with the size of a batch gives nothing away"
COMPANY = ROUNDING + " ({}; rigorous arithmetic rules it out)"
PIECE = 4 * BLOCK  # coordinates of independent noise that a thread makes at a time
MICROBATCH = 400  # places of a piece, a third of them empty at batch 256: more activations fall out of the cache


class Ranks(Protocol):
    """How several processes share the examples of a step; each of them adds the same noise and takes the same step."""

    @property
    def rank(self) -> int:
        """This process."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    def total(self, sums: Sums) -> Sums:
        """The sums over all processes."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def total(self, sums: Sums) -> Sums:
        """The sums as they are."""
        return sums


class Witness(Protocol):
    """Sees to it that the noise of a step never meets two different sums (`hush.checkpoint`)."""

    def meets(self, sums: Sums) -> bool:
        """Called with the next step's channels before their noise is drawn. False where the run has a fresh secret
        now, so that the sums are to be made anew."""
        ...

    def releasing(self) -> None:
        """Called before weights are released."""
        ...


@dataclass(frozen=True)
class Batch:
    """The examples of one step of one run. Which they are, and how many, is private."""

    step: int
    indices: Tensor = field(repr=False)
    run: object = field(repr=False)


@dataclass(frozen=True)
class Record:
    """What happened in a step. ``private`` (loss, batch size, clipped examples) must never be released."""

    step: int
    private: Named

    def numbers(self) -> dict[str, float]:
        """The private figures as plain numbers, for a file marked private."""
        return {name: float(value) for name, value in self.private.items()}


class Run:
    """Made by :meth:`hush.plan.Plan.start`; iterate ``batches()`` and hand each to ``step``."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        losses: Losses,
        source: Source,
        secret: Secret,
        *,
        microbatch: int = MICROBATCH,
        ranks: Ranks | None = None,
    ) -> None:
        self.plan, self.model, self.losses = plan, model, losses
        self.microbatch, self.ranks = microbatch, ranks or Alone()
        self.next = 0
        self.source, self._secret = source, secret
        self._params = trainable(model)
        self._threads = torch.get_num_threads()
        if not self._params:
            raise BadInput("the model has no parameter to train: every requires_grad is False")
        if plan.private:
            check_model(model)
        self.device = next(iter(self._params.values())).device
        self._public, self._private = plan.query.init(self._params)
        self._rule = plan.rule.init(self._params)
        self._noise: dict[str, State] = {}
        self._sizes: dict[str, int] = {}
        self._whole = True
        self._cover: Callable[[int], None] | None = None
        self._witness: Witness | None = None
        self.history = History()
        self._stds = plan.channel_stds()
        self._drawn: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))
        self._untouched = Untouched(model, self._params) if plan.private else None
        self._fresh = True  # no forward of this run has been seen yet
        self._company, self._met = "", False
        self._shapes: list[torch.Size] | None = None  # of the rows, in rigorous arithmetic

    def batches(self) -> Iterator[Batch]:
        """The batches that remain, in order."""
        while self.next < self.plan.steps:
            step = self.next
            yield self.batch(step)
            if self.next == step:
                raise BadInput(f"the batch of step {step} was not used: hand every batch to run.step before the next")

    def batch(self, step: int) -> Batch:
        """The batch of a step: a pure function of the run's secret and the step."""
        secret = drawing(self._secret, self.plan.sampler.participation)
        self._drawn = step, self.plan.sampler.indices(secret, step, len(self.source))
        return Batch(step, self._drawn[1].clone(), self)  # a copy to look at: what the run uses stays its own

    @torch.no_grad()
    def step(self, batch: Batch) -> Record:
        """Sum, add noise, update."""
        self._check(batch)
        self.cover()
        sums = self._guarded(batch)
        channels, private = self.plan.query.finish(sums, self._public, self._private)
        while self._witness is not None and not self._witness.meets(channels):
            sums = self._guarded(batch)
            channels, private = self.plan.query.finish(sums, self._public, self._private)
        self._whole, self._private = False, private
        release = self._noised(channels)
        update = self.plan.rule.step(self._params, release, self._rule)
        if self._untouched is not None:
            self._untouched.settled()
        self._public = self.plan.query.observe(release, update, self._public)
        self.next += 1
        self.history = self.history.reached(self.next)
        self._whole = True
        return Record(batch.step, sums.get("diagnostics", {}))

    @property
    def secret(self) -> Secret:
        """What all sampling and noise derive from; whoever has it can subtract the noise."""
        return self._secret

    def covered_by(self, cover: Callable[[int], None]) -> None:
        """Have ``cover(n)`` called before step n is taken (n from 1): a ledger writes it down, or raises."""
        self._cover = cover

    def cover(self) -> None:
        """See to it that the next step is covered."""
        if self._cover is not None:
            self._cover(self.next + 1)

    def witnessed_by(self, witness: Witness) -> None:
        """Have ``witness.meets(sums)`` called before noise is drawn, and ``witness.releasing()`` before a release."""
        self._witness = witness if self.plan.private else None

    def renew(self) -> None:
        """Take the steps from here on with a fresh secret: fresh coins, fresh noise that starts anew, the same fixed
        batches. What the attempts cost together is in `hush.attempts`."""
        self._secret = self._secret.renewed()
        self.history = self.history.renewed(self.next)
        self._drawn = (-1, self._drawn[1])
        self._noise, self._sizes = {}, {}

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole plan with what this run adds: to its assumptions, and by steps taken again."""
        return self.claims()[0]

    def claims(self) -> tuple[Guarantee, ...]:
        """Every ε that is said about this run, the proven one first."""
        return self._assuming().claims_for(self.history, self.coordinates)

    @property
    def coordinates(self) -> int:
        """How many numbers are trained."""
        return max(1, sum(p.numel() for p in self._params.values()))

    def release(self, directory: str | Path) -> Path:
        """Write the released artefact: weights and privacy card, nothing private."""
        if self._untouched is not None:
            self._untouched.check_release()
        if self._witness is not None:
            self._witness.releasing()
        card = self._assuming().card(steps_taken=self.next, history=self.history, coordinates=self.coordinates)
        return write_artefact(Path(directory), self.model, card, card_page(card, card["guarantee"]["sentence"]))

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
            "company": self._company,
            "params": {name: p.detach() for name, p in self._params.items()},
            "buffers": {name: b.detach() for name, b in self.model.named_buffers()},
            "rule": self._rule,
            "public": self._public,
            "private": self._private,
            "noise": {channel: {"size": self._sizes[channel], "state": s} for channel, s in self._noise.items()},
        }

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Go on from another run's `state` of the same plan and data: the steps that follow are the same bits.

        Nothing is compared here. `hush.checkpoint.Checkpoints` does, and sees to it that no noise meets two sums.
        """
        if state["world"] != self.ranks.world:
            raise BadInput(f"the run was shared by {state['world']} processes and now by {self.ranks.world}")
        for kind, own in (("params", self._params), ("buffers", dict(self.model.named_buffers()))):
            _copy_into(own, state[kind])
        self.next, self.microbatch, self._whole = state["step"], state["microbatch"], True
        self._company, self._threads = state["company"], torch.get_num_threads()
        self._secret, self.history = Secret.from_json(state["secret"]), History.from_json(state["history"])
        self._drawn = (-1, self._drawn[1])  # drawn by the secret before
        self._rule, self._public, self._private = state["rule"], state["public"], state["private"]
        self._sizes = {channel: entry["size"] for channel, entry in state["noise"].items()}
        self._noise = {}
        for channel, entry in state["noise"].items():
            self._noise[channel] = {**self.plan.noise.init(self._like(entry["size"])), **entry["state"]}
        if self._untouched is not None:
            self._untouched = Untouched(self.model, self._params)

    def _assuming(self) -> Plan:
        """The plan with what this run adds to its assumptions."""
        return self.plan.with_secret(self._secret).assuming(self._company)

    def _meet_company(self) -> str:
        """What is assumed about the rows beside an example: nothing in rigorous arithmetic, where it is checked.

        It comes before the first step, whoever is in its batch: the engine that is picked here is picked by public
        inputs, and nobody's presence decides how everybody else's gradient is computed."""
        nobody = Secret.from_seed(0, "company")

        def summed(piece: Piece, content: Any) -> Sums:
            sums = self._piece(nobody, 0, piece, self.losses, content, self._public)
            return {name: sums[name] for name in self.plan.query.channels}

        rows = self._seats().rows()
        if self.plan.arithmetic == "rigorous":
            check_neighbours(summed, self.source, rows, self.device)
            return ""
        bounds = {name: channel.bound for name, channel in self.plan.channels.items()}
        try:
            moved = shift_of_one_row_more(summed, self.source, -(-2 * rows[-1] // 3), bounds, self.device)
        except GradientWarning:
            raise
        except Exception:  # whatever a model says to made-up inputs: it may take the data
            return COMPANY.format("it could not be measured on random inputs, and the data picked the engine")
        size = rounded_up(moved, 1)
        return COMPANY.format(f"one row more moved a sum of random inputs by {size} of an example's bound")

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
        if self.plan.arithmetic == "rigorous" and self._threads != torch.get_num_threads():
            raise Refused(
                f"rigorous arithmetic needs the same number of threads throughout: the run began with {self._threads}"
            )

    def _guarded(self, batch: Batch) -> Sums:
        """The sums of a batch by a model that neither mixes examples nor remembers them."""
        if self._untouched is None:
            return self._sum(batch)
        check_model(self.model)  # again: a layer may be in another mode by now
        with self._untouched.during_forward(complete=self._fresh):
            if not self._met:
                found = self._meet_company()  # after a resume too: it picks this process's engine
                self._company, self._met = self._company or found, True
            sums = self._sum(batch)
        self._fresh = self._fresh and not len(self._drawn[1])
        return sums

    def _sum(self, batch: Batch) -> Sums:
        total: Sums | None = None
        if self._drawn[0] != batch.step:
            self.batch(batch.step)
        pieces = list(self._seated(batch.step))
        for number, piece in enumerate(pieces):
            losses = self._watched(batch.step, number, len(pieces))
            sums = self._piece(self._secret, batch.step, piece, losses, self._content(piece), self._public)
            total = add_sums(total, {c: {n: v.detach() for n, v in named.items()} for c, named in sums.items()})
        assert total is not None
        return self.ranks.total(total if self.ranks.world == 1 else in_double(total))

    def _seated(self, step: int) -> Iterator[Piece]:
        """This process's pieces of a step, with the examples on their places."""
        seats = self._seats()
        taken = seats.assign(self._secret, step, len(self._drawn[1]))
        return seats.cut(taken, self.ranks.rank, self.ranks.world)

    def _seats(self) -> Seats:
        mode = self.plan.arithmetic if self.plan.private else "default"
        return Seats.of(self.plan.room, self.microbatch, self.ranks.world, mode)

    def _content(self, piece: Piece) -> Any:
        """A piece's rows; empty places are rows of zeros."""
        rows = self.source.take(self._drawn[1][piece.chosen])
        if piece.empty is not None:
            self._same_shape(rows)
        return to_each(lambda t: piece.filled(t.to(self.device)), rows)

    def _same_shape(self, rows: Any) -> None:
        """Rigorous arithmetic has rows of one public shape: padded to their batch, they would tell who is in it."""
        shapes = [t.shape[1:] for t in tensors_of(rows)]
        self._shapes = shapes if self._shapes is None else self._shapes
        if shapes != self._shapes:
            raise Refused(
                "rigorous arithmetic needs rows of one shape, and that of these data changes with the batch: pad every "
                "example to the same length, or use the default arithmetic"
            )

    def _piece(self, secret: Secret, step: int, piece: Piece, losses: Losses, content: Any, public: State) -> Sums:
        with model_randomness(secret, step, piece.places, self.device), torch.enable_grad(), placed(piece) as seen:
            sums = self.plan.query.piece(self.model, losses, content, public)
        if piece.empty is not None and len(piece.empty) and not seen.recorded:
            raise Refused(
                f"{type(self.plan.query).__name__} does not take its gradients from hush.gradients.record, so it would "
                "count empty places as examples: use the default arithmetic"
            )
        return sums

    def _watched(self, step: int, piece: int, pieces: int) -> Losses:
        """The losses, inspected at the steps that the secret picks."""
        return Watch(self._secret).over(self.losses, step, piece, pieces) if self.plan.private else self.losses

    def _noised(self, channels: Sums) -> Release:
        shape = self.plan.noise.std(self.next)
        values = {name: self._add_noise(name, named, self._stds[name], shape) for name, named in channels.items()}
        return Release(self.next, values, {n: std * shape / self.plan.divisor for n, std in self._stds.items()})

    def _add_noise(self, channel: str, sums: Named, std: float, shape: float) -> Named:
        if std == 0:
            torch._foreach_div_(list(sums.values()), self.plan.divisor)
            return self._in_own_type(sums)
        spacing = grid(std * shape)
        add_noise(sums.values(), self._draw(channel, Layout.of(sums).size), std, spacing, self.plan.divisor)
        return self._in_own_type(sums)

    def _in_own_type(self, sums: Named) -> Named:
        """Sums are float64 where a batch has several pieces; what is released has the parameters' type again."""
        own = {name: p.dtype for name, p in self._params.items()}
        return {name: value.to(own.get(name, value.dtype)) for name, value in sums.items()}

    def _draw(self, channel: str, size: int) -> Iterator[Tensor]:
        """The step's noise, in pieces where every coordinate is made alone; other noise keeps one state for all."""
        if channel not in self._noise:
            self._noise[channel] = self.plan.noise.init(self._like(size))
            self._sizes[channel] = size
        cut = self.plan.noise.pieces and self.device.type != "cuda"
        length = PIECE * torch.get_num_threads() if cut else max(1, size)
        for start in range(0, size, length):
            like = self._like(min(length, size - start))

            def rows(index: int, like: Tensor = like, start: int = start) -> Tensor:
                return normal(self._secret, f"noise/{channel}", index, like, start)

            piece, self._noise[channel] = self.plan.noise.draw(self.next, rows, self._noise[channel])
            if piece.shape != like.shape:
                raise RuntimeError(f"the noise has shape {tuple(piece.shape)} where {tuple(like.shape)} was asked for")
            yield piece

    def _like(self, size: int) -> Tensor:
        """What noise is like, a shape without memory: float64, on the CPU where the model's device may not have it."""
        device = self.device if self.device.type == "cuda" else "cpu"
        return torch.empty(1, dtype=torch.float64, device=device).expand(size)


def _copy_into(own: Named, saved: Named) -> None:
    shapes = [{name: (t.shape, t.dtype) for name, t in named.items()} for named in (own, saved)]
    if shapes[0] != shapes[1]:
        names = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        raise BadInput(f"the saved model is another one: it differs in {', '.join(names[:3])}")
    for name, value in own.items():
        value.copy_(saved[name])
