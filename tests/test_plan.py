"""The table of proofs: proven plans are accounted exactly, all others are refused with a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import dp_event

from hush.accounting.guarantee import FAST, INDEPENDENT_ROWS, KEPT
from hush.clipping import PLAIN_SUM, Channel, Claim
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import event_of
from hush.matrix_factorization import Diagonal, Strategy
from hush.methods import catalogue, find, make_plan
from hush.noise import Independent
from hush.sampling import (
    CyclicPoissonSampled,
    OnePass,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)

T = 12
IDENTITY = Diagonal(T)


@dataclass(frozen=True)
class Dense(Strategy):
    """Correlated noise as far as the table is concerned."""

    steps: int = T
    bands: int | None = None
    restarts: int | None = None

    def strategy(self):
        raise AssertionError("the table needs no matrix")

    noise_map = strategy

    def single(self) -> float:
        return 1.5

    def same_order(self, per_epoch: int) -> float:
        return 2.5

    def separated(self, times: int, apart: int) -> float:
        return 3.5

    def first(self, steps: int) -> Dense:
        return replace(self, steps=steps)


def gaussian(sigma: float) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(sigma)


def composed(event: dp_event.DpEvent, count: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(event, count)


def poisson(rate: float, event: dp_event.DpEvent) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, event)


# participation, structure, adjacency, Z's scale, event: every row of the table
PROVEN = [
    (PoissonSampled(0.1, T), IDENTITY, "add-remove", 2.0, composed(poisson(0.1, gaussian(2.0)), T)),
    (PoissonSampled(0.1, T), IDENTITY, "zero-out", 2.0, composed(poisson(0.1, gaussian(2.0)), T)),
    (PoissonSampled(0.1, T), IDENTITY, "replace", 2.0, composed(poisson(0.1, gaussian(1.0)), T)),
    (
        WithoutReplacement(50, 5, T),
        IDENTITY,
        "replace",
        2.0,
        composed(dp_event.SampledWithoutReplacementDpEvent(50, 5, gaussian(1.0)), T),
    ),
    (OnePass(T), IDENTITY, "zero-out", 2.0, gaussian(2.0)),
    (OnePass(T), Dense(), "zero-out", 3.0, gaussian(2.0)),
    (SameOrder(4, T), IDENTITY, "zero-out", 2.0, gaussian(2.0 / math.sqrt(3))),
    (SameOrder(4, T), Dense(), "zero-out", 5.0, gaussian(2.0)),
    (SameOrder(4, T), Dense(), "replace", 5.0, gaussian(1.0)),
    (Separated(2, 4, T), IDENTITY, "zero-out", 2.0, gaussian(2.0 / math.sqrt(2))),
    (Separated(2, 4, T), Dense(), "zero-out", 7.0, gaussian(2.0)),
    (Reshuffled(4, T), IDENTITY, "zero-out", 2.0, composed(gaussian(2.0), 3)),
    (Reshuffled(4, T), Dense(restarts=4), "zero-out", 3.0, composed(gaussian(2.0), 3)),
    (Reshuffled(4, T), Dense(restarts=2), "zero-out", 3.0, composed(gaussian(2.0), 3)),
    (CyclicPoissonSampled(4, 0.2, T), IDENTITY, "zero-out", 2.0, composed(poisson(0.2, gaussian(2.0)), 3)),
    (CyclicPoissonSampled(4, 0.2, T), Dense(bands=4), "zero-out", 3.0, composed(poisson(0.2, gaussian(2.0)), 3)),
]


@pytest.mark.parametrize(("participation", "structure", "adjacency", "scale", "event"), PROVEN)
def test_the_table(participation, structure, adjacency, scale, event) -> None:
    assert event_of(participation, structure, scale, adjacency, T) == event


@dataclass(frozen=True)
class BallsInBins:
    steps: int


# participation, structure, adjacency, what the refusal must offer
REFUSED = [
    (PoissonSampled(0.1, T), Dense(), "add-remove", "same-order.*cyclic Poisson"),
    (PoissonSampled(0.1, T), Dense(bands=3), "add-remove", "same-order.*cyclic Poisson"),
    (WithoutReplacement(50, 5, T), Dense(), "replace", "same-order"),
    (WithoutReplacement(50, 5, T), IDENTITY, "add-remove", "use 'replace'"),
    (Reshuffled(4, T), Dense(), "zero-out", "same-order.*restart the noise every epoch"),
    (Reshuffled(4, T), Dense(restarts=3), "zero-out", "restart the noise every epoch"),
    (Reshuffled(4, T), IDENTITY, "add-remove", "use 'zero-out'"),
    (SameOrder(4, T), Dense(), "add-remove", "use 'zero-out'"),
    (CyclicPoissonSampled(4, 0.2, T), Dense(bands=5), "zero-out", "at most 4 bands"),
    (CyclicPoissonSampled(4, 0.2, T), Dense(), "zero-out", "at most 4 bands"),
    (CyclicPoissonSampled(4, 0.2, T), IDENTITY, "replace", "use 'zero-out'"),
    (BallsInBins(T), IDENTITY, "add-remove", "declare one of PoissonSampled"),
    (PoissonSampled(0.1, T + 1), IDENTITY, "add-remove", "covers 12 steps"),
]


@pytest.mark.parametrize(("participation", "structure", "adjacency", "remedy"), REFUSED)
def test_what_is_not_in_the_table_is_refused_with_a_remedy(participation, structure, adjacency, remedy) -> None:
    with pytest.raises((NotProvenError, InvalidInputError), match=remedy):
        event_of(participation, structure, 1.0, adjacency, T)


@pytest.mark.parametrize(
    ("participation", "steps", "event"),
    [
        (PoissonSampled(0.1, T), 5, composed(poisson(0.1, gaussian(2.0)), 5)),
        (SameOrder(4, T), 5, gaussian(2.0 / math.sqrt(2))),
        (SameOrder(4, T), 4, gaussian(2.0)),
        (Reshuffled(4, T), 5, composed(gaussian(2.0), 2)),
        (CyclicPoissonSampled(4, 0.2, T), 5, composed(poisson(0.2, gaussian(2.0)), 2)),
    ],
)
def test_the_first_steps_cost_less(participation, steps, event) -> None:
    adjacency = "add-remove" if isinstance(participation, PoissonSampled) else "zero-out"
    assert event_of(participation, IDENTITY, 2.0, adjacency, steps) == event


def plan(method: str = "dp-sgd", **changes):
    how = {"examples": 60_000, "batch_size": 256, "epochs": 20, "noise_multiplier": 1.0, **changes}
    return make_plan(method, **how)


# q, T, σ, accountant, ε at δ = 1e-5: MECHANISMS.md §3 (dp-accounting 0.6, double precision)
GOLDEN = [
    (1 / 235, 4700, 1.0, "rdp", 1.757),
    (1 / 235, 4700, 0.75, "rdp", 3.638),
    (1 / 235, 4700, 0.5, "rdp", 14.29),
    (1 / 235, 4700, 1.0, "pld", 1.566),
    (1 / 235, 4700, 0.75, "pld", 3.108),
    (1 / 235, 4700, 0.5, "pld", 12.44),
    (None, None, 1.0, "pld", 1.571),
    (None, None, 1.0, "rdp", 1.761),
    (1 / 210, 4200, 1.0, "pld", 1.672),
    (1 / 210, 4200, 0.75, "pld", 3.320),
    (1 / 210, 4200, 0.5, "pld", 13.08),
]


@pytest.mark.parametrize(("rate", "steps", "sigma", "accountant", "epsilon"), GOLDEN)
def test_dp_sgd_golden_values(rate, steps, sigma, accountant, epsilon) -> None:
    p = plan(sample_rate=rate, steps=steps, noise_multiplier=sigma, accountant=accountant)
    places = 2 if epsilon > 10 else 3
    assert round(p.guarantee().epsilon, places) == pytest.approx(epsilon, abs=10**-places / 2)


def test_epochs_and_rate_follow_the_convention() -> None:
    p = plan()
    assert p.steps == 4700  # ⌈60000/256⌉ = 235 an epoch
    assert p.sampler.participation == PoissonSampled(256 / 60_000, 4700)
    assert p.divisor == 256.0
    assert p.event() == composed(poisson(256 / 60_000, gaussian(1.0)), 4700)


# batch, ε, σ to the digits shown: MECHANISMS.md §3
@pytest.mark.parametrize(
    ("batch", "epsilon", "sigma"),
    [(256, 1, 4.30), (256, 5, 1.218), (256, 10, 0.847), (1024, 1, 8.50), (1024, 5, 2.150), (1024, 10, 1.327)],
)
def test_calibration_golden_values(batch, epsilon, sigma) -> None:
    p = make_plan("dp-sgd", examples=50_000, batch_size=batch, epochs=250, epsilon=epsilon)
    places = 2 if epsilon == 1 else 3
    assert p.sigma == pytest.approx(sigma, abs=10**-places)
    assert p.guarantee().epsilon <= epsilon
    slightly_less = replace(p, sigma=p.sigma * 0.998)
    assert slightly_less.guarantee().epsilon > epsilon


def test_epsilon_of_the_first_steps_grows_to_the_whole() -> None:
    p = plan()
    spent = [p.guarantee(steps).epsilon for steps in (1, 10, 235, 2350, 4700)]
    assert spent == sorted(spent)
    assert spent[-1] == p.guarantee().epsilon
    with pytest.raises(InvalidInputError, match="4700.*4701"):
        p.guarantee(4701)


def test_shuffled_batches_are_not_amplified() -> None:
    shuffled, amplified = plan(sampling="shuffled"), plan()
    assert shuffled.event() == composed(gaussian(1.0), 20)
    assert shuffled.guarantee().epsilon > 10 * amplified.guarantee().epsilon
    with pytest.raises(NotProvenError, match="'poisson'"):
        plan(sampling="shuffled", sample_rate=0.01)


def test_the_samplers_own_adjacency_is_reported() -> None:
    assert plan().guarantee().adjacency == "add-remove"
    assert plan(sampling="fixed-size").guarantee().adjacency == "replace"
    assert plan(sampling="same-order").guarantee().adjacency == "zero-out"
    assert plan(adjacency="replace").guarantee().epsilon > plan().guarantee().epsilon


def test_where_the_examples_were_counted_nobodys_presence_is_hidden() -> None:
    declared, counted = plan().guarantee(), plan(counted=True).guarantee()
    assert (declared.adjacency, counted.adjacency) == ("add-remove", "zero-out")
    assert declared.epsilon == counted.epsilon  # the pair of distributions is the same
    assert "zeroing one example's contribution" in counted.sentence()
    with pytest.raises(NotProvenError):
        plan(counted=True, adjacency="add-remove")
    for sampling in ("fixed-size", "same-order"):
        assert plan(counted=True, sampling=sampling).guarantee() == plan(sampling=sampling).guarantee()


def test_a_sampler_swapped_in_changes_the_event() -> None:
    """There is no way to keep Poisson's ε and run other batches: the event is computed from the sampler that runs."""
    p = plan()
    swapped = replace(p, sampler=plan(sampling="shuffled").sampler)
    assert swapped.guarantee().epsilon == plan(sampling="shuffled").guarantee().epsilon


def test_node_noise_is_sigma_times_sensitivity() -> None:
    p = make_plan("dp-sgd", examples=1000, batch_size=100, epochs=4, node_noise=3.0, sampling="same-order")
    assert p.sensitivity == 2.0
    assert p.sigma == 1.5
    assert p.noise_std == 3.0


def test_the_exact_accountant_refuses_sampling_by_name() -> None:
    with pytest.raises(NotProvenError, match=r"(?i)poisson"):
        plan(accountant="gdp").guarantee()


@pytest.mark.parametrize("method", [m for m in catalogue() if m != "sgd"])
def test_every_private_method_proves_or_labels_its_epsilon(method) -> None:
    p = make_plan(method, examples=2_000, batch_size=100, epochs=2, epsilon=4.0, accept_claimed=True)
    best = p.guarantee()
    assert best.status in ("proven", "claimed", "refuted")
    assert best.epsilon <= 4.0
    assert best.epsilon > 4.0 * 0.99


class TestBadInput:
    @pytest.mark.parametrize("epsilon", [0, -1.0, math.inf, math.nan])
    def test_epsilon(self, epsilon):
        with pytest.raises(InvalidInputError, match="epsilon"):
            plan(noise_multiplier=None, epsilon=epsilon)

    @pytest.mark.parametrize("delta", [0, 1, 1.5, -1e-5, math.nan])
    def test_delta(self, delta):
        with pytest.raises(InvalidInputError, match="delta"):
            plan(delta=delta)

    @pytest.mark.parametrize("sigma", [0, -1.0, math.inf, math.nan])
    def test_sigma(self, sigma):
        with pytest.raises(InvalidInputError, match="noise_multiplier"):
            plan(noise_multiplier=sigma)

    def test_batch_larger_than_the_data(self):
        with pytest.raises(InvalidInputError, match="70000.*60000"):
            plan(batch_size=70_000)

    def test_unknown_names_offer_the_nearest(self):
        with pytest.raises(InvalidInputError, match="'dp-sdg'.*'dp-sgd'"):
            plan("dp-sdg")
        with pytest.raises(InvalidInputError, match="'clp'.*'clip'"):
            plan(clp=1.0)
        with pytest.raises(InvalidInputError, match="'poison'.*'poisson'"):
            plan(sampling="poison")
        with pytest.raises(InvalidInputError, match="accountant"):
            plan(accountant="pdl")

    def test_two_noises(self):
        with pytest.raises(InvalidInputError):
            plan(epsilon=1.0)

    def test_noise_for_ordinary_training(self):
        with pytest.raises(InvalidInputError, match="noise"):
            plan("sgd")

    def test_a_method_of_ones_own(self):
        assert find("hush.methods.independent:dp_sgd") is catalogue()["dp-sgd"]
        with pytest.raises(InvalidInputError):
            find("hush.methods:nothing")


def test_agrees_with_dp_accounting_itself() -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(plan().event())
    assert plan(accountant="rdp").guarantee().epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-5)


@dataclass(frozen=True)
class Sums:
    """A query that is never run: these channels, and what it claims about them."""

    channels: Mapping[str, Channel]
    said: Any = PLAIN_SUM
    init = piece = finish = observe = print

    def claims(self, participation: Any, noise_std: Mapping[str, float], steps: int) -> Any:
        return self.said


def proven(adjacency: str = "add-remove", status: str = "proven") -> Claim:
    return Claim(dp_event.GaussianDpEvent(2.0), adjacency, status, "")


SUM, HIDDEN = {"gradient": Channel(1.0)}, {"gradient": Channel(1.0, proof="hidden-state")}
UNCLAIMED = {
    "a hidden state that says it is a plain sum": (Sums(HIDDEN), "not a plain sum"),
    "one of two that is no plain sum": (Sums(SUM | {"more": HIDDEN["gradient"]}), "not a plain sum"),
    "no claim": (Sums(SUM, ()), "claims nothing"),
    "a method that was left empty": (Sums(SUM, None), "claims nothing"),
    "claimed, not proven": (Sums(SUM, (proven(status="claimed"),)), "only a claimed ε"),
    "another adjacency": (Sums(SUM, (proven("replace"),)), "analysed under 'replace'"),
}


@pytest.mark.parametrize("which", UNCLAIMED)
def test_a_query_that_proves_nothing_is_refused(which: str) -> None:
    query, why = UNCLAIMED[which]
    with pytest.raises(NotProvenError, match=why):
        replace(plan(), query=query, adjacency="add-remove")


def test_claims_under_another_adjacency_than_the_batches_own_need_the_plan_to_name_it() -> None:
    """Otherwise σ and tails would be found for other neighbours than the guarantee's."""
    query = Sums(SUM, (proven("replace"),))
    with pytest.raises(NotProvenError, match="'replace'.*'add-remove'"):
        replace(plan(), query=query)
    named = replace(plan(), query=query, adjacency="replace")
    assert {named.neighbours, named.guarantee().adjacency} == {"replace"}


def test_a_query_without_claims_is_refused() -> None:
    """Nobody has thought about what it costs: it is not taken for a plain sum."""
    whole = {n: v for n, v in vars(Sums).items() if n in ("init", "piece", "finish", "observe")}
    without = type("Without", (), {"channels": SUM, **whole})()
    with pytest.raises(InvalidInputError):
        replace(plan(), query=without)


def test_claims_of_its_own_outrank_the_table() -> None:
    """Channels that look like plain sums do not bring a query under the table where it says otherwise."""
    said = replace(plan(), query=Sums(SUM, (proven(status="claimed"), proven())))
    assert [claim.status for claim in said.claims()] == ["proven", "claimed"]
    assert said.event() == dp_event.GaussianDpEvent(2.0)
    assert replace(plan(), query=Sums(SUM)).event() == plan().event() != said.event()


class SumsWhenAskedAboutLess(Sums):
    """Claims of its own about the whole plan, and the table's about a part of it."""

    def claims(self, participation: Any, noise_std: Mapping[str, float], steps: int) -> Any:
        return self.said if steps == plan().steps else PLAIN_SUM


def test_the_table_speaks_for_no_part_of_a_hidden_state() -> None:
    hidden = replace(plan(), query=SumsWhenAskedAboutLess(HIDDEN, (proven(),)))
    assert hidden.guarantee().status == "proven"
    for ask in (hidden.guarantee, hidden.event):
        with pytest.raises(NotProvenError):
            ask(10)


def test_channels_share_the_noise() -> None:
    """MECHANISMS.md §4: σ = 1, σ_b = 12.8 on indicators with bound ½ leaves the gradient 1.00076."""
    p = plan()
    two = replace(p, query=Sums({"gradient": Channel(2.0), "count": Channel(0.5, std=12.8, exact=True)}))
    stds = two.channel_stds()
    assert stds["count"] == 12.8
    assert stds["gradient"] / (2.0 * (1 + two.charge)) == pytest.approx(1.00076, abs=5e-6)
    assert sum((two.channels[n].bound / s) ** 2 for n, s in stds.items()) == pytest.approx(1.0)
    with pytest.raises(InvalidInputError, match="budget"):
        replace(p, query=Sums({"gradient": Channel(1.0), "count": Channel(0.5, std=0.5)}))


def test_noise_that_covers_too_few_steps_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="10"):
        replace(plan(), noise=Independent(10))


def test_a_delta_that_the_noise_cannot_deliver_is_refused_where_the_model_is_known() -> None:
    model = torch.nn.Linear(1000, 10)
    data = torch.zeros(60_000, 1)
    with pytest.raises(NotProvenError, match="δ = 1e-15.*10010.*4700"):
        plan(delta=1e-15).start(model, lambda m, b: m(b), data)
    with pytest.raises(NotProvenError, match="δ"):
        plan(noise_multiplier=0.1).start(model, lambda m, b: m(b), data)
    assert 0 < plan().with_tails(10**8).precision.delta < 1e-7


def test_parts_of_ones_own_are_taken_at_their_word_and_the_guarantee_says_so() -> None:
    assert not any(said.startswith("the custom") for said in plan().guarantee().assumptions)
    own = replace(plan(), query=Sums(SUM, (proven(),))).guarantee()
    assert KEPT.format("query", "Sums") in own.assumptions


def test_a_plan_says_what_its_arithmetic_assumes() -> None:
    """Once, also where a run has said on how many inputs it was checked."""
    assert INDEPENDENT_ROWS in plan().guarantee().assumptions
    checked = plan().with_arithmetic(" (checked)").guarantee()
    assert [text for text in checked.assumptions if text.startswith(INDEPENDENT_ROWS)] == [
        f"{INDEPENDENT_ROWS} (checked)"
    ]
    assert INDEPENDENT_ROWS not in plan("sgd", noise_multiplier=None).guarantee().assumptions


def test_fast_arithmetic_is_claimed_at_the_same_epsilon() -> None:
    proven, fast = plan(), plan(arithmetic="fast")
    assert proven.arithmetic == "rigorous"
    assert fast.guarantee().status == "claimed"
    assert fast.guarantee().epsilon == proven.guarantee().epsilon
    assert FAST in fast.guarantee().reason
    assert not fast.guarantee().private
    assert INDEPENDENT_ROWS not in fast.guarantee().assumptions
    assert fast.event() == proven.event()
    assert fast.fingerprint() != proven.fingerprint()


def test_fast_arithmetic_changes_no_other_status() -> None:
    """A refuted formula stays refuted, what was proven beside it is claimed, and ordinary training stays what it is."""
    told = [[c.status for c in plan("dp-dice", arithmetic=mode).claims()] for mode in ("rigorous", "fast")]
    assert told == [["proven", "refuted"], ["claimed", "refuted"]]
    assert plan("sgd", noise_multiplier=None, arithmetic="fast").guarantee().status == "none"
    once = plan("sanitize-once", arithmetic="fast").guarantee()
    assert (once.status, once.protects) == ("proven", "features")  # it adds no noise to sums over examples


@pytest.mark.parametrize("word", ["default", "exact", ""])
def test_an_arithmetic_that_is_none_is_refused_by_name(word: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        plan(arithmetic=word)
    assert "fast" in str(refused.value)
