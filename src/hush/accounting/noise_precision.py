"""What it costs that Gaussian noise is computed from 128 random bits per pair, in floating point.

A released value is f(S·fine + y): y = z·scale is the noise in units of the public grid, and f rounds to a double and
then to a whole number. f is the same for all data and monotone, so its inverse images are intervals, and releasing f of
the exact Gaussian sum costs no more than the sum itself. Only the distribution of y over such intervals matters. For a
pair of numbers (`hush._internal.noise_kernel`) they make rectangles, the cells, with sides between h₋ = 2⁻⁷(1 − 2⁻⁹)
and h₊ = 2⁻⁶(1 + 2⁻⁹) standard deviations: the grid (`hush.accounting.noise_tails.grid`), and up to 2⁻¹⁰ of it for the
rounding to a double where the sum is below 2⁴² units (2³¹ places at σ = 0.1 stay below that). P is the Gaussian's
probability of a cell, P̃ that of the numbers as computed. The bits are taken to be random (AES).

**1. Coupling.** Let U be uniform in the lattice step of u, of width 2⁻⁷⁴, and the angle uniform in its lattice step of
2⁻⁵² quarter turns. Then Z = √(−2 ln U)·(cos, sin) is exactly Gaussian, of radius R, and in each coordinate |y − Z| is
at most the sum of, in units of 2⁻⁵³·R:

- 4.85 for the computed radius. In −2 ln m, m − 1 is exact; m + 1, the quotient and s·p round (1 each); v enters p with
  a weight of v/3 ≤ 0.01; the last sum of p rounds (1); all smaller terms are below 0.2. t·ln 4 is exact for t ≤ 2 up to
  0.3 for the constant, else it rounds (1). The worst is t = 1, m = √2: (0.3·1.39 + 4.2·0.69)/0.69, and 1 for the sum,
  5.8 in all, taken as 7.7. The root halves it and rounds (1);
- 1.5 for sine and cosine: cosine 3·0.31 + 0.5 + 0.04, sine (0.7 + 0.34 + 0.35)·0.71 + 0.5;
- 2 for the products r·cosine and z·scale;
- 1.58 for half a step of the angle, π/2;
- 1/R² for x, which is 2k + 1 rounded once: |Δ ln u| ≤ 2⁻⁵³, so |ΔR²| ≤ 2⁻⁵², and |ΔR| is at most 2⁻⁵²/(R + R') and
  2⁻²⁶;

and of the radius lattice: |Δ ln U| ≤ 1/2k, so |ΔR| ≤ 1.03·2⁻⁷⁵·e^(R²/2)/R for R ≤ 9.7 (k ≥ 50). Together

    η(R) = 2⁻⁵³·(10.1·R + 1.01/R) + 1.03·2⁻⁷⁵·e^(R²/2)/R      for 2⁻²⁰ ≤ R ≤ 9.7.

**2. One cell.** If y is in a cell, Z is in the cell widened by η; if Z is in the cell narrowed by η, y is in the cell.
In one coordinate that changes the probability by a factor within 1 ± (2η/h)·e^((h + η)·r): r is the largest radius in
the widened cell, and the density varies by no more than the exponential over a side and η. It falls with h, as h·r < 1,
and h₋ + η < 1.01·h₊ (η < 0.0011 up to R = 9.7). So for a pair

    |P̃/P − 1| ≤ ρ = (1 + (2η/h₋)·e^(1.01·h₊·r))² − 1,   η ≤ 2⁻⁵³·(10.1·r + 1.01/r₋) + 1.03·2⁻⁷⁵·e^(r²/2)/r,

where r₋ is the smallest radius. A point of radius R has r ≤ R + √2·(h₊ + η) and r₋ ≥ R − √2·(h₊ + η). A
thousandth of h₊ is added for η, which is enough up to R = 9.3; from there to 9.7 it is missing a factor of at most 1.02
in ρ, and the exponential with 1.01·h₊ in place of h₋ + η has one of at least 1.07 to spare. If only one number of a
pair is released, its cells are strips, and half of it holds.

Cells that come nearer than h₋/2 to the origin are at most four, of probability at most h²/2π each. There 1/R has to be
integrated. The points outside such a cell that lie within η of an edge are, at distance d along the edge from the foot
of the origin, in a strip of width min(2⁻²⁶, c/d), with c = 1.01·2⁻⁵² below d = 2⁻²⁰ and 1.01·2⁻⁵³ above. For an edge
within h/2 of the origin, of which there are at most two, the strip has the area 2·2⁻⁵²·(1.01 + 4.2 + 5.3) + 0.7·2⁻⁵² =
21.8·2⁻⁵²; for the others less than 8.1·2⁻⁵². Together 60·2⁻⁵²/2π in probability, where the cell has at least
0.995·h²/2π: ρ ≤ 60·2⁻⁵²/(0.995·h₋²) = 2.2e-10. The strips inside of the cell have the same bound. Used: 2.5e-10.

**3. Far cells.** With F the cells that reach beyond a radius r₁, let P̂ be P̃ outside of F and P in F. Then Σ_F |P̃ − P|
is at most E[ρ; R > r₁ − √2h₊] + 2.2·e^(−9.6²/2): by step 2 up to 9.7, and beyond that, where the lattice comes to its
end at 10.197, the sum of both probabilities. P̃(F) and P(F) differ by at most the probability near the edge of F,
E[ρ; |R − r₁| < 2√2h₊]. So both the positive and the negative part of P̃ − P in F are at most τ, the mean of the two.

**4. A run.** Let n pairs be released, of sums that may depend on earlier releases and on sampling; M, M̂, M̃ are the
distributions of everything with P, P̂, P̃. For each pair L = P̂/P has |L − 1| ≤ ρ and mean 1 up to τ, given earlier ones.
With e^x ≤ 1 + x + g(|x|), g(x) = e^x − 1 − x, and ln(1 + x) ≥ x − x² for |x| ≤ 1/2,

    E[L^α], E[L^(−α)] ≤ exp(m(α)),   m(α) = E[g(αρ(1 + ρ)); near] + α·E[ρ²; near] + ατ.

So under M and M̂, |Σ ln L| exceeds a with probability at most δ' each, if (α − 1)·a ≥ n·m(α) + ln(1/δ'), and

    M̃ ≤ eᵃM + δ₂,   M ≤ eᵃM̃ + δ₂,   δ₂ = eᵃ·nτ·e^(nτ) + δ'.

Any α and r₁ give a bound; the best of a table is taken. The integrals are sums over steps of the radius in which every
factor has its largest value, so they are upper bounds and not quadratures.

**5. Privacy.** If the ideal release is (ε, δ)-private, M̃(S) ≤ eᵃM(S) + δ₂ ≤ eᵃ(e^ε·M'(S) + δ) + δ₂ ≤
e^(ε+2a)·M̃'(S) + eᵃδ + (1 + e^(ε+a))·δ₂ for neighbours: see `hush.accounting.events.FinitePrecisionDpEvent`. This needs
nothing of the mechanism except that its noise is independent, and it contains the end of the tails.

For 10⁶ coordinates and 5 000 steps 2a = 1.9e-6 and δ₂ = 9e-11. There e^ε·δ₂ takes more than a tenth of δ = 10⁻⁵ for an
ε above 9.3, and for 10⁵ coordinates and 1 000 steps for an ε above 13.2; a proof without that factor is not known here.

**Not covered**: correlated noise. A released value then contains several z, cells are no rectangles, and the linear
combination is rounded too. Plans with it, released rows, noisy counts (`hush.statistics`), and plans in which this
would take more than a tenth of δ are charged for the end of the tails only (`hush.accounting.noise_tails`), and their
guarantee lists a condition: that noise computed in double precision protects as exact noise does. They are not refused,
because ordinary runs would be (10⁶ coordinates, 5 000 steps, ε = 10).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hush.accounting.events import FinitePrecisionDpEvent
from hush.accounting.noise_tails import FINER

Numbers = NDArray[np.float64]

UNIT = 2.0**-53
SMALLEST_SIDE = 2.0 ** -(FINER + 1) * (1 - 2.0**-9)
LARGEST_SIDE = 2.0**-FINER * (1 + 2.0**-9)
DIAGONAL = math.sqrt(2.0) * LARGEST_SIDE * 1.001
LAST = 9.7  # where the bound of the radius lattice ends
STEP = 0.01  # of radii
NEAR_ORIGIN = 2.5e-10  # ρ of the cells at the origin
AT_ORIGIN = 4 * SMALLEST_SIDE**2 / (2 * math.pi)  # their probability; ρ² times it is largest for small cells
FAILURE = 1e-24  # δ'
MOST_PAIRS = 1e18


def bound_error(largest: Numbers, smallest: Numbers) -> Numbers:
    """η in standard deviations, over radii between ``smallest`` and ``largest``."""
    relative = UNIT * (10.1 * largest + 1.01 / smallest)
    return np.asarray(relative + 1.03 * 2.0**-75 * np.exp(largest**2 / 2) / largest)


def bound_ratio(radius: Numbers, step: float = STEP) -> Numbers:
    """ρ: how far P̃/P of the cell of a point with R in [radius, radius + step] can be from 1."""
    largest, smallest = radius + step + DIAGONAL, np.maximum(radius - DIAGONAL, SMALLEST_SIDE / 2)
    widened = 2 * bound_error(largest, smallest) / SMALLEST_SIDE * np.exp(1.01 * LARGEST_SIDE * largest)
    return np.asarray((1 + widened) ** 2 - 1)


@lru_cache(maxsize=256)
def precision_of(pairs: int) -> FinitePrecisionDpEvent:
    """The event of ``pairs`` pairs of numbers, each of which gives one or two released values."""
    if pairs <= 0:
        return FinitePrecisionDpEvent(0.0, 0.0)
    if pairs > MOST_PAIRS:
        return FinitePrecisionDpEvent(0.0, 1.0)
    radii: Numbers = np.arange(round(LAST / STEP), dtype=np.float64) * STEP
    mass, ratio = np.exp(-(radii**2) / 2) * -np.expm1(-STEP * (radii + STEP / 2)), bound_ratio(radii)
    orders, best = 10.0 ** np.arange(4.0, 13.0, 0.1), (math.inf, 1.0)
    for cut in range(round(6.6 / STEP), round(8.6 / STEP), round(0.1 / STEP)):
        inside, outside = cut - math.ceil(DIAGONAL / STEP), cut + math.ceil(2 * DIAGONAL / STEP)
        edge = float(mass[2 * inside - cut : outside] @ ratio[2 * inside - cut : outside])
        beyond = float(mass[inside:] @ ratio[inside:]) + 2.2 * math.exp(-((LAST - 0.1) ** 2) / 2)
        far = (beyond + edge) / 2
        near, weight = np.append(ratio[:cut], NEAR_ORIGIN), np.append(mass[:cut], AT_ORIGIN)
        tilted = np.minimum(orders[:, None] * (near * (1 + near)), 700.0)
        moments = (np.expm1(tilted) - tilted) @ weight + orders * (float(weight @ near**2) + far)
        moments[orders * near.max() * (1 + near.max()) >= 700.0] = math.inf
        ratios = (pairs * moments + math.log(1 / FAILURE)) / (orders - 1)
        found = float(ratios.min())
        lost = pairs * far
        if lost < 1 and found < best[0]:
            best = found, math.exp(found + lost) * lost + FAILURE
    return FinitePrecisionDpEvent(*best) if best[0] < 1 else FinitePrecisionDpEvent(0.0, 1.0)
