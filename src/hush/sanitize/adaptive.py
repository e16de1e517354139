"""The adaptive threshold of the published layer: C = t·‖W‖, set before training and after each epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hush._internal import validate
from hush.errors import InvalidInputError
from hush.sanitize.layer import find_layer


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
