"""Training on released rows: `sanitize-once` and `sanitize-frozen` here, `sanitize-published` and `sanitize-hybrid`
below.

Rows released once, or k times each:

Theorem. Let φ not depend on the private features: random, frozen, or trained on public data. Let every record i give
yᵢᵣ = clamp(φ(xᵢ)) + s·zᵢᵣ for r = 1 … k, with s = Cσ√n, n numbers each clamped to [−C, C] and all z independent
standard normal. Then everything computed from all yᵢᵣ, all labels, and the membership of the data is μ-Gaussian
private with μ = 2√k/σ for the features of one record being replaced by any others (√k/σ where the layer clamps to
[0, C]).

Proof. Neighbours X, X′ have the same labels and the same number of records, and differ in xᵢ for one i. φ is the same
function for both. All yⱼᵣ with j ≠ i have the same distribution under both and are independent of the yᵢᵣ. The k
vectors yᵢᵣ together are one Gaussian of k·n coordinates with standard deviation s, around a or a′, where each
coordinate of a − a′ is at most 2C (or C) in absolute value: ‖a − a′‖ ≤ √k·2C√n. So the two are
√k·2C√n/(Cσ√n) = 2√k/σ standard deviations apart, for any C and n. Batches, gradients, updates and stops are
functions of the y, the labels and coins that are independent of the features: post-processing. ∎

φ maps each record alone by construction: the rows are computed in batches of one (`ReleasedRows`). That no trained
parameter changes φ is checked before a run starts (`hush.sanitize.split_model`). If one did so for inputs that were not
tried, rows recomputed after a resume would come from a φ that depends on earlier releases, which the composition of
Gaussians allows. A digest of the released rows, stored with the run's state, shows that the same noise is added to the
same rows again.

So k releases at σ equal one release at σ/√k, and sampling amplifies nothing: every record is released. The dropout
factor 1 − p of the published noise is not used here, because it is an average: the noise is Cσ√n for any dropout.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, Named, State, Sums, trainable
from hush.accounting.gaussian import Participating
from hush.accounting.noise_tails import grid
from hush.clipping.base import Channel, Claim, Query, Start
from hush.clipping.clipped import Clipping, clip_factors, diagnostics, total_norms
from hush.clipping.unclipped import PlainSum, sum_gradients
from hush.data_source import Source
from hush.errors import InvalidInputError, NotProvenError, ResumeError, RunStateError, UnsupportedModelError
from hush.noise.base import NoisyGradient, add_noise
from hush.per_example.augmentation import make_rewinder
from hush.per_example.engine import CheckedLosses
from hush.per_example.functional import recording
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_checks import ModelStateGuard
from hush.per_example.model_rng import draw_noise
from hush.randomness import BLOCK, Secret, normal, seeded, streams
from hush.sampling import OnePass, Participation, PoissonSampled, Reshuffled, SameOrder, WithoutReplacement
from hush.sanitize.early_stopping import sum_spreads
from hush.sanitize.layer import FrozenLayer, Sanitize, check_training, find_layer
from hush.sanitize.side_effects import ModelSnapshot
from hush.sanitize.split_model import (
    Head,
    SplitLoss,
    SplitModel,
    check_frozen,
    check_independent,
    check_no_bypass,
    check_stateless,
    check_used_once,
    count_numbers,
    evaluating,
    find_cut,
    find_engine,
    find_head_parameters,
    first_of,
    forward_to_layer,
    with_inputs,
)

# Released rows, which replace the data they were computed from.
#
# Release r of record i is yᵢ = [clamp(φ(xᵢ)) + Cσ√n·zᵢᵣ], where φ is the part before the layer and [·] rounds to the
# public grid of the noise (`hush.noise.base`). The noise is that of (secret, "rows", r), so a resumed run releases the
# same rows again and spends nothing. Nothing is released before the first step requests rows, after a ledger has been
# charged.
#
# φ(xᵢ) is a function of record i and of public values. By construction: record i is read and passes φ in a batch of
# one, which has the same shape for every record, so neither a branch on the batch nor a kernel's rounding depends on
# another record, and all draws of φ come from the same public seed for each record. By checks: what a forward leaves in
# the model's attributes is removed after each record, and a model in which it changes buffers, weights, a class, or the
# content of lists, objects and generators raises before anything is released (`hush.sanitize.side_effects`). State in a
# global variable or a file is not detected. The clamp is that of the layer as it was accounted for
# (`hush.sanitize.layer`).

PIECE = 32 * BLOCK  # numbers of noise at a time
PATIENCE = 2.0  # seconds until the first progress message
DIGEST = 4  # 64-bit numbers in the digest of a release


@dataclass(eq=False)
class ReleasedRows:
    """A source of released rows with their labels; ``releases`` of each record, the next after ``turn`` steps."""

    cut: SplitModel
    source: Source
    secret: Callable[[], Secret]
    std: float
    releases: int
    turn: int
    layer: FrozenLayer = field(init=False, repr=False)
    _bounded: Tensor | None = field(default=None, repr=False)
    _released: tuple[int, bytes, Tensor] | None = field(default=None, repr=False)
    _digest: Tensor = field(default_factory=lambda: torch.zeros(DIGEST, dtype=torch.int64), repr=False)
    _number: int = 0

    def __post_init__(self) -> None:
        self.layer = FrozenLayer.of(self.cut.layer)

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Any:
        """Released rows and their labels; without indices nothing is released."""
        content = self.source.take(indices)
        return with_inputs(content, self.release()[indices] if len(indices) else torch.empty(0, *self.cut.shape))

    def make_ready(self, step: int) -> None:
        """Select the release of this step. The rows are computed here, so that errors occur before a ledger is
        charged."""
        self._number = step // self.turn % self.releases
        self._compute_once()

    def release(self) -> Tensor:
        """All rows of the current release, on the CPU."""
        secret = self.secret()
        if self._released is None or self._released[:2] != (self._number, secret.key):
            self._released = self._number, secret.key, self._add_noise(secret)
            self._digest = digest_rows(self._released[2])
        return self._released[2]

    def note(self, digests: Tensor) -> Tensor:
        """The digests of the releases so far, including the current one."""
        if self._released is None or self._released[0] != self._number:
            return digests
        noted = digests.clone()
        noted[self._number] = self._digest
        return noted

    def check(self, digests: Tensor) -> None:
        """Raise if the rows differ from those that this run released before: with the same noise, their difference
        would be free of noise."""
        self.layer.check()
        before = digests[self._number].cpu()
        self.release()
        if bool(before.any()) and not torch.equal(before, self._digest):
            raise ResumeError(
                "the recomputed rows differ from those that this run released (another clip or width, other code or "
                "another machine), and the same noise on different rows would reveal their difference: resume with the "
                "original settings, or start a new run"
            )

    def _add_noise(self, secret: Secret) -> Tensor:
        bounded = self._compute_once()
        rows = bounded.double()
        add_noise([rows], self._draw(secret, rows.numel()), self.std, grid(self.std), 1.0)
        return rows.to(bounded.dtype)

    def _draw(self, secret: Secret, size: int) -> Iterator[Tensor]:
        for start in range(0, size, PIECE):
            like = torch.empty(1, dtype=torch.float64).expand(min(PIECE, size - start))
            yield normal(secret, streams.ROWS, self._number, like, start)

    def _compute_once(self) -> Tensor:
        if self._bounded is None:
            self._bounded = self._compute()
        return self._bounded

    def _compute(self) -> Tensor:
        """The clamped row of every record, each computed in its own batch."""
        self.layer.check()
        model, parts = self.cut.model, []
        shown = time.monotonic()
        untouched = ModelStateGuard(model, trainable(model)).during_forward(complete=True)
        with seeded(0), torch.no_grad(), evaluating(model), untouched, recording(model, {}):
            rewind, found = make_rewinder(next(model.parameters()).device), ModelSnapshot(model)
            for number in range(len(self)):
                if time.monotonic() - shown > PATIENCE:
                    shown = time.monotonic()
                    sys.stderr.write(f"releasing rows: {number} of {len(self)} records\n")
                rewind()
                parts.append(self._compute_alone(number))
                self.layer.check()
                found.put_back()
        return torch.cat(parts)

    def _compute_alone(self, number: int) -> Tensor:
        """The row of one record, independent of all others."""
        model = self.cut.model
        content = self.source.take(torch.tensor([number]))
        inputs = first_of(content).to(next(model.parameters()).device)
        found = self.layer.bound(forward_to_layer(model, self.cut.layer, inputs)).cpu()
        if found.shape != (1, *self.cut.shape):
            raise InvalidInputError(
                "records of different shapes cannot be released as rows of one width: pad them to one shape"
            )
        return found


def digest_rows(rows: Tensor) -> Tensor:
    """BLAKE2b of the bytes of released rows, as integers."""
    raw = hashlib.blake2b(rows.contiguous().numpy().tobytes(), digest_size=8 * DIGEST).digest()
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).clone()


ROWS = Channel(1.0, proof="rows", exact=True)  # in units of C√n, half of a record's largest change
UNBOUNDED = Channel(math.inf, proof="released", exact=True)
ROUNDED_UP = 1 + 2.0**-20  # more than the rounding of C in the model's type and of the product
REASON = (
    "every record's features are released {times} with noise of their own and only that is trained on; labels, and who "
    "is in the data, are not protected"
)


@dataclass(frozen=True)
class Released:
    """Plain gradients of the part after the layer, on rows that are released ``releases`` times each.

    ``nonnegative``: the layer clamps to [0, C]. Every ``turn`` steps the next release is used, cyclically."""

    releases: int = 1
    turn: int = 1
    nonnegative: bool = False
    cut: SplitModel | None = None  # once a run has a model
    rows: ReleasedRows | None = None

    def __post_init__(self) -> None:
        validate.positive_int(releases=self.releases, turn=self.turn)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The rows, with noise, and the gradient, which is computed from released rows and needs none."""
        return {"rows": ROWS, "gradient": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """Split the model at its layer, and replace the data by released rows."""
        cut = find_cut(start.model, start.source)
        check_range(cut.layer, self.nonnegative)
        check_frozen(cut)
        check_independent(cut, training=False)
        set_noise(cut.layer, start.noise_std["rows"])
        rows = ReleasedRows(cut, start.source, start.secret, cut.layer.noise_std, self.releases, self.turn)
        return replace(self, cut=cut, rows=rows), rows

    def make_ready(self, step: int) -> None:
        if self.rows is not None:
            self.rows.make_ready(step)

    def recall(self, public: State) -> None:
        """Nothing to restore in the model."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        return self.releases

    def init(self, params: Named) -> tuple[State, State]:
        """Public state: a digest of every release, zero before it is made."""
        return {"releases": torch.zeros(self.releases, DIGEST, dtype=torch.int64)}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        if self.cut is None or self.rows is None:
            raise RunStateError("rows are released only within a run: start the plan")
        self.rows.check(public["releases"])
        return sum_gradients(Head(self.cut), trainable(model), losses, content)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public if self.rows is None else {"releases": self.rows.note(public["releases"])}

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian with μ = 2√k/σ (or half of it), for any number of steps."""
        mu = clamp_range(self.nonnegative) * math.sqrt(self.releases) / noise_std["rows"]
        times = "once" if self.releases == 1 else f"{self.releases} times"
        event = dp_event.GaussianDpEvent(1 / mu)
        return (Claim(event, "replace", "proven", REASON.format(times=times), "features"),)


def clamp_range(nonnegative: bool) -> float:
    """The largest change of a row by one record, in units of C√n: the range of the clamp divided by C."""
    return 1.0 if nonnegative else 2.0


def check_range(layer: Sanitize, nonnegative: bool) -> None:
    """Raise if the layer's range differs from the accounted one."""
    if layer.floored != nonnegative:
        has, asked = ("[0, C]", "[−C, C]") if layer.floored else ("[−C, C]", "[0, C]")
        raise InvalidInputError(
            f"the layer clamps to {has} and the plan was accounted for {asked}: make both the same "
            f"(nonnegative={layer.floored} on the method, or floor={'None' if layer.floored else '0'} on the layer)"
        )


def set_noise(layer: Sanitize, sigma: float) -> None:
    """Give the layer noise of Cσ√n: undo the reduction for dropout in the published noise."""
    layer.noise_multiplier = ROUNDED_UP * sigma / math.sqrt(layer.kept)


# The sanitisation layer as it was published: plain gradients through the whole model, noise in the layer alone.
#
# Its ε is that of DP-SGD with Poisson batches of rate L/N, by Rényi accounting: a formula for sums of clipped
# gradients, which do not occur here. No proof is known, for the reasons in `CLAIMED`; `tests/sanitize/test_leak.py`
# exploits the first of them.

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
    layer: FrozenLayer | None = None  # once a run has a model

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.rate)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The activations of a step, which get noise in the layer, and the gradient, which gets none."""
        return {"rows": ROWS, "gradient": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The layer gets the plan's noise, as published: Cσ√(n(1 − p))."""
        layer = find_cut(start.model, start.source).layer
        check_range(layer, self.nonnegative)
        layer.noise_multiplier = start.noise_std["rows"]
        return replace(self, layer=FrozenLayer.of(layer)), start.source

    def make_ready(self, step: int) -> None:
        """Nothing is computed before the first step."""

    def recall(self, public: State) -> None:
        """Nothing to restore in the model."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        """Assumes one release per step: no better bound is known."""
        return steps

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The gradient of the piece's summed loss, and the spread of the noisy outputs for early stopping."""
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
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """The paper's formula, for any batches."""
        sampled = dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(noise_std["rows"]))
        event = dp_event.SelfComposedDpEvent(sampled, steps)
        return (Claim(event, "add-remove", "claimed", CLAIMED, "features"),)


# `sanitize-hybrid`: layers before by clipped noisy gradients, the head on released activations, as one event.
#
# Step t on a batch B_t, with weights θ before the layer and ω after it, both from earlier steps:
#
#     aᵢ = clamp(φ_θ(xᵢ))          n numbers in [−C, C]
#     yᵢ = aᵢ + C·s_a·√n·zᵢ        for every i in B_t: the rows of the step
#     ℓᵢ = loss of head_ω(yᵢ) for labelᵢ
#     g̃  = Σ clip(∂ℓᵢ/∂θ, c) + c·s_g·z
#     h is the sum of ∂ℓᵢ/∂ω
#
# θ is updated by g̃ and ω by h. B_t is drawn by coins that are independent of the features.
#
# Theorem. For the features of one record being replaced by any others, with labels, membership and all B_t known, a run
# in which that record takes part at most k times is μ-Gaussian private with μ² = k·(4/s_a² + 4/s_g²); 1/s_a² in place
# of 4/s_a² where the layer clamps to [0, C].
#
# Proof. Let i be the record, and fix all B_t. Write a step as two releases, Y = (yⱼ) and then g̃; its output is a
# function of both, the labels and what was released before.
#
# 1. Y, given everything released before (so given θ, ω). For j ≠ i the distribution of yⱼ is the same for both
#    neighbours, because φ_θ is one function applied to each record in a batch of its own: mapped by torch.func, which
#    has no path from one record to another, or one by one (`find_engine`). All records have one public shape, which no
#    record's length decides, and leave no state in the model or the losses (`hush.sanitize.side_effects`). What the
#    losses keep of their second run is a function of released rows. C, s_a and n are those that the run started with
#    (`hush.sanitize.layer`), and zᵢ has its own stream. yᵢ is a Gaussian with standard deviation C·s_a·√n around aᵢ or
#    aᵢ′, with ‖aᵢ − aᵢ′‖ ≤ 2C√n (C√n for [0, C]): 2/s_a standard deviations if i is in B_t, and 0 otherwise.
# 2. h, given Y. ∂ℓⱼ/∂ω depends on yⱼ, the label, ω and coins (dropout): the losses run on inputs of zeros with the
#    layer returning yⱼ, and in the run that computed yⱼ the weights ω were constants (`hush.sanitize.split_model`).
#    However often that run passes the layer, it returns only yⱼ. So h is post-processing of Y, by construction.
# 3. g̃, given everything released before *and* Y. ∂ℓⱼ/∂θ = (∂aⱼ/∂θ)ᵀ·∂ℓⱼ/∂yⱼ, where ∂ℓⱼ/∂yⱼ is known from Y, and
#    ∂aⱼ/∂θ is a function of xⱼ and θ. It is clipped to norm c for each record alone. Given Y and all earlier releases,
#    the sums of the neighbours differ in the one addend of i, by at most 2c; the noise is independent of that of Y:
#    2/s_g standard deviations if i is in B_t, and 0 otherwise. A parameter that the layer's input depends on belongs to
#    θ with its whole gradient, wherever else it is used, and so does every other parameter that is not reached through
#    the rows alone (`find_head_parameters`). Synthetic inputs decide which these are; the theorem holds for every
#    choice.
# 4. Releases that are each a Gaussian mechanism with μ_m given all earlier ones, with all μ_m fixed in advance, compose
#    to μ² = Σ μ_m² (Dong, Roth, Su 2022, corollary 3.3, adaptively). The batches determine who takes part when; k
#    participations give k·(4/s_a² + 4/s_g²). ∎
#
# Batches in a new order every epoch, or always in the same order: k is the number of epochs begun. Poisson or
# fixed-size batches: K ~ Binomial(T, q) participations, by coins that are independent of the features. For each outcome
# of the coins (4) holds with k = K, and the hockey-stick divergence is jointly convex, so
#
#     δ(ε) ≤ E_K δ_Gauss(ε; √K·√(4/s_a² + 4/s_g²))
#
# whether or not the attacker sees the coins. Sampling amplifies nothing beyond that: yᵢ alone shows who is in a batch.
# Membership is public here, so both neighbours have the same coins: `replace`, never add-remove.
#
# The plan's σ covers both together: s_a = s_g = √2·σ, so a participation costs μ = 2/σ (less for [0, C]).

PROVEN = (
    "activations are released with noise of their own, and the layers before them learn from clipped gradients with "
    "noise; both are counted for every batch a record is in; labels, and who is in which batch, are not protected"
)


@dataclass(frozen=True)
class Hybrid:
    """Clipped gradients for the part before the layer, plain ones for the part after it, on the noisy rows of a
    step."""

    clipping: Clipping
    nonnegative: bool = False
    apart: SplitLoss | None = None  # the losses, once a run has a model
    engine: str = "functional"

    def __post_init__(self) -> None:
        if self.clipping.per_layer:
            raise NotProvenError(
                "sanitize-hybrid clips all layers before the sanitisation layer together: leave per_layer out"
            )

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Rows and the gradient before the layer share the noise; the head's gradient needs none."""
        return {"rows": ROWS, "gradient": Channel(self.clipping.bound), "head": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """Split the model at its layer, which gets its share of the noise; raises if anything bypasses the layer."""
        cut, losses = find_cut(start.model, start.source), start.losses
        check_range(cut.layer, self.nonnegative)
        _check_cut(cut, losses)
        set_noise(cut.layer, start.noise_std["rows"])
        apart = SplitLoss(
            losses,
            FrozenLayer.of(cut.layer),
            find_head_parameters(cut, losses),
            first_of(cut.like).shape[1:],
            cut.shape,
        )
        return replace(self, apart=apart, engine=find_engine(cut, apart)), start.source

    def make_ready(self, step: int) -> None:
        """Nothing is computed before the first step."""

    def recall(self, public: State) -> None:
        """Nothing to restore in the model."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        """One per epoch, or one per step if batches are drawn by coins."""
        per_epoch = participation.epoch_steps
        return steps if per_epoch is None else -(-steps // per_epoch)

    def init(self, params: Named) -> tuple[State, State]:
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Σ clip(∂ℓᵢ/∂θ) and Σ ∂ℓᵢ/∂ω; each sum omits examples whose gradient in it is not finite."""
        if self.apart is None:
            raise RunStateError("the model is split only within a run: start the plan")
        self.apart.layer.check_step()
        self.apart.check_shape(content)
        noise = draw_noise(streams.HYBRID_ROWS, self.apart.width, first_of(content).device)
        tape = per_example_gradients(model, self._cut_losses(losses), (content, noise), engine=self.engine)
        squared = tape.squared_norms()
        weights, norms = self._weigh({name: squared[name] for name in trainable(model)})
        sums, behind = tape.sum(weights), self.apart.behind
        self.apart.layer.check_step()
        clipped = (norms > self.clipping.clip) & torch.isfinite(norms)
        return {
            "gradient": {name: value for name, value in sums.items() if name not in behind},
            "head": {name: value for name, value in sums.items() if name in behind},
            "diagnostics": diagnostics(tape.losses, clipped),
        }

    def _cut_losses(self, losses: Losses) -> Losses:
        """The split losses. Every example is computed alone, and `SplitLoss` detects state that losses keep, so spot
        checks are not needed."""
        assert self.apart is not None
        own = losses.losses if isinstance(losses, CheckedLosses) else losses
        return self.apart if own is self.apart.losses else replace(self.apart, losses=own)

    def _weigh(self, squared: Named) -> tuple[Named, Tensor]:
        """Weights by parameter, and the norms before the layer. The head's gradient alone decides whether the head
        counts an example: a function of released rows."""
        assert self.apart is not None
        behind = {name: value for name, value in squared.items() if name in self.apart.behind}
        norms = total_norms({name: value for name, value in squared.items() if name not in behind})
        factors = clip_factors(norms, self.clipping.clip, self.clipping.mode)
        weights = {name: factors for name in squared if name not in behind}
        if behind:
            finite = torch.isfinite(total_norms(behind)).to(factors.dtype)
            weights |= dict.fromkeys(behind, finite)
        return weights, norms

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        return {"gradient": sums["gradient"], "head": sums["head"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian if the number of participations is fixed, a mixture if coins decide."""
        rows = clamp_range(self.nonnegative) / noise_std["rows"]
        gradient = 2.0 * self.clipping.bound / noise_std["gradient"]
        event = count_participations(participation, steps, rows**2 + gradient**2)
        return (Claim(event, "replace", "proven", PROVEN, "features"),)


def _check_cut(cut: SplitModel, losses: Losses) -> None:
    """Raise on what would not train as intended, as far as synthetic inputs show it."""
    if not cut.before:
        raise UnsupportedModelError(
            f"no trained parameter lies before the sanitisation layer at '{cut.name}': use method sanitize-once, which "
            "costs less"
        )
    check_no_bypass(cut, losses)
    check_used_once(cut, losses)
    check_stateless(cut, losses)
    check_independent(cut, training=True)


def count_participations(participation: Participation, steps: int, each: float) -> Any:
    """The event of ``steps`` steps in which a participation costs ``each`` in μ²."""
    match participation:
        case OnePass():
            return dp_event.GaussianDpEvent(1 / math.sqrt(each))
        case Reshuffled(per_epoch=b) | SameOrder(per_epoch=b):
            return dp_event.GaussianDpEvent(1 / math.sqrt(-(-steps // b) * each))
        case PoissonSampled(rate=rate):
            return Participating(steps, rate, each)
        case WithoutReplacement(examples=examples, size=size):
            return Participating(steps, size / examples, each)
    raise NotProvenError(
        f"sanitize-hybrid has no proof for {type(participation).__name__} batches: use sampling 'shuffled' or 'poisson'"
    )
