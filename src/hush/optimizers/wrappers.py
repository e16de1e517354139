"""Wrappers: change what an optimizer receives, or average what it produces. All of it is post-processing.

    chain(KalmanFilter(kappa=0.7), SGD(lr=1.0, momentum=0.9), EMA(0.999))

`KalmanFilter` and `ClipUnits` change the noisy gradient before the optimizer sees it. `EMA` and `TailAverage` leave the
iterates unchanged and replace the parameters by their average after the last step. `Grouped` gives parameters
different optimizers by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from hush._internal import validate
from hush._internal.identity import IdentityScope
from hush._internal.tensors import Named, State
from hush.clipping.adaptive import Quantile
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient
from hush.optimizers.base import Optimizer


def chain(*parts: Optimizer) -> Optimizer:
    """Compose one optimizer with wrappers: those before it change the gradient, those after it average the iterates.

    The first part receives the noisy gradient. A wrapper that is given without an inner optimizer (``rule``) takes the
    part next to it.
    """
    base = [place for place, part in enumerate(parts) if not _is_open(part)]
    if len(base) != 1:
        raise InvalidInputError(f"a chain needs exactly one optimizer among its parts, got {len(base)}: {parts}")
    before, optimizer, after = parts[: base[0]], parts[base[0]], parts[base[0] + 1 :]
    for part in before:
        if isinstance(part, IterateAverage):
            raise InvalidInputError(f"{part} averages iterates: put it after the optimizer")
    for part in after:
        if not isinstance(part, IterateAverage):
            raise InvalidInputError(f"{part} changes the gradient: put it before the optimizer")
    for part in (*reversed(before), *after):
        optimizer = replace(part, optimizer=optimizer)  # type: ignore[type-var]
    return optimizer


def bind_steps(optimizer: Optimizer, steps: int) -> Optimizer:
    """The optimizer with the plan's number of steps in every average that has none yet."""
    inner = getattr(optimizer, "optimizer", None)
    if inner is not None:
        optimizer = replace(optimizer, optimizer=bind_steps(inner, steps))  # type: ignore[type-var]
    if isinstance(optimizer, IterateAverage) and optimizer.steps is None:
        return replace(optimizer, steps=steps)  # type: ignore[type-var]
    return optimizer


def _is_open(part: Optimizer) -> bool:
    return getattr(part, "optimizer", part) is None


def _inner(wrapper: Any) -> Optimizer:
    if wrapper.optimizer is None:
        raise InvalidInputError(f"{wrapper} has no optimizer: compose it with one, as chain({wrapper}, SGD(0.1))")
    inner: Optimizer = wrapper.optimizer
    return inner


class IterateAverage(ABC):
    """Base of the averages: runs the inner optimizer and keeps an average of its iterates.

    The iterates themselves continue unchanged; after the last step the average replaces the parameters.
    """

    optimizer: Optimizer | None
    steps: int | None

    @abstractmethod
    def weight(self, step: int) -> float:
        """The weight of the newest iterate in the average after this step."""

    def init(self, params: Named) -> State:
        average = {n: p.detach().clone() for n, p in params.items()}
        return {"rule": _inner(self).init(params), "average": average}

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        update = _inner(self).step(params, release, state["rule"])
        average = [state["average"][name] for name in params]
        torch._foreach_lerp_(average, list(params.values()), self.weight(release.step))
        if release.step == self._total - 1:
            for name, parameter in params.items():
                parameter.copy_(state["average"][name])
        return update

    @property
    def _total(self) -> int:
        if self.steps is None:
            raise InvalidInputError(f"{self} needs the number of steps: give steps, or use Plan.calibrated")
        return self.steps


@dataclass(frozen=True)
class EMA(IterateAverage):
    """Exponential moving average: a ← βₜa + (1 − βₜ)θ with βₜ = min(``decay``, (1 + t)/(10 + t)).

    The warm-up of βₜ is that of De et al. 2022.
    """

    decay: float = 0.999
    optimizer: Optimizer | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        validate.probability(average=self.decay)

    def weight(self, step: int) -> float:
        return 1.0 - min(self.decay, (1 + step) / (10 + step))

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """The fields under the names that fingerprints have always had."""
        return self.described()

    def described(self) -> dict[str, Any]:
        return {"rule": self.optimizer, "steps": self.steps, "kind": "ema", "amount": self.decay}


@dataclass(frozen=True)
class TailAverage(IterateAverage):
    """The mean of the last ``fraction`` of the iterates (Polyak & Juditsky 1992; Shejwalkar et al. 2022 for DP)."""

    fraction: float = 0.25
    optimizer: Optimizer | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        validate.rate(average=self.fraction)

    def weight(self, step: int) -> float:
        first = self._total - max(1, round(self.fraction * self._total))
        return 1.0 / (step - first + 1) if step >= first else 1.0

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """The fields under the names that fingerprints have always had."""
        return self.described()

    def described(self) -> dict[str, Any]:
        return {"rule": self.optimizer, "steps": self.steps, "kind": "tail", "amount": self.fraction}


def parse_average(text: str) -> EMA | TailAverage:
    """Parse ``ema``, ``ema:0.99``, ``tail`` or ``tail:0.25``."""
    kind, _, amount = text.partition(":")
    validate.choice(("ema", "tail"), average=kind)
    average = EMA if kind == "ema" else TailAverage
    try:
        return average(float(amount)) if amount else average()
    except InvalidInputError:
        raise
    except ValueError:
        raise InvalidInputError(f"average takes a number after the colon, got '{text}'") from None


@dataclass(frozen=True)
class KalmanFilter:
    """DiSK's filter (Zhang et al. 2024): the optimizer sees g̃ₜ = (1 − κ) g̃ₜ₋₁ + κ gₜ, started at the first gradient.

    Together with the two-point query, which predicts how the gradient has changed, it is a Kalman filter with constant
    gain κ. κ = 1 is no filter.
    """

    optimizer: Optimizer | None = None
    kappa: float = 0.7

    def __post_init__(self) -> None:
        validate.rate(kappa=self.kappa)

    def init(self, params: Named) -> State:
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"filtered": zeros, "variance": 0.0, "taken": 0, "rule": _inner(self).init(params)}

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        """Filter, then step. The noise variance assumes noise that is independent over steps."""
        gain = self.kappa if state["taken"] else 1.0
        state["taken"] += 1
        filtered = [state["filtered"][name] for name in params]
        torch._foreach_lerp_(filtered, [release.gradient[name] for name in params], gain)
        state["variance"] = (1.0 - gain) ** 2 * state["variance"] + gain**2 * release.noise_std**2
        values = release.values | {"gradient": dict(zip(params, filtered, strict=True))}
        std = {**release.std, "gradient": state["variance"] ** 0.5}
        return _inner(self).step(params, NoisyGradient(release.step, values, std), state["rule"])


@dataclass(frozen=True)
class Grouped:
    """Parameter groups: each parameter follows the first optimizer whose pattern matches its name.

    ``Grouped((("*.bias", SGD(0.1)), ("*", AdamBC(1e-4, weight_decay=0.01))))`` decays weights and not biases. Patterns
    use ``*`` and ``?`` as file names do; every parameter must match one.
    """

    groups: tuple[tuple[str, Optimizer], ...]

    def init(self, params: Named) -> State:
        """One state per group, by its pattern."""
        parts = self._split(params)
        return {pattern: optimizer.init(parts[pattern]) for pattern, optimizer in self.groups if parts[pattern]}

    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        update: Named = {}
        parts = self._split(params)
        for pattern, optimizer in self.groups:
            if parts[pattern]:
                gradient = {name: release.gradient[name] for name in parts[pattern]}
                own = NoisyGradient(release.step, release.values | {"gradient": gradient}, release.std)
                update |= optimizer.step(parts[pattern], own, state[pattern])
        return {name: update[name] for name in params}

    def _split(self, params: Named) -> dict[str, Named]:
        parts: dict[str, Named] = {pattern: {} for pattern, _ in self.groups}
        if len(parts) < len(self.groups):
            raise InvalidInputError("two parameter groups have the same pattern: give each its own")
        for name, parameter in params.items():
            fits = next((pattern for pattern, _ in self.groups if fnmatchcase(name, pattern)), None)
            if fits is None:
                raise InvalidInputError(f"parameter '{name}' matches no group: end with a group for '*'")
            parts[fits][name] = parameter
        return parts


@dataclass(frozen=True)
class ClipUnits:
    """Undo the division by an adaptive clip C, so that gradients have the scale of the published method.

    Adaptive clipping releases the clipped sum divided by C. Multiplied by the public C of the step, it is the release
    of the paper, including its noise. C is computed from the released counts, as the query computes it. With noise that
    is independent over steps nothing else changes.
    """

    optimizer: Optimizer | None
    quantile: Quantile

    def init(self, params: Named) -> State:
        return {"clip": self.quantile.start, "rule": _inner(self).init(params)}

    @torch.no_grad()
    def step(self, params: Named, release: NoisyGradient, state: State) -> Named:
        clip = state["clip"]
        gradient = {name: value * clip for name, value in release.gradient.items()}
        std = {**release.std, "gradient": release.noise_std * clip}
        scaled = NoisyGradient(release.step, release.values | {"gradient": gradient}, std)
        update = _inner(self).step(params, scaled, state["rule"])
        state["clip"] = self.quantile.after(clip, release)
        return update
