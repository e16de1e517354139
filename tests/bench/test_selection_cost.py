"""The best of a grid: the winner's own ε and the ε of selecting among all runs."""

from __future__ import annotations

from typing import Any

import pytest
from dp_accounting import dp_event

from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.bench.selection_cost import Pricing, group_records, price_choices, price_store
from hush.report.rows import Reading, make_row
from hush.report.summary import make_groups

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
    assert "among these runs" in choice.sentence()


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


def test_runs_without_an_event_are_added_by_basic_composition_and_single_runs_have_no_choice() -> None:
    (choice,) = price_choices([record(0.5), record(0.6, event=None)])
    assert choice.selection_epsilon == pytest.approx(epsilon(RUN, 1e-5) + 0.9)
    assert (choice.delta, choice.selection_delta) == (1e-5, 2e-5)
    assert price_choices([record(0.5)]) == []
    assert Pricing().price([record(0.5, status="claimed"), record(0.6)]).epsilon is None


@pytest.mark.parametrize("recorded", [True, False])
def test_what_of_delta_the_events_do_not_know_is_taken_off_the_delta_of_the_selection(recorded: bool) -> None:
    """Half of δ went to what the event does not know; a record that keeps no such figure loses no more by it than a
    share, and never nothing."""
    own = epsilon(RUN, 2.5e-5)
    told = {"epsilon": own, "delta": 3e-5, "lost_delta": 0.5e-5 if recorded else None}
    found = Pricing().price([record(0.5, **told), record(0.6, **told)])
    right = epsilon(dp_event.SelfComposedDpEvent(RUN, 2), 2e-5)
    assert found.epsilon == pytest.approx(right, rel=1e-3)
    assert found.epsilon >= right * (1 - 1e-9)
    assert found.delta == 3e-5
    assert Pricing().price([record(0.5, **told)] * 6).epsilon is None
    assert found.epsilon > epsilon(dp_event.SelfComposedDpEvent(RUN, 2), 3e-5) * 1.01


def store_of(*, methods: int, runs: int, **more: Any) -> list[dict[str, Any]]:
    made = []
    for method in range(methods):
        for run in range(runs):
            found = record(0.5 + run / 100, key=f"{method}-{run}", **more)
            made.append({**found, "config": {**found["config"], "method": f"dp-{method}"}})
    return made


def test_the_store_costs_more_than_any_choice_in_it() -> None:
    records = store_of(methods=4, runs=3)
    choices, total = price_choices(records), price_store(records)
    assert [choice.runs for choice in choices] == [3] * 4
    assert total.runs == 12
    assert total.epsilon == pytest.approx(epsilon(dp_event.SelfComposedDpEvent(RUN, 12), 1e-5), rel=1e-6)
    assert all(choice.selection_epsilon < total.epsilon for choice in choices)
    assert price_store([*records, record(0.5, epsilon=None, event=None)]).epsilon is None
    assert price_store([*records, record(0.5, status="claimed")]).epsilon is None
    assert price_store([*records, record(0.5, status="none", epsilon=None)]) == total


def test_a_store_of_many_different_events_is_added_up_by_its_groups(monkeypatch) -> None:
    monkeypatch.setattr("hush.bench.selection_cost.MOST_EVENTS", 1)
    records = store_of(methods=4, runs=3)
    parts = [Pricing().price(group) for group in group_records(records)]
    total = price_store(records)
    assert total.epsilon == pytest.approx(sum(part.epsilon for part in parts))
    assert (total.runs, total.delta) == (12, pytest.approx(4e-5))


@pytest.mark.parametrize("more", [{}, {"event": None}, {"status": "claimed"}, {"tried_before": True}, {"delta": 2e-5}])
def test_bench_and_report_state_one_price(more: dict[str, Any]) -> None:
    records = [{"format": 1, "seconds": 1.0, **told} for told in store_of(methods=2, runs=3, **more)]
    reading = Reading("store", tuple(make_row(told["key"], told) for told in records))
    groups = {group.method: group.price for group in make_groups(reading)}
    for choice in price_choices(records):
        price = groups[choice.method]
        assert (choice.runs, choice.selection_epsilon, choice.selection_delta) == (
            price.runs,
            price.epsilon,
            price.delta,
        )
    assert len(groups) == 2
