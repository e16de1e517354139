"""The best of a grid: the winner's own price, and that of having looked at every run."""

from __future__ import annotations

from typing import Any

import pytest
from dp_accounting import dp_event

from hush.bench.choosing import price_choices, price_runs
from hush.privacy import event_json
from hush.privacy.accounting import epsilon

RUN = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 100)


def record(accuracy: float, **more: Any) -> dict[str, Any]:
    config = {"problem": "digits", "method": "dp-sgd", "epsilon": 1.0}
    stated = {"epsilon": 0.9, "delta": 1e-5, "status": "proven", "adjacency": "add-remove"}
    told = {"config": config, "outcome": "finished", "test_accuracy": accuracy, "event": event_json.to_json(RUN)}
    return {**told, **stated, **more}


def test_the_selection_is_the_composition_of_every_run() -> None:
    (choice,) = price_choices(
        [record(0.5), record(0.9), record(0.7, outcome="diverged"), record(0.1, outcome="failed")]
    )
    assert (choice.runs, choice.best, choice.winner_epsilon) == (3, 0.9, 0.9)
    assert choice.selection_epsilon == pytest.approx(epsilon(dp_event.SelfComposedDpEvent(RUN, 3), 1e-5), rel=1e-6)
    assert "ε of the whole selection" in choice.sentence()


def test_runs_without_an_event_have_no_price_and_single_runs_no_choice() -> None:
    (choice,) = price_choices([record(0.5), record(0.6, event=None)])
    assert choice.selection_epsilon is None
    assert "not known" in choice.sentence()
    assert price_choices([record(0.5)]) == []
    assert price_runs([record(0.5, status="claimed"), record(0.6)], 1e-5) is None
