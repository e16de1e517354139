"""A plan: the mechanism that a user makes, calibrates to (ε, δ), and starts on data.

Nothing is a plan that has no proof: it is refused when it is made.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from dp_accounting import dp_event
from torch import nn
from torch.utils.data import DataLoader

from hush._internal import validate
from hush._internal.identity import NoIdentity, Scope, declared, digest
from hush._internal.tensors import Losses, Named, trainable
from hush.accounting import accountant
from hush.accounting.accountant import Accountant, Adjacency
from hush.accounting.guarantee import ROUNDING, SECRET_GIVEN, SECRET_SEED, Guarantee, rounded_up
from hush.accounting.noise_tails import SHARE, Tails, check_std
from hush.accounting.selection import Trials
from hush.clipping import ADDED, Channel, HasHiddenState, NeedsPreparation, Query
from hush.data_release import ComposedRelease, extra_delta, join_names
from hush.data_source import (
    Source,
    as_source,
    check_number_types,
    check_parts,
    check_rows,
    collates_by_itself,
    describe_replaced,
    is_drawn_again,
)
from hush.distributed.group import MICROBATCH, ProcessGroup
from hush.errors import InvalidInputError, Refused
from hush.guarantees import account_steps, check_claims, find_event, find_sensitivity, find_sigma, own_adjacency
from hush.noise import Noise
from hush.optimizers import Rule
from hush.optimizers.torch_optim import check_schedule
from hush.per_example import chunks
from hush.per_example.augmentation import average_rows
from hush.privacy_unit import Units
from hush.randomness import Secret
from hush.run import Run, count_coordinates
from hush.sampling import OnePass, PoissonSampled, Room, SameOrder, Sampler, Separated

# A mechanism: sampler, query, noise and rule as one frozen object with σ, a public divisor and a number of steps.
#
# What a run computes (`hush.run`) and what is claimed about it (`hush.guarantees`) are read off the same fields, so
# they cannot disagree. `hush.plan.Plan` is the mechanism that a user holds: only it can be made, and it checks its
# proof.


@dataclass(frozen=True)
class Mechanism(ABC):
    """Everything that decides what is computed and what it costs, and nothing that depends on the data."""

    sampler: Sampler
    query: Query
    noise: Noise
    rule: Rule
    sigma: float
    divisor: float
    steps: int
    delta: float = 1e-5
    method: str = "custom"
    adjacency: Adjacency | None = None
    accountant: Accountant | Literal["auto"] = "auto"
    accept_claimed: bool = False
    assumptions: tuple[str, ...] = field(default=())
    arithmetic: chunks.Mode = "default"
    tails: float = 0.0  # what the end of the noise's tails takes of δ, once it is known how many coordinates there are
    unit: str = "example"  # whose examples are one: all rows of a patient, say; what the guarantee is for
    rows_per_unit: int | None = None  # how many of them are averaged at most, once a run on such data has started
    beside: tuple[ComposedRelease, ...] = ()  # other releases on the same data, which every claim about this one covers
    trials: Trials | None = None  # where the run is the best of a secret number: what is claimed covers the choice

    def __post_init__(self) -> None:
        validate.positive_int(steps=self.steps)
        validate.positive(divisor=self.divisor)
        validate.choice(chunks.MODES, arithmetic=self.arithmetic)
        if self.private:
            validate.positive(noise_multiplier=self.sigma)
            check_std(self.sigma, "the noise multiplier")
            validate.probability(delta=self.delta)
            self._check_steps()
            self._check_unit()
            self.check_proof()
        elif self.beside:
            raise Refused(
                f"method '{self.method}' adds no noise, so {join_names(self.beside)} beside it would protect nobody: "
                "use dp-sgd or another private method"
            )

    @abstractmethod
    def check_proof(self) -> None:
        """Refuse what has no proven guarantee, and no claimed one that was accepted."""

    @property
    def private(self) -> bool:
        """Whether anything is claimed at all: False for ordinary training."""
        return all(channel.proof != "none" for channel in self.query.channels.values())

    @property
    def noisy(self) -> bool:
        """Whether noise is added to sums over examples: not where all that is trained on was released before."""
        return self.private and any(channel.proof in ADDED for channel in self.query.channels.values())

    @property
    def releases_rows(self) -> bool:
        """Whether single records are released with noise of their own (`hush.sanitize`)."""
        return any(channel.proof in ("rows", "coins") for channel in self.query.channels.values())

    @property
    def has_tails(self) -> bool:
        """Whether what protects is noise with tails that end: Gaussian noise, and not coins."""
        return self.private and all(channel.proof != "coins" for channel in self.query.channels.values())

    @property
    def neighbours(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.adjacency or own_adjacency(self.sampler.participation)

    @cached_property
    def sensitivity(self) -> float:
        """sens(C) under the sampler's participation: how much Z is scaled up for being correlated."""
        return find_sensitivity(self.sampler.participation, self.noise.structure) if self.private else 1.0

    @property
    def noise_std(self) -> float:
        """Standard deviation of Z as injected, in units of :attr:`channels`' bound: σ · sens(C)."""
        return self.sigma * self.sensitivity

    @cached_property
    def room(self) -> Room:
        """The places of a step; that a batch has more examples than places costs a share of δ over all steps."""
        return self.sampler.room(chunks.SHARE * self.delta / self.steps)

    @cached_property
    def charge(self) -> float:
        """What the rounding of sums adds to every bound, relative to it."""
        return chunks.charge(self.room.places) if self.noisy else 0.0

    @cached_property
    def channels(self) -> Mapping[str, Channel]:
        """The query's channels with bounds that hold in floating point: clip · (1 + charge)."""
        return self._bounded()

    @property
    def as_accounted(self) -> bool:
        """Whether the query still says what it said when the plan was made."""
        return self._bounded() == self.channels

    def _bounded(self) -> dict[str, Channel]:
        return {
            name: c if c.exact else dataclasses.replace(c, bound=c.bound * (1.0 + self.charge))
            for name, c in self.query.channels.items()
        }

    def channel_stds(self, sigma: float | None = None) -> Mapping[str, float]:
        """The noise on each channel's sum: fixed where the channel says so, the rest of 1/σ² shared by the others."""
        channels = self.channels
        if not self.private:
            return dict.fromkeys(channels, 0.0)
        free = {n: 0.0 for n, c in channels.items() if c.proof == "released"}
        channels = {n: c for n, c in channels.items() if n not in free}
        fixed = {n: c.std for n, c in channels.items() if c.std is not None}
        total = (self.sigma if sigma is None else sigma) ** -2
        left = total - sum((channels[n].bound / std) ** 2 for n, std in fixed.items())
        others = len(channels) - len(fixed)
        if left < 0 or (others and left == 0):
            raise Refused(
                f"the channels {sorted(fixed)} use up the whole noise budget: give them more noise, or lower σ"
            )
        rest = math.sqrt(others / left) if others else 0.0
        return {n: self.sensitivity * fixed.get(n, rest * c.bound) for n, c in channels.items()} | free

    def delta_left(self, steps: int | None = None, attempts: int = 1) -> float:
        """δ without what batches with more examples than places cost, the end of the noise's tails, and what the
        releases beside training lose; where ``steps`` were taken in several attempts, each of them has tails."""
        count = self.steps if steps is None else steps
        times = max(attempts, -(-count // self.steps))
        lost = times * self.tails + count * self.room.overflow + extra_delta(self.beside)
        return self.delta - (lost if self.trials is None else self.trials.loss_factor * lost)

    def tails_beside(self, coordinates: int) -> float:
        """δ that the tails cost beyond `tails` where a run is composed with others: that they cost no more than e^ε
        times what lies beyond them is of use for one ε alone, and does not add up."""
        if not self.has_tails:
            return 0.0
        return max(0.0, self.find_tails(coordinates).cost() - self.tails)

    def find_tails(self, coordinates: int) -> Tails:
        """The end of the noise of a run with so many numbers in each channel, drawn as often as Z has rows. An example
        moves all steps together by no more than one where the whole run is one Gaussian (`hush.guarantees`); what a
        hidden state remembers of it moves steps in which it has no part too."""
        part, structure = self.sampler.participation, self.noise.structure
        mu = (2.0 if self.neighbours == "replace" else 1.0) / (self.sigma * structure.least_scale)
        rate = part.rate if isinstance(part, PoissonSampled) else 1.0
        if isinstance(self.query, HasHiddenState):
            mu, rate = mu * self.query.reach, 1.0
        numbers = coordinates * len(self.query.channels)
        if isinstance(self.query, NeedsPreparation):
            return Tails(numbers, self.query.count_releases(part, self.steps), mu, rate)
        plain = all(channel.proof == "sum" for channel in self.query.channels.values())
        shared = plain and isinstance(part, (OnePass, SameOrder, Separated))
        return Tails(numbers, max(self.steps, structure.draws), mu, rate, shared)

    def with_secret(self, secret: Secret) -> Self:
        """The same with what its secret's origin adds to the assumptions."""
        return self.assuming({"system": "", "given": SECRET_GIVEN}.get(secret.origin, SECRET_SEED))

    def with_rounding(self) -> Self:
        """The same with what its arithmetic assumes, where the model is not known that would say by how much."""
        said = any(text.startswith(ROUNDING) for text in self.assumptions)
        return self.assuming(ROUNDING if self.noisy and self.arithmetic == "default" and not said else "")

    def assuming(self, text: str) -> Self:
        """The same with one more assumption; none where the text is empty."""
        if not text or text in self.assumptions:
            return self
        return dataclasses.replace(self, assumptions=(*self.assumptions, text))

    def declared(self, scope: Scope) -> dict[str, Any]:
        """Its fields, and under ``accounted`` all that its event is made of. Tails are the model's; a plan without
        releases beside it does not speak of them, nor of trials or of its unit where there is nothing to say. How many
        rows of a unit are averaged decides what is summed: two runs that differ in it never share their noise."""
        unsaid = {"tails"} | ({"beside"} if not self.beside else set())
        unsaid |= {"trials"} if self.trials is None else set()
        unsaid |= {"unit"} if self.unit == "example" else set()
        unsaid |= {"rows_per_unit"} if self.rows_per_unit is None else set()
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in unsaid}
        accounted = {
            "participation": self.sampler.participation,
            "structure": self.noise.structure,
            "channels": self.query.channels,
            "stds": self.channel_stds(),
            "adjacency": self.neighbours,
        }
        return {**fields, "accounted": accounted}

    def identity(self, params: Named | None = None) -> dict[str, Any]:
        """What tells this plan from any other (`hush._internal.identity`); an optimizer given as a function needs the
        parameters that it is built for. `NoIdentity` where there is no telling."""
        found: dict[str, Any] = declared(self, Scope(self.steps, params))
        return found

    def fingerprint(self, params: Named | None = None) -> str:
        """A digest of the plan's identity; a secret made from a seed is bound to it."""
        return digest(self.identity(params))

    def _check_unit(self) -> None:
        """Rows are released one by one, so a guarantee about several of them is another one."""
        if self.releases_rows and self.unit != "example":
            raise Refused(
                f"method '{self.method}' releases every row by itself, and its proof is for one row, not for all "
                f"rows of one {self.unit}: leave the unit out, or use dp-sgd, which is proven for it"
            )

    def _check_steps(self) -> None:
        if self.steps > self.sampler.participation.steps:
            raise Refused(
                f"the plan takes {self.steps} steps and the sampler covers {self.sampler.participation.steps}"
            )
        for name, std in self.channel_stds().items():
            if self.query.channels[name].proof != "released":
                check_std(std)


LEAST = 0.9  # of the declared number of examples: with fewer, batches are much smaller than the plan divides by
COLLATED = (
    "the collate function makes an example's row from that example alone, and padding by the other rows of a batch "
    "changes nothing in its loss"
)
DRAWN = "what the dataset draws at random for an example is unpredictable, and drawn for each example by itself"


@dataclass(frozen=True)
class Plan(Mechanism):
    """Everything that decides the guarantee, and nothing that depends on the data."""

    def check_proof(self) -> None:
        """Refuse what has no proven guarantee, and no claimed one that was accepted."""
        check_claims(self)

    def event(self, steps: int | None = None, *, start: int = 0) -> Any:
        """The privacy event of the first ``steps`` steps (all by default), or of those of them from ``start`` on;
        refused where there is no proof."""
        return find_event(self, steps, start=start)

    def claims(self, steps: int | None = None) -> tuple[Guarantee, ...]:
        """Every ε there is for the first ``steps`` steps, each with its status; the proven one first."""
        return account_steps(self.with_rounding(), steps)

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The proven guarantee; a claimed one (labelled so) only where that was accepted."""
        return self.claims(steps)[0]

    def calibrated(self, epsilon: float, delta: float | None = None) -> Plan:
        """The same plan with the smallest σ whose ε, by the first of its claims and with all that is released beside
        training, does not exceed ``epsilon``."""
        validate.positive(epsilon=epsilon)
        if not self.private:
            raise Refused(
                f"method '{self.method}' adds no noise and cannot reach an ε: use dp-sgd or another private one"
            )
        base = dataclasses.replace(self, delta=self.delta if delta is None else delta)
        base._check_left(epsilon)
        return dataclasses.replace(base, sigma=find_sigma(base, epsilon))

    def _check_left(self, epsilon: float) -> None:
        """Refuse an ε that the releases beside training use up alone."""
        left = self.delta_left()
        if not self.beside:
            return
        if left <= 0:
            raise Refused(
                f"{join_names(self.beside)} lose all of δ = {self.delta:g}: give a larger δ, or leave them out"
            )
        event = dp_event.ComposedDpEvent([release.event for release in self.beside])
        kind = accountant.default_accountant(event, self.neighbours)
        spent = accountant.epsilon(event, left, adjacency=self.neighbours, accountant=kind)
        if spent >= epsilon:
            raise Refused(
                f"nothing is left of ε = {epsilon:g} for training: {join_names(self.beside)} alone cost "
                f"ε = {rounded_up(spent)} at δ = {self.delta:g}; give them less, or raise ε"
            )

    def start(
        self,
        model: nn.Module,
        losses: Losses,
        data: Any,
        *,
        secret: Secret | int | None = None,
        unit: Any = None,
        rows_per_unit: int | None = None,
        microbatch: int = MICROBATCH,
        ranks: ProcessGroup | None = None,
        noise_shards: bool = False,
    ) -> Run:
        """A run of this plan. ``secret`` is from the operating system unless a reproduction gives a seed; one that is
        given is assumed to be used for no other run, and the guarantee says so.

        ``data`` is a tensor or numpy array, a tuple of them, a map-style Dataset, or a DataLoader: of that, dataset,
        collate function, workers and pinning are used, and its batches replaced by those that the plan draws.

        ``unit`` is for a plan that was made with a unit (``make_plan(unit="patient_id")``): whose each row is, as one
        hashable for each. All rows of one value are one example, and at most ``rows_per_unit`` of them (8 by default)
        are averaged before clipping (:mod:`hush.privacy_unit`). ``microbatch`` counts rows.

        ``ranks`` are the processes that share the run (`hush.init_distributed`). With ``noise_shards`` each of them
        makes its own slice of the noise and keeps the state of that slice alone, and they send each other the results.
        Checkpoints do without that state, and a run that goes on makes it anew (:mod:`hush.noise_addition`).
        """
        validate.positive_int(microbatch=microbatch)
        self._check_owners(unit, rows_per_unit)
        rows = as_source(data)
        source = rows if unit is None else Units.of(rows, unit, rows_per_unit)
        self._check_examples(len(source))
        if isinstance(data, (DataLoader, Source)):
            check_rows(rows)
        if self.private:
            check_parts(rows)
        check_number_types(model, losses, rows)
        plan = dataclasses.replace(self, rows_per_unit=source.most) if isinstance(source, Units) else self
        if secret is not None and not isinstance(secret, Secret):
            secret = Secret.from_seed(int(secret), plan._known_for_a_seed(model))
        with_tails = plan.with_tails(count_coordinates(plan, model, source))
        if isinstance(data, DataLoader):
            logging.getLogger("hush").warning(describe_replaced(data))
            with_tails = with_tails.assuming(COLLATED if collates_by_itself(data) else "")
        elif is_drawn_again(rows):
            with_tails = with_tails.assuming(DRAWN)
        if isinstance(source, Units):
            losses, microbatch = average_rows(losses, source.most), max(1, microbatch // source.most)
        run = Run(
            with_tails,
            model,
            losses,
            source,
            Secret.fresh() if secret is None else secret.given(),
            microbatch=microbatch,
            ranks=ranks,
            noise_shards=noise_shards,
        )
        check_schedule(run.state()["rule"], trainable(model), plan.steps)
        return run

    def with_tails(self, coordinates: int) -> Plan:
        """The plan with what noise that ends takes of δ for so many coordinates (`hush.accounting.noise_tails`) in
        each of the channels, of which none has more; refused where that is too much."""
        if not self.has_tails:
            return self
        ends = self.find_tails(coordinates)
        taken = ends.cost()
        if taken > SHARE * self.delta and self.trials is not None:
            raise Refused(
                "so many numbers get noise that the end of its tails costs more of δ than can be counted for each of "
                "many trials: give a larger δ, or train once"
            )
        if taken > SHARE * self.delta:
            taken = ends.check(self.delta, self.guarantee().epsilon)
        return dataclasses.replace(self, tails=taken)

    def _check_examples(self, population: int) -> None:
        """Refuse data of another size than the plan's. Where presence is hidden the number was declared, and the data
        may hold one more, or a tenth less; a refusal is for the eyes of whoever has the data."""
        planned, hidden = self.sampler.examples, self.neighbours == "add-remove"
        if population == planned or (hidden and LEAST * planned <= population <= planned + 1):
            return
        found = ("more" if population > planned else "far fewer") if hidden else population
        whose = "examples" if self.unit == "example" else f"units ({self.unit})"
        raise InvalidInputError(
            f"the plan was made for {planned} {whose} and the data has {found}: make the plan for the number there is"
        )

    def _check_owners(self, unit: Any, rows_per_unit: int | None) -> None:
        if unit is None and self.unit != "example":
            raise InvalidInputError(
                f"the plan is for the unit '{self.unit}', and whose each row is was not said: start it with unit=…, "
                "one value for each row"
            )
        if unit is not None and self.unit == "example":
            raise InvalidInputError(
                "the plan protects single rows, and units were given: make it for their number and with the unit's "
                "name, as make_plan(examples=…, unit='patient_id', …)"
            )
        if unit is None and rows_per_unit is not None:
            raise InvalidInputError("rows_per_unit is for data whose rows have a unit: give unit=… too")

    def _known_for_a_seed(self, model: nn.Module) -> str:
        try:
            return self.fingerprint(trainable(model))
        except NoIdentity as error:
            raise Refused(
                f"this plan takes no secret seed, for another plan could get the same noise from it: {error}; "
                "or leave the seed out"
            ) from error
