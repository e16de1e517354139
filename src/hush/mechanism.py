"""A mechanism: sampler, query, noise and rule as one frozen object with σ, a public divisor and a number of steps.

What a run computes (`hush.run`) and what is claimed about it (`hush.claims`) are read off the same fields, so they
cannot disagree. `hush.plan.Plan` is the mechanism that a user holds: only it can be made, and it checks its proof.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from hush import arithmetic, validate
from hush.beside import Beside, lose_beside, name_all
from hush.errors import Refused
from hush.identity import Scope, declared, digest
from hush.named import Named
from hush.noise import Noise
from hush.privacy.accounting import Accountant, Adjacency
from hush.privacy.assumptions import ROUNDING, SECRET_GIVEN, SECRET_SEED
from hush.privacy.scale import Tails, check_std
from hush.privacy.selection import Trials
from hush.proofs import find_sensitivity, own_adjacency
from hush.queries import ADDED, Channel, Preparing, Query, Remembering
from hush.randomness import Secret
from hush.rules import Rule
from hush.sampling import OnePass, PoissonSampled, Room, SameOrder, Sampler, Separated


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
    arithmetic: arithmetic.Mode = "default"
    tails: float = 0.0  # what the end of the noise's tails takes of δ, once it is known how many coordinates there are
    unit: str = "example"  # whose examples are one: all rows of a patient, say; what the guarantee is for
    rows_per_unit: int | None = None  # how many of them are averaged at most, once a run on such data has started
    beside: tuple[Beside, ...] = ()  # other releases on the same data, which every claim about this one covers
    trials: Trials | None = None  # where the run is the best of a secret number: what is claimed covers the choice

    def __post_init__(self) -> None:
        validate.whole(steps=self.steps)
        validate.positive(divisor=self.divisor)
        validate.one_of(arithmetic.MODES, arithmetic=self.arithmetic)
        if self.private:
            validate.positive(noise_multiplier=self.sigma)
            check_std(self.sigma, "the noise multiplier")
            validate.probability(delta=self.delta)
            self._check_steps()
            self._check_unit()
            self.check_proof()
        elif self.beside:
            raise Refused(
                f"method '{self.method}' adds no noise, so {name_all(self.beside)} beside it would protect nobody: use "
                "dp-sgd or another private method"
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
        return self.sampler.room(arithmetic.SHARE * self.delta / self.steps)

    @cached_property
    def charge(self) -> float:
        """What the rounding of sums adds to every bound, relative to it."""
        return arithmetic.charge(self.room.places) if self.noisy else 0.0

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
        lost = times * self.tails + count * self.room.overflow + lose_beside(self.beside)
        return self.delta - (lost if self.trials is None else self.trials.loss_factor * lost)

    def tails_beside(self, coordinates: int) -> float:
        """δ that the tails cost beyond `tails` where a run is composed with others: that they cost no more than e^ε
        times what lies beyond them is of use for one ε alone, and does not add up."""
        if not self.has_tails:
            return 0.0
        return max(0.0, self.find_tails(coordinates).cost() - self.tails)

    def find_tails(self, coordinates: int) -> Tails:
        """The end of the noise of a run with so many numbers in each channel, drawn as often as Z has rows. An example
        moves all steps together by no more than one where the whole run is one Gaussian (`hush.proofs`); what a hidden
        state remembers of it moves steps in which it has no part too."""
        part, structure = self.sampler.participation, self.noise.structure
        mu = (2.0 if self.neighbours == "replace" else 1.0) / (self.sigma * structure.least_scale)
        rate = part.rate if isinstance(part, PoissonSampled) else 1.0
        if isinstance(self.query, Remembering):
            mu, rate = mu * self.query.reach, 1.0
        numbers = coordinates * len(self.query.channels)
        if isinstance(self.query, Preparing):
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
        """What tells this plan from any other (`hush.identity`); an optimizer given as a function needs the parameters
        that it is built for. `NoIdentity` where there is no telling."""
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
