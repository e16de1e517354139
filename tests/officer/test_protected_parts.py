"""The officer's page says what is protected and for whom: features or labels alone, and all rows of one patient."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from hush.accounting.tradeoff import curve_of_guarantee, in_words
from hush.errors import InvalidInputError
from hush.guarantees import make_card
from hush.methods import make_plan
from hush.release.statement import render_privacy_page, render_privacy_text

GIVEN: dict[str, Any] = {"dataset": "visits", "date": "2026-11-16", "digests": {"model.safetensors": 64 * "0"}}
BOTH_HALVES = ("features", "labels")


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=2, epsilon=3.0).with_arithmetic()
    read: dict[str, Any] = json.loads(json.dumps(make_card(plan, steps_taken=plan.steps)))
    return read


def restate(card: dict[str, Any], rows: int | None = None, **changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(card)
    found["guarantee"] |= changes
    found["claims"] = [found["guarantee"]]
    return found if rows is None else {**found, "rows_per_unit": rows}


def text_of(card: dict[str, Any]) -> str:
    return " ".join(render_privacy_text(card, **GIVEN).replace("\\", "").split())


@pytest.mark.parametrize(
    ("half", "public", "asked"),
    [
        ("features", "The labels, what it is to predict, and who is in the data, were taken to be public", "features"),
        ("labels", "All other entries, and who is in the data, were taken to be public", "labels"),
    ],
)
def test_a_half_is_named_and_the_other_is_warned_of(card, half: str, public: str, asked: str) -> None:
    other = next(part for part in BOTH_HALVES if part != half)
    shown = text_of(restate(card, protects=half, adjacency="replace"))
    assert f"Warning: {other} are not protected" in shown
    assert public in shown
    assert f"the {asked} of one example (one row)" in shown
    assert f"can reveal about the {asked} of any one example is limited" in shown
    assert f"The {asked} of every example that was used for training" in shown
    assert f"everybody else and your {other}" in shown
    assert f"limits how much the result depends on the {asked} of one example" in shown
    assert "or may become so (section 1)" in shown
    assert f"Warning: {half} are not protected" not in shown


def test_whole_examples_are_warned_of_nothing(card) -> None:
    shown = text_of(restate(card, adjacency="replace"))
    assert "are not protected" not in shown
    assert "may become so" not in shown


def test_the_page_is_the_text(card) -> None:
    half = restate(card, protects="features", adjacency="replace")
    for said in ("Warning: labels are not protected", "the features of one example (one row)"):
        assert said in render_privacy_page(half, **GIVEN)


def test_a_patient_is_all_of_its_rows(card) -> None:
    shown = text_of(restate(card, 8, unit="patient_id"))
    assert "| one patient_id (all rows of it) |" in shown
    assert (
        "One patient_id is all rows of the training data that belong to it, of which at most 8 are looked at in one "
        "step. All that one patient_id contributed counts together as one." in shown
    )
    assert "Where every person is one patient_id, that is one person." in shown
    assert "every patient_id with a chance of 10 in 100" in shown
    assert "averaged over its rows (over 8 of them" in shown
    assert "To a person who is one patient_id one may say" in shown
    assert "whether one person can have more than one patient_id" in shown
    assert "one example" not in shown


def test_the_cap_is_not_made_up(card) -> None:
    shown = text_of(restate(card, unit="patient_id"))
    assert "One patient_id is all rows of the training data that belong to it. All that one patient_id" in shown
    assert "are looked at in one step" not in shown


def test_nothing_proven_is_nothing_protected(card) -> None:
    shown = text_of(restate(card, status="claimed", protects="features", adjacency="replace"))
    assert "no protection" in shown
    assert "Warning: not a guarantee" in shown
    assert "the features of one" not in shown


@pytest.mark.parametrize("half", BOTH_HALVES)
def test_an_attacker_knows_the_other_half(half: Any) -> None:
    plan = make_plan("dp-sgd", examples=600, batch_size=60, epochs=2, epsilon=3.0)
    curve = curve_of_guarantee(plan.guarantee())
    whole, part = (in_words(curve, adjacency="replace", unit="patient", protects=p) for p in ("example", half))
    assert whole.rows == part.rows  # the numbers are the curve's
    other = "labels" if half == "features" else "features"
    assert f"every other patient and this one's {other}" in part.sentences[0]
    assert "which of two possible" in part.sentences[0]


@pytest.mark.parametrize(
    ("adjacency", "protects", "said"),
    [
        ("add-remove", "example", ("were not in the data", "it is in the data", "those not in the data")),
        ("zero-out", "example", ("counted for nothing", "it was used", "those not used")),
        ("replace", "example", ("had any other value", "it has the first value", "those with the second value")),
        ("replace", "features", ("had any other features", "the first set of features", "the second set of features")),
        ("replace", "labels", ("had any other label", "it has the first label", "those with the second label")),
    ],
)
def test_every_question_has_all_its_phrases(card, adjacency: str, protects: str, said: tuple[str, ...]) -> None:
    shown = text_of(restate(card, adjacency=adjacency, protects=protects))
    assert all(words in shown for words in said)


def test_a_question_without_phrases_is_refused(card) -> None:
    with pytest.raises(InvalidInputError, match="as hush writes it"):
        text_of(restate(card, adjacency="unheard-of"))


def test_the_ledgers_total_says_whose_it_is(card) -> None:
    total = {"epsilon": 5.5, "delta": 1e-5, "status": "proven", "unit": "patient_id", "protects": "features"}
    assert "ε is at most 5.5 at δ = 1e-5 for the features of one patient_id" in text_of({**card, "ledger": total})
    del total["unit"], total["protects"]
    assert "ε is at most 5.5 at δ = 1e-5 (proven" in text_of({**card, "ledger": total})


@pytest.mark.parametrize("kind", ["Released", "Hybrid", "Published", "RandomisedLabels"])
def test_what_is_released_in_place_of_gradients_is_told(card, kind: str) -> None:
    other = restate(card, protects="features", adjacency="replace")
    other["plan"]["query"]["kind"] = kind
    shown = text_of(other)
    assert ("Each label was replaced, once," if kind == "RandomisedLabels" else "What one layer of the model") in shown
    assert "section 3 says how well" in shown
