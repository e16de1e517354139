"""Releases beside training: one event, one ε, in every claim, in the ledger, on the card and in the identity."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event, pld, privacy_accountant
from torch import nn

from hush import make_plan
from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import INDEPENDENT_ROWS
from hush.data_release import ComposedRelease
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import Replay, ReplayHistory, account_attempts, claim_attempts, make_card
from hush.ledger.run_account import cost_of
from hush.plan import Plan

SETTING = {"examples": 1000, "batch_size": 100, "steps": 50, "delta": 1e-5}
AGES = ComposedRelease(
    "a noisy histogram of the ages", dp_event.GaussianDpEvent(8.0), "add-remove", assumptions=("bins",)
)
FIGURES = ComposedRelease("noisy figures", dp_event.GaussianDpEvent(5.0), "add-remove", lost=1e-8)


def plan(sigma: float = 1.5, **given: object) -> Plan:
    return make_plan("dp-sgd", **SETTING, noise_multiplier=sigma, **given)


def by_dp_accounting(event: object, delta: float) -> float:
    near = privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = pld.PLDAccountant(near, value_discretization_interval=1e-4)
    return float(accountant.compose(event).get_epsilon(delta))


def test_the_event_is_the_composition_and_dp_accounting_agrees() -> None:
    training = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.5)), 50)
    both = plan(composed=(AGES, FIGURES))
    assert both.event() == dp_event.ComposedDpEvent([training, AGES.event, FIGURES.event])
    assert both.guarantee().epsilon == pytest.approx(by_dp_accounting(both.event(), 1e-5 - 1e-8), rel=2e-3)
    assert both.guarantee().epsilon > 1.02 * plan().guarantee().epsilon  # a twin without them costs less


def test_what_is_lost_of_delta_is_charged() -> None:
    costly = replace(FIGURES, lost=0.9e-5)
    kept = epsilon(plan(composed=(costly,)).event(), 0.1e-5, adjacency="add-remove")
    assert plan(composed=(costly,)).guarantee().epsilon == pytest.approx(kept, rel=1e-3)
    assert math.isinf(plan(composed=(replace(FIGURES, lost=1e-5),)).guarantee().epsilon)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-ftrl", "dp-bandmf"])
def test_calibration_sees_them(method: str) -> None:
    alone = make_plan(method, **SETTING, epsilon=2.0)
    release = replace(FIGURES, adjacency=alone.neighbours)
    both = make_plan(method, **SETTING, epsilon=2.0, composed=(release,))
    assert 1.98 < both.guarantee().epsilon <= 2.0
    assert both.sigma > 1.01 * alone.sigma
    assert replace(alone, composed=(release,)).guarantee().epsilon > 2.01


def test_nothing_left_for_training_is_one_sentence() -> None:
    with pytest.raises(InvalidInputError, match=r"ε = 0.5.*ε = 0\.\d+"):
        make_plan("dp-sgd", **SETTING, epsilon=0.5, composed=(FIGURES,))
    with pytest.raises(InvalidInputError, match="δ"):
        make_plan("dp-sgd", **SETTING, epsilon=5.0, composed=(replace(FIGURES, lost=1e-4),))


def test_every_number_of_steps_holds_them() -> None:
    both = plan(composed=(FIGURES,))
    for steps in (1, 20, 50):
        assert both.event(steps).events[1:] == [FIGURES.event]
        assert both.guarantee(steps).epsilon > plan().guarantee(steps).epsilon
    assert both.guarantee(1).epsilon >= epsilon(FIGURES.event, 1e-5, accountant="gdp")


def test_steps_taken_again_are_composed_with_them_once() -> None:
    both, history = plan(composed=(FIGURES,)), ReplayHistory((Replay(0, 30), Replay(10, 50)), 1)
    claim = claim_attempts(both, history.attempts)[0]
    alone = claim_attempts(plan(), history.attempts)[0]
    assert claim.event == dp_event.ComposedDpEvent([alone.event, FIGURES.event])
    assert account_attempts(both, history)[0].epsilon > account_attempts(plan(), history)[0].epsilon
    assert "steps 11 to 50 were taken again" in account_attempts(both, history)[0].reason


def test_the_sentence_and_the_card_name_them() -> None:
    both = plan(composed=(AGES, FIGURES), assumptions=("coins",))
    assert "a noisy histogram of the ages and noisy figures" in both.guarantee().sentence()
    assert both.guarantee().assumptions == ("coins", "bins", INDEPENDENT_ROWS)
    card = json.loads(json.dumps(make_card(both, steps_taken=50, metrics={"private_metrics": {"rows": 3}})))
    assert card["private_metrics"] == {"rows": 3}
    assert [entry["name"] for entry in card["beside"]] == [AGES.name, FIGURES.name]
    assert card["beside"][1] == {
        "name": "noisy figures",
        "event": "Gaussian(σ 5)",
        "adjacency": "add-remove",
        "delta": 1e-8,
    }
    assert "together" not in plan().guarantee().sentence()


@pytest.mark.parametrize("name", ["guarantee", "claims", "accounting", "steps", "plan", "digests", "own_digest"])
def test_figures_take_no_place_of_the_card(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"cannot have the name '{name}'"):
        make_card(plan(), steps_taken=50, metrics={"accuracy": 0.5, name: {"epsilon": 0.1}})


def test_the_ledger_pays_for_them_from_the_first_step_on() -> None:
    first, last = (cost_of(plan(composed=(FIGURES,)))(steps) for steps in (1, 50))
    assert first.event.events[1] == last.event.events[1] == FIGURES.event
    assert first.lost >= 1e-8
    assert events.from_json(events.to_json(last.event)) == last.event


def test_the_identity_speaks_of_them_only_where_they_are() -> None:
    assert "beside" not in plan().identity()
    assert plan(composed=(FIGURES,)).fingerprint() != plan().fingerprint()
    other = replace(FIGURES, event=dp_event.GaussianDpEvent(5.000001))
    assert plan(composed=(FIGURES,)).fingerprint() != plan(composed=(other,)).fingerprint()


def test_a_run_says_so_too() -> None:
    run = plan(composed=(FIGURES,)).start(nn.Linear(2, 1), lambda m, x: m(x).squeeze(1), torch.zeros(1000, 2))
    assert run.guarantee.epsilon > plan().guarantee().epsilon
    assert "noisy figures" in str(run.guarantee)


def test_the_page_runs(capsys) -> None:
    page = (Path(__file__).parents[1] / "docs" / "accounting.md").read_text()
    exec(page.split("```python\n")[-1].split("```")[0], {})
    said = capsys.readouterr().out
    assert said.startswith("(ε = 3, δ = 1e-5)-differentially private per example")
    assert "the model and a noisy histogram of the ages" in said


def test_what_cannot_be_composed_is_refused() -> None:
    with pytest.raises(NotProvenError, match="'replace'.*'add-remove'"):
        plan(composed=(replace(FIGURES, adjacency="replace"),))
    with pytest.raises(NotProvenError):
        make_plan("dp-dice", **SETTING, noise_multiplier=2.0, composed=(FIGURES,))
    with pytest.raises(NotProvenError, match="noise"):
        replace(make_plan("sgd", **SETTING), composed=(FIGURES,))
    with pytest.raises(InvalidInputError, match="'mystery'"):
        ComposedRelease("mystery", object(), "add-remove")
    with pytest.raises(InvalidInputError):
        ComposedRelease(" ", dp_event.GaussianDpEvent(1.0), "add-remove")
    with pytest.raises(InvalidInputError, match="0.*1"):
        replace(FIGURES, lost=1.0)
