"""The best of a grid: the winner's own price, and that of having looked at every run."""

from __future__ import annotations

from typing import Any

import pytest
from dp_accounting import dp_event

from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.bench.selection_cost import price_choices, price_runs

RUN = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 100)


def record(accuracy: float, **more: Any) -> dict[str, Any]:
    config = {"problem": "digits", "method": "dp-sgd", "epsilon": 1.0}
    stated = {"epsilon": 0.9, "delta": 1e-5, "status": "proven", "adjacency": "add-remove", "lost_delta": 0.0}
    told = {"config": config, "outcome": "finished", "test_accuracy": accuracy, "event": events.to_json(RUN)}
    return {**told, **stated, **more}


def test_the_selection_is_the_composition_of_every_run() -> None:
    (choice,) = price_choices(
        [record(0.5), record(0.9), record(0.7, outcome="diverged"), record(0.1, outcome="failed"), refused()]
    )
    assert (choice.runs, choice.best, choice.winner_epsilon) == (4, 0.9, 0.9)
    assert choice.selection_epsilon == pytest.approx(epsilon(dp_event.SelfComposedDpEvent(RUN, 4), 1e-5), rel=1e-6)
    assert "ε of the whole selection" in choice.sentence()


def refused(**more: Any) -> dict[str, Any]:
    """The record of a run that failed before it had a guarantee."""
    return {"config": record(0.0)["config"], "outcome": "failed", "begun": False, **more}


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_that_failed_without_a_word_of_its_price_leaves_that_of_the_choice_open(alone: bool) -> None:
    died = refused()
    del died["begun"]
    (choice,) = price_choices([record(0.5), died] if alone else [record(0.5), record(0.9), died])
    assert choice.selection_epsilon is None
    assert choice.runs == (2 if alone else 3)
    assert "not known" in choice.sentence()
    without_end = record(0.7, epsilon=None)  # an infinite ε is null
    assert price_choices([record(0.5), without_end])[0].selection_epsilon is None


def test_runs_without_an_event_have_no_price_and_single_runs_no_choice() -> None:
    (choice,) = price_choices([record(0.5), record(0.6, event=None)])
    assert choice.selection_epsilon is None
    assert "not known" in choice.sentence()
    assert price_choices([record(0.5)]) == []
    assert price_runs([record(0.5, status="claimed"), record(0.6)], 1e-5) is None


@pytest.mark.parametrize("recorded", [True, False])
def test_what_of_delta_the_events_do_not_know_is_taken_off_the_delta_of_the_selection(recorded: bool) -> None:
    """Half of δ went to what the event does not know; a record that keeps no such figure loses no more by it than a
    share, and never nothing."""
    own = epsilon(RUN, 0.5e-5)
    told = {"epsilon": own, "lost_delta": 0.5e-5 if recorded else None}
    found = price_runs([record(0.5, **told), record(0.6, **told)], 3e-5)
    right = epsilon(dp_event.SelfComposedDpEvent(RUN, 2), 2e-5)
    assert found == pytest.approx(right, rel=1e-3)
    assert found >= right * (1 - 1e-9)
    assert price_runs([record(0.5, **told), record(0.6, **told)], 1e-5) is None
    assert found > epsilon(dp_event.SelfComposedDpEvent(RUN, 2), 3e-5) * 1.01
