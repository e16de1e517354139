"""Estimates of a sweep's duration, with a clock that reports one second for everything."""

from __future__ import annotations

import pytest

from hush.bench import timing as module
from hush.bench.spec import read_spec
from hush.bench.timing import START, Estimate, estimate

TEXT = """
[[grid]]
problem = "breast-cancer-logistic"
method = "dp-sgd"
batch_size = [64, 128]
epochs = 2
noise_multiplier = 1.0
lr = [0.1, 0.2]
"""


def test_steps_evaluations_and_accounts_are_added_up(write_spec, monkeypatch) -> None:
    monkeypatch.setattr(module, "_clock", lambda action: (action(), 1.0)[1])
    found = estimate(read_spec(write_spec(TEXT)).trials)
    assert found.timed == 1
    steps, evaluations = {64: 14, 128: 8}, 2
    evaluation = (113 + 45) / 113  # of 569 rows a fifth is tested on, and a tenth of the rest held out
    expected = [
        steps[batch] + evaluations * evaluation + 3 + new * 2 for batch, new in ((64, 1), (64, 0), (128, 1), (128, 0))
    ]
    assert found.each == pytest.approx(expected)


def test_workers_share_the_runs_but_no_run_is_shared() -> None:
    found = Estimate((10.0, 10.0, 40.0))
    assert found.seconds(1) == 60 + START
    assert found.seconds(2) == 40 + START
    assert found.seconds(100) == 40 + START
    assert Estimate(None, reason="no data").seconds(2) is None
    assert Estimate(()).seconds(2) == 0
