"""A plan: sampler, query, noise and rule as one frozen object with σ, a public divisor and a number of steps.

It alone names its privacy event, calibrates itself to (ε, δ), and refuses. What a run does and what is accounted for
come from the same fields, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal, cast

from torch import nn

from hush import arithmetic, validate
from hush.attempts import History, after, claims_of
from hush.errors import Refused
from hush.identity import NoIdentity, Scope, declared, describe, digest
from hush.named import Losses, Named, trainable
from hush.noise import Noise
from hush.privacy import accounting, calibration
from hush.privacy.accounting import Accountant, Adjacency
from hush.privacy.guarantee import Guarantee
from hush.privacy.scale import SHARE, check_std, check_tails, tail_delta
from hush.proofs import check_proof, event_of, find_sensitivity, own_adjacency
from hush.queries import Channel, Claim, OwnClaims, Query
from hush.randomness import Secret
from hush.rules import Rule
from hush.run import MICROBATCH, ROUNDING, Ranks, Run
from hush.sampling import PoissonSampled, Room, Sampler
from hush.source import as_source

SECRET_SEED = "the secret seed that was chosen for sampling and noise stays secret and is used for no other run"
BLINDLY = "nobody decided where to break off and what to change by looking at what had been released"
NOTHING_AGAIN = History()


@dataclass(frozen=True)
class Plan:
    """Everything that decides the guarantee, and nothing that depends on the data."""

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

    def __post_init__(self) -> None:
        validate.whole(steps=self.steps)
        validate.positive(divisor=self.divisor)
        validate.one_of(arithmetic.MODES, arithmetic=self.arithmetic)
        if self.private:
            validate.positive(noise_multiplier=self.sigma)
            check_std(self.sigma, "the noise multiplier")
            validate.probability(delta=self.delta)
            self._check()

    @property
    def private(self) -> bool:
        """Whether anything is claimed at all: False for ordinary training."""
        return all(channel.proof != "none" for channel in self.query.channels.values())

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
        return arithmetic.charge(self.room.places) if self.private else 0.0

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
        fixed = {n: c.std for n, c in channels.items() if c.std is not None}
        total = (self.sigma if sigma is None else sigma) ** -2
        left = total - sum((channels[n].bound / std) ** 2 for n, std in fixed.items())
        others = len(channels) - len(fixed)
        if left < 0 or (others and left == 0):
            raise Refused(
                f"the channels {sorted(fixed)} use up the whole noise budget: give them more noise, or lower σ"
            )
        rest = math.sqrt(others / left) if others else 0.0
        return {n: self.sensitivity * fixed.get(n, rest * c.bound) for n, c in channels.items()}

    def event(self, steps: int | None = None, *, start: int = 0) -> Any:
        """The privacy event of the first ``steps`` steps (all by default), or of those of them from ``start`` on;
        refused where there is no proof."""
        for claim in self._claims(steps, start=start):
            if claim.status == "proven":
                return claim.event
        raise Refused(f"method '{self.method}' has no proven privacy event")

    def claims(self, steps: int | None = None) -> tuple[Guarantee, ...]:
        """Every ε there is for the first ``steps`` steps, each with its status; the proven one first."""
        if not self.private:
            return (self._no_privacy(),)
        return tuple(self._account(claim) for claim in self._claims(steps))

    def claims_for(self, history: History, coordinates: int = 1) -> tuple[Guarantee, ...]:
        """Every ε of the whole plan, where some steps were taken more than once with noise of their own, of so many
        coordinates."""
        if not self.private or not history.again:
            return self.claims()
        attempts = history.reached(self.steps).attempts
        said = dataclasses.replace(self, assumptions=(*self.assumptions, BLINDLY))
        steps = sum(attempt.taken for attempt in attempts)
        lost = len(attempts) * self.tails_beside(coordinates)
        return tuple(said._account(claim, steps, lost) for claim in claims_of(self, attempts))

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The proven guarantee; a claimed one (labelled so) only where that was accepted."""
        return self.claims(steps)[0]

    def calibrated(self, epsilon: float, delta: float | None = None) -> Plan:
        """The same plan with the smallest σ whose ε, by the first of its claims, does not exceed ``epsilon``."""
        validate.positive(epsilon=epsilon)
        if not self.private:
            raise Refused(
                f"method '{self.method}' adds no noise and cannot reach an ε: use dp-sgd or another private one"
            )
        base = dataclasses.replace(self, delta=self.delta if delta is None else delta)

        def event(sigma: float) -> Any:
            return base._claims(None, sigma)[0].event

        sigma = calibration.smallest_sigma(
            event, epsilon, base.delta_left(), adjacency=base.neighbours, accountant=base._accountant(event(1.0))
        )
        return dataclasses.replace(base, sigma=sigma)

    def with_secret(self, secret: Secret) -> Plan:
        """The plan with what its secret's origin adds to the assumptions."""
        return self if secret.origin == "system" else self.assuming(SECRET_SEED)

    def with_rounding(self) -> Plan:
        """The plan with what its arithmetic assumes, where the model is not known that would say by how much."""
        return self.assuming(ROUNDING if self.private and self.arithmetic == "default" else "")

    def assuming(self, text: str) -> Plan:
        """The plan with one more assumption; none where the text is empty."""
        if not text or text in self.assumptions:
            return self
        return dataclasses.replace(self, assumptions=(*self.assumptions, text))

    def card(self, *, steps_taken: int, history: History = NOTHING_AGAIN, coordinates: int = 1) -> dict[str, Any]:
        """What is said publicly about a run of this plan: its guarantee, every claim, and the plan itself."""
        claims = [guarantee.to_json() for guarantee in self.claims_for(history, coordinates)]
        return {
            "format": "hush privacy card 1",
            "method": self.method,
            "guarantee": claims[0],
            "claims": claims,
            "noise_multiplier": self.sigma,
            "sensitivity": self.sensitivity,
            "noise_std": self.noise_std,
            "arithmetic": self.arithmetic_card(),
            "divisor": self.divisor,
            "steps": self.steps,
            "steps_taken": steps_taken,
            "plan": describe(self),
            "versions": {name: version(name) for name in ("hush", "torch", "dp-accounting")},
        }

    def arithmetic_card(self) -> dict[str, Any]:
        """What floating point costs: the places of a step, and the share that rounding adds to the bound."""
        room = self.room
        lost = {"overflow": room.overflow, "delta": self.steps * room.overflow}
        return {"mode": self.arithmetic, "places": room.places, "charge": self.charge, **lost}

    def declared(self, scope: Scope) -> dict[str, Any]:
        """Its fields, and under ``accounted`` all that its event is made of."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "tails"}  # the model's
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

    def start(
        self,
        model: nn.Module,
        losses: Losses,
        data: Any,
        *,
        secret: Secret | int | None = None,
        microbatch: int = MICROBATCH,
        ranks: Ranks | None = None,
    ) -> Run:
        """A run of this plan. ``secret`` is from the operating system unless a reproduction gives a seed."""
        validate.whole(microbatch=microbatch)
        if isinstance(secret, int):
            secret = Secret.from_seed(secret, self._known_for_a_seed(model))
        source = as_source(data)
        with_tails = self.with_tails(max(1, sum(p.numel() for p in model.parameters() if p.requires_grad)))
        return Run(with_tails, model, losses, source, secret or Secret.fresh(), microbatch=microbatch, ranks=ranks)

    def with_tails(self, coordinates: int) -> Plan:
        """The plan with what noise that ends takes of δ for so many coordinates (`hush.privacy.scale`) in each of the
        channels, of which none has more; refused where that is too much."""
        if not self.private:
            return self
        coordinates *= len(self.query.channels)
        steps, mu, rate = self._tail_terms()
        taken = tail_delta(coordinates, steps, mu, rate=rate)
        if taken > SHARE * self.delta:
            known = self.guarantee().epsilon
            taken = check_tails(self.delta, coordinates, steps, mu, rate=rate, epsilon=known)
        return dataclasses.replace(self, tails=taken)

    def tails_beside(self, coordinates: int) -> float:
        """δ that the tails cost beyond `tails` where a run is composed with others: that they cost no more than e^ε
        times what lies beyond them is of use for one ε alone, and does not add up."""
        if not self.private:
            return 0.0
        steps, mu, rate = self._tail_terms()
        return max(0.0, tail_delta(coordinates * len(self.query.channels), steps, mu, rate=rate) - self.tails)

    def _tail_terms(self) -> tuple[int, float, float]:
        """Steps, how far one example moves a step's release in standard deviations, and the rate."""
        part, least = self.sampler.participation, self.noise.structure.least_scale
        mu = (2.0 if self.neighbours == "replace" else 1.0) / (self.sigma * least)
        return self.steps, mu, part.rate if isinstance(part, PoissonSampled) else 1.0

    def _known_for_a_seed(self, model: nn.Module) -> str:
        try:
            return self.fingerprint(trainable(model))
        except NoIdentity as error:
            raise Refused(
                f"this plan takes no secret seed, for another plan could get the same noise from it: {error}; "
                "or leave the seed out"
            ) from error

    def _check(self) -> None:
        if self.steps > self.sampler.participation.steps:
            raise Refused(
                f"the plan takes {self.steps} steps and the sampler covers {self.sampler.participation.steps}"
            )
        for std in self.channel_stds().values():
            check_std(std)
        if not hasattr(self.query, "claims"):
            if any(channel.proof != "sum" for channel in self.query.channels.values()):
                raise Refused(
                    f"{type(self.query).__name__} is no plain sum and names no claims of its own: nothing is proven"
                )
            check_proof(self.sampler.participation, self.noise.structure, self.neighbours)
            return
        claims = self._claims(None)
        if not self.noise.structure.alike:
            raise Refused(
                f"{type(self.query).__name__} has a proof of its own, which holds for noise that is independent and "
                "the same at every step: use Independent noise without a schedule"
            )
        if self.adjacency is not None and any(claim.adjacency != self.adjacency for claim in claims):
            raise Refused(
                f"method '{self.method}' is analysed under '{claims[0].adjacency}' adjacency; "
                f"'{self.adjacency}' has no proof here: use '{claims[0].adjacency}'"
            )
        if not any(claim.status == "proven" for claim in claims) and not self.accept_claimed:
            raise Refused(
                f"method '{self.method}' has only a claimed ε, which this project could not prove: "
                "accept it with --accept-claimed (accept_claimed=True), or use a proven method such as dp-sgd"
            )

    def _claims(self, steps: int | None, sigma: float | None = None, *, start: int = 0) -> tuple[Claim, ...]:
        count = self.steps if steps is None else steps
        if not 1 <= count <= self.steps:
            raise Refused(f"the plan has {self.steps} steps, and the ε of its first {count} was asked for")
        participation = self.sampler.participation
        if hasattr(self.query, "claims"):
            return self.own_claims(count, sigma)
        scale = (self.sigma if sigma is None else sigma) * self.sensitivity
        participation, structure = after(start, participation, self.noise.structure)
        event = event_of(participation, structure, scale, self.neighbours, count - start)
        return (Claim(event, self.neighbours, "proven", ""),)

    def delta_left(self, steps: int | None = None) -> float:
        """δ without what batches with more examples than places cost, and the end of the noise's tails."""
        count = self.steps if steps is None else steps
        times = max(1, -(-count // self.steps))  # more than once where steps were taken again
        return self.delta - times * self.tails - count * self.room.overflow

    def own_claims(self, steps: int, sigma: float | None = None) -> tuple[Claim, ...]:
        """What a query with claims of its own says about so many steps; the proven first. It is told the noise in units
        of its exact bounds: what rounding adds to them is in the noise that is run."""
        stds = {name: std / (1.0 + self.charge) for name, std in self.channel_stds(sigma).items()}
        own = cast(OwnClaims, self.query).claims(self.sampler.participation, stds, steps)
        return tuple(sorted(map(self._restated, own), key=lambda claim: claim.status != "proven"))

    def _restated(self, claim: Claim) -> Claim:
        """Add-remove claims hold under zero-out too: an example that adds zero to every sum may as well be absent."""
        if self.adjacency == "zero-out" and claim.adjacency == "add-remove":
            return dataclasses.replace(claim, adjacency="zero-out")
        return claim

    def _accountant(self, event: Any) -> Accountant:
        return accounting.default_accountant(event, self.neighbours) if self.accountant == "auto" else self.accountant

    def _account(self, claim: Claim, steps: int | None = None, lost: float = 0.0) -> Guarantee:
        accountant, epsilon = self._accountant(claim.event), math.inf
        left = self.delta_left(steps) - lost
        if left > 0:
            epsilon = accounting.epsilon(claim.event, left, adjacency=claim.adjacency, accountant=accountant)
        return Guarantee(
            epsilon=epsilon,
            delta=self.delta,
            adjacency=claim.adjacency,
            status=claim.status,
            event=claim.event,
            accountant=accountant,
            assumptions=self.assumptions,
            reason=claim.reason,
            method=self.method,
        )

    def _no_privacy(self) -> Guarantee:
        return Guarantee(
            epsilon=math.inf,
            delta=self.delta,
            adjacency="add-remove",
            status="none",
            event=None,
            accountant="none",
            reason="ordinary training: no clipping and no noise",
        )
