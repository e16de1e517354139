"""The public numbers that every method needs, and the sampler that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hush._internal import validate
from hush._internal.settings import OPTIMISATION, PRIVACY, Adjacency, PlanSettings, option
from hush.accounting.accountant import ACCOUNTANTS, ADJACENCIES
from hush.data_release import ComposedRelease
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import own_adjacency
from hush.plan import Plan
from hush.sampling import FixedSize, Partitioned, Poisson, Sampler, Shuffled

SMALLEST_RATE = 1e-100
MOST_STEPS = 10**8  # of a plan; the accountants go farther, and need minutes there
MOST_CORRELATED = 10**6
MOST_EXAMPLES = 10**15  # all whole numbers up to here are exact as floats
SAMPLINGS = ("poisson", "fixed-size", "shuffled", "same-order")


@dataclass(frozen=True)
class PlanConfig(PlanSettings):
    """The public numbers that every method needs. Poisson: q = L/N exactly and ⌈N/L⌉ steps an epoch."""

    examples: int = field(metadata=option("Number of examples N, a public number.", OPTIMISATION))
    counted: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "Whether N was counted in the data, and so is no constant but taken to be public.", OPTIMISATION
        ),
    )
    unit: str = field(
        default="example",
        kw_only=True,
        metadata=option(
            "What one example is: 'patient_id' where all rows of a patient are one (then N counts patients).", PRIVACY
        ),
    )
    assumptions: tuple[str, ...] = field(
        default=(), kw_only=True, metadata=option("Additional assumptions of the guarantee, as sentences.", PRIVACY)
    )
    composed: tuple[ComposedRelease, ...] = field(
        default=(),
        kw_only=True,
        metadata=option(
            "Other releases on the same data (`hush.data_release.ComposedRelease`), which share the ε and δ.", PRIVACY
        ),
    )

    def __post_init__(self) -> None:
        validate.probability(delta=self.delta)
        validate.choice(("auto", *ACCOUNTANTS), accountant=self.accountant)
        if self.adjacency is not None:
            validate.choice(ADJACENCIES, adjacency=self.adjacency)
        validate.name(unit=self.unit)
        validate.positive_int(examples=self.examples, batch_size=self.batch_size)
        if self.examples > MOST_EXAMPLES:
            raise InvalidInputError(f"more than {MOST_EXAMPLES} examples are not accounted for")
        if self.batch_size > self.examples:
            raise InvalidInputError(f"batch size {self.batch_size} is larger than the data: {self.examples} examples")
        if self.sample_rate is not None:
            validate.rate(sample_rate=self.sample_rate)
        if self.sampling is not None:
            validate.choice(SAMPLINGS, sampling=self.sampling)
        if self.sanitize_width is not None:
            validate.positive_int(sanitize_width=self.sanitize_width)
        validate.choice(("published", "per-number"), sanitize_scale=self.sanitize_scale)
        self._check_length()

    def _check_length(self) -> None:
        if self.steps is not None:
            validate.positive_int(steps=self.steps)
        if self.epochs is not None:
            validate.positive(epochs=self.epochs)
        if (self._wanted_steps() if self.steps is None else self.steps) > MOST_STEPS:
            raise InvalidInputError(f"at most {MOST_STEPS:g} steps can be accounted for: give fewer steps or epochs")
        if not self.rate >= SMALLEST_RATE:
            raise InvalidInputError(f"the sampling rate must be at least {SMALLEST_RATE:g}, got {self.rate:g}")

    @property
    def noise(self) -> dict[str, float]:
        """The given ones of ε, noise multiplier and node noise."""
        asked = {"epsilon": self.epsilon, "noise_multiplier": self.noise_multiplier, "node_noise": self.node_noise}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def per_epoch(self) -> int:
        """⌈N/L⌉ steps an epoch."""
        return -(-self.examples // self.batch_size)

    @property
    def total_steps(self) -> int:
        """``steps`` where given, else a whole number of them for ``epochs`` (30 by default)."""
        if self.steps is not None:
            return self.steps
        return max(1, round(self._wanted_steps()))

    def _wanted_steps(self) -> float:
        return (30 if self.epochs is None else self.epochs) * self.per_epoch

    @property
    def listed_steps(self) -> int:
        """The number of steps, for noise that stores numbers for each step; raises if there are too many."""
        if self.total_steps > MOST_CORRELATED:
            raise InvalidInputError(
                f"correlated noise is computed for at most {MOST_CORRELATED} steps, got {self.total_steps}: give fewer "
                "steps, or use independent noise (dp-sgd)"
            )
        return self.total_steps

    @property
    def rate(self) -> float:
        """The Poisson rate q."""
        return self.sample_rate if self.sample_rate is not None else self.batch_size / self.examples

    def sampler(self, default: str = "poisson") -> Sampler:
        """The sampler that was given, else that of ``default``; a sample rate is for Poisson sampling only."""
        sampling = self.sampling or default
        if sampling == "poisson":
            return Poisson(self.examples, self.rate, self.total_steps)
        if self.sample_rate is not None:
            raise NotProvenError(
                f"a sample rate amplifies privacy only for Poisson batches, and '{sampling}' batches are not such: "
                "use sampling 'poisson', or leave the sample rate out"
            )
        kinds: dict[str, Any] = {"fixed-size": FixedSize, "shuffled": Shuffled, "same-order": Partitioned}
        sampler: Sampler = kinds[sampling](self.examples, self.batch_size, self.total_steps)
        return sampler

    def _adjacency(self, sampler: Sampler) -> Adjacency | None:
        """The given adjacency, or None for the sampler's own; if N was counted, it does not hide presence."""
        if not self.counted:
            return self.adjacency
        own = own_adjacency(sampler.participation)
        if self.adjacency == "add-remove":
            instead = "zero-out adjacency (the same ε)" if own == "add-remove" else f"{own} adjacency"
            raise NotProvenError(
                "the number of examples was counted in the data and is taken to be public, so it is not hidden whether "
                f"an example is there: use {instead}, or declare a number in Python, make_plan(examples=…)"
            )
        return self.adjacency or ("zero-out" if own == "add-remove" else None)

    def plan(self, method: str, **parts: Any) -> Plan:
        """A plan of these parts with σ = 1, to be calibrated or given its σ by the caller."""
        public = {"divisor": float(self.batch_size), "steps": self.total_steps, "delta": self.delta}
        shared = {
            "adjacency": self._adjacency(parts["sampler"]),
            "accountant": self.accountant,
            "accept_claimed": self.accept_claimed,
        }
        own = {
            "unit": self.unit,
            "assumptions": self.assumptions,
            "arithmetic": self.arithmetic,
            "composed": self.composed,
        }
        return Plan(method=method, sigma=1.0, **own, **public, **shared, **parts)  # type: ignore[arg-type]
