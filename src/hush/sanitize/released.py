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

φ maps each record alone by construction: the rows are computed in batches of one (`hush.sanitize.rows`). That nothing
which is trained moves φ is checked before a run starts (`hush.sanitize.checks`); where it did so for inputs that were
not tried, rows that are computed again after a resume come from a φ that depends on earlier releases, which the
composition of Gaussians allows. That the same noise meets the same rows again is checked by a digest of what was
released, kept with the run's state.

So k releases at σ are worth one release at σ/√k, and sampling amplifies nothing: everybody is released. The dropout
factor 1 − p of the published noise is not used here, for it is an average: the noise is Cσ√n whatever the dropout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import nn

from hush import validate
from hush.errors import BadInput, Refused
from hush.named import Losses, Named, State, Sums, trainable
from hush.queries.plain import sum_gradients
from hush.queries.query import Channel, Claim, Query, Start
from hush.release import Release
from hush.sampling import Participation
from hush.sanitize.checks import check_alone, check_frozen
from hush.sanitize.cut import Cut, Head, count_numbers, find_cut
from hush.sanitize.layer import Sanitize
from hush.sanitize.rows import DIGEST, ReleasedRows
from hush.source import Source

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
    cut: Cut | None = None  # once a run has a model
    rows: ReleasedRows | None = None

    def __post_init__(self) -> None:
        validate.whole(releases=self.releases, turn=self.turn)

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
            raise Refused("rows are released by a run: start the plan")
        self.rows.check(public["releases"])
        return sum_gradients(Head(self.cut), trainable(model), losses, content)

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The sum as it is."""
        return {"gradient": sums["gradient"]}, private

    def observe(self, release: Release, update: Named, public: State) -> State:
        """The digests, with that of the release that was used."""
        return public if self.rows is None else {"releases": self.rows.note(public["releases"])}

    def claims(self, participation: Participation, noise_std: Mapping[str, float], steps: int) -> tuple[Claim, ...]:
        """One Gaussian of μ = 2√k/σ (or half of that), however many steps are taken."""
        mu = reach(self.nonnegative) * math.sqrt(self.releases) / noise_std["rows"]
        times = "once" if self.releases == 1 else f"{self.releases} times"
        event = dp_event.GaussianDpEvent(1 / mu)
        return (Claim(event, "replace", "proven", REASON.format(times=times), "features"),)


def reach(nonnegative: bool) -> float:
    """How far one record moves its row at most, in units of C√n: the range of the clamp over C."""
    return 1.0 if nonnegative else 2.0


def check_range(layer: Sanitize, nonnegative: bool) -> None:
    """Refuse a layer whose range is not the one that was accounted."""
    if layer.floored != nonnegative:
        has, asked = ("[0, C]", "[−C, C]") if layer.floored else ("[−C, C]", "[0, C]")
        raise BadInput(
            f"the layer clamps to {has} and the plan was accounted for {asked}: make both the same "
            f"(nonnegative={layer.floored} on the method, or floor={'None' if layer.floored else '0'} on the layer)"
        )


def set_noise(layer: Sanitize, sigma: float) -> None:
    """Give the layer noise of Cσ√n: the share that the published noise leaves out for dropout is put back."""
    layer.noise_multiplier = ROUNDED_UP * sigma / math.sqrt(layer.kept)
