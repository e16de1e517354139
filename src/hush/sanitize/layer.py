"""The sanitisation layer: clips every activation and adds noise in the forward pass.

At width n every element is clipped to [−C, C] and gets N(0, C²σ²n), or N(0, C²σ²n(1 − p)) with dropout p after it: the
published scale, in which n(1 − p) is the number of elements left *on average*. For a record whose features are
replaced, one forward pass with everything before the layer fixed is a Gaussian with μ = range·√n/std: 2/σ for [−C, C],
1/σ if the layer itself clamps to [0, C] (a ReLU before the layer is not taken into account), and 1/√(1 − p) times as
much with dropout after it, because dropout removes elements on average only. Weights *before* the layer that learn from
its gradients have seen the raw features, and nothing here covers them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush._internal import validate
from hush._internal.settings import DropoutPlace
from hush.accounting.noise_tails import grid
from hush.errors import InvalidInputError, RunStateError, UnsupportedModelError, nearest

Place = DropoutPlace
Draw = Callable[[Tensor], Tensor]
"""Standard normal numbers in the shape and type of a tensor."""


class Sanitize(nn.Module):
    """Clip every element to [−``clip``, ``clip``] and add noise of ``noise_multiplier``·clip·√n.

    ``floor=0`` clamps to [0, clip] instead, which halves the effect of a record. ``width`` is n, the numbers of one
    example; by default the first forward sets it. ``dropout`` acts ``after`` the noise, as in the paper's algorithm and
    with its smaller noise, or ``before`` it, as in the paper's experiments.

    The noise is ``draw(x)``: by default torch's normal numbers, which in a run of hush come, like dropout, from the
    run's secret and the place of each example (`hush.per_example.model_rng`). Evaluation adds no noise unless
    ``noisy_evaluation``. NaN counts as 0, because a value that stays non-finite would be a leak.

    ``clip`` may be changed between epochs (`hush.sanitize.adaptive`). It is stored in the buffer ``threshold``, so
    checkpoints and releases contain it.
    """

    def __init__(
        self,
        clip: float,
        noise_multiplier: float,
        *,
        width: int | None = None,
        floor: float | None = None,
        dropout: float = 0.0,
        place: Place = "after",
        draw: Draw | None = None,
        noisy_evaluation: bool = False,
    ) -> None:
        super().__init__()
        validate.positive(clip=clip, noise_multiplier=noise_multiplier)
        validate.choice(("after", "before"), place_of_dropout=place)
        if width is not None:
            validate.positive_int(width=width)
        if floor not in (None, 0):
            raise InvalidInputError(f"the floor of a sanitisation layer is 0, or none for −clip, got {floor!r}")
        if dropout:
            validate.probability(dropout=dropout)
        self.threshold: Tensor
        self.register_buffer("threshold", torch.tensor(float(clip), dtype=torch.float64))
        self.noise_multiplier, self.width = float(noise_multiplier), width
        self.floored, self.dropout, self.place = floor is not None, float(dropout), place
        self.draw, self.noisy_evaluation = draw, noisy_evaluation

    def extra_repr(self) -> str:
        """Its settings."""
        low = "0" if self.floored else f"−{self.clip:g}"
        noise = f"noise_multiplier={self.noise_multiplier:g}, width={self.width or 'from the first forward'}"
        return f"[{low}, {self.clip:g}], {noise}, dropout={self.dropout:g} {self.place}"

    @property
    def clip(self) -> float:
        """C, the upper end of the range."""
        return float(self.threshold)

    @clip.setter
    def clip(self, value: float) -> None:
        validate.positive(clip=value)
        self.threshold.fill_(value)

    @property
    def low(self) -> float:
        """The lower end of the range: −C, or 0."""
        return 0.0 if self.floored else -self.clip

    @property
    def kept(self) -> float:
        """1 − p with dropout after the noise, else 1: the share of elements that the published scale counts."""
        return 1.0 - self.dropout if self.place == "after" else 1.0

    @property
    def noise_std(self) -> float:
        """Cσ√(n(1 − p)) of one coordinate."""
        return self.clip * self.noise_multiplier * math.sqrt(self._known_width() * self.kept)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves one release at most, in L2 norm: the range times √n."""
        return (self.clip - self.low) * math.sqrt(self._known_width())

    @property
    def mu(self) -> float:
        """What one release of a record costs under replace: range·√n/std, whatever C and n are."""
        return (1.0 if self.floored else 2.0) / (self.noise_multiplier * math.sqrt(self.kept))

    def forward(self, x: Tensor) -> Tensor:
        """Dropout, clip and noise, in the order that ``place`` says."""
        self.set_width(x.shape[1:])
        own = x.dtype
        if self.place == "before":
            x = functional.dropout(x, self.dropout, self.training)
        x = self.bound(x)
        if self.training or self.noisy_evaluation:
            x = self.noised(x)
        if self.place == "after":
            x = functional.dropout(x, self.dropout, self.training)
        return x.to(own)

    def bound(self, x: Tensor) -> Tensor:
        """Every element within the range, one that is not a number 0."""
        return clamp(x, *self.range)

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """Both ends of the range."""
        high = self.threshold.detach().clone()
        return torch.zeros_like(high) if self.floored else -high, high

    def noised(self, x: Tensor) -> Tensor:
        """With its noise. It is added in double precision and rounded to the public grid of the noise
        (`hush.noise.base`): last bits would show what it was added to. The gradient is that of adding a constant."""
        precise = x.double()
        draw = torch.randn_like if self.draw is None else self.draw
        spacing = grid(self.noise_std)
        noisy = ((precise.detach() + self.noise_std * draw(precise.detach())) / spacing).round() * spacing
        return (noisy + (precise - precise.detach())).to(x.dtype)

    def set_width(self, shape: Sequence[int]) -> None:
        """Rows have this shape; raises if the layer has another width."""
        found = math.prod(shape)
        if self.width is None:
            self.width = found
        if found != self.width:
            raise InvalidInputError(
                f"the sanitisation layer expects {self.width} numbers per example and got {found}, so its noise would "
                f"have the wrong scale: give it width={found}, or move it"
            )

    def _known_width(self) -> int:
        if self.width is None:
            raise InvalidInputError(
                "the width of the sanitisation layer is not known before its first forward: give width=…"
            )
        return self.width


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Every element in [low, high], NaN as 0; at least in single precision, in which C has all of its digits but the
    last."""
    x = x if x.dtype == torch.float64 else x.float()
    return torch.where(x.isnan(), torch.zeros_like(x), x).clamp(low.to(x), high.to(x))


def insert(model: nn.Module, name: str, layer: Sanitize) -> nn.Module:
    """The model with ``layer`` after its module of this name; the model is changed in place, and returned.

    The module gives way to ``nn.Sequential(inner=module, sanitize=layer)``, so its parameters are now named
    ``NAME.inner.…``. The empty name is the model itself, for which a new one is returned. A module that is reached
    under two names is refused, since its other uses would go on without the noise.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    if name not in known:
        raise InvalidInputError(f"the model has no module '{name}': {nearest(name, filter(None, known))}")
    chosen = known[name]
    if any(isinstance(module, Sanitize) for module in chosen.modules()):
        raise InvalidInputError(
            f"there is a sanitisation layer at '{name or 'the model'}' already: one record, one release"
        )
    if Counter(map(id, known.values()))[id(chosen)] > 1:
        raise InvalidInputError(
            f"module '{name}' is used at several places of the model, and the others would go on without noise: "
            "give each place a module of its own"
        )
    pair = nn.Sequential()
    pair.add_module("inner", chosen)
    pair.add_module("sanitize", layer)
    if not name:
        return pair
    parent, _, last = name.rpartition(".")
    known[parent].register_module(last, pair)
    return model


def check_kind(layer: Sanitize) -> None:
    """Raise on a layer of another kind, or with noise of its own, of which nothing is known."""
    if type(layer) is not Sanitize:
        raise UnsupportedModelError(
            f"{type(layer).__name__} is a subclass of Sanitize without a proof for its range and noise: use "
            "hush.sanitize.layer.Sanitize itself"
        )
    if layer.draw is not None:
        raise UnsupportedModelError("the layer draws its noise from a custom function: leave draw out")


def check_training(layer: Sanitize) -> None:
    """Refuse a step in which the layer adds no noise."""
    if not (layer.training or layer.noisy_evaluation):
        raise RunStateError(
            "the sanitisation layer is in evaluation mode and adds no noise: call model.train() before run.step"
        )


def find_layer(model: nn.Module) -> tuple[str, Sanitize]:
    """The name and the sanitisation layer of a model, which has exactly one."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, Sanitize)]
    if len(found) != 1:
        raise InvalidInputError(
            f"the model has {len(found)} sanitisation layers where one was expected: put one in place with "
            "hush.sanitize.layer.insert(model, 'module.name', layer)"
        )
    return found[0]
