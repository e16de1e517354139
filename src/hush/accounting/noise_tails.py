"""Gaussian noise in floating point: its grid, the scales at which it works, and the end of its tails.

**Grid.** A noisy value is rounded to a public power of two of at most 1/64 of its noise (see `hush.noise.base`).

**Scales.** Noise and grid must be ordinary numbers: a standard deviation near the ends of the range turns into zero,
infinity or a subnormal number with few digits. In float32, in which models and released values are held, there is room
for 2^±126, so the noise must lie within 2^±96, which leaves 2^30 on both sides for the grid and the noise's own reach.

**Tails.** Draws end at R = √(150 ln 2) = 10.197 standard deviations (`hush._internal.noise_kernel`), so an
outcome farther than that from one neighbour's value and not from the other's identifies the dataset. Let both
neighbours' noise be the Gaussian conditioned on |z| ≤ R in each of d coordinates and T steps, let A be the outcomes
within R of both values, and c = P(|z| ≤ R). On A both densities are c^(−dT) times the Gaussian's (of a mixture over
samples the part that lost nothing), so for every set S

    P̃'(S) ≤ c^(−dT)·P'(S ∩ A) + P̃'(outside A) ≤ e^ε·P̃(S) + c^(−dT)·δ + β,   β = P̃'(outside A).

In a step where the values differ by v with ‖v‖ ≤ μ (in standard deviations) β is at most Σᵢ Q(R − |vᵢ|) with Q(x) =
P(z > x). As a function of w = v², Q(R − √w) rises, is concave up to v₀ = 0.099, where v₀(R − v₀) = 1, and convex from
there to R − v₀, so it lies below Q(R − v₀) + Q(R − μ)·w/μ² and the sum below b = d·Q(R − v₀) + Q(R − μ). Over T steps,
however later ones depend on earlier ones, that is T·b, and q·T·b where P' is the side that holds the example with
probability q. Where all steps share one μ, as they do where the whole run is one Gaussian (`hush.guarantees`),
Σ‖vₜ‖² ≤ μ² over all of them, however later ones depend on earlier ones, and the same line through w gives
d·T·Q(R − v₀) + Q(R − μ) in place of T·b.

The other way round, P̃ falls short of c^(−dT)·P by at most the Gaussian's own mass beyond R, t = 2dT·Q(R) (q·t where P
is the side that holds the example), so β ≤ e^ε·t as well. Hence, over the two directions,

    β ≤ max{ min(q·T·b, e^ε·t), min(T·b, e^ε·q·t) }.

With μ = d = T = q = 1 and a large ε it is 1.8e-20. `Tails.cost` is this with the factor c^(−dT), which is
1 + 2e-24·dT. A guarantee is given only where that is at most a thousandth of δ (`Tails.check`), at what it leaves of δ.

This treats the noise as a truncated Gaussian, and is used for correlated noise and released rows. The draws themselves
are discrete; what that costs, end of the tails included, is derived in `hush.accounting.noise_precision` for
independent noise, and charged in place of β.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtr

from hush._internal.validate import positive_int
from hush.errors import InvalidInputError, NotProvenError

FINER = 6  # the grid is 2^-6 of the noise, or finer by less than a factor of two
REACH = math.sqrt(150 * math.log(2.0))  # of a draw, in standard deviations
SHARE = 1e-3  # of δ, at most, for the tails
SMALLEST_STD, LARGEST_STD = 2.0**-96, 2.0**96


def grid(std: float) -> float:
    """The grid spacing of released values with noise of this standard deviation: a power of two."""
    return 2.0 ** (math.frexp(std)[1] - 1 - FINER)


def check_std(std: float, what: str = "the standard deviation of the noise") -> None:
    """Raise on a standard deviation (or noise multiplier) outside the range of floating point."""
    if not SMALLEST_STD <= std <= LARGEST_STD:
        raise InvalidInputError(
            f"{what} must lie between {SMALLEST_STD:.3g} and {LARGEST_STD:.3g} in floating point, got {std:g}: choose "
            "another noise multiplier or clip"
        )


@dataclass(frozen=True)
class Tails:
    """Noise that is truncated at ``reach`` standard deviations, and the cost of that for one example.

    ``coordinates`` is the number of values that get noise per step, ``mu`` is how far one example moves them in
    standard deviations (1/σ, or 2/σ under `replace`), ``rate`` the Poisson rate. ``shared``: ``mu`` is how far it moves
    all steps together.
    """

    coordinates: int
    steps: int
    mu: float = 1.0
    rate: float = 1.0
    shared: bool = False
    reach: float = REACH

    def __post_init__(self) -> None:
        positive_int(coordinates=self.coordinates, steps=self.steps)

    def cost(self, epsilon: float = math.inf) -> float:
        """β: the δ that the truncated tails add at this ε, or at any ε if none is given."""
        turn = (self.reach - math.sqrt(self.reach * self.reach - 4)) / 2
        numbers, moves = self.steps * self.coordinates, 1 if self.shared else self.steps
        near = numbers * _beyond(self.reach - turn) + moves * _beyond(self.reach - self.mu)
        apart = near if self.mu <= self.reach - turn else 1.0  # for a larger mu the bound does not hold
        beyond = 2.0 * numbers * _beyond(self.reach)
        raised = math.exp(min(epsilon, 700.0)) * beyond
        inside = math.exp(-min(beyond, 700.0))
        return min(max(min(self.rate * apart, raised), min(apart, self.rate * raised)) / inside, 1.0)

    def check(self, delta: float, epsilon: float = math.inf) -> float:
        """Return β; raise if it is more than a thousandth of δ."""
        beta = self.cost(epsilon)
        if beta <= SHARE * delta:
            return beta
        ends = f"noise that ends at {self.reach:.2f} standard deviations cannot deliver"
        what = f"{self.coordinates} coordinates and {self.steps} steps with σ = {1 / self.mu:.3g} per unit of change"
        if beta < SHARE:
            hint = f"the smallest is {beta / SHARE:.2g}; choose a larger δ, more noise or fewer steps"
            raise NotProvenError(f"{ends} δ = {delta:g} for {what}: {hint}")
        raise NotProvenError(f"{ends} any δ for {what}: more noise is needed")


def _beyond(distance: float) -> float:
    return float(ndtr(-distance))
