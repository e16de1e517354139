"""The clipped sum of per-example gradients: Σ gᵢ · min(1, c/‖gᵢ‖) (Abadi et al. 2016).

Normalised by 1/c (De et al. 2022) it is Σ gᵢ · min(1/c, 1/‖gᵢ‖), which makes the learning rate independent of c.
Automatic (Bu et al. 2023, "Automatic clipping") it is Σ gᵢ / (‖gᵢ‖ + γ), which has no c to choose. Per layer (McMahan
et al. 2018), each of G layers is clipped to its share c/√G, so that the whole is still bounded by c. An example whose
gradient is not finite contributes exactly zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
SMALLEST, LARGEST = 1e-15, 1e15  # clips within which no product of float32 numbers that matters vanishes or overflows
ROUNDED_UP = 1 + 2.0**-36  # a norm of up to 100 000 parameters, summed in double precision, and the division by it
STABILITY = 0.01  # γ of automatic clipping: keeps a vanishing gradient from being blown up; the paper's default


@dataclass(frozen=True)
class Clipping:
    """How one example's gradient is brought within :attr:`bound`."""

    clip: float = 1.0
    mode: ClipMode = "plain"
    per_layer: bool = False

    def __post_init__(self) -> None:
        validate.positive(clip=self.clip)
        if not SMALLEST <= self.clip <= LARGEST:
            raise InvalidInputError(
                f"clip {self.clip:g} is beyond what float32 can bound: it must lie between {SMALLEST:g} and "
                f"{LARGEST:g}; scale the loss instead"
            )
        validate.choice(CLIP_MODES, clip_mode=self.mode)

    @property
    def bound(self) -> float:
        """The largest norm of what one example adds: ``clip``, or 1 where it is divided by the clip or by its norm."""
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
    """The weight of each example (by parameter where layers differ), its norm, and whether it was cut."""

    weights: Tensor | Named
    norms: Tensor
    clipped: Tensor


class Clipped(Query, Protocol):
    """A query that is nothing but clipped gradients: it can be given another clip at every step."""

    @property
    def clipping(self) -> Clipping:
        """How one example is bounded."""
        ...

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        """The gradients that are clipped."""
        ...


@dataclass(frozen=True)
class ClippedSum:
    """Per-example gradients, clipped to norm ``clip`` and summed."""

    clip: float = 1.0
    mode: ClipMode = "plain"
    per_layer: bool = False
    engine: str = "auto"

    def __post_init__(self) -> None:
        _ = self.clipping  # its checks

    @property
    def clipping(self) -> Clipping:
        """How one example is bounded."""
        return Clipping(self.clip, self.mode, self.per_layer)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """One channel; an example adds at most ``clip``, or 1 where the sum is normalised."""
        return {"gradient": Channel(self.clipping.bound)}

    def init(self, params: Named) -> tuple[State, State]:
        """No state."""
        return {}, {}

    def tape(self, model: nn.Module, losses: Losses, content: Any, public: State) -> PerExampleGradients:
        """The gradients that are clipped."""
        return per_example_gradients(model, losses, content, engine=self.engine)

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The clipped sum of one piece."""
        return clipped_sums(self.tape(model, losses, content, public), self.clipping)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """Nothing to learn from the release."""
        return public

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        """A plain sum: the table's."""
        return PLAIN_SUM


def clipped_sums(tape: PerExampleGradients, clipping: Clipping) -> Sums:
    """Σ wᵢ gᵢ and what a person training wants to see."""
    weighed = clipping.weigh(tape.squared_norms())
    return {"gradient": tape.sum(weighed.weights), "diagnostics": diagnostics(tape.losses, weighed.clipped)}


def total_norms(squared: Named) -> Tensor:
    """Bounds of ‖gᵢ‖ over all parameters, from those of the squared norms by parameter; in double precision."""
    return torch.stack([value.double() for value in squared.values()]).sum(0).sqrt()


def clip_factors(norms: Tensor, clip: float, mode: ClipMode) -> Tensor:
    """min(1, c/‖g‖), or that divided by c, or 1/(‖g‖ + γ), rounded down; zero where the norm is not finite."""
    norms = norms.double() * ROUNDED_UP
    if mode == "automatic":
        factors = 1.0 / (norms + STABILITY)
    else:
        factors = (clip / norms).clamp(max=1.0)  # a zero norm gives infinity, which the clamp makes 1
        factors = factors / clip if mode == "normalised" else factors
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def by_layer(names: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parameter names by the module that holds them: a layer's weight and bias go together."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def diagnostics(losses: Tensor, clipped: Tensor) -> Named:
    """What a person training wants to see and nobody else may: loss, batch size, clipped examples."""
    finite = torch.isfinite(losses)
    return {
        "loss": torch.where(finite, losses, torch.zeros_like(losses)).double().sum(),
        "examples": torch.tensor(float(len(losses)), dtype=torch.float64, device=losses.device),
        "clipped": clipped.double().sum(),
    }
