"""Training on noisy activations: rows that are released once (`sanitize-once`), and the published layer (`sanitize`).

Rows released once:

Theorem. Let φ not depend on the private features: random, frozen, or trained on public data. Let every record i give
yᵢ = clamp(φ(xᵢ)) + s·zᵢ with s = Cσ√n, n numbers each clamped to [−C, C] and all z independent standard normal. Then
everything computed from all yᵢ, all labels, and the membership of the data is μ-Gaussian private with μ = 2/σ for the
features of one record being replaced by any others (1/σ where the layer clamps to [0, C]).

Proof. Neighbours X, X′ have the same labels and the same number of records, and differ in xᵢ for one i. φ is the same
function for both. All yⱼ with j ≠ i have the same distribution under both and are independent of yᵢ. yᵢ is a Gaussian
of n coordinates with standard deviation s, around a or a′, where each coordinate of a − a′ is at most 2C (or C) in
absolute value: ‖a − a′‖ ≤ 2C√n. So the two are 2C√n/(Cσ√n) = 2/σ standard deviations apart, for any C and n. Batches,
gradients, updates and stops are functions of the y, the labels and coins that are independent of the features:
post-processing. ∎

φ maps each record alone, and is the same function for all of them, by construction: it is a traced graph
(`hush.sanitize.front`). No parameter of it is trained. C, n and σ are read when a run starts; the rows are computed
once with these numbers, and later changes to the layer do not reach them. Every row is rounded to the public grid of
its noise (`hush.noise.base`).

Sampling amplifies nothing: every record is released. The dropout factor 1 − p of the published noise is not used here,
because it is an average: the noise is Cσ√n for any dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.settings import LAYER_WIDTH
from hush._internal.tensors import Losses, State, Sums
from hush.accounting.noise_tails import Tails, grid
from hush.clipping import Claim, PlainSum
from hush.data_release import ComposedRelease, DataRelease, ReleasedData, TrainingData, Values
from hush.data_source import Source
from hush.errors import InvalidInputError, RunStateError
from hush.noise.base import add_noise
from hush.randomness import BLOCK, Secret, normal, streams
from hush.sanitize.adaptive import AdaptiveThreshold
from hush.sanitize.front import (
    Front,
    Head,
    HeadLosses,
    check_batch_norm,
    check_frozen,
    take_nothing,
    trace_front,
    with_part,
)
from hush.sanitize.layer import Sanitize, check_kind, check_training, clamp, find_layer

PIECE = 32 * BLOCK  # numbers of noise at a time
ROUNDED_UP = 1 + 2.0**-20  # more than the rounding of C in the model's type and of the product
REASON = (
    "every record's features are released once with noise of their own and only that is trained on; labels, and who "
    "is in the data, are not protected"
)
FRONT = "the layers before the sanitisation layer were made without looking at the training rows"


def _clamp_range(nonnegative: bool) -> float:
    """The largest change of a row by one record, in units of C√n: the range of the clamp divided by C."""
    return 1.0 if nonnegative else 2.0


@dataclass(frozen=True)
class SanitizedFeatures:
    """Training of the part after the layer on rows that are released once; ``nonnegative``: clamped to [0, C]."""

    nonnegative: bool = False
    assumptions: tuple[str, ...] = (FRONT,)

    def claims(self, sigma: float, steps: int) -> tuple[Claim, ...]:
        """One Gaussian with μ = 2/σ (or half of it), for any number of steps."""
        event = dp_event.GaussianDpEvent(sigma / _clamp_range(self.nonnegative))
        return (Claim(event, "replace", "proven", REASON, "features"),)

    def find_tails(self, sigma: float, numbers: int) -> Tails:
        """One release of the n numbers of a record."""
        return Tails(numbers, 1, _clamp_range(self.nonnegative) / sigma)

    def bind(self, model: nn.Module, losses: Losses, source: Source, sigma: float) -> TrainingData:
        """Cut the model at its layer, which gets its noise, and put released rows in the place of the features."""
        layer, like = find_layer(model)[1], take_nothing(source)
        check_kind(layer)
        check_range(layer, self.nonnegative)
        check_batch_norm(model)
        front = trace_front(model, like)
        check_frozen(model, front)
        layer.set_width(front.shape)
        layer.noise_multiplier = ROUNDED_UP * sigma / math.sqrt(layer.kept)
        rows = RowNoise(front, source, layer.range, layer.noise_std)
        (claim,) = self.claims(sigma, 1)
        stated = ComposedRelease("every record's features with noise", claim.event, claim.adjacency)
        part = DataRelease(streams.ROWS, stated, rows.draw, rows.content)

        def put(content: Any, values: Values, indices: Tensor) -> Any:
            none = torch.empty(0, *front.shape)
            return with_part(content, 0, values["rows"][indices] if len(indices) else none)

        numbers = math.prod(front.shape)
        return TrainingData(HeadLosses(losses, Head(model, like)), ReleasedData(part, source, put), numbers)


@dataclass(eq=False)
class RowNoise:
    """The clamped rows of all records, computed once, and their noise of standard deviation ``std``."""

    front: Front
    source: Source
    range: tuple[Tensor, Tensor]
    std: float
    _bounded: Tensor | None = None

    def compute(self) -> Tensor:
        """The clamped rows, without noise: private."""
        if self._bounded is None:
            self._bounded = self.front.compute(self.source, lambda row: clamp(row, *self.range))
        return self._bounded

    def content(self) -> Iterable[bytes]:
        """The bytes that noise is added to, and its scale."""
        yield repr((*map(float, self.range), self.std)).encode()
        yield self.compute().numpy().tobytes()

    def draw(self, secret: Secret) -> Values:
        """The rows with their noise."""
        bounded = self.compute()
        rows = bounded.double()
        add_noise([rows], self._noise(secret, rows.numel()), self.std, grid(self.std), 1.0)
        return {"rows": rows.to(bounded.dtype)}

    def _noise(self, secret: Secret, size: int) -> Iterator[Tensor]:
        for start in range(0, size, PIECE):
            like = torch.empty(1, dtype=torch.float64).expand(min(PIECE, size - start))
            yield normal(secret, streams.ROWS, 0, like, start)


def check_range(layer: Sanitize, nonnegative: bool) -> None:
    """Raise if the layer's range differs from the accounted one."""
    if layer.floored != nonnegative:
        has, asked = ("[0, C]", "[−C, C]") if layer.floored else ("[−C, C]", "[0, C]")
        raise InvalidInputError(
            f"the layer clamps to {has} and the plan was accounted for {asked}: make both the same "
            f"(nonnegative={layer.floored} on the method, or floor={'None' if layer.floored else '0'} on the layer)"
        )


# The sanitisation layer as it was published: ordinary training of the whole model, with noise in the layer alone.
#
# Its ε is that of DP-SGD with Poisson batches of rate L/N, by Rényi accounting: a formula for sums of clipped
# gradients, which do not occur here. No proof is known, for the reasons in `CLAIMED`;
# `tests/sanitize/test_privatised.py` exploits the first of them.

CLAIMED = (
    "the weights before the layer learn from the raw features, and no noise covers them: whoever has the released "
    "model can read from them what only one person's record contains; beside that, a clamp to [−C, C] lets a record "
    "move by 2C where C was counted, every record is released by itself and not in a sum that would hide it, batches "
    "are fixed parts of the data and were counted as coin flips, and noise that is less by the share of dropout holds "
    "on average only; labels are not protected at all"
)


@dataclass(frozen=True)
class PublishedLayer:
    """Ordinary training through the noisy layer, with the published claim; ``rate`` is L/N.

    With a ``threshold`` C follows the weights: it is set before training and after every ``per_epoch`` steps."""

    rate: float
    nonnegative: bool = False
    threshold: AdaptiveThreshold | None = None
    per_epoch: int = 1
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)
        validate.positive_int(steps_of_an_epoch=self.per_epoch)

    def claims(self, sigma: float, steps: int) -> tuple[Claim, ...]:
        """The paper's formula, for any batches; C does not occur in it."""
        sampled = dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(sigma))
        event = dp_event.SelfComposedDpEvent(sampled, steps)
        return (Claim(event, "add-remove", "claimed", CLAIMED, "features"),)

    def find_tails(self, sigma: float, numbers: int) -> None:
        """Not part of the published claim."""

    def bind(self, model: nn.Module, losses: Losses, source: Source, sigma: float) -> TrainingData:
        """The layer gets the plan's noise, as published: Cσ√(n(1 − p))."""
        layer = find_layer(model)[1]
        check_kind(layer)
        check_range(layer, self.nonnegative)
        self.scale_noise(layer, sigma)
        threshold = self.threshold
        if threshold is None:
            return TrainingData(_SameLayer.of(losses, layer, SETTINGS), source)
        threshold.adapt(model)

        def adapt(record: Any) -> None:
            if (record.step + 1) % self.per_epoch == 0:
                threshold.adapt(model)

        fixed = tuple(name for name in SETTINGS if name != "clip")
        return TrainingData(_SameLayer.of(losses, layer, fixed), source, after_step=(adapt,))

    def scale_noise(self, layer: Sanitize, sigma: float) -> None:
        """Cσ√(n(1 − p)) for every number."""
        layer.noise_multiplier = sigma


@dataclass(frozen=True)
class PerNumberLayer(PublishedLayer):
    """Another reading of the publication: noise of standard deviation Cσ for each of the ``width`` numbers of a record.

    The publication counts a sensitivity of C√n, to which this is a noise multiplier of σ/√n: that is claimed."""

    width: int = LAYER_WIDTH

    def claims(self, sigma: float, steps: int) -> tuple[Claim, ...]:
        """The paper's formula at σ/√n."""
        return super().claims(sigma / math.sqrt(self.width), steps)

    def scale_noise(self, layer: Sanitize, sigma: float) -> None:
        """Cσ for every number, also with dropout."""
        layer.set_width((self.width,))
        layer.noise_multiplier = sigma / math.sqrt(self.width * layer.kept)


SETTINGS = ("clip", "floored", "noise_multiplier", "dropout", "place", "draw")


@dataclass(frozen=True, eq=False)
class _SameLayer:
    """Losses that raise if the layer is not the one that the claim was made for."""

    losses: Losses
    layer: Sanitize
    settings: Mapping[str, Any]

    @staticmethod
    def of(losses: Losses, layer: Sanitize, names: Iterable[str]) -> _SameLayer:
        return _SameLayer(losses, layer, {name: getattr(layer, name) for name in names})

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        changed = [name for name, value in self.settings.items() if getattr(self.layer, name) != value]
        if changed:
            raise RunStateError(
                f"{changed[0].replace('_', ' ')} of the sanitisation layer was changed after the run had started, and "
                "the release depends on it: make a new plan and run"
            )
        return self.losses(model, content)


@dataclass(frozen=True)
class SpreadSum(PlainSum):
    """The plain sum of gradients through a noisy layer, and the spread of the layer's outputs for early stopping."""

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        layer = find_layer(model)[1]
        check_training(layer)
        spreads: list[Tensor] = []
        hook = layer.register_forward_hook(lambda module, given, out: spreads.append(sum_spreads(out)))
        try:
            sums = super().piece(model, losses, content, public)
        finally:
            hook.remove()
        sums["diagnostics"] |= {"spread": torch.stack(spreads).sum()} if spreads else {}
        return sums


def sum_spreads(outputs: Tensor) -> Tensor:
    """Σ over the examples of the standard deviation of each one's noisy outputs."""
    return outputs.detach().flatten(1).double().std(dim=1, correction=0).sum()
