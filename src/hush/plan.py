"""Plans: a mechanism with a proven guarantee, calibrated to (ε, δ) and ready to start on data.

>>> from hush import Plan, clipping, noise, optimizers, sampling
>>> plan = Plan.calibrated(
...     sampler=sampling.Poisson(examples=60_000, rate=0.004, steps=1_000),
...     query=clipping.ClippedSum(clip=1.0),
...     noise=noise.Independent(steps=1_000),
...     optimizer=optimizers.SGD(lr=1.0),
...     epsilon=3,
... )
>>> plan.guarantee().epsilon <= 3
True

A plan without a proof raises `NotProvenError` when it is built.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from dp_accounting import dp_event
from torch import nn
from torch.utils.data import DataLoader

from hush._internal import validate
from hush._internal.identity import IdentityScope, NoIdentity, declared, digest, stable_field
from hush._internal.tensors import Losses, Named, trainable
from hush.accounting import accountant
from hush.accounting.accountant import Accountant, Adjacency
from hush.accounting.events import FinitePrecisionDpEvent
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.guarantee import (
    COLLATED,
    DRAWN,
    INDEPENDENT_ROWS,
    PRECISE,
    SECRET_GIVEN,
    SECRET_SEED,
    SHAPE,
    TAKEN,
    Guarantee,
    rounded_up,
    say_own_data,
)
from hush.accounting.noise_precision import precision_of
from hush.accounting.noise_tails import SHARE, Tails, check_std
from hush.accounting.selection import Trials
from hush.aggregation import find_rows, is_rigorous
from hush.clipping import Channel, HasHiddenState, Query
from hush.data_release import ComposedRelease, PrivatisedData, extra_delta, join_names
from hush.data_source import (
    Source,
    as_source,
    check_number_types,
    check_parts,
    check_repeats,
    check_rows,
    collates_by_itself,
    describe_replaced,
    is_drawn_again,
    is_made_by_user_code,
)
from hush.distributed.group import MICROBATCH, ProcessGroup
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import account_steps, check_claims, find_event, find_sensitivity, find_sigma, own_adjacency
from hush.noise import Independent, Noise, NoiseFactory
from hush.optimizers import Optimizer
from hush.optimizers.torch_optim import check_schedule
from hush.optimizers.wrappers import bind_steps
from hush.per_example import chunks
from hush.per_example.augmentation import average_rows
from hush.privacy_unit import Units
from hush.randomness import Secret, count_pairs
from hush.run import Run, count_coordinates
from hush.sampling import Sampler

RESERVED = (10**9, 10**8, 10**7, 10**6)  # pairs of noise numbers in a run: the first that δ allows enters σ
RESERVED_SHARE = 0.02  # of δ, for their finite precision
LEAST = 0.9  # share of the declared number of examples; with fewer, batches are much smaller than the plan's divisor


@dataclass(frozen=True)
class Plan:
    """All settings that decide what is computed and what it costs; nothing here depends on the data.

    The run (`hush.run`) and the guarantee (`hush.guarantees`) read the same fields, so they cannot disagree."""

    sampler: Sampler
    query: Query
    noise: Noise
    optimizer: Optimizer
    sigma: float
    divisor: float
    steps: int
    delta: float = 1e-5
    method: str = "custom"
    adjacency: Adjacency | None = None
    accountant: Accountant | Literal["auto"] = "auto"
    accept_claimed: bool = False
    assumptions: tuple[str, ...] = field(default=())
    arithmetic: chunks.Mode = "rigorous"  # "fast" computes all rows at once; its ε is claimed, not proven
    tails: float = 0.0  # share of δ for truncating the noise; known once the number of coordinates is known
    precision: FinitePrecisionDpEvent | None = None  # of independent noise, in place of `tails`; known at the same time
    unit: str = "example"  # the privacy unit that the guarantee protects, such as "patient"
    rows_per_unit: int | None = None  # largest number of rows averaged per unit; set when a run starts
    composed: tuple[ComposedRelease, ...] = ()  # other releases on the same data; every claim includes them
    trains_on: PrivatisedData | None = None  # a release that replaces the data; the guarantee is then that of it
    trials: Trials | None = None  # set if the run is the best of a random number of trials; claims include the choice
    target: float | None = None  # the ε that σ was calibrated for, which the run's ε does not exceed

    def __post_init__(self) -> None:
        validate.positive_int(steps=self.steps)
        validate.positive(divisor=self.divisor)
        chunks.check_mode(self.arithmetic)
        if self.has_guarantee:
            validate.positive(noise_multiplier=self.sigma)
            check_std(self.sigma, "the noise multiplier")
            validate.probability(delta=self.delta)
            self._check_steps()
            self._check_unit()
            self.check_proof()
        elif self.composed:
            raise NotProvenError(
                f"method '{self.method}' adds no noise, so {join_names(self.composed)} would protect no one: "
                "use dp-sgd or another private method"
            )

    @cached_property
    def adds_noise(self) -> bool:
        """Whether noise is added to the sums of every step; False for ordinary training, on data or released values."""
        return all(channel.proof != "none" for channel in self.query.channels.values())

    @property
    def has_guarantee(self) -> bool:
        """Whether the plan makes any privacy claim: False for ordinary training on the data."""
        return self.adds_noise or self.trains_on is not None

    @property
    def neighbours(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.adjacency or own_adjacency(self.sampler.participation)

    @cached_property
    def sensitivity(self) -> float:
        """sens(C) under the sampler's participation: the factor by which Z is scaled because it is correlated."""
        return find_sensitivity(self.sampler.participation, self.noise.structure) if self.adds_noise else 1.0

    @property
    def noise_std(self) -> float:
        """Standard deviation of Z as injected, in units of :attr:`channels`' bound: σ · sens(C)."""
        return self.sigma * self.sensitivity

    @cached_property
    def charge(self) -> float:
        """Relative amount that floating-point rounding of sums adds to every bound."""
        return chunks.charge(self.sampler.largest_batch) if self.adds_noise else 0.0

    @cached_property
    def channels(self) -> Mapping[str, Channel]:
        """The query's channels with bounds that hold in floating point: clip · (1 + charge)."""
        return self._bounded()

    @property
    def as_accounted(self) -> bool:
        """Whether the query's bounds are still those that the plan was accounted with."""
        return self._bounded() == self.channels

    def _bounded(self) -> dict[str, Channel]:
        return {
            name: c if c.exact else dataclasses.replace(c, bound=c.bound * (1.0 + self.charge))
            for name, c in self.query.channels.items()
        }

    def channel_stds(self, sigma: float | None = None) -> Mapping[str, float]:
        """The noise on each channel's sum: fixed where the channel declares it; the others share the rest of 1/σ²."""
        channels = self.channels
        if not self.adds_noise:
            return dict.fromkeys(channels, 0.0)
        fixed = {n: c.std for n, c in channels.items() if c.std is not None}
        total = (self.sigma if sigma is None else sigma) ** -2
        left = total - sum((channels[n].bound / std) ** 2 for n, std in fixed.items())
        others = len(channels) - len(fixed)
        if left < 0 or (others and left == 0):
            raise InvalidInputError(
                f"the channels {sorted(fixed)} use the whole noise budget: give them more noise, or lower σ"
            )
        rest = math.sqrt(others / left) if others else 0.0
        return {n: self.sensitivity * fixed.get(n, rest * c.bound) for n, c in channels.items()}

    def delta_left(self, steps: int | None = None, attempts: int = 1) -> float:
        """δ that remains after truncation of the noise, and the composed releases."""
        return self.delta - self.delta_lost(steps, attempts)

    def delta_lost(self, steps: int | None = None, attempts: int = 1) -> float:
        """δ for truncation of the noise and for the composed releases.

        If ``steps`` were taken in several attempts, every attempt pays for its own truncation."""
        count = self.steps if steps is None else steps
        times = max(attempts, -(-count // self.steps))
        lost = times * self.tails + extra_delta(self.composed)
        return lost if self.trials is None else self.trials.loss_factor * lost

    def composed_tail_delta(self, coordinates: int) -> float:
        """δ for truncation beyond `tails` that a composition with other runs needs.

        The discount in `tails` (at most e^ε times the truncated mass) holds for a single ε and does not compose."""
        ends = self.find_tails(coordinates)
        return 0.0 if ends is None else max(0.0, ends.cost() - self.tails)

    def find_tails(self, coordinates: int) -> Tails | None:
        """Where the noise of a run with ``coordinates`` numbers per channel is truncated; Z has one row per draw. None
        without Gaussian noise.

        If the whole run is one Gaussian (`hush.guarantees`), one example moves all steps together by at most the bound
        of one step. A query with private state also moves steps that the example is not part of."""
        if self.trains_on is not None:
            return self.trains_on.find_tails(self.sigma, coordinates)
        if not self.adds_noise:
            return None
        part, structure = self.sampler.participation, self.noise.structure
        mu = (2.0 if self.neighbours == "replace" else 1.0) / (self.sigma * structure.least_scale)
        rate = 1.0 if part.poisson_rate is None else part.poisson_rate
        if isinstance(self.query, HasHiddenState):
            mu, rate = mu * self.query.reach, 1.0
        numbers = coordinates * len(self.query.channels)
        plain = all(channel.proof == "sum" for channel in self.query.channels.values())
        shared = plain and part.one_gaussian
        return Tails(numbers, max(self.steps, structure.draws), mu, rate, shared)

    def with_secret(self, secret: Secret) -> Self:
        """This plan, with the assumptions that depend on where the secret comes from."""
        return self.assuming({"system": "", "given": SECRET_GIVEN}.get(secret.origin, SECRET_SEED))

    def with_arithmetic(self, checked: str = "") -> Self:
        """This plan, with the assumptions of its arithmetic and, after a run has ``checked`` them, the result."""
        said = any(text.startswith(INDEPENDENT_ROWS) for text in self.assumptions)
        if said or not self.adds_noise or self.arithmetic != "rigorous":
            return self
        return self.assuming(INDEPENDENT_ROWS + checked)

    def assuming(self, text: str) -> Self:
        """This plan with one more assumption; unchanged if the text is empty."""
        if not text or text in self.assumptions:
            return self
        return dataclasses.replace(self, assumptions=(*self.assumptions, text))

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """Its fields, and under ``accounted`` everything that its event is built from.

        Tails and precision are left out because they depend on the model, and the target because σ is what noise is
        drawn with; composed releases, what is trained on, trials and unit are left out if they are not set.
        ``rows_per_unit`` changes what is summed: two runs that differ in it must not share noise."""
        unsaid = {"tails", "precision", "target"} | ({"composed"} if not self.composed else set())
        unsaid |= {"trains_on"} if self.trains_on is None else set()
        unsaid |= {"trials"} if self.trials is None else set()
        unsaid |= {"unit"} if self.unit == "example" else set()
        unsaid |= {"rows_per_unit"} if self.rows_per_unit is None else set()
        fields = {
            stable_field(Plan, f.name): getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in unsaid
        }
        accounted = {
            "participation": self.sampler.participation,
            "structure": self.noise.structure,
            "channels": self.query.channels,
            "stds": self.channel_stds(),
            "adjacency": self.neighbours,
        }
        return {**fields, "accounted": accounted}

    def identity(self, params: Named | None = None) -> dict[str, Any]:
        """What distinguishes this plan from any other (`hush._internal.identity`).

        An optimizer given as a function needs ``params``. Raises `NoIdentity` if the plan cannot be identified."""
        found: dict[str, Any] = declared(self, IdentityScope(self.steps, params))
        return found

    def fingerprint(self, params: Named | None = None) -> str:
        """Digest of the plan's identity; a secret made from a seed is bound to it."""
        return digest(self.identity(params))

    def _check_unit(self) -> None:
        """Methods that release single rows have a proof for one row only."""
        if self.trains_on is not None and self.unit != "example":
            raise NotProvenError(
                f"method '{self.method}' releases every row on its own and is proven for one row, not for all rows of "
                f"one {self.unit}: leave the unit out, or use dp-sgd"
            )

    def _check_steps(self) -> None:
        if self.steps > self.sampler.participation.steps:
            raise InvalidInputError(
                f"the plan takes {self.steps} steps and the sampler covers {self.sampler.participation.steps}"
            )
        for std in self.channel_stds().values() if self.adds_noise else ():
            check_std(std)

    def check_proof(self) -> None:
        """Raise `NotProvenError` unless the guarantee is proven, or claimed and accepted by the user."""
        check_claims(self)

    def event(self, steps: int | None = None, *, start: int = 0) -> Any:
        """The privacy event of steps ``start`` to ``steps`` (by default all).

        Raises `NotProvenError` without a proof."""
        return find_event(self, steps, start=start)

    def claims(self, steps: int | None = None) -> tuple[Guarantee, ...]:
        """Every ε known for the first ``steps`` steps, each with its status; the proven one first."""
        return account_steps(self.with_arithmetic(), steps)

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The proven guarantee, or the claimed one (labelled as such) if the user accepted it."""
        return self.claims(steps)[0]

    @staticmethod
    def calibrated(
        *,
        sampler: Sampler,
        query: Query,
        noise: Noise | NoiseFactory,
        optimizer: Optimizer,
        epsilon: float,
        delta: float = 1e-5,
        divisor: float | None = None,
        **settings: Any,
    ) -> Plan:
        """Build a plan from its parts with the smallest σ whose ε does not exceed ``epsilon``.

        ``divisor`` is the public number that sums are divided by; the default is the sampler's expected batch size.
        ``settings`` are further fields of `Plan`.
        """
        steps = settings.pop("steps", sampler.participation.steps)
        plan = Plan(
            sampler=sampler,
            query=query,
            noise=noise.build(steps) if isinstance(noise, NoiseFactory) else noise,
            optimizer=bind_steps(optimizer, steps),
            sigma=1.0,
            divisor=_expected_batch(sampler) if divisor is None else divisor,
            steps=steps,
            delta=delta,
            **settings,
        )
        return plan.with_epsilon(epsilon)

    def with_epsilon(self, epsilon: float, delta: float | None = None) -> Plan:
        """This plan with the smallest σ whose ε does not exceed ``epsilon``.

        ε is that of the first claim and includes all composed releases. A run of a large model may need a little more
        noise for this ε, which is known when it starts (:meth:`with_tails`)."""
        validate.positive(epsilon=epsilon)
        if not self.has_guarantee:
            raise NotProvenError(
                f"method '{self.method}' adds no noise and cannot reach an ε: use dp-sgd or another private method"
            )
        base = dataclasses.replace(self, delta=self.delta if delta is None else delta)
        base._check_left(epsilon)
        return dataclasses.replace(base, sigma=find_sigma(base._with_reserve(epsilon), epsilon), target=epsilon)

    def _with_reserve(self, epsilon: float) -> Plan:
        """This plan with δ set aside for the finite precision of a large model, where that matters: at a large ε. The
        number of coordinates is not known before a run starts."""
        if not self.draws_independently or self.precision is not None:
            return self
        factor = 1.0 + math.exp(min(epsilon, 700.0))
        pairs = next((p for p in RESERVED if factor * precision_of(p).delta <= RESERVED_SHARE * self.delta), 0)
        reserve = 1.1 * factor * precision_of(pairs).delta
        return dataclasses.replace(self, tails=reserve) if reserve > 1e-4 * self.delta else self

    def _check_left(self, epsilon: float) -> None:
        """Raise if the composed releases alone use all of ε or δ."""
        left = self.delta_left()
        if not self.composed:
            return
        if left <= 0:
            raise InvalidInputError(
                f"{join_names(self.composed)} use all of δ = {self.delta:g}: give a larger δ, or leave them out"
            )
        event = dp_event.ComposedDpEvent([release.event for release in self.composed])
        kind = accountant.default_accountant(event, self.neighbours)
        spent = accountant.epsilon(event, left, adjacency=self.neighbours, accountant=kind)
        if spent >= epsilon:
            raise InvalidInputError(
                f"nothing is left of ε = {epsilon:g} for training: {join_names(self.composed)} alone cost "
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
        """Start a run of this plan.

        Args:
            data: a tensor or numpy array, a tuple of them, a map-style Dataset, or a DataLoader. Of a DataLoader, the
                dataset, collate function, workers and pinning are used; the plan draws the batches.
            secret: comes from the operating system unless you give a seed to reproduce a run. The guarantee then
                assumes that no other run uses this secret.
            unit: one hashable value per row, for a plan made with a unit (``make_plan(unit="patient_id")``). All rows
                with the same value are one example.
            rows_per_unit: how many rows of a unit are averaged before clipping, at most (8 by default); see
                :mod:`hush.privacy_unit`.
            microbatch: largest number of rows computed at a time.
            ranks: the processes that share the run (`hush.init_distributed`).
            noise_shards: every process generates one slice of the noise and keeps only the state of that slice; the
                processes exchange the results. Checkpoints leave this state out and a resumed run recomputes it
                (:mod:`hush.noise_addition`).
        """
        validate.positive_int(microbatch=microbatch)
        self._check_owners(unit, rows_per_unit)
        rows = as_source(data)
        source = rows if unit is None else Units.of(rows, unit, rows_per_unit)
        self._check_examples(len(source))
        if self.has_guarantee and unit is None:
            check_repeats(rows)
        if isinstance(data, (DataLoader, Source)):
            check_rows(rows)
        if self.adds_noise:
            check_parts(rows)
        check_number_types(model, losses, rows)
        plan = dataclasses.replace(self, rows_per_unit=source.most) if isinstance(source, Units) else self
        if isinstance(source, Units):
            losses, microbatch = average_rows(losses, source.most), max(1, microbatch // source.most)
        trained = None if plan.trains_on is None else plan.trains_on.bind(model, losses, source, plan.sigma)
        with_tails = plan.with_tails(count_coordinates(model) if trained is None else trained.numbers)
        plan = dataclasses.replace(plan, sigma=with_tails.sigma)
        if secret is not None and not isinstance(secret, Secret):
            cut = [f"chunks of {find_rows(plan, model, source, MICROBATCH)}"] if is_rigorous(plan) else []
            secret = Secret.from_seed(int(secret), plan._known_for_a_seed(model), *cut)
        if isinstance(data, DataLoader):
            logging.getLogger("hush").warning(describe_replaced(data))
        for text in _list_data_conditions(data, rows, self.unit):
            with_tails = with_tails.assuming(text)
        run = Run(
            with_tails,
            model,
            losses,
            source,
            Secret.fresh() if secret is None else secret.given(),
            microbatch=microbatch,
            ranks=ranks,
            noise_shards=noise_shards,
            trained=trained,
        )
        check_schedule(run.state()["rule"], trainable(model), plan.steps)
        return run

    def with_tails(self, coordinates: int) -> Plan:
        """This plan with what the finite precision of noise on ``coordinates`` numbers costs: of independent noise all
        of it (`hush.accounting.noise_precision`), of other noise the end of its tails (`hush.accounting.noise_tails`).

        ``coordinates`` is the size of the largest channel. Where the precision of independent noise would take more
        than a tenth of δ, only the tails are charged and the guarantee gets a condition. If σ was calibrated and ε is
        now above what was asked for, σ is calibrated again. Raises if the tails cost too much."""
        made = self._with_tails(coordinates)
        if self.trials is not None or self.trains_on is not None or self.target is None:
            return made
        if made.guarantee().epsilon <= self.target:
            return made
        if self.guarantee().epsilon > self.target:  # σ or the composed releases were changed afterwards
            return made
        return dataclasses.replace(made, sigma=max(made.sigma, find_sigma(made, self.target)))

    def _with_tails(self, coordinates: int) -> Plan:
        if self.draws_independently and (made := self._with_precision(coordinates)) is not None:
            return made
        ends = self.find_tails(coordinates)
        if ends is None:
            return self
        taken = ends.cost()
        if taken > SHARE * self.delta and self.trials is not None:
            raise NotProvenError(
                f"noise on {coordinates} numbers costs more δ for its truncation than can be accounted for in each of "
                "many trials: give a larger δ, or train once"
            )
        if taken > SHARE * self.delta:
            taken = ends.check(self.delta, self.guarantee().epsilon)
        return dataclasses.replace(self, tails=taken).assuming(PRECISE)

    @property
    def draws_independently(self) -> bool:
        """Whether every sum gets independent noise, which `hush.accounting.noise_precision` covers."""
        return self.adds_noise and type(self.noise) is Independent

    @property
    def draws_otherwise(self) -> bool:
        """Whether there is Gaussian noise that `hush.accounting.noise_precision` does not cover, whatever its size."""
        return self.has_guarantee and not self.draws_independently and self.find_tails(1) is not None

    def _with_precision(self, coordinates: int) -> Plan | None:
        """None where it would take more than a tenth of δ, as it does at a large ε."""
        pairs = len(self.query.channels) * count_pairs(coordinates) * self.steps
        found = precision_of(pairs)
        if self.trials is not None:
            allowed = self.precision or FinitePrecisionDpEvent(0.0, 0.0)
            if found.log_ratio > allowed.log_ratio or found.delta > allowed.delta:
                raise NotProvenError(
                    f"noise on {coordinates} numbers in {self.steps} steps costs more for its finite precision than is "
                    "accounted for in each of many trials: train once, or a smaller model"
                )
            return self
        made = dataclasses.replace(self, precision=found, tails=0.0)
        ends = self.find_tails(coordinates)
        assert ends is not None
        whole = math.sqrt(self.steps) * ends.mu  # without amplification by sampling
        fits = (1.0 + math.exp(min(gaussian_epsilon(0.9 * self.delta, whole), 700.0))) * found.delta < 0.05 * self.delta
        return made if fits or math.isfinite(made.guarantee().epsilon) else None

    def _check_examples(self, population: int) -> None:
        """Raise if the data has a different size than the plan.

        Where presence is hidden the number is declared, so the data may hold one more or up to a tenth fewer. The
        message must be shown to the data owner only."""
        planned, hidden = self.sampler.examples, self.neighbours == "add-remove"
        if population == planned or (hidden and LEAST * planned <= population <= planned + 1):
            return
        found = ("more" if population > planned else "far fewer") if hidden else population
        whose = "examples" if self.unit == "example" else f"units ({self.unit})"
        raise InvalidInputError(
            f"the plan was made for {planned} {whose} and the data has {found}: make the plan for the actual number"
        )

    def _check_owners(self, unit: Any, rows_per_unit: int | None) -> None:
        if unit is None and self.unit != "example":
            raise InvalidInputError(
                f"the plan protects the unit '{self.unit}', and the unit of each row is missing: give unit=… with one "
                "value per row"
            )
        if unit is not None and self.unit == "example":
            raise InvalidInputError(
                "the plan protects single rows, but units were given: make the plan for the number of units, as "
                "make_plan(examples=…, unit='patient_id', …)"
            )
        if unit is None and rows_per_unit is not None:
            raise InvalidInputError("rows_per_unit needs units: give unit=… too")

    def _known_for_a_seed(self, model: nn.Module) -> str:
        try:
            return self.fingerprint(trainable(model))
        except NoIdentity as error:
            raise InvalidInputError(
                f"this plan takes no secret seed, because another plan could derive the same noise from it: {error}; "
                "or leave the seed out"
            ) from error


def _list_data_conditions(data: Any, rows: Source, unit: str) -> list[str]:
    """The assumptions about data that user code produces, or whose privacy unit the user declared."""
    found = []
    if isinstance(data, DataLoader):
        found += [COLLATED] if collates_by_itself(data) else []
    elif isinstance(data, Source):
        found += [TAKEN] if is_made_by_user_code(rows) else []
    elif is_drawn_again(rows):
        found += [DRAWN]
    if is_made_by_user_code(rows):
        found += [say_own_data(unit), SHAPE]
    return found if unit == "example" else [*found, say_own_data(unit)]


def _expected_batch(sampler: Sampler) -> float:
    expected = getattr(sampler, "expected_batch", None)
    if expected is None:
        raise InvalidInputError(
            f"{type(sampler).__name__} has no expected_batch: give divisor, the public number that sums are divided by"
        )
    return float(expected)
