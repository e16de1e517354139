"""Any rule, with the average of its iterates as the result: free of privacy cost, as it reads released values alone.

``ema``: a ← βₜa + (1 − βₜ)θ with βₜ = min(β, (1 + t)/(10 + t)), the warm-up of De et al. 2022. ``tail``: the plain mean
of the last iterates (Polyak & Juditsky 1992; Shejwalkar et al. 2022 for private training). The iterates themselves go
on unchanged; after the last step the average takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from hush import validate
from hush.errors import BadInput
from hush.named import Named, State
from hush.release import Release
from hush.rules.rule import Rule


@dataclass(frozen=True)
class Averaged:
    """``amount`` is β for "ema", and the fraction of the steps at the end that are averaged for "tail"."""

    rule: Rule
    steps: int
    kind: Literal["ema", "tail"] = "ema"
    amount: float = 0.999

    def __post_init__(self) -> None:
        validate.one_of(("ema", "tail"), average=self.kind)
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
    validate.one_of(("ema", "tail"), average=kind)
    default = 0.999 if kind == "ema" else 0.25
    try:
        return ("ema" if kind == "ema" else "tail"), float(amount) if amount else default
    except ValueError:
        raise BadInput(f"average takes a number after the colon, got '{text}'") from None
