"""The public numbers that every method needs, and the sampler that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hush import validate
from hush.errors import BadInput, Refused
from hush.plan import Plan
from hush.privacy.accounting import Adjacency
from hush.sampling import FixedSize, Partitioned, Poisson, Sampler, Shuffled

MOST_STEPS = 10**9
MOST_EXAMPLES = 10**15  # all whole numbers up to here are exact as floats
SAMPLINGS = ("poisson", "fixed-size", "shuffled", "same-order")


@dataclass(frozen=True)
class Setting:
    """The public numbers that every method needs. Poisson: q = L/N exactly and ⌈N/L⌉ steps an epoch."""

    examples: int
    batch_size: int
    epochs: float | None = None
    steps: int | None = None
    sample_rate: float | None = None
    sampling: str | None = None  # None: what the method's paper used
    delta: float = 1e-5
    adjacency: Adjacency | None = None
    accountant: str = "auto"
    accept_claimed: bool = False
    assumptions: tuple[str, ...] = ()
    epsilon: float | None = None  # the target, where there is one: some methods choose their shape by it

    def __post_init__(self) -> None:
        validate.whole(examples=self.examples, batch_size=self.batch_size)
        if self.examples > MOST_EXAMPLES:
            raise BadInput(f"more than {MOST_EXAMPLES} examples are not accounted for")
        if self.batch_size > self.examples:
            raise BadInput(f"batch size {self.batch_size} is larger than the data: {self.examples} examples")
        if self.sample_rate is not None:
            validate.rate(sample_rate=self.sample_rate)
        if self.sampling is not None:
            validate.one_of(SAMPLINGS, sampling=self.sampling)
        if self.steps is not None:
            validate.whole(steps=self.steps)
        if self.epochs is not None:
            validate.positive(epochs=self.epochs)
        steps = self.steps if self.steps is not None else (self.epochs or 1) * self.per_epoch
        if steps > MOST_STEPS:
            raise BadInput(f"more than {MOST_STEPS} steps are not accounted for: take fewer steps, or fewer epochs")

    @property
    def per_epoch(self) -> int:
        """⌈N/L⌉ steps an epoch."""
        return -(-self.examples // self.batch_size)

    @property
    def total_steps(self) -> int:
        """``steps`` where given, else a whole number of them for ``epochs`` (30 by default)."""
        if self.steps is not None:
            return self.steps
        return max(1, round((30 if self.epochs is None else self.epochs) * self.per_epoch))

    @property
    def rate(self) -> float:
        """The Poisson rate q."""
        return self.sample_rate if self.sample_rate is not None else self.batch_size / self.examples

    def sampler(self, default: str = "poisson") -> Sampler:
        """The sampler that was asked for; a sample rate belongs to Poisson sampling alone."""
        sampling = self.sampling or default
        if sampling == "poisson":
            return Poisson(self.examples, self.rate, self.total_steps)
        if self.sample_rate is not None:
            raise Refused(
                f"a sample rate amplifies privacy only for Poisson batches, and '{sampling}' batches are not such: "
                "use sampling 'poisson', or leave the sample rate out"
            )
        kinds: dict[str, Any] = {"fixed-size": FixedSize, "shuffled": Shuffled, "same-order": Partitioned}
        sampler: Sampler = kinds[sampling](self.examples, self.batch_size, self.total_steps)
        return sampler

    def plan(self, method: str, **parts: Any) -> Plan:
        """A plan of these parts with σ = 1, to be calibrated or given its σ by the caller."""
        public = {"divisor": float(self.batch_size), "steps": self.total_steps, "delta": self.delta}
        shared = {"adjacency": self.adjacency, "accountant": self.accountant, "accept_claimed": self.accept_claimed}
        return Plan(method=method, sigma=1.0, assumptions=self.assumptions, **public, **shared, **parts)  # type: ignore[arg-type]
