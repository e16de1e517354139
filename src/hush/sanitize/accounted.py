"""The layer that an account was made for: rows are made by a copy of it, whatever happens to the layer in the model.

The density of a release depends on C, the floor, σ, n, the dropout with its place, and the source of the noise. All of
them are fixed when a run starts. A step refuses a layer that has others by now, so that nobody is surprised later; the
copy sees to it that a forward which changes them on its way to the layer changes nothing that is released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hush.errors import Refused
from hush.sanitize.layer import Sanitize, check_training

SETTINGS = ("clip", "floored", "noise_multiplier", "width", "dropout", "place", "draw")


@dataclass(frozen=True, eq=False)
class Accounted:
    """A model's layer, its settings when a run started, and a copy of it that has them."""

    layer: Sanitize
    settings: Mapping[str, Any]
    copy: Sanitize

    @staticmethod
    def of(layer: Sanitize, *, free: tuple[str, ...] = ()) -> Accounted:
        """The layer as it is now; settings that are ``free`` may change in a run. A kind of layer of the user's own is
        refused, for nothing is known of its noise."""
        if type(layer) is not Sanitize:
            raise Refused(
                f"{type(layer).__name__} is a sanitisation layer of another kind, of whose range and noise nothing is "
                "proven: use hush.sanitize.Sanitize itself"
            )
        if layer.draw is not None:
            raise Refused("the layer draws its noise from a function of its own: leave draw out")
        settings = {name: getattr(layer, name) for name in SETTINGS if name not in free}
        floor = 0.0 if layer.floored else None
        how: dict[str, Any] = {"width": layer.width, "dropout": layer.dropout, "place": layer.place}
        copy = Sanitize(layer.clip, layer.noise_multiplier, floor=floor, noisy_evaluation=True, **how)
        return Accounted(layer, settings, copy)

    def check(self) -> None:
        """Refuse a layer that is not what was accounted for."""
        changed = [name for name, value in self.settings.items() if getattr(self.layer, name) != value]
        if changed:
            raise Refused(
                f"{changed[0].replace('_', ' ')} of the sanitisation layer was changed after the run had begun, and "
                "what is released depends on it: make a new plan and run"
            )

    def check_step(self) -> None:
        """The same before a step in which the layer itself adds its noise."""
        check_training(self.layer)
        self.check()

    def bound(self, reached: Tensor) -> Tensor:
        """What reaches the layer, within the range that was accounted for."""
        return self.copy.bound(reached)

    def release(self, reached: Tensor, noise: Tensor) -> Tensor:
        """The same with this standard normal noise at the scale that was accounted for, and with the layer's dropout
        where that is in training."""
        self.copy.train(self.layer.training).draw = lambda _: noise
        try:
            made: Tensor = self.copy(reached)
        finally:
            self.copy.draw = None
        return made
