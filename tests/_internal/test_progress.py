"""A progress bar: it says what is done before the first step."""

from __future__ import annotations

import io

import torch
from rich.console import Console

import hush
from hush._internal.progress import CHECKING, ProgressBar


def test_a_line_is_shown_while_something_is_done() -> None:
    out = io.StringIO()
    with ProgressBar(console=Console(file=out, force_terminal=True), auto_refresh=False) as bar:
        with bar.showing(CHECKING):
            assert [task.description for task in bar.tasks] == [CHECKING]
        assert not bar.tasks
    assert CHECKING in out.getvalue()


def test_a_run_may_be_checked_before_its_first_step() -> None:
    plan = hush.make_plan("dp-sgd", examples=40, batch_size=20, steps=2, noise_multiplier=1.0)
    rows = torch.arange(40.0)[:, None]
    checked, plain = (
        plan.start(torch.nn.Linear(1, 1), lambda model, x: model(x).square().sum(1), rows, secret=1) for _ in range(2)
    )
    checked.model.load_state_dict(plain.model.state_dict())
    checked.check_arithmetic()
    for run in (checked, plain):
        run.step()
    assert torch.equal(checked.model.weight, plain.model.weight)
