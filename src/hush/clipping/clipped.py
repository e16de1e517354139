"""The clipped sum of per-example gradients: Σ gᵢ · min(1, c/‖gᵢ‖) (Abadi et al. 2016).

- ``normalised`` (De et al. 2022): Σ gᵢ · min(1/c, 1/‖gᵢ‖), which makes the learning rate independent of c;
- ``automatic`` (Bu et al. 2023, "Automatic clipping"): Σ gᵢ / (‖gᵢ‖ + γ), without a c to choose;
- ``per_layer`` (McMahan et al. 2018): each of G layers is clipped to c/√G, so the whole gradient is bounded by c.

An example whose gradient is not finite contributes exactly zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums
from hush.clipping.base import PLAIN_SUM, Channel, Claim, PlainSumProof, Query
from hush.errors import InvalidInputError
from hush.noise.base import NoisyGradient
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import PerExampleGradients
from hush.sampling import Participation

ClipMode = Literal["plain", "normalised", "automatic"]
CLIP_MODES = ("plain", "normalised", "automatic")
SMALLEST, LARGEST = 1e-15, 1e15  # range of clips: float32 products neither vanish nor overflow
ROUNDED_UP = 1 + 2.0**-36  # covers the double precision sum over up to 100 000 tensors of parameters, and the division
STABILITY = 0.01  # γ of automatic clipping: limits the scaling of a vanishing gradient; the paper's default


@dataclass(frozen=True)
class Clipping:
    """How the gradient of one example is scaled to a norm of at most :attr:`bound`."""

    clip: float = 1.0
    mode: ClipMode = "plain"
    per_layer: bool = False

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip)
        if not SMALLEST <= self.clip <= LARGEST:
            raise InvalidInputError(
                f"clip must lie between {SMALLEST:g} and {LARGEST:g} in float32, got {self.clip:g}: scale the loss "
                "instead"
            )
        validate.choice(CLIP_MODES, clip_mode=self.mode)

    @property
    def bound(self) -> float:
        """The largest norm of one example's contribution: ``clip``, or 1 in the other two modes."""
        return self.clip if self.mode == "plain" else 1.0

    def weigh(self, squared: Named) -> ClippedWeights:
        """The weights at this clip, from the squared norms by parameter."""
        norms = total_norms(squared)
        finite = torch.isfinite(norms)
        if not self.per_layer:
            return ClippedWeights(clip_factors(norms, self.clip, self.mode), norms, (norms > self.clip) & finite)
        layers = by_layer(squared)
        each = {layer: total_norms({n: squared[n] for n in names}) for layer, names in layers.items()}
        share = 1.0 / sqrt(len(layers))
        weights: Named = {}
        for layer, names in layers.items():
            factors = clip_factors(each[layer] / share, self.clip, self.mode)
            weights |= dict.fromkeys(names, torch.where(finite, factors, torch.zeros_like(factors)))
        return ClippedWeights(weights, norms, (torch.stack(list(each.values())).amax(0) > self.clip * share) & finite)


@dataclass(frozen=True)
class ClippedWeights:
    """The weight of each example (by parameter where layers differ), its norm, and whether it was clipped."""

    weights: Tensor | Named
    norms: Tensor
    clipped: Tensor


class Clipped(Query, Protocol):
    """A query that only clips gradients, so its clip can change at every step."""

    @property
    def clipping(self) -> Clipping:
        """How one example is bounded."""
        ...

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        """The gradients that are clipped."""
        ...


@dataclass(frozen=True)
class ClippedSum:
    """Per-example gradients, clipped to norm ``clip`` and summed.

    ``mode`` is what each gradient g is multiplied by: ``plain`` min(1, clip/‖g‖), ``normalised`` that divided by clip,
    ``automatic`` 1/(‖g‖ + 0.01) (Bu et al. 2023). With ``per_layer`` each of G layers is clipped to clip/√G. ``engine``
    changes the speed and nothing else."""

    clip: float = 1.0
    mode: ClipMode = "plain"
    per_layer: bool = False
    engine: str = "auto"

    def __post_init__(self) -> None:
        _ = self.clipping  # its checks

    @cached_property
    def clipping(self) -> Clipping:
        return Clipping(self.clip, self.mode, self.per_layer)

    @property
    def channels(self) -> Mapping[str, Channel]:
        return {"gradient": Channel(self.clipping.bound)}

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {}

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        return per_example_gradients(model, losses, content, engine=self.engine)

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        return clipped_sums(self.tape(model, losses, content, public), self.clipping)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        return PLAIN_SUM


def clipped_sums(tape: PerExampleGradients, clipping: Clipping) -> Sums:
    """Σ wᵢ gᵢ, and diagnostics."""
    weighed = clipping.weigh(tape.squared_norms())
    return {"gradient": tape.sum(weighed.weights), "diagnostics": diagnostics(tape.losses, weighed.clipped)}


def total_norms(squared: Named) -> Tensor:
    """Upper bounds of ‖gᵢ‖ over all parameters, from bounds of the squared norms by parameter; in double precision."""
    return torch.stack([value.double() for value in squared.values()]).sum(0).sqrt()


def clip_factors(norms: Tensor, clip: float, mode: ClipMode) -> Tensor:
    """min(1, c/‖g‖), or that divided by c, or 1/(‖g‖ + γ), rounded down; zero where the norm is not finite."""
    norms = norms.double() * ROUNDED_UP
    if mode == "automatic":
        factors = 1.0 / (norms + STABILITY)
    else:
        factors = (clip / norms).clamp(max=1.0)  # a zero norm gives infinity, which is clamped to 1
        factors = factors / clip if mode == "normalised" else factors
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def by_layer(names: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parameter names by the module that holds them: weight and bias of a layer form one group."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def diagnostics(losses: Tensor, clipped: Tensor) -> Named:
    """Private diagnostics for the person who trains: summed loss, batch size, number of clipped examples."""
    finite = torch.isfinite(losses)
    return {
        "loss": torch.where(finite, losses, torch.zeros_like(losses)).double().sum(),
        "examples": torch.tensor(float(len(losses)), dtype=torch.float64, device=losses.device),
        "clipped": clipped.double().sum(),
    }
