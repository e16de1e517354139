"""Layers before by clipped noisy gradients, the head on released activations: `sanitize-hybrid`, one event.

Step t on a batch B_t, with weights θ before the layer and ω behind it, both from earlier steps:

    aᵢ = clamp(φ_θ(xᵢ))          n numbers in [−C, C]
    yᵢ = aᵢ + C·s_a·√n·zᵢ        for every i in B_t: the rows of the step
    ℓᵢ = loss(head_ω(yᵢ), labelᵢ)
    g̃  = Σ clip(∂ℓᵢ/∂θ, c) + c·s_g·z
    h  = Σ ∂ℓᵢ/∂ω

θ moves by g̃ and ω by h. Which records are in B_t is drawn by coins that do not look at features.

Theorem. For the features of one record being replaced by any others, with labels, membership and all B_t known, a run
in which that record takes part at most k times is μ-Gaussian private with μ² = k·(4/s_a² + 4/s_g²); 1/s_a² in place of
4/s_a² where the layer clamps to [0, C].

Proof. Let i be the record, and fix all B_t. Write a step as two releases, Y = (yⱼ) and then g̃; its output is a function
of both, the labels and what was released before.

1. Y, given everything released before (so given θ, ω). For j ≠ i the distribution of yⱼ is the same for both
   neighbours, as φ_θ is one function applied to each record in a batch of its own: mapped by torch.func, which has no
   way from one to another, or else one after the other (`find_engine`). All records have one public shape, which no
   record's length decides, and leave nothing in the model or the losses (`hush.sanitize.pristine`). What losses keep
   of their second run is a function of rows that are released. C, s_a and n are those that the
   run started with (`hush.sanitize.accounted`), and zᵢ is of a stream that nothing else draws from. yᵢ is a Gaussian
   with standard deviation C·s_a·√n around aᵢ or aᵢ′, with ‖aᵢ − aᵢ′‖ ≤ 2C√n (C√n for [0, C]): 2/s_a standard deviations
   if i is in B_t, and 0 otherwise.
2. h, given Y. ∂ℓⱼ/∂ω depends on yⱼ, the label, ω and coins (dropout): the losses run on inputs of zeros with the layer
   handing on yⱼ, and in the run that made yⱼ the weights ω were constants (`hush.sanitize.apart`). However often that
   run passes the layer, yⱼ is all that it hands on. So h is post-processing of Y, by construction.
3. g̃, given everything released before *and* Y. ∂ℓⱼ/∂θ = (∂aⱼ/∂θ)ᵀ·∂ℓⱼ/∂yⱼ, where ∂ℓⱼ/∂yⱼ is known from Y, and ∂aⱼ/∂θ is
   a function of xⱼ and θ. It is clipped to norm c for each record alone. Fixing Y and what was before, the sums of the
   neighbours differ in the one addend of i, by at most 2c; the noise is independent of Y's: 2/s_g standard deviations
   if i is in B_t, and 0 otherwise. A parameter that the layer's input depends on belongs to θ with all of its gradient,
   wherever else it is used, and so does every other one that the rows alone do not reach (`find_behind`); which they
   are is decided on made-up inputs, and the theorem holds for every choice.
4. Releases that are each a Gaussian mechanism of μ_m given all earlier ones, with all μ_m fixed beforehand, compose to
   μ² = Σ μ_m² (Dong, Roth, Su 2022, corollary 3.3, adaptively). Fixing the batches fixes who takes part when; k
   participations give k·(4/s_a² + 4/s_g²). ∎

Batches in a new order every epoch, or always the same: k is the number of epochs begun, for every order. Poisson or
fixed-size batches: K ~ Binomial(T, q) participations, by coins that are independent of the features. For each outcome
of the coins (4) holds with k = K, and the hockey-stick divergence is jointly convex, so that

    δ(ε) ≤ E_K δ_Gauss(ε; √K·√(4/s_a² + 4/s_g²))

whether the attacker sees the coins or not. Sampling amplifies nothing beyond that: yᵢ alone shows who is in a batch.
Membership is public here, so the same coins serve both neighbours: `replace`, never add-remove.

The plan's σ is that of both together: s_a = s_g = √2·σ, so that a participation costs μ = 2/σ (less for [0, C]).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn

from hush.draws import draw_noise
from hush.errors import Refused
from hush.gradients import record
from hush.gradients.spot_checks import Inspected
from hush.named import Losses, Named, State, Sums, trainable
from hush.privacy.mixture import Participating
from hush.queries.clipped import Clipping, clip_factors, diagnostics, total_norms
from hush.queries.query import Channel, Claim, Query, Start
from hush.release import Release
from hush.sampling import OnePass, Participation, PoissonSampled, Reshuffled, SameOrder, WithoutReplacement
from hush.sanitize.accounted import Accounted
from hush.sanitize.apart import Apart, find_engine
from hush.sanitize.checks import check_alone, check_forgetful, check_nothing_passes, check_used_once, find_behind
from hush.sanitize.cut import Cut, count_numbers, find_cut, first_of
from hush.sanitize.released import ROWS, UNBOUNDED, check_range, reach, set_noise
from hush.source import Source

STREAM = "hybrid/rows"  # of the noise
PROVEN = (
    "activations are released with noise of their own, and the layers before them learn from clipped gradients with "
    "noise; both are counted for every batch a record is in; labels, and who is in which batch, are not protected"
)


@dataclass(frozen=True)
class Hybrid:
    """Clipped gradients of what is before the layer, plain ones of what is behind it, on the noisy rows of a step."""

    clipping: Clipping
    nonnegative: bool = False
    apart: Apart | None = None  # the losses, once a run has a model
    engine: str = "functional"

    def __post_init__(self) -> None:
        if self.clipping.per_layer:
            raise Refused("sanitize-hybrid clips the layers before its own as a whole: leave per_layer out")

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
        apart = Apart(
            losses, Accounted.of(cut.layer), find_behind(cut, losses), first_of(cut.like).shape[1:], cut.shape
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
        match participation:
            case Reshuffled(per_epoch=b) | SameOrder(per_epoch=b):
                return -(-steps // b)
        return steps

    def init(self, params: Named) -> tuple[State, State]:
        """No state."""
        return {}, {}

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Σ clip(∂ℓᵢ/∂θ) and Σ ∂ℓᵢ/∂ω; an example is left out of either where that gradient is not finite."""
        if self.apart is None:
            raise Refused("a run tells what stands before the layer: start the plan")
        self.apart.layer.check_step()
        self.apart.check_shape(content)
        noise = draw_noise(STREAM, self.apart.width, first_of(content).device)
        tape = record(model, self._cut_losses(losses), (content, noise), engine=self.engine)
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
        then (`Apart`), so there is nothing to inspect."""
        assert self.apart is not None
        own = losses.losses if isinstance(losses, Inspected) else losses
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

    def observe(self, release: Release, update: Named, public: State) -> State:
        """Nothing to learn from it."""
        return public

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian where participations are counted, their mixture where coins decide."""
        rows = reach(self.nonnegative) / noise_std["rows"]
        gradient = 2.0 * self.clipping.bound / noise_std["gradient"]
        event = count_participations(participation, steps, rows**2 + gradient**2)
        return (Claim(event, "replace", "proven", PROVEN, "features"),)


def _check_cut(cut: Cut, losses: Losses) -> None:
    """Refuse what would not be trained as it was meant, as far as made-up inputs show it."""
    if not cut.before:
        raise Refused(
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
    raise Refused(
        f"sanitize-hybrid counts in how many batches a record is, which has no proof for "
        f"{type(participation).__name__}: use sampling 'shuffled' or 'poisson'"
    )
