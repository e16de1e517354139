"""Undo the division by an adaptive clip: gradients in the data's own units, as adaptive clipping was published.

Adaptive clipping releases the clipped sum over C. Multiplied by the public C of the step it is the paper's release,
noise and all. This is post-processing; with noise that is independent over steps nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hush.named import Named, State
from hush.queries.adaptive import Quantile
from hush.release import Release
from hush.rules.rule import Rule


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
