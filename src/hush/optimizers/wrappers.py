"""Any rule, with the average of its iterates as the result: free of privacy cost, as it reads released values alone.

``ema``: a ← βₜa + (1 − βₜ)θ with βₜ = min(β, (1 + t)/(10 + t)), the warm-up of De et al. 2022. ``tail``: the plain mean
of the last iterates (Polyak & Juditsky 1992; Shejwalkar et al. 2022 for private training). The iterates themselves go
on unchanged; after the last step the average takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch

from hush._internal import validate
from hush._internal.tensors import Named, State
from hush.clipping.adaptive import Quantile
from hush.errors import InvalidInputError
from hush.noise.base import Release
from hush.optimizers.base import Rule


@dataclass(frozen=True)
class Averaged:
    """``amount`` is β for "ema", and the fraction of the steps at the end that are averaged for "tail"."""

    rule: Rule
    steps: int
    kind: Literal["ema", "tail"] = "ema"
    amount: float = 0.999

    def __post_init__(self) -> None:
        validate.choice(("ema", "tail"), average=self.kind)
        if self.kind == "ema":
            validate.probability(average=self.amount)
        else:
            validate.rate(average=self.amount)

    def init(self, params: Named) -> State:
        """The inner rule's state, and the average so far."""
        return {"rule": self.rule.init(params), "average": {n: p.detach().clone() for n, p in params.items()}}

    @torch.no_grad()
    def step(self, params: Named, release: Release, state: State) -> Named:
        """The inner rule's step; then the average moves towards the new iterate, and replaces it at the very end."""
        update = self.rule.step(params, release, state["rule"])
        average = [state["average"][name] for name in params]
        torch._foreach_lerp_(average, list(params.values()), self.weight(release.step))
        if release.step == self.steps - 1:
            for name, parameter in params.items():
                parameter.copy_(state["average"][name])
        return update

    def weight(self, step: int) -> float:
        """How much the newest iterate counts in the average after this step."""
        if self.kind == "ema":
            return 1.0 - min(self.amount, (1 + step) / (10 + step))
        first = self.steps - max(1, round(self.amount * self.steps))
        return 1.0 / (step - first + 1) if step >= first else 1.0


def parse_average(text: str) -> tuple[Literal["ema", "tail"], float]:
    """``ema``, ``ema:0.99``, ``tail`` or ``tail:0.25``."""
    kind, _, amount = text.partition(":")
    validate.choice(("ema", "tail"), average=kind)
    default = 0.999 if kind == "ema" else 0.25
    try:
        return ("ema" if kind == "ema" else "tail"), float(amount) if amount else default
    except ValueError:
        raise InvalidInputError(f"average takes a number after the colon, got '{text}'") from None


# DiSK's Kalman filter around any rule: the rule sees filtered gradients (Zhang et al. 2024).
#
# g̃ₜ ← (1 − κ) g̃ₜ₋₁ + κ gₜ, started at the first noisy gradient. Together with the two-point query, which predicts how
# the gradient changed since, it is a Kalman filter with constant gain κ. κ = 1 is no filter.


@dataclass(frozen=True)
class Kalman:
    """``rule`` on the filtered gradient, with the noise that is left in it."""

    rule: Rule
    kappa: float = 0.7

    def __post_init__(self) -> None:
        validate.rate(kappa=self.kappa)

    def init(self, params: Named) -> State:
        """The filtered gradient, its noise variance, and the rule's own state."""
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"filtered": zeros, "variance": 0.0, "taken": 0, "rule": self.rule.init(params)}

    @torch.no_grad()
    def step(self, params: Named, release: Release, state: State) -> Named:
        """Filter, then step. The variance is that of noise which is independent over steps."""
        gain = self.kappa if state["taken"] else 1.0
        state["taken"] += 1
        filtered = [state["filtered"][name] for name in params]
        torch._foreach_lerp_(filtered, [release.gradient[name] for name in params], gain)
        state["variance"] = (1.0 - gain) ** 2 * state["variance"] + gain**2 * release.noise_std**2
        values = release.values | {"gradient": dict(zip(params, filtered, strict=True))}
        std = {**release.std, "gradient": state["variance"] ** 0.5}
        return self.rule.step(params, Release(release.step, values, std), state["rule"])


# Parameter groups for any rule: each parameter follows the first rule whose pattern fits its name.
#
# ``Grouped((("*.bias", SGD(0.1)), ("*", AdamBC(1e-4, weight_decay=0.01))))`` decays weights and leaves biases alone.


@dataclass(frozen=True)
class Grouped:
    """Pairs of a pattern (``*`` and ``?`` as in file names) and a rule; every parameter must fit one."""

    groups: tuple[tuple[str, Rule], ...]

    def init(self, params: Named) -> State:
        """One state a group, by its pattern."""
        parts = self._split(params)
        return {pattern: rule.init(parts[pattern]) for pattern, rule in self.groups if parts[pattern]}

    def step(self, params: Named, release: Release, state: State) -> Named:
        """Every group's own step."""
        update: Named = {}
        parts = self._split(params)
        for pattern, rule in self.groups:
            if parts[pattern]:
                gradient = {name: release.gradient[name] for name in parts[pattern]}
                own = Release(release.step, release.values | {"gradient": gradient}, release.std)
                update |= rule.step(parts[pattern], own, state[pattern])
        return {name: update[name] for name in params}

    def _split(self, params: Named) -> dict[str, Named]:
        parts: dict[str, Named] = {pattern: {} for pattern, _ in self.groups}
        if len(parts) < len(self.groups):
            raise InvalidInputError("two parameter groups have the same pattern: give each its own")
        for name, parameter in params.items():
            fits = next((pattern for pattern, _ in self.groups if fnmatchcase(name, pattern)), None)
            if fits is None:
                raise InvalidInputError(f"parameter '{name}' fits no group: end with a group for '*'")
            parts[fits][name] = parameter
        return parts


# Undo the division by an adaptive clip: gradients in the data's own units, as adaptive clipping was published.
#
# Adaptive clipping releases the clipped sum over C. Multiplied by the public C of the step it is the paper's release,
# noise and all. This is post-processing; with noise that is independent over steps nothing else changes.


@dataclass(frozen=True)
class ClipUnits:
    """``rule`` on C · g̃; C is followed from the released counts, as the query follows it."""

    rule: Rule
    quantile: Quantile

    def init(self, params: Named) -> State:
        """The clip, and the rule's own state."""
        return {"clip": self.quantile.start, "rule": self.rule.init(params)}

    @torch.no_grad()
    def step(self, params: Named, release: Release, state: State) -> Named:
        """Scale, step, and follow the clip."""
        clip = state["clip"]
        gradient = {name: value * clip for name, value in release.gradient.items()}
        std = {**release.std, "gradient": release.noise_std * clip}
        scaled = Release(release.step, release.values | {"gradient": gradient}, std)
        update = self.rule.step(params, scaled, state["rule"])
        state["clip"] = self.quantile.after(clip, release)
        return update
