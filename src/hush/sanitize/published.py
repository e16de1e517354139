"""The sanitisation layer as it was published: plain gradients through the whole model, noise in the layer alone.

Its ε is DP-SGD's for Poisson batches of rate L/N, by Rényi accounting: a formula for sums of clipped gradients, of
which there are none here. No proof is known, for the reasons in `CLAIMED`, and `tests/sanitize/test_leak.py` shows how
the first of them is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn

from hush import validate
from hush.named import Losses, Named, State, Sums
from hush.queries.plain import PlainSum
from hush.queries.query import Channel, Claim, Query, Start
from hush.release import Release
from hush.sampling import Participation
from hush.sanitize.accounted import Accounted
from hush.sanitize.cut import count_numbers, find_cut
from hush.sanitize.layer import check_training, find_layer
from hush.sanitize.released import ROWS, UNBOUNDED, check_range
from hush.sanitize.stopping import sum_spreads
from hush.source import Source

CLAIMED = (
    "the weights before the layer learn from the raw features, and no noise covers them: whoever has the released "
    "model can read from them what only one person's record contains; beside that, a clamp to [−C, C] lets a record "
    "move by 2C where C was counted, every record is released by itself and not in a sum that would hide it, batches "
    "are fixed parts of the data and were counted as coin flips, and noise that is less by the share of dropout holds "
    "on average only; labels are not protected at all"
)


@dataclass(frozen=True)
class Published:
    """Σ gᵢ by an ordinary backward pass through the noisy layer; ``rate`` is L/N."""

    rate: float
    nonnegative: bool = False
    layer: Accounted | None = None  # once a run has a model

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The activations of a step, which get noise in the layer; the gradient, which gets none."""
        return {"rows": ROWS, "gradient": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The layer gets the plan's noise, as published: Cσ√(n(1 − p))."""
        layer = find_cut(start.model, start.source).layer
        check_range(layer, self.nonnegative)
        layer.noise_multiplier = start.noise_std["rows"]
        return replace(self, layer=Accounted.of(layer)), start.source

    def make_ready(self, step: int) -> None:
        """Nothing is computed before the first step."""

    def recall(self, public: State) -> None:
        """Nothing of the model depends on it."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """n, the width of the layer."""
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        """In every step, as far as anybody knows."""
        return steps

    def init(self, params: Named) -> tuple[State, State]:
        """No state."""
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The gradient of the piece's summed loss; beside it the spread of the noisy outputs, which a stop looks at."""
        layer = find_layer(model)[1]
        check_training(layer)
        if self.layer is not None:
            self.layer.check()
        spreads: list[Tensor] = []
        hook = layer.register_forward_hook(lambda module, given, out: spreads.append(sum_spreads(out)))
        try:
            sums = PlainSum().piece(model, losses, content, public)
        finally:
            hook.remove()
        sums["diagnostics"] |= {"spread": torch.stack(spreads).sum()} if spreads else {}
        return sums

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: Release, update: Named, public: State) -> State:
        """Nothing to learn from it."""
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """The paper's formula, whatever the batches are."""
        sampled = dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(noise_std["rows"]))
        event = dp_event.SelfComposedDpEvent(sampled, steps)
        return (Claim(event, "add-remove", "claimed", CLAIMED, "features"),)
