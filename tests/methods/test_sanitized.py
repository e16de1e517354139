"""Guarantees of the methods that release activations, compared with dp-accounting."""

from __future__ import annotations

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from hush.accounting.gaussian import Participating, gaussian_delta
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import make_plan
from sanitized_models import plan

PUBLISHED = {30: 2.34, 51: 3.09, 82: 4.00, 100: 4.46}


@pytest.mark.parametrize(("epochs", "epsilon"), PUBLISHED.items())
def test_the_published_figures_are_claimed(epochs, epsilon) -> None:
    p = make_plan("sanitize", examples=50_000, batch_size=250, epochs=epochs, noise_multiplier=1.0, accept_claimed=True)
    (claim,) = p.claims()
    assert claim.epsilon == pytest.approx(epsilon, abs=5e-3)
    assert (claim.status, claim.protects) == ("refuted", "features")
    reference = RdpAccountant()
    reference.compose(dp_event.PoissonSampledDpEvent(0.005, dp_event.GaussianDpEvent(1.0)), 200 * epochs)
    assert claim.epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-3)


def test_the_claim_says_why_it_is_none() -> None:
    said = str(plan("sanitize").guarantee())
    assert said.startswith("Refuted")
    for part in ("raw features", "2C", "by itself", "coin flips", "on average", "labels are not protected"):
        assert part in said


@pytest.mark.parametrize(("sigma", "epsilon"), [(2.0, 4.377), (1.0, 9.997), (5.0, 1.555)])
def test_released_once(sigma, epsilon) -> None:
    found = make_plan("sanitize-once", examples=50_000, batch_size=250, epochs=70, noise_multiplier=sigma).guarantee()
    assert found.epsilon == pytest.approx(epsilon, abs=5e-4)
    assert (found.status, found.protects, found.adjacency) == ("proven", "features", "replace")
    reference = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    reference.compose(dp_event.GaussianDpEvent(sigma))
    assert found.epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-3)


def test_a_clamp_to_zero_and_c_halves_mu() -> None:
    half = plan("sanitize-once", nonnegative=True, noise_multiplier=1.0).guarantee().epsilon
    assert half == pytest.approx(plan("sanitize-once", noise_multiplier=2.0).guarantee().epsilon, rel=1e-9)


def test_epochs_cost_nothing() -> None:
    once = [plan("sanitize-once", steps=steps).guarantee().epsilon for steps in (5, 50)]
    assert once[0] == once[1]


def test_a_mixture_over_coins_is_that_of_its_parts() -> None:
    steps, rate, each = 60, 0.1, 0.05
    event = Participating(steps, rate, each)
    for epsilon in (0.1, 1.0, 3.0):
        expected = sum(
            stats.binom.pmf(k, steps, rate) * gaussian_delta(epsilon, math.sqrt(k * each)) for k in range(1, steps + 1)
        )
        assert event.delta_of(epsilon) == pytest.approx(expected, rel=1e-6)
    assert Participating(1, 1.0, 1.0).delta_of(1.0) == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-6)


def test_a_proven_method_is_calibrated_and_says_what_it_leaves_open() -> None:
    found = plan("sanitize-once", noise_multiplier=None, epsilon=3.0).guarantee()
    assert 2.97 < found.epsilon <= 3.0
    said = str(found)
    assert "the features of one example changing; the rest of it is taken to be public" in said
    assert "labels" in said
    assert "not protected" in said


class TestRefused:
    @pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
    def test_another_adjacency(self, adjacency):
        with pytest.raises(NotProvenError, match="'replace'"):
            plan("sanitize-once", adjacency=adjacency)

    def test_a_claim_that_nobody_accepted(self):
        with pytest.raises(NotProvenError):
            plan("sanitize", accept_claimed=False)

    def test_a_unit_of_several_rows(self):
        from dataclasses import replace

        with pytest.raises(NotProvenError):
            replace(plan("sanitize-once"), unit="patient")

    def test_no_noise(self):
        with pytest.raises(InvalidInputError, match="noise_multiplier"):
            plan("sanitize-once", noise_multiplier=0.0)

    def test_an_order_that_changes_nothing(self):
        with pytest.raises(NotProvenError, match="'shuffled'"):
            plan("sanitize-once", sampling="same-order")
