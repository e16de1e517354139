"""What the finite precision of the noise costs: each inequality of the proof against exact numbers."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from scipy.special import ndtr

from hush import make_plan
from hush._internal import noise_kernel as kernel
from hush.accounting import accountant, events
from hush.accounting.events import FinitePrecisionDpEvent, find_leaves, rebuild
from hush.accounting.gaussian import gaussian_delta, gaussian_epsilon
from hush.accounting.guarantee import PRECISE
from hush.accounting.noise_precision import (
    AT_ORIGIN,
    DIAGONAL,
    FAILURE,
    LARGEST_SIDE,
    LAST,
    NEAR_ORIGIN,
    SMALLEST_SIDE,
    bound_error,
    bound_ratio,
    precision_of,
)
from hush.accounting.renyi import divergences
from hush.accounting.selection import Trials
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import Replay, claim_attempts
from hush.randomness import count_pairs
from hush.randomness.normals import BLOCK, PAIRS
from hush.statistics.classes import plan_class_weights
from hush.statistics.histogram import calibrate_histograms


def exact_ends(a: int, b: int) -> tuple[list[float], list[float], list[float]]:
    """R at both ends of the lattice step of u, and the two coordinates at all four corners of the lattice cell."""
    mpmath.mp.prec = 160
    k = 2**10 * a + b % 2**10
    turn = (b >> 62) + mpmath.mpf((b >> 10) % 2**52) / 2**52 - mpmath.mpf(1) / 2
    radii = [mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(k + end) / 2**74)) for end in (0, 1) if k + end]
    angles = [(turn + mpmath.mpf(end) / 2**53) * mpmath.pi / 2 for end in (-1, 1)]
    return (
        radii,
        [r * mpmath.cos(t) for r in radii for t in angles],
        [r * mpmath.sin(t) for r in radii for t in angles],
    )


def test_computed_numbers_are_within_the_bound_of_the_coupled_gaussian() -> None:
    """η, at the ends of the lattice steps, where Z is farthest; most points are far out or next to u = 1."""
    draw, worst = np.random.default_rng(11), 0.0
    for index in range(600):
        a, b = (int(x) for x in draw.integers(0, 2**64 - 1, 2, dtype=np.uint64, endpoint=True))
        a = (a, a >> int(draw.integers(0, 58)), a | ((2**64 - 1) ^ (2 ** int(draw.integers(24, 64)) - 1)))[index % 3]
        first, second = np.empty(1), np.empty(1)
        kernel.normals(np.array([a], np.uint64), np.array([b], np.uint64), first, second, None)
        radii, *corners = exact_ends(a, b)
        low, high = float(min(radii)), float(max(radii))
        if high > LAST or low < 2.0**-20:
            continue
        allowed = float(bound_error(np.array(high), np.array(low)))
        for made, ends in zip((first[0], second[0]), corners, strict=True):
            error = max(float(abs(mpmath.mpf(float(made)) - end)) for end in ends)
            assert error <= allowed
            worst = max(worst, error / allowed)
    assert worst > 0.5  # the bound is within a factor of two of what happens


@pytest.mark.parametrize(("radius_bits", "angle_bits", "side"), [(12, 11, 0.5), (13, 10, 0.37), (11, 12, 0.8)])
def test_cells_of_a_coarse_lattice_are_within_the_bound(radius_bits: int, angle_bits: int, side: float) -> None:
    """The same construction with so few bits that all of its values can be counted, with its own η and h."""
    u = (np.arange(2.0**radius_bits) + 0.5) / 2.0**radius_bits
    angle = 2 * math.pi * np.arange(2.0**angle_bits) / 2.0**angle_bits
    radius = np.sqrt(-2 * np.log(u))
    offset = np.array([0.13, 0.41]) * side
    cells = [np.floor((radius[:, None] * f(angle) + o) / side) for f, o in zip((np.cos, np.sin), offset, strict=True)]
    keys, counts = np.unique((cells[0] * 1000 + cells[1]).ravel(), return_counts=True)
    checked = 0
    for key, count in zip(keys, counts, strict=True):
        column = math.floor((key + 500) / 1000)
        corner = np.array([column, key - 1000 * column]) * side - offset
        ends = np.abs(np.array([corner, corner + side]))
        inner = np.where(corner * (corner + side) < 0, 0.0, ends.min(0))
        largest, smallest = float(np.hypot(*ends.max(0))), float(np.hypot(*inner))
        step = 2.0 ** -(radius_bits + 1) * math.exp(largest**2 / 2)
        if smallest < side / 2 or step > 0.2:
            continue
        eta = 1.3 * step / smallest + math.pi / 2.0**angle_bits * largest  # e^(R²/2)/R is not yet large at R
        widened = 2 * eta / side * math.exp((side + 2 * eta) * (largest + eta))
        exact = float(np.prod(ndtr(corner + side) - ndtr(corner)))
        assert abs(count / 2.0 ** (radius_bits + angle_bits) / exact - 1) <= (1 + widened) ** 2 - 1
        checked += 1
    assert checked > 10


def test_the_ratio_covers_every_side_of_a_cell() -> None:
    """Golden values from the specification of the noise at a grid of 10 bits, divided by 16: ρ of radius 3, 5 and 7 is
    2.8e-11, 4.6e-11 and 1.4e-9 there. Here it also covers the largest radius in a cell."""
    for radius, known in ((3.0, 2.8e-11), (5.0, 4.6e-11), (7.0, 1.4e-9)):
        found = float(bound_ratio(np.array([radius]))[0])
        assert known / 16 < found < 2 * known / 16
    assert SMALLEST_SIDE < 2**-7 < 2**-6 < LARGEST_SIDE
    assert math.hypot(LARGEST_SIDE, LARGEST_SIDE) < DIAGONAL


def test_cells_at_the_origin() -> None:
    """The area within η of an edge through the origin, integrated exactly, is within the 21.8·2⁻⁵² of the proof."""
    c, y0, bend = 1.01 * 2.0**-52, 2.0**-26, 2.0**-20
    length = 2 * LARGEST_SIDE
    area = 2 * (1.01 * y0 * 2.0**-26 + c * math.log(bend / y0) + c / 2 * math.log(length / bend))
    area += 2 * length * 10.1 * 2.0**-53 * 2 * LARGEST_SIDE
    assert area < 21.8 * 2.0**-52
    far = 2 * length * 1.01 * 2.0**-53 / (SMALLEST_SIDE / 2)
    assert far < 17 * 2.0**-52
    total = 2 * 21.8 * 2.0**-52 + 2 * far
    lightest = SMALLEST_SIDE**2 * math.exp(-((1.5 * LARGEST_SIDE) ** 2))
    assert total / lightest < NEAR_ORIGIN
    assert pytest.approx(4 * SMALLEST_SIDE**2 / (2 * math.pi)) == AT_ORIGIN


def exact_moment(pairs: int, order: float, cut: float) -> mpmath.mpf:
    """n·E[g(αρ(1 + ρ)); R < cut] by quadrature, with ρ of the point itself."""

    def integrand(r: mpmath.mpf) -> mpmath.mpf:
        rho = mpmath.mpf(float(bound_ratio(np.array([float(r)]), 0.0)[0]))
        x = order * rho * (1 + rho)
        return (mpmath.expm1(x) - x) * r * mpmath.exp(-r * r / 2)

    return pairs * mpmath.quad(integrand, [0, 0.1, 2, 4, 6, 7, cut])


@pytest.mark.parametrize(
    ("pairs", "ratio", "delta"),
    [(1000, 6.05e-9, 4.14e-17), (500_000, 3.41e-8, 1.96e-14), (2_500_000_000, 1.94e-6, 8.61e-11)],
)
def test_golden_costs(pairs: int, ratio: float, delta: float) -> None:
    """Recorded 2a and δ₂, and of their size in the specification of the noise: 1.5e-10·√(2n)/16 and 1.2e-19·2n/16,
    where δ' = 1e-12."""
    found = precision_of(pairs)
    assert 2 * found.log_ratio == pytest.approx(ratio, rel=0.01)
    assert found.delta == pytest.approx(delta, rel=0.01)
    assert 0.5 < found.delta / (1.2e-19 * 2 * pairs / 16) < 4
    if pairs > 10**9:
        assert 1 < 2 * found.log_ratio / (1.5e-10 * math.sqrt(2 * pairs) / 16) < 4
    order = 2 * math.log(1 / FAILURE) / found.log_ratio  # near the best order, at which both terms are equal
    near = float(exact_moment(pairs, order, 6.5))
    assert near < order * found.log_ratio  # the sums over steps are no less than the integral, without its far part


def test_costs_grow_with_pairs_and_end() -> None:
    costs = [precision_of(10**k) for k in range(19)]
    assert all(
        one.log_ratio <= two.log_ratio and one.delta <= two.delta for one, two in zip(costs, costs[1:], strict=False)
    )
    assert precision_of(0) == FinitePrecisionDpEvent(0.0, 0.0)
    assert precision_of(10**20).delta == 1.0


def test_pairs_of_a_vector() -> None:
    assert [count_pairs(n) for n in (0, 1, PAIRS, PAIRS + 5, BLOCK, BLOCK + 3)] == [
        0,
        1,
        PAIRS,
        PAIRS,
        PAIRS,
        PAIRS + 3,
    ]


def test_the_event_charges_both_numbers() -> None:
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), FinitePrecisionDpEvent(1e-3, 1e-8)])
    found = accountant.epsilon(event, 1e-5, accountant="gdp")
    inner = found - 2e-3
    spent = math.exp(1e-3) * gaussian_delta(inner, 0.5) + (1 + math.exp(inner + 1e-3)) * 1e-8
    assert 0.998e-5 < spent <= 1e-5 * (1 + 1e-9)
    assert accountant.delta(event, found, accountant="gdp") == pytest.approx(spent, rel=1e-6)
    assert found > gaussian_epsilon(1e-5, 0.5) + 2e-3  # the twin: 2a alone
    twice = dp_event.SelfComposedDpEvent(event, 2)
    assert find_leaves(twice).log_ratio == 2e-3
    assert find_leaves(twice).imprecise_delta == 2e-8
    assert find_leaves(rebuild(find_leaves(twice))) == find_leaves(twice)
    assert events.from_json(events.to_json(event)).events[1] == event.events[1]


def test_below_twice_the_ratio_and_beyond_a_tenth_of_delta() -> None:
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(100.0), FinitePrecisionDpEvent(0.1, 0.0)])
    assert accountant.delta(event, 0.0, accountant="gdp") >= 1 - math.exp(-0.2)
    heavy = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), FinitePrecisionDpEvent(0.0, 1e-6)])
    assert accountant.epsilon(heavy, 1e-5, accountant="gdp") == math.inf


@pytest.mark.parametrize("accountant_name", ["pld", "rdp"])
def test_every_accountant_charges_it(accountant_name) -> None:
    training = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 100)
    event = dp_event.ComposedDpEvent([training, FinitePrecisionDpEvent(1e-4, 1e-9)])
    exact = accountant.epsilon(training, 1e-5, accountant=accountant_name)
    found = accountant.epsilon(event, 1e-5, accountant=accountant_name)
    assert exact + 2e-4 < found < exact + 1e-3
    profile = accountant.profile_of(event, accountant=accountant_name)
    assert profile(found) == pytest.approx(1e-5, rel=1e-2)


def test_divergences_of_densities_that_are_off_by_a_factor() -> None:
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), FinitePrecisionDpEvent(1e-3, 0.0)])
    exact = divergences(dp_event.GaussianDpEvent(2.0), "add-remove", (3.0,))[3.0]
    assert divergences(event, "add-remove", (3.0,))[3.0] == pytest.approx(exact + 1e-3 * 5 / 2, rel=1e-9)


def test_a_plan_charges_it_when_the_model_is_known() -> None:
    plan = make_plan("dp-sgd", examples=1000, batch_size=100, steps=50, noise_multiplier=1.0)
    known = plan.with_tails(10_000)
    assert known.precision == precision_of(50 * 10_000)
    assert known.tails == 0.0
    assert plan.guarantee().epsilon + 2 * known.precision.log_ratio <= known.guarantee().epsilon
    assert known.guarantee().epsilon < plan.guarantee().epsilon * (1 + 1e-5)
    assert known.fingerprint() == plan.fingerprint()


def test_a_plan_at_a_large_epsilon_names_the_condition_instead() -> None:
    """ε = 16: of a million numbers it would take more than a tenth of δ, of ten it does not."""
    plan = make_plan("dp-sgd", examples=1000, batch_size=1000, steps=50, noise_multiplier=2.5)
    large, small = plan.with_tails(10**6), plan.with_tails(10)
    assert (large.precision, large.tails > 0) == (None, True)
    assert any("double precision" in text for text in large.guarantee().conditions)
    assert (small.precision, small.tails) == (precision_of(500), 0.0)
    assert (1 + math.exp(large.guarantee().epsilon)) * precision_of(50 * count_pairs(10**6)).delta > 0.1 * plan.delta


@pytest.mark.parametrize(
    ("steps", "epsilon", "coordinates"), [(1000, 8.0, 10**6), (500, 8.0, 10**7), (500, 5.0, 10**8)]
)
def test_a_calibrated_run_never_costs_more_than_was_asked_for(steps, epsilon, coordinates) -> None:
    """Of a large model the finite precision takes more than the reserve: σ is calibrated again, and no less noise."""
    plan = make_plan("dp-sgd", examples=60_000, batch_size=600, steps=steps, epsilon=epsilon)
    known = plan.with_tails(coordinates)
    assert known.precision == precision_of(steps * count_pairs(coordinates))
    assert epsilon * 0.998 < known.guarantee().epsilon <= epsilon
    assert plan.sigma <= known.sigma < 1.001 * plan.sigma
    given = make_plan("dp-sgd", examples=60_000, batch_size=600, steps=steps, noise_multiplier=plan.sigma)
    if known.sigma > plan.sigma:
        assert given.with_tails(coordinates).guarantee().epsilon > epsilon
    assert given.with_tails(coordinates).sigma == plan.sigma


def test_noise_of_a_seed_is_bound_to_the_sigma_that_is_drawn_with(monkeypatch) -> None:
    """σ as calibrated again, and the same σ of a plan that was not calibrated, must not share noise."""
    monkeypatch.setattr("hush.plan.count_coordinates", lambda model: 10**8)
    shape = {"examples": 600, "batch_size": 60, "steps": 500}
    asked = make_plan("dp-sgd", **shape, epsilon=7.0)
    given = make_plan("dp-sgd", **shape, noise_multiplier=asked.sigma)
    data = torch.zeros(600, 3), torch.zeros(600, dtype=torch.int64)

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    runs = [plan.start(torch.nn.Linear(3, 2), losses, data, secret=1) for plan in (asked, given)]
    assert runs[0].plan.sigma > runs[1].plan.sigma == asked.sigma
    assert runs[0].secret.name != runs[1].secret.name
    assert runs[0].plan.guarantee().epsilon <= 7.0


def test_precision_inside_of_a_sample_or_of_repeated_steps_is_charged() -> None:
    """A mixture over samples is off by as much as its parts, so what is written inside of a sample counts in full."""
    precise = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0))
    inside = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), FinitePrecisionDpEvent(1e-3, 1e-9)])
    for event, leaf in (
        (dp_event.PoissonSampledDpEvent(0.1, inside), precise),
        (
            dp_event.SampledWithoutReplacementDpEvent(100, 10, inside),
            dp_event.SampledWithoutReplacementDpEvent(100, 10, dp_event.GaussianDpEvent(1.0)),
        ),
    ):
        found = find_leaves(dp_event.SelfComposedDpEvent(event, 5))
        assert (found.log_ratio, found.imprecise_delta) == (pytest.approx(5e-3), pytest.approx(5e-9))
        assert found.others == ((leaf, 5),)
    laplace = dp_event.ComposedDpEvent([dp_event.LaplaceDpEvent(2.0), FinitePrecisionDpEvent(1e-3, 1e-9)])
    found = find_leaves(dp_event.PoissonSampledDpEvent(0.1, laplace))
    assert (found.log_ratio, found.imprecise_delta) == (1e-3, 1e-9)
    assert found.others == ((dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(2.0)), 1),)


@pytest.mark.parametrize("figures", [(-1e-3, 0.0), (0.0, -1e-9), (math.nan, 0.0), (0.0, math.nan)])
def test_precision_that_would_lower_epsilon_is_refused(figures) -> None:
    """As an event that was read from a file might say."""
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), FinitePrecisionDpEvent(*figures)])
    with pytest.raises(InvalidInputError):
        accountant.epsilon(event, 1e-5, accountant="gdp")


def test_the_largest_epsilon_that_is_charged_for() -> None:
    """As docs/sharp-edges.md states: where (1 + e^ε)·δ₂ is a tenth of δ = 1e-5."""
    for coordinates, steps, epsilon in ((10**6, 5000, 9.34), (10**5, 1000, 13.20)):
        lost = precision_of(steps * count_pairs(coordinates)).delta
        assert math.log(1e-6 / lost) == pytest.approx(epsilon, abs=0.01)


def test_noise_that_is_not_covered_names_the_condition_before_and_after_the_model_is_known() -> None:
    """Of correlated noise and of released rows every ε has the condition, also that of a plan without a model and that
    of a search, which the ledger is charged with before its first trial."""
    from hush.ledger.run_account import cost_of

    shape = {"examples": 16, "batch_size": 8, "steps": 2, "noise_multiplier": 1.0}
    for plan in (make_plan("dp-ftrl", **shape), make_plan("sanitize-once", **shape)):
        for known in (plan, plan.with_tails(100)):
            assert known.guarantee().conditions.count(PRECISE) == 1
            assert PRECISE in cost_of(known)(1).assumptions
    assert PRECISE not in make_plan("dp-sgd", **shape).guarantee().conditions


def test_noisy_counts_name_the_condition() -> None:
    """Their tails are charged, their finite precision is not; so a run composed with them has the condition too."""
    data = torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)
    counts = calibrate_histograms(1.0, 1e-6, columns=1, cells=2)
    released = plan_class_weights(data, 2, counts, population=40, units=None).composed
    plan = make_plan("dp-sgd", examples=40, batch_size=8, steps=2, noise_multiplier=1.0, composed=(released,))
    assert PRECISE in plan.with_tails(100).guarantee().conditions


def test_trials_with_repeated_steps_are_charged_for_every_attempt() -> None:
    from dataclasses import replace

    plan = make_plan("dp-sgd", examples=1000, batch_size=100, steps=50, noise_multiplier=2.0)
    plan = replace(plan, trials=Trials(10.0, 1.0, 3.0), precision=precision_of(1000))
    once, twice = (find_leaves(claim_attempts(plan, [Replay(0, 50)] * n)[0].event) for n in (1, 2))
    assert twice.log_ratio == pytest.approx(2 * once.log_ratio)
    assert twice.imprecise_delta > once.imprecise_delta


def test_correlated_noise_names_the_condition_instead() -> None:
    plan = make_plan("dp-ftrl", examples=16, batch_size=8, steps=2, noise_multiplier=1.0).with_tails(100)
    assert plan.precision is None
    assert any("double precision" in text for text in plan.guarantee().conditions)
    independent = make_plan("dp-sgd", examples=16, batch_size=8, steps=2, noise_multiplier=1.0).with_tails(100)
    assert not any("double precision" in text for text in independent.guarantee().conditions)


def test_trials_are_charged_for_all_of_them() -> None:
    each = FinitePrecisionDpEvent(1e-6, 1e-10)
    found = Trials(10.0, 1.0, 3.0).imprecise(each)
    most = round(found.log_ratio / each.log_ratio)
    assert (1 - 1 / 10.0) ** most < 2e-12
    assert most < 400
    assert found.delta == pytest.approx(10 * 1e-10 + 2e-12, rel=1e-3)
    plan = make_plan("dp-sgd", examples=1000, batch_size=100, steps=50, noise_multiplier=1.0)
    with pytest.raises(NotProvenError):
        type(plan).with_tails(plan_with_trials(plan), 10_000)


def plan_with_trials(plan):
    from dataclasses import replace

    return replace(plan, trials=Trials(10.0, 1.0, 3.0), precision=precision_of(10))
