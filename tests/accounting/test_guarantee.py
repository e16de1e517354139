"""Guarantee: its sentence, conditions, upward rounding, JSON round trip, and refutation by audits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import assume, given
from hypothesis import strategies as st

from hush.accounting import guarantee as module
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import (
    CHECKED,
    COLLATED,
    EXACT,
    HELD,
    INDEPENDENT_ROWS,
    KEPT,
    SECRET_SEED,
    SHAPE,
    STATUSES,
    AuditFinding,
    Guarantee,
    findings,
    rounded_down,
    rounded_up,
    say_own_data,
)
from hush.datasets.catalogue import COUNT
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import make_plan

EVENT = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)


def test_a_guarantee_is_a_line_and_a_list_of_conditions() -> None:
    stated = Guarantee(2.9653, 1e-5, event=EVENT, assumptions=("a is public", SECRET_SEED))
    first, *others = str(stated).splitlines()
    pair = "(ε = 2.97, δ = 1e-5)-differentially private per example (adding or removing one example)"
    assert first == f"{pair}, proven, on conditions:"
    assert others == [f"  1. {SECRET_SEED}", "  2. a is public"]
    assert stated.sentence() == f"{pair}, proven, on conditions: (1) {SECRET_SEED}, (2) a is public."
    assert stated.private


@pytest.mark.parametrize("status", ["proven", "claimed", "refuted", "none"])
def test_proven_reads_on_conditions_exactly_where_there_are_any(status: str) -> None:
    free, bound = Guarantee(1.0, 1e-5, status=status), Guarantee(1.0, 1e-5, status=status, assumptions=("a",))
    assert free.describe_status() == status
    assert bound.describe_status() == ("proven, on conditions" if status == "proven" else status)
    assert bound.status == bound.to_json()["status"] == status
    for text in (str(bound), bound.sentence()):
        assert ("proven, on conditions" in text) == (status == "proven")
    assert "conditions" not in str(free)


def test_conditions_are_sorted_by_importance_and_notes_on_scope_are_none() -> None:
    arithmetic, own, kept = INDEPENDENT_ROWS + CHECKED.format(12), say_own_data("patient"), KEPT.format("noise", "Mine")
    given = (arithmetic, SHAPE, HELD, "b", own, "a", COLLATED, kept, EXACT, SECRET_SEED, "b")
    stated = Guarantee(1.0, 1e-5, assumptions=given)
    assert stated.conditions == (SECRET_SEED, kept, COLLATED, own, "b", "a", SHAPE, arithmetic)
    assert stated.scope == (HELD, EXACT)
    written = stated.to_json()
    assert (written["assumptions"], written["scope"]) == (list(stated.conditions), [HELD, EXACT])
    assert Guarantee.from_json(written) == stated


def test_the_guarantee_of_the_demo_fits_three_lines() -> None:
    plan = make_plan("dp-sgd", examples=1437, counted=True, batch_size=64, epochs=8, epsilon=2.97, assumptions=(COUNT,))
    stated = plan.guarantee()
    found = Guarantee(
        stated.epsilon,
        stated.delta,
        stated.adjacency,
        assumptions=(*plan.assumptions, INDEPENDENT_ROWS + CHECKED.format(123_456)),
    )
    lines = str(found).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 120


class TestAnotherDelta:
    PLAN = replace(
        make_plan("dp-sgd", examples=1000, batch_size=50, steps=40, noise_multiplier=1.0, delta=1e-5), tails=1e-8
    )

    @pytest.mark.parametrize("delta", [1e-7, 1e-6, 1e-4, 1e-2])
    def test_epsilon_is_that_of_the_event_without_what_is_lost(self, delta: float) -> None:
        stated = self.PLAN.guarantee()
        found = stated.at(delta)
        assert stated.lost is not None
        lost = stated.lost[1 if delta < 1e-5 else 0]
        assert lost > 0
        assert found.epsilon == epsilon(stated.event, delta - lost, adjacency="add-remove", accountant="pld")
        assert (found.delta, found.conditions, found.status) == (delta, stated.conditions, "proven")
        assert (found.epsilon > stated.epsilon) == (delta < 1e-5)

    def test_the_same_delta_is_the_same_guarantee_and_none_is_left_below_what_is_lost(self) -> None:
        stated = self.PLAN.guarantee()
        assert stated.at(1e-5) == stated
        assert stated.at(stated.lost[1] / 2).status == "none"

    def test_there_is_none_where_it_is_not_known(self) -> None:
        for unknown in (Guarantee(1.0, 1e-5), Guarantee(1.0, 1e-5, event=EVENT), Guarantee(1.0, 1e-5, lost=(0.0, 0.0))):
            with pytest.raises(NotProvenError, match="1e-6"):
                unknown.at(1e-6)
        for bad in (0.0, 1.0, -1.0, math.nan):
            with pytest.raises(InvalidInputError, match="delta"):
                self.PLAN.guarantee().at(bad)


@pytest.mark.parametrize("status", ["claimed", "refuted", "none"])
def test_only_a_proven_epsilon_reads_as_a_guarantee(status: str) -> None:
    stated = Guarantee(1.0, 1e-5, status=status, reason="the feedback is not bounded")
    sentence = stated.sentence()
    opening = {"claimed": "Not a guarantee: ", "refuted": "Refuted: ", "none": "No privacy: "}[status]
    assert sentence.startswith(opening)
    assert "differentially private" not in sentence
    assert "proven by" not in sentence
    assert "the feedback is not bounded" in sentence
    assert not stated.private


def test_ordinary_training_shows_no_epsilon() -> None:
    stated = Guarantee(math.inf, 0.0, status="none")
    assert "ε" not in stated.sentence()
    assert stated.to_json()["epsilon"] is None


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 1e-5), (1.0, 1.0), (math.inf, 1.0)])
def test_nothing_is_proven_by_an_infinite_epsilon_or_a_delta_of_one(epsilon: float, delta: float) -> None:
    found = Guarantee(epsilon, delta)
    assert found.status == "none"
    assert not found.private
    assert found.sentence().startswith("No privacy: ")
    assert "no finite ε is proven at δ = " in found.sentence()
    written = found.to_json()
    assert (written["status"], Guarantee.from_json(written).status) == ("none", "none")


@pytest.mark.parametrize(
    ("epsilon", "delta", "sentence"),
    [
        (math.nan, 1e-5, "epsilon must be zero or above"),
        (1.0, math.nan, "delta must lie between 0 and 1, got nan"),
        (1.0, 0.0, "a proven guarantee needs a delta above 0"),
        (1.0, -1.0, "delta must lie between 0 and 1, got -1"),
        (1.0, 2.0, "delta must lie between 0 and 1, got 2"),
    ],
)
def test_a_pair_that_means_nothing_is_refused(epsilon: float, delta: float, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        Guarantee(epsilon, delta)


@pytest.mark.parametrize(("adjacency", "words"), [("replace", "replacing one"), ("zero-out", "zeroing one")])
def test_the_adjacency_is_spelt_out(adjacency: str, words: str) -> None:
    assert words in Guarantee(1.0, 1e-5, adjacency, unit="user").sentence()
    assert "per user" in Guarantee(1.0, 1e-5, adjacency, unit="user").sentence()


@given(st.floats(1e-12, 1e9))
def test_printed_numbers_never_shrink(value: float) -> None:
    assert Decimal(rounded_up(value)) >= Decimal(repr(value))
    assert Decimal(rounded_down(value)) <= Decimal(repr(value))
    assert float(rounded_up(value)) == pytest.approx(value, rel=0.0101)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.97, "2.97"),
        (2.9700001, "2.98"),
        (3.0, "3"),
        (12.4368, "12.44"),
        (1e-5, "1e-5"),
        (1 / 60000, "1.67e-5"),
        (0, "0"),
    ],
)
def test_rounded_up(value: float, shown: str) -> None:
    assert rounded_up(value) == shown


@given(
    st.floats(0, 1e6) | st.just(math.inf),
    st.floats(0, 1),
    st.sampled_from(["add-remove", "replace", "zero-out"]),
    st.sampled_from(STATUSES),
    st.lists(st.text(max_size=20), max_size=3),
)
def test_json_comes_back(epsilon: float, delta: float, adjacency: str, status: str, assumptions: list[str]) -> None:
    assume(delta > 0 or status != "proven")
    stated = Guarantee(epsilon, delta, adjacency, "user", status, EVENT, "rdp", tuple(assumptions), "why")
    written = json.loads(json.dumps(stated.to_json(), allow_nan=False))
    back = Guarantee.from_json(written)
    assert back.to_json() == stated.to_json()
    assert (back.epsilon, back.delta, back.assumptions) == (epsilon, delta, tuple(dict.fromkeys(assumptions)))
    assert back.status == stated.status
    assert stated.status == status or (status == "proven" and (math.isinf(epsilon) or delta == 1))
    assert written["event"] == "1000 × Poisson(rate 0.01, Gaussian(σ 1))"


def test_bad_guarantees_are_refused() -> None:
    for name, bad in (("epsilon", -1.0), ("epsilon", math.nan), ("delta", 2.0), ("status", "prooven")):
        with pytest.raises(InvalidInputError, match=name):
            Guarantee(**({"epsilon": 1.0, "delta": 1e-5} | {name: bad}))
    with pytest.raises(InvalidInputError, match="'add'"):
        Guarantee(1.0, 1e-5, adjacency="add")
    with pytest.raises(InvalidInputError):
        Guarantee.from_json({"delta": 1e-5})


def test_a_listed_method_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = AuditFinding("dp-x", claimed_epsilon=1.0, epsilon_lower=4.218, delta=1e-5, confidence=0.95)
    monkeypatch.setattr(module, "findings", lambda: (found,))
    stated = Guarantee(1.0, 1e-5, status="claimed", method="dp-x", reason="a formula")
    assert stated.status == "refuted"
    assert "measured at least ε = 4.21 at δ = 1e-5 (95% confidence) where ε = 1 was stated; a formula" in str(stated)
    assert Guarantee.from_json(stated.to_json()) == stated
    assert Guarantee(3.0, 1e-5, status="proven", method="dp-x").status == "proven"  # the audit broke the other ε
    assert Guarantee(1.0, 1e-5, status="claimed", method="dp-y").status == "claimed"


def test_a_curve_that_is_refuted_before_its_epsilon_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = AuditFinding("dp-x", claimed_epsilon=4.0, epsilon_lower=3.69, delta=1e-5, confidence=0.95)
    monkeypatch.setattr(module, "findings", lambda: (found,))
    stated = str(Guarantee(2.0, 1e-5, status="claimed", method="dp-x"))
    assert "an audit refuted the trade-off curve that was stated (99.99% confidence), and measured at least" in stated
    assert "ε = 3.69 at δ = 1e-5 (95% confidence) where ε = 4 was stated" in stated


def test_the_shipped_findings_are_of_claims_that_are_broken_by_more_than_chance() -> None:
    found = {(entry.method, entry.status): entry for entry in findings()}
    assert set(found) == {("dp-dice", "claimed"), ("sanitize", "claimed")}
    assert found["sanitize", "claimed"].epsilon_lower > 3 > found["sanitize", "claimed"].claimed_epsilon
    assert all(
        entry.epsilon_lower > 0 and "against the claimed trade-off curve" in entry.source for entry in findings()
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 1e-5), (1.0, 1.0), (math.inf, 1.0)])
def test_nothing_is_proven_beside_an_epsilon_or_delta_that_says_nothing(epsilon, delta) -> None:
    found = Guarantee(epsilon, delta)
    assert found.status == "none"
    assert found.to_json()["status"] == "none"
    assert "no finite ε is proven" in found.sentence()


# The protected part (example, label, features) in the sentence, the JSON and the table.


def test_the_whole_example_is_protected_unless_something_else_is_said() -> None:
    assert Guarantee(1.0, 1e-5).protects == "example"
    assert Guarantee(1.0, 1e-5).to_json()["protects"] == "example"


@pytest.mark.parametrize(("half", "words"), [("features", "the features of one patient"), ("labels", "the label of")])
def test_half_a_guarantee_reads_as_one(half: Any, words: str) -> None:
    guarantee = Guarantee(1.0, 1e-5, "replace", unit="patient", protects=half)
    assert words in guarantee.sentence()
    assert "taken to be public" in guarantee.sentence()
    assert Guarantee.from_json(guarantee.to_json()) == guarantee


def test_a_guarantee_written_without_the_field_is_for_the_example() -> None:
    written = Guarantee(1.0, 1e-5).to_json()
    del written["protects"]
    assert Guarantee.from_json(written).protects == "example"


def test_nothing_else_is_protected() -> None:
    with pytest.raises(InvalidInputError):
        Guarantee(1.0, 1e-5, protects="half")  # type: ignore[arg-type]
