"""The published layer with a threshold that follows the weights: C = t·‖W‖ before training and after each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums
from hush.clipping.base import Channel, Claim, Query, Start
from hush.data_source import Source
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient
from hush.sampling import Participation
from hush.sanitize.layer import FrozenLayer, find_layer
from hush.sanitize.privatised import Published

# The adaptive threshold: C = t·‖W‖ of the weights that make the layer's inputs, set after each epoch.


@dataclass(frozen=True)
class AdaptiveThreshold:
    """C = ``share``·‖W‖, the Frobenius norm of the last weight before the sanitisation layer.

    The weight decides the scale of what is to be clipped, so C follows it without looking at an activation. C is as
    public as that weight is: where the layers before are trained on raw gradients, as published, neither is."""

    share: float

    def __post_init__(self) -> None:
        validate.positive(threshold_share=self.share)

    def find_clip(self, model: nn.Module) -> float:
        """t·‖W‖ for a model that holds a sanitisation layer."""
        clip = self.share * measure_norm(find_weight(model))
        if not (math.isfinite(clip) and clip > 0):
            raise InvalidInputError(
                f"the weights before the sanitisation layer have the norm {clip / self.share:g}: no C fits"
            )
        return clip

    def adapt(self, model: nn.Module) -> float:
        """Set the layer's C, and return it."""
        clip = self.find_clip(model)
        find_layer(model)[1].clip = clip
        return clip


def find_weight(model: nn.Module) -> Tensor:
    """The last weight matrix or kernel that comes before the sanitisation layer in the order of the model's modules."""
    place, _ = find_layer(model)
    last: Tensor | None = None
    for name, module in model.named_modules():
        if name == place:
            break
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if weight is not None and weight.dim() >= 2:
            last = weight
    if last is None:
        raise InvalidInputError(
            f"no weight comes before the sanitisation layer '{place}', so there is no norm for C to follow"
        )
    return last


def measure_norm(weight: Tensor) -> float:
    """The Frobenius norm, in double precision."""
    return float(torch.linalg.vector_norm(weight.detach().double()))


@dataclass(frozen=True)
class AdaptiveClip:
    """``inner`` with a C that is recomputed every ``turn`` steps. C is stored with the run's state, so a resumed run
    uses the same value; the noise scales with C, so the claims do not change."""

    inner: Published
    threshold: AdaptiveThreshold
    turn: int
    model: nn.Module | None = None  # once a run has one

    def __post_init__(self) -> None:
        validate.positive_int(steps_of_an_epoch=self.turn)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Those of the published layer."""
        return self.inner.channels

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The layer gets its noise, and its first C from the weights as they are before training."""
        _, taken = self.inner.prepare(start)
        self.threshold.adapt(start.model)
        layer = FrozenLayer.of(find_layer(start.model)[1], free=("clip",))
        return replace(self, inner=replace(self.inner, layer=layer), model=start.model), taken

    def make_ready(self, step: int) -> None:
        """Nothing is computed before the first step."""

    def recall(self, public: State) -> None:
        """Set the C of the resumed run in place of the one from the initial weights."""
        if self.model is not None:
            find_layer(self.model)[1].clip = float(public["clip"])

    @property
    def nonnegative(self) -> bool:
        """Whether the layer clamps to [0, C]."""
        return self.inner.nonnegative

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """n, the width of the layer."""
        return self.inner.count_numbers(model, source)

    def count_releases(self, participation: Participation, steps: int) -> int:
        """As without a threshold that changes."""
        return self.inner.count_releases(participation, steps)

    def init(self, params: Named) -> tuple[State, State]:
        """Public, as far as the weights are: C."""
        clip = 0.0 if self.model is None else find_layer(self.model)[1].clip
        return {"clip": torch.tensor(clip, dtype=torch.float64)}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The gradient of the piece's summed loss, at the C of this epoch."""
        find_layer(model)[1].clip = float(public["clip"])
        return self.inner.piece(model, losses, content, {})

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return self.inner.finish(sums, public, private)

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """After the last step of an epoch, the next C."""
        if self.model is None or (release.step + 1) % self.turn:
            return public
        return {"clip": torch.tensor(self.threshold.adapt(self.model), dtype=torch.float64)}

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """Those of the published layer, in which C does not occur."""
        return self.inner.claims(participation, noise_std, steps)
