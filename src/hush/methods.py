"""The published methods by name: each a function from the public setting to a plan, with its paper's defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hush import validate
from hush.errors import BadInput, Refused, nearest
from hush.imported import imported
from hush.noise import Independent
from hush.plan import Plan
from hush.privacy.accounting import Adjacency
from hush.queries import ClipMode, ClippedSum, PlainSum
from hush.rules import SGD, Adam
from hush.sampling import FixedSize, Partitioned, Poisson, Sampler, Shuffled

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

    def __post_init__(self) -> None:
        validate.whole(examples=self.examples, batch_size=self.batch_size)
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


def sgd(setting: Setting, *, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> Plan:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee."""
    return setting.plan(
        "sgd",
        sampler=setting.sampler("shuffled"),
        query=PlainSum(),
        noise=Independent(setting.total_steps),
        rule=SGD(lr, momentum, weight_decay),
    )


def dp_sgd(
    setting: Setting,
    *,
    lr: float = 1.0,
    clip: float = 1.0,
    clip_mode: ClipMode = "plain",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Plan:
    """DP-SGD: clipped per-example gradients, independent noise, SGD (Abadi et al. 2016)."""
    return setting.plan(
        "dp-sgd",
        sampler=setting.sampler(),
        query=ClippedSum(clip, clip_mode),
        noise=Independent(setting.total_steps),
        rule=SGD(lr, momentum, weight_decay),
    )


def dp_adam(
    setting: Setting,
    *,
    lr: float = 1e-2,
    clip: float = 1.0,
    clip_mode: ClipMode = "plain",
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Plan:
    """DP-Adam: DP-SGD's release, Adam as the rule."""
    return setting.plan(
        "dp-adam",
        sampler=setting.sampler(),
        query=ClippedSum(clip, clip_mode),
        noise=Independent(setting.total_steps),
        rule=Adam(lr, beta1, beta2, eps, weight_decay),
    )


Method = Callable[..., Plan]


def catalogue() -> dict[str, Method]:
    """Every method that comes with hush, by name."""
    return {method.__name__.replace("_", "-"): method for method in (sgd, dp_sgd, dp_adam)}


def find(name: str) -> Method:
    """A method by its name, or somebody else's by ``package.module:factory``."""
    if ":" in name:
        found: Method = imported(name)
        return found
    known = catalogue()
    if name not in known:
        raise BadInput(f"unknown method '{name}': {nearest(name, known)}")
    return known[name]


def options(method: Method) -> dict[str, inspect.Parameter]:
    """What can be set on a method: its keyword arguments."""
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def make_plan(
    method: str,
    *,
    examples: int,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: str | None = None,
    delta: float = 1e-5,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    node_noise: float | None = None,
    adjacency: Adjacency | None = None,
    accountant: str = "auto",
    accept_claimed: bool = False,
    assumptions: tuple[str, ...] = (),
    **chosen: Any,
) -> Plan:
    """A calibrated plan: give ``epsilon``, or the noise as ``noise_multiplier`` (σ of the event) or ``node_noise``.

    >>> plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, epsilon=3.0, lr=0.5, clip=1.0)
    """
    validate.probability(delta=delta)
    validate.one_of(("auto", "pld", "rdp", "gdp"), accountant=accountant)
    factory = find(method)
    _check_options(method, factory, chosen)
    setting = Setting(
        examples,
        batch_size,
        epochs,
        steps,
        sample_rate,
        sampling,
        delta,
        adjacency,
        accountant,
        accept_claimed,
        assumptions,
    )
    plan = factory(setting, **chosen)
    if not plan.private:
        if epsilon is not None or noise_multiplier is not None or node_noise is not None:
            raise BadInput(f"method '{method}' adds no noise: it takes no ε and no noise multiplier")
        return plan
    given = [x for x in (epsilon, noise_multiplier, node_noise) if x is not None]
    if len(given) != 1:
        raise BadInput("give exactly one of epsilon, noise_multiplier and node_noise")
    if epsilon is not None:
        return plan.calibrated(epsilon)
    if noise_multiplier is not None:
        validate.positive(noise_multiplier=noise_multiplier)
        return replace(plan, sigma=float(noise_multiplier))
    assert node_noise is not None
    validate.positive(node_noise=node_noise)
    return replace(plan, sigma=float(node_noise) / plan.sensitivity)


def _check_options(name: str, method: Method, chosen: dict[str, Any]) -> None:
    known = options(method)
    for key in chosen:
        if key not in known:
            raise BadInput(f"method '{name}' has no option '{key}': {nearest(key, known)}")
