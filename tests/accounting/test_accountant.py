"""Golden ε of each accountant, adjacency conventions, refusals, and accountants checked against each other."""

from __future__ import annotations

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.accounting import renyi
from hush.accounting.accountant import default_accountant, delta, epsilon
from hush.accounting.gaussian import gaussian_delta, gaussian_epsilon
from hush.errors import InvalidInputError, NotProvenError

Gaussian = dp_event.GaussianDpEvent
DELTA = 1e-5


def poisson(rate: float, sigma: float, steps: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, Gaussian(sigma)), steps)


def without_replacement(sigma: float = 1.0, steps: int = 100) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.SampledWithoutReplacementDpEvent(1000, 10, Gaussian(sigma)), steps)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "accountant", "shown"),
    [
        # MECHANISMS.md §3: rate 1/235, 4700 steps, δ = 1e-5
        (1 / 235, 1.0, 4700, "rdp", "1.757"),
        (1 / 235, 0.75, 4700, "rdp", "3.638"),
        (1 / 235, 0.5, 4700, "rdp", "14.29"),
        (1 / 235, 1.0, 4700, "pld", "1.566"),
        (1 / 235, 0.75, 4700, "pld", "3.108"),
        (1 / 235, 0.5, 4700, "pld", "12.44"),
        # §3: rate 256/60000
        (256 / 60000, 1.0, 4700, "pld", "1.571"),
        (256 / 60000, 1.0, 4700, "rdp", "1.761"),
        # §3: PLD at the setting of the published Tables I–II
        (1 / 210, 1.0, 4200, "pld", "1.672"),
        (1 / 210, 0.75, 4200, "pld", "3.320"),
        (1 / 210, 0.5, 4200, "pld", "13.08"),
        # §3: Table IV, batch 500 of 54 000, 20 epochs
        (500 / 54000, 0.710, 2160, "pld", "5.707"),
        (500 / 54000, 0.545, 2160, "pld", "13.11"),
        # §2: add-remove
        (0.01, 1.0, 1000, "pld", "1.828"),
        # §6: amplified BandMF, 10 groups, N = 50 000, L = 500, T = 2000: 200 steps at rate 0.1
        (0.1, 1.0, 200, "pld", "9.971"),
        (0.1, 2.0, 200, "pld", "3.360"),
    ],
)
def test_golden_epsilons(rate: float, sigma: float, steps: int, accountant: str, shown: str) -> None:
    found = epsilon(poisson(rate, sigma, steps), DELTA, accountant=accountant)
    assert f"{found:.{len(shown.partition('.')[2])}f}" == shown


def test_golden_replace_is_written_for_twice_the_clip() -> None:
    # MECHANISMS.md §2: q = 0.01, T = 1000, σ = 1, replace 2.843; the noise is σ·clip, the sensitivity 2·clip
    assert f"{epsilon(poisson(0.01, 0.5, 1000), DELTA, adjacency='replace'):.3f}" == "2.843"


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_nothing_is_doubled_under_replace(accountant: str) -> None:
    # dp-accounting by itself: Gaussian(2) under REPLACE_ONE is 4.377 by PLD (doubled) and 2.166 by RDP (not doubled)
    event = Gaussian(2.0)
    assert epsilon(event, DELTA, adjacency="replace", accountant=accountant) == epsilon(
        event, DELTA, accountant=accountant
    )
    doubled = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event).get_epsilon(DELTA)
    assert doubled == pytest.approx(4.377, abs=5e-4)
    assert RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE).compose(event).get_epsilon(
        DELTA
    ) == pytest.approx(2.166, abs=5e-4)
    # written for the adjacency's own sensitivity, all three agree with the doubling PLD
    assert epsilon(Gaussian(1.0), DELTA, adjacency="replace") == pytest.approx(doubled, abs=1e-3)


def test_zero_out_costs_what_add_remove_costs() -> None:
    event = poisson(0.02, 1.0, 300)
    for accountant in ("pld", "rdp"):
        assert epsilon(event, DELTA, adjacency="zero-out", accountant=accountant) == epsilon(
            event, DELTA, accountant=accountant
        )


def test_exact_gaussian_composition() -> None:
    # MECHANISMS.md §8: μ = 2/σ at δ = 1e-5: σ = 1 9.997, σ = 5 1.555
    assert epsilon(Gaussian(0.5), DELTA, accountant="gdp") == pytest.approx(9.997, abs=5e-4)
    assert epsilon(Gaussian(2.5), DELTA, accountant="gdp") == pytest.approx(1.555, abs=5e-4)
    mixed = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(Gaussian(30.0), 400), Gaussian(2.0)])
    assert epsilon(mixed, DELTA, accountant="gdp") == gaussian_epsilon(DELTA, math.sqrt(400 / 900 + 1 / 4))


def test_mixed_composition_agrees_with_dp_accounting() -> None:
    mixed = dp_event.ComposedDpEvent(
        [poisson(0.01, 0.8, 200), Gaussian(3.0), poisson(0.05, 2.0, 50), dp_event.LaplaceDpEvent(20.0)]
    )
    reference = PLDAccountant(value_discretization_interval=2e-4).compose(mixed).get_epsilon(DELTA)
    assert epsilon(mixed, DELTA) == pytest.approx(reference, rel=2e-4)
    assert epsilon(mixed, DELTA) < epsilon(mixed, DELTA, accountant="rdp")
    assert epsilon(mixed, DELTA) > epsilon(poisson(0.01, 0.8, 200), DELTA) + 0.1


@pytest.mark.parametrize(
    "event",
    [
        dp_event.LaplaceDpEvent(1.5),
        dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(10.0), 40),
        dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)), 30),
        dp_event.SelfComposedDpEvent(dp_event.DiscreteLaplaceDpEvent(0.3, 1), 20),
        dp_event.SelfComposedDpEvent(dp_event.MixtureOfGaussiansDpEvent(1.5, [0.0, 1.0, 2.0], [0.8, 0.15, 0.05]), 20),
        dp_event.SelfComposedDpEvent(dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.02, 50, 1.0), 20),
    ],
)
def test_other_leaves_agree_with_dp_accounting(event: dp_event.DpEvent) -> None:
    reference = PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA)
    assert reference * (1 - 1e-3) <= epsilon(event, DELTA) <= reference * (1 + 5e-3)


def test_randomised_response() -> None:
    event = dp_event.RandomizedResponseDpEvent(0.5, 10)  # answers at random half of the time
    pure = math.log((0.5 + 0.05) / 0.05)
    assert epsilon(event, 1e-12, adjacency="replace") == pytest.approx(pure, rel=1e-4)
    assert epsilon(event, 1e-12, adjacency="replace") >= pure - 1e-9
    # E[1 − e^(ε − loss)]₊ at ε = 1, by hand
    assert delta(event, 1.0, adjacency="replace") == pytest.approx(0.55 - math.e * 0.05, rel=1e-3)
    with pytest.raises(NotProvenError):
        epsilon(event, DELTA)


def test_default_orders_and_own_orders() -> None:
    event = Gaussian(1.0)
    coarse = epsilon(event, DELTA, accountant="rdp", orders=(2.0, 64.0))
    assert coarse > epsilon(event, DELTA, accountant="rdp") > epsilon(event, DELTA, accountant="gdp")
    # MECHANISMS.md §5: node noise 25, S_max 225, orders 1.1, 1.2 … 200: 2.653
    fine = tuple(round(1 + 0.1 * i, 1) for i in range(1, 1991))
    assert epsilon(Gaussian(25 / 15), DELTA, accountant="rdp", orders=fine) == pytest.approx(2.653, abs=5e-4)
    with pytest.raises(InvalidInputError, match="1"):
        epsilon(event, DELTA, accountant="rdp", orders=(1.0, 2.0))
    with pytest.raises(InvalidInputError, match="accountant"):
        epsilon(event, DELTA, orders=(2.0,))


def test_without_replacement_is_for_rdp_and_replace() -> None:
    event = without_replacement()
    assert default_accountant(event, "replace") == "rdp"
    assert 0 < epsilon(event, DELTA, adjacency="replace", accountant="rdp") < math.inf
    with pytest.raises(NotProvenError, match="'rdp'"):
        epsilon(event, DELTA, adjacency="replace")
    with pytest.raises(NotProvenError):
        epsilon(event, DELTA, accountant="rdp")
    with pytest.raises(NotProvenError):
        default_accountant(event)


def test_refusals_name_the_part_and_the_remedy() -> None:
    with pytest.raises(NotProvenError, match="'pld'"):
        epsilon(poisson(0.01, 1.0, 10), DELTA, accountant="gdp")
    with pytest.raises(NotProvenError, match="'pld'"):
        epsilon(poisson(0.01, 1.0, 10), DELTA, adjacency="replace", accountant="rdp")
    with pytest.raises(NotProvenError, match="UnsupportedDpEvent"):
        epsilon(dp_event.UnsupportedDpEvent(), DELTA)
    with pytest.raises(InvalidInputError, match="'pld'"):
        epsilon(Gaussian(1.0), DELTA, accountant="pdl")
    with pytest.raises(InvalidInputError, match="event"):
        epsilon("Gaussian", DELTA)
    for bad in (0.0, 1.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInputError, match="delta"):
            epsilon(Gaussian(1.0), bad)
    with pytest.raises(InvalidInputError, match="sampling"):
        epsilon(poisson(1.5, 1.0, 1), DELTA)
    with pytest.raises(InvalidInputError, match="noise"):
        epsilon(Gaussian(-1.0), DELTA)


def test_default_accountant_is_the_tightest() -> None:
    assert default_accountant(dp_event.SelfComposedDpEvent(Gaussian(2.0), 9)) == "gdp"
    assert default_accountant(poisson(0.1, 1.0, 5)) == "pld"
    assert default_accountant(poisson(1.0, 1.0, 5)) == "gdp"
    assert default_accountant(dp_event.RepeatAndSelectDpEvent(poisson(0.1, 1.0, 5), 3.0, 1.0)) == "rdp"


def test_no_noise_is_no_privacy_and_nothing_costs_nothing() -> None:
    for event in (Gaussian(0.0), dp_event.NonPrivateDpEvent(), poisson(0.5, 0.0, 3), dp_event.LaplaceDpEvent(0.0)):
        for accountant in ("pld", "rdp"):
            assert epsilon(event, DELTA, accountant=accountant) == math.inf
            assert delta(event, 1.0, accountant=accountant) == 1.0
    for event in (dp_event.NoOpDpEvent(), poisson(0.0, 1.0, 3), dp_event.ComposedDpEvent([]), poisson(0.1, 1.0, 0)):
        assert epsilon(event, DELTA) == 0.0
        assert delta(event, 0.0) == 0.0


def test_gaussians_on_one_sample_are_one_gaussian_even_in_integers() -> None:
    # dp-accounting 0.6 stops at the first integer multiplier and forgets the rest of the composition
    pair = dp_event.ComposedDpEvent([Gaussian(2), Gaussian(2)])
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.05, pair), 100)
    honest = poisson(0.05, math.sqrt(2.0), 100)
    for accountant in ("pld", "rdp"):
        assert epsilon(event, DELTA, accountant=accountant) == pytest.approx(
            epsilon(honest, DELTA, accountant=accountant), rel=1e-9
        )
    assert RdpAccountant().compose(event).get_epsilon(DELTA) < 0.9 * epsilon(honest, DELTA, accountant="rdp")


def test_rdp_does_not_answer_zero_where_rounding_makes_a_divergence_negative() -> None:
    event = poisson(0.5, 1e8, 10**9)
    with renyi._quiet():
        assert RdpAccountant().compose(event).get_epsilon(1e-7) == 0.0  # "probably numerical instability", it warns
    # T q²(e^(1/σ²) − 1) = μ², and so many small steps are Gaussian
    truth = gaussian_epsilon(1e-7, 0.5 * math.sqrt(1e9) / 1e8)
    assert epsilon(event, 1e-7, accountant="rdp") >= truth > 4e-4
    assert truth <= epsilon(event, 1e-7) <= 1.2 * truth


class Halves:
    """A profile of its own: δ(ε) = 2^(−1−ε)."""

    def delta_of(self, epsilon: float) -> float:
        return 2.0 ** (-1 - epsilon)


def test_an_event_may_bring_its_own_profile() -> None:
    assert epsilon(Halves(), 2.0**-11) == pytest.approx(10.0, rel=1e-8)
    assert epsilon(Halves(), 2.0**-11) >= 10.0
    assert epsilon(Halves(), 0.6) == 0.0
    assert delta(Halves(), 3.0) == 2.0**-4
    assert default_accountant(Halves()) == "pld"
    with pytest.raises(NotProvenError):
        epsilon(Halves(), DELTA, accountant="rdp")
    with pytest.raises(NotProvenError):
        epsilon(dp_event.ComposedDpEvent([Halves(), Gaussian(1.0)]), DELTA)


@pytest.mark.parametrize(
    ("event", "at"),
    [
        (poisson(1e-3, 10.0, 10**6), 1e-12),
        (poisson(0.5, 50.0, 10**6), 1e-12),
        (poisson(1.0, 5.0, 10**6), 1e-12),
        (poisson(1e-6, 0.3, 10**6), 1e-5),
        (poisson(1e-4, 0.05, 1000), 1e-5),
        (poisson(0.01, 0.001, 10), 1e-5),
        (poisson(0.01, 1e-6, 1), 1e-5),
        (poisson(0.01, 1e5, 100), 1e-12),
        (poisson(0.999999, 1.0, 1000), 1e-5),
        (poisson(0.2, 1.0, 10), 0.9),
        (poisson(0.2, 30.0, 10), 1e-90),
        (poisson(1e-9, 1.0, 10**9), 1e-10),
    ],
)
def test_extreme_inputs_answer(event: dp_event.DpEvent, at: float) -> None:
    found = epsilon(event, at)
    assert 0 <= found < math.inf
    if found > 0:  # what was answered is consistent with the question turned round
        assert delta(event, found * (1 + 1e-3) + 1e-9) <= max(at, 1e-25) * 1.02


def test_too_much_is_refused_in_words() -> None:
    with pytest.raises(NotProvenError, match="releases"):
        epsilon(poisson(0.1, 1.0, 10**13), DELTA)
    many = dp_event.ComposedDpEvent([dp_event.PoissonSampledDpEvent(0.1, Gaussian(1 + i / 1e4)) for i in range(1001)])
    with pytest.raises(NotProvenError, match="releases"):
        epsilon(many, DELTA)
    with pytest.raises(InvalidInputError):
        epsilon(dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1e-6)), DELTA)
    with pytest.raises(InvalidInputError):
        epsilon(dp_event.DiscreteLaplaceDpEvent(1e6, 3), DELTA)
    with pytest.raises(InvalidInputError, match="noise"):
        epsilon(dp_event.MixtureOfGaussiansDpEvent(0.0, [0.0, 1.0], [0.5, 0.5]), DELTA)
    with pytest.raises(InvalidInputError, match="1e-100"):
        epsilon(Gaussian(1.0), 1e-200)


rates = st.floats(1e-3, 0.9)
sigmas = st.floats(0.4, 20.0)
steps = st.integers(1, 1000)


@settings(max_examples=15, deadline=None)
@given(rates, sigmas, steps, st.sampled_from([1e-9, 1e-5, 1e-3]))
def test_pld_lies_between_one_step_and_rdp(rate: float, sigma: float, count: int, at: float) -> None:
    found = epsilon(poisson(rate, sigma, count), at)
    # 1e-4 and no less: at tiny ε both are bounds on the same number and RDP may win by the grid's accuracy
    assert found <= epsilon(poisson(rate, sigma, count), at, accountant="rdp") * (1 + 1e-4) + 1e-9
    assert found <= gaussian_epsilon(at, math.sqrt(count) / sigma) * (1 + 1e-4) + 1e-9  # sampling never hurts
    assert found >= epsilon(poisson(rate, sigma, 1), at) * (1 - 1e-4)


@settings(max_examples=8, deadline=None)
@given(rates, sigmas, steps, st.floats(1.05, 3.0))
def test_epsilon_is_monotone(rate: float, sigma: float, count: int, factor: float) -> None:
    base = epsilon(poisson(rate, sigma, count), DELTA)
    slack = 1 + 1e-4
    assert epsilon(poisson(rate, sigma * factor, count), DELTA) <= base * slack
    assert epsilon(poisson(rate / factor, sigma, count), DELTA) <= base * slack
    assert epsilon(poisson(rate, sigma, math.ceil(count * factor)), DELTA) * slack >= base
    assert epsilon(poisson(rate, sigma, count), DELTA / factor) * slack >= base
    assert epsilon(poisson(rate, sigma / 2, count), DELTA, adjacency="replace") * slack >= base  # it contains removing


@settings(max_examples=10, deadline=None)
@given(rates, sigmas, steps, st.floats(0.1, 5.0))
def test_delta_and_epsilon_are_inverse(rate: float, sigma: float, count: int, at: float) -> None:
    event = poisson(rate, sigma, count)
    found = delta(event, at)
    if 1e-15 < found < 0.5:
        assert epsilon(event, found) == pytest.approx(at, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-3, 30.0), st.floats(1e-12, 0.3))
def test_gaussian_profile_is_its_own_inverse(mu: float, at: float) -> None:
    found = gaussian_epsilon(at, mu)
    assert gaussian_delta(found, mu) <= at
    if found > 0:
        assert gaussian_delta(found * (1 - 1e-4), mu) > at
