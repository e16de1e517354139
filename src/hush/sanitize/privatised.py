"""Training on rows that were released once, or k times: `sanitize-once` and `sanitize-frozen`.

Theorem. Let φ not depend on the private features: random, frozen, or trained on public data. Let every record i give
yᵢᵣ = clamp(φ(xᵢ)) + s·zᵢᵣ for r = 1 … k, with s = Cσ√n, n numbers each clamped to [−C, C] and all z independent
standard normal. Then whatever is computed from all yᵢᵣ, all labels, and who is in the data at all, is μ-Gaussian
private with μ = 2√k/σ for the features of one record being replaced by any others (√k/σ where the layer clamps to
[0, C]).

Proof. Neighbours X, X′ have the same labels and the same number of records, and differ in xᵢ for one i. φ is the same
function for both. All yⱼᵣ with j ≠ i have the same distribution under both and are independent of the yᵢᵣ. The k
vectors yᵢᵣ together are one Gaussian of k·n coordinates with standard deviation s, around a or a′, where each
coordinate of a − a′ is at most 2C (or C) in absolute value: ‖a − a′‖ ≤ √k·2C√n. So the two are
√k·2C√n/(Cσ√n) = 2√k/σ standard deviations apart, whatever C and n are. Batches, gradients, updates and stops are
functions of the y, the labels and coins that know nothing of the features: post-processing. ∎

φ maps each record alone by construction: the rows are computed in batches of one (`hush.sanitize.privatised`). That
nothing
which is trained moves φ is checked before a run starts (`hush.sanitize.split_model`); where it did so for inputs that
were not tried, rows that are computed again after a resume come from a φ that depends on earlier releases, which the
composition of Gaussians allows. That the same noise meets the same rows again is checked by a digest of what was
released, kept with the run's state.

So k releases at σ are worth one release at σ/√k, and sampling amplifies nothing: everybody is released. The dropout
factor 1 − p of the published noise is not used here, for it is an average: the noise is Cσ√n whatever the dropout.
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
    check_alone,
    check_forgetful,
    check_frozen,
    check_nothing_passes,
    check_used_once,
    count_numbers,
    evaluating,
    find_behind,
    find_cut,
    find_engine,
    first_of,
    reach_layer,
    with_inputs,
)

# Rows that are released with noise, in the place of the data that they are made of.
#
# Release r of record i is yᵢ = [clamp(φ(xᵢ)) + Cσ√n·zᵢᵣ], where φ is what stands before the layer and [·] rounds to the
# public grid of the noise (`hush.noise.base`). The noise is that of (secret, "rows", r): the same whenever it is asked
# for, so a resumed run releases the same rows again and spends nothing. Nothing is released before the first step asks
# for rows, when a ledger has been charged.
#
# φ(xᵢ) is a function of record i and of public things. By construction: record i is read and passes φ in a batch of
# one, which has the same shape for every record, so neither a branch that looks at a batch nor a kernel's rounding
# meets another record, and whatever φ draws comes from the same public seed for each record. By looking: what a forward
# leaves in the model's attributes is taken away after each record, and a model in which it changes buffers, weights, a
# class, or what lists, objects and generators hold is refused before anything is released
# (`hush.sanitize.side_effects`). A memory that is kept in a global or a file is not seen. The clamp is that of the
# layer as it was accounted for (`hush.sanitize.layer`).

PIECE = 32 * BLOCK  # numbers of noise at a time
PATIENCE = 2.0  # seconds before anything is said
DIGEST = 4  # numbers of 64 bits that stand for a release


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
        """Released rows and what stands beside them; no indices release nothing."""
        content = self.source.take(indices)
        return with_inputs(content, self.release()[indices] if len(indices) else torch.empty(0, *self.cut.shape))

    def make_ready(self, step: int) -> None:
        """From now on rows are those of this step's release. What is to be released is computed here, so that whatever
        can fail does so before anything is charged."""
        self._number = step // self.turn % self.releases
        self._compute_once()

    def release(self) -> Tensor:
        """All rows of the present release, on the CPU."""
        secret = self.secret()
        if self._released is None or self._released[:2] != (self._number, secret.key):
            self._released = self._number, secret.key, self._add_noise(secret)
            self._digest = digest_rows(self._released[2])
        return self._released[2]

    def note(self, digests: Tensor) -> Tensor:
        """The digests of the releases so far, with that of the present one."""
        if self._released is None or self._released[0] != self._number:
            return digests
        noted = digests.clone()
        noted[self._number] = self._digest
        return noted

    def check(self, digests: Tensor) -> None:
        """Refuse rows that are not those that this run released before: the noise would be the same, and the difference
        free of it."""
        self.layer.check()
        before = digests[self._number].cpu()
        self.release()
        if bool(before.any()) and not torch.equal(before, self._digest):
            raise ResumeError(
                "the rows that this run released are not the same when they are computed again (another clip or "
                "width, other code or another machine), and going on would put the same noise on other rows, whose "
                "difference is free of noise: go on with what the run began with, or start a new run"
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
        """Every record's row within the range, each in a batch of its own."""
        self.layer.check()
        model, parts = self.cut.model, []
        said = time.monotonic()
        untouched = ModelStateGuard(model, trainable(model)).during_forward(complete=True)
        with seeded(0), torch.no_grad(), evaluating(model), untouched, recording(model, {}):
            rewind, found = make_rewinder(next(model.parameters()).device), ModelSnapshot(model)
            for number in range(len(self)):
                if time.monotonic() - said > PATIENCE:
                    said = time.monotonic()
                    sys.stderr.write(f"releasing rows: {number} of {len(self)} records\n")
                rewind()
                parts.append(self._compute_alone(number))
                self.layer.check()
                found.put_back()
        return torch.cat(parts)

    def _compute_alone(self, number: int) -> Tensor:
        """The row of one record, whom nothing of the others reaches."""
        model = self.cut.model
        content = self.source.take(torch.tensor([number]))
        inputs = first_of(content).to(next(model.parameters()).device)
        found = self.layer.bound(reach_layer(model, self.cut.layer, inputs)).cpu()
        if found.shape != (1, *self.cut.shape):
            raise InvalidInputError("records of different shapes cannot be released as rows of one width: pad them")
        return found


def digest_rows(rows: Tensor) -> Tensor:
    """What tells released rows from others: BLAKE2b of their bytes, as whole numbers."""
    raw = hashlib.blake2b(rows.contiguous().numpy().tobytes(), digest_size=8 * DIGEST).digest()
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).clone()


ROWS = Channel(1.0, proof="rows", exact=True)  # in units of C√n, half of what a record can move
UNBOUNDED = Channel(math.inf, proof="released", exact=True)
ROUNDED_UP = 1 + 2.0**-20  # more than C in the model's own type, and the product, can be off by
REASON = (
    "every record's features are released {times} with noise of their own and only that is trained on; labels, and who "
    "is in the data, are not protected"
)


@dataclass(frozen=True)
class Released:
    """Plain gradients of what stands behind the layer, on rows that are released ``releases`` times each.

    ``nonnegative`` says that the layer clamps to [0, C]. The next release is taken after ``turn`` steps, and after the
    last one the first again."""

    releases: int = 1
    turn: int = 1
    nonnegative: bool = False
    cut: SplitModel | None = None  # once a run has a model
    rows: ReleasedRows | None = None

    def __post_init__(self) -> None:
        validate.positive_int(releases=self.releases, turn=self.turn)

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The rows, with noise; the gradient, which is made of released rows and needs none."""
        return {"rows": ROWS, "gradient": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The model cut at its layer, and released rows in place of the data."""
        cut = find_cut(start.model, start.source)
        check_range(cut.layer, self.nonnegative)
        check_frozen(cut)
        check_alone(cut, training=False)
        set_noise(cut.layer, start.noise_std["rows"])
        rows = ReleasedRows(cut, start.source, start.secret, cut.layer.noise_std, self.releases, self.turn)
        return replace(self, cut=cut, rows=rows), rows

    def make_ready(self, step: int) -> None:
        """The rows of this step's release, without their noise."""
        if self.rows is not None:
            self.rows.make_ready(step)

    def recall(self, public: State) -> None:
        """Nothing of the model depends on it."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """n, the width of the layer."""
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        """Once, or k times."""
        return self.releases

    def init(self, params: Named) -> tuple[State, State]:
        """Public: a digest of every release, none of which is there yet."""
        return {"releases": torch.zeros(self.releases, DIGEST, dtype=torch.int64)}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """The gradient of the piece's summed loss, on released rows."""
        if self.cut is None or self.rows is None:
            raise RunStateError("rows are released by a run: start the plan")
        self.rows.check(public["releases"])
        return sum_gradients(Head(self.cut), trainable(model), losses, content)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """The digests, with that of the release that was used."""
        return public if self.rows is None else {"releases": self.rows.note(public["releases"])}

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian of μ = 2√k/σ (or half of that), however many steps are taken."""
        mu = forward_to_layer(self.nonnegative) * math.sqrt(self.releases) / noise_std["rows"]
        times = "once" if self.releases == 1 else f"{self.releases} times"
        event = dp_event.GaussianDpEvent(1 / mu)
        return (Claim(event, "replace", "proven", REASON.format(times=times), "features"),)


def forward_to_layer(nonnegative: bool) -> float:
    """How far one record moves its row at most, in units of C√n: the range of the clamp over C."""
    return 1.0 if nonnegative else 2.0


def check_range(layer: Sanitize, nonnegative: bool) -> None:
    """Refuse a layer whose range is not the one that was accounted."""
    if layer.floored != nonnegative:
        has, asked = ("[0, C]", "[−C, C]") if layer.floored else ("[−C, C]", "[0, C]")
        raise InvalidInputError(
            f"the layer clamps to {has} and the plan was accounted for {asked}: make both the same "
            f"(nonnegative={layer.floored} on the method, or floor={'None' if layer.floored else '0'} on the layer)"
        )


def set_noise(layer: Sanitize, sigma: float) -> None:
    """Give the layer noise of Cσ√n: the share that the published noise leaves out for dropout is put back."""
    layer.noise_multiplier = ROUNDED_UP * sigma / math.sqrt(layer.kept)


# The sanitisation layer as it was published: plain gradients through the whole model, noise in the layer alone.
#
# Its ε is DP-SGD's for Poisson batches of rate L/N, by Rényi accounting: a formula for sums of clipped gradients, of
# which there are none here. No proof is known, for the reasons in `CLAIMED`, and `tests/sanitize/test_leak.py` shows
# how the first of them is used.

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
        """The activations of a step, which get noise in the layer; the gradient, which gets none."""
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

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """Nothing to learn from it."""
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """The paper's formula, whatever the batches are."""
        sampled = dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(noise_std["rows"]))
        event = dp_event.SelfComposedDpEvent(sampled, steps)
        return (Claim(event, "add-remove", "claimed", CLAIMED, "features"),)


# Layers before by clipped noisy gradients, the head on released activations: `sanitize-hybrid`, one event.
#
# Step t on a batch B_t, with weights θ before the layer and ω behind it, both from earlier steps:
#
#     aᵢ = clamp(φ_θ(xᵢ))          n numbers in [−C, C]
#     yᵢ = aᵢ + C·s_a·√n·zᵢ        for every i in B_t: the rows of the step
#     ℓᵢ = loss of head_ω(yᵢ) for labelᵢ
#     g̃  = Σ clip(∂ℓᵢ/∂θ, c) + c·s_g·z
#     h is the sum of ∂ℓᵢ/∂ω
#
# θ moves by g̃ and ω by h. Which records are in B_t is drawn by coins that do not look at features.
#
# Theorem. For the features of one record being replaced by any others, with labels, membership and all B_t known, a run
# in which that record takes part at most k times is μ-Gaussian private with μ² = k·(4/s_a² + 4/s_g²); 1/s_a² in place
# of 4/s_a² where the layer clamps to [0, C].
#
# Proof. Let i be the record, and fix all B_t. Write a step as two releases, Y = (yⱼ) and then g̃; its output is a
# function of both, the labels and what was released before.
#
# 1. Y, given everything released before (so given θ, ω). For j ≠ i the distribution of yⱼ is the same for both
#    neighbours, as φ_θ is one function applied to each record in a batch of its own: mapped by torch.func, which has no
#    way from one to another, or else one after the other (`find_engine`). All records have one public shape, which no
#    record's length decides, and leave nothing in the model or the losses (`hush.sanitize.side_effects`). What losses
#    keep of their second run is a function of rows that are released. C, s_a and n are those that the
#    run started with (`hush.sanitize.layer`), and zᵢ is of a stream that nothing else draws from. yᵢ is a Gaussian
#    with standard deviation C·s_a·√n around aᵢ or aᵢ′, with ‖aᵢ − aᵢ′‖ ≤ 2C√n (C√n for [0, C]): 2/s_a standard
#    deviations if i is in B_t, and 0 otherwise.
# 2. h, given Y. ∂ℓⱼ/∂ω depends on yⱼ, the label, ω and coins (dropout): the losses run on inputs of zeros with the
#    layer handing on yⱼ, and in the run that made yⱼ the weights ω were constants (`hush.sanitize.split_model`).
#    However often that run passes the layer, yⱼ is all that it hands on. So h is post-processing of Y, by construction.
# 3. g̃, given everything released before *and* Y. ∂ℓⱼ/∂θ = (∂aⱼ/∂θ)ᵀ·∂ℓⱼ/∂yⱼ, where ∂ℓⱼ/∂yⱼ is known from Y, and
#    ∂aⱼ/∂θ is a function of xⱼ and θ. It is clipped to norm c for each record alone. Fixing Y and what was before, the
#    sums of the
#    neighbours differ in the one addend of i, by at most 2c; the noise is independent of Y's: 2/s_g standard deviations
#    if i is in B_t, and 0 otherwise. A parameter that the layer's input depends on belongs to θ with all of its
#    gradient,
#    wherever else it is used, and so does every other one that the rows alone do not reach (`find_behind`); which they
#    are is decided on made-up inputs, and the theorem holds for every choice.
# 4. Releases that are each a Gaussian mechanism of μ_m given all earlier ones, with all μ_m fixed beforehand, compose
# to
#    μ² = Σ μ_m² (Dong, Roth, Su 2022, corollary 3.3, adaptively). Fixing the batches fixes who takes part when; k
#    participations give k·(4/s_a² + 4/s_g²). ∎
#
# Batches in a new order every epoch, or always the same: k is the number of epochs begun, for every order. Poisson or
# fixed-size batches: K ~ Binomial(T, q) participations, by coins that are independent of the features. For each outcome
# of the coins (4) holds with k = K, and the hockey-stick divergence is jointly convex, so that
#
#     δ(ε) ≤ E_K δ_Gauss(ε; √K·√(4/s_a² + 4/s_g²))
#
# whether the attacker sees the coins or not. Sampling amplifies nothing beyond that: yᵢ alone shows who is in a batch.
# Membership is public here, so the same coins serve both neighbours: `replace`, never add-remove.
#
# The plan's σ is that of both together: s_a = s_g = √2·σ, so that a participation costs μ = 2/σ (less for [0, C]).

PROVEN = (
    "activations are released with noise of their own, and the layers before them learn from clipped gradients with "
    "noise; both are counted for every batch a record is in; labels, and who is in which batch, are not protected"
)


@dataclass(frozen=True)
class Hybrid:
    """Clipped gradients of what is before the layer, plain ones of what is behind it, on the noisy rows of a step."""

    clipping: Clipping
    nonnegative: bool = False
    apart: SplitLoss | None = None  # the losses, once a run has a model
    engine: str = "functional"

    def __post_init__(self) -> None:
        if self.clipping.per_layer:
            raise NotProvenError("sanitize-hybrid clips the layers before its own as a whole: leave per_layer out")

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Rows and the gradient of what is before the layer share the noise; the head's needs none."""
        return {"rows": ROWS, "gradient": Channel(self.clipping.bound), "head": UNBOUNDED}

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The model cut at its layer, which gets its share of the noise; refused where anything passes by it."""
        cut, losses = find_cut(start.model, start.source), start.losses
        check_range(cut.layer, self.nonnegative)
        _check_cut(cut, losses)
        set_noise(cut.layer, start.noise_std["rows"])
        apart = SplitLoss(
            losses, FrozenLayer.of(cut.layer), find_behind(cut, losses), first_of(cut.like).shape[1:], cut.shape
        )
        return replace(self, apart=apart, engine=find_engine(cut, apart)), start.source

    def make_ready(self, step: int) -> None:
        """Nothing is computed before the first step."""

    def recall(self, public: State) -> None:
        """Nothing of the model depends on it."""

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """n, the width of the layer."""
        return count_numbers(find_cut(model, source))

    def count_releases(self, participation: Participation, steps: int) -> int:
        """Once an epoch, or in every step where coins decide."""
        per_epoch = participation.epoch_steps
        return steps if per_epoch is None else -(-steps // per_epoch)

    def init(self, params: Named) -> tuple[State, State]:
        """No state."""
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Σ clip(∂ℓᵢ/∂θ) and Σ ∂ℓᵢ/∂ω; an example is left out of either where that gradient is not finite."""
        if self.apart is None:
            raise RunStateError("a run tells what stands before the layer: start the plan")
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
        """The losses in two parts. Every example is computed by itself, and what the losses keep of one is looked for
        then (`SplitLoss`), so there is nothing to inspect."""
        assert self.apart is not None
        own = losses.losses if isinstance(losses, CheckedLosses) else losses
        return self.apart if own is self.apart.losses else replace(self.apart, losses=own)

    def _weigh(self, squared: Named) -> tuple[Named, Tensor]:
        """Weights by parameter, and the norms before the layer. Whether the head counts an example is decided by the
        head's gradient alone: a function of released rows."""
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
        """The sums as they are."""
        return {"gradient": sums["gradient"], "head": sums["head"]}, private

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """Nothing to learn from it."""
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian where participations are counted, their mixture where coins decide."""
        rows = forward_to_layer(self.nonnegative) / noise_std["rows"]
        gradient = 2.0 * self.clipping.bound / noise_std["gradient"]
        event = count_participations(participation, steps, rows**2 + gradient**2)
        return (Claim(event, "replace", "proven", PROVEN, "features"),)


def _check_cut(cut: SplitModel, losses: Losses) -> None:
    """Refuse what would not be trained as it was meant, as far as made-up inputs show it."""
    if not cut.before:
        raise UnsupportedModelError(
            f"nothing that is trained stands before the sanitisation layer at '{cut.name}': use method "
            "sanitize-once, which costs less"
        )
    check_nothing_passes(cut, losses)
    check_used_once(cut, losses)
    check_forgetful(cut, losses)
    check_alone(cut, training=True)


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
        f"sanitize-hybrid counts in how many batches a record is, which has no proof for "
        f"{type(participation).__name__}: use sampling 'shuffled' or 'poisson'"
    )
