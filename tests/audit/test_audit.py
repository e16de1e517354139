"""Somebody's own plan, model and losses, audited."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from twins import Scaled

import hush
from hush.audit.adversaries import HiddenState
from hush.audit.one_run import Guesses, bound_epsilon_of


def _losses(model: nn.Module, content: Any) -> Tensor:
    inputs, labels = content
    return nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def test_a_plan_of_ones_own() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0, sampling="same-order")
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    (verdict,) = hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, runs=8, seed=3)
    assert (verdict.runs, verdict.adversary, verdict.status, verdict.verdict) == (
        8,
        "white-box",
        "proven",
        "consistent",
    )
    assert verdict.claimed_epsilon == plan.guarantee().epsilon


def test_what_cannot_be_audited_is_refused() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0, sampling="same-order")
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(hush.NotProvenError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, adversaries=[HiddenState()], runs=8)
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, tuple(column[:4] for column in data), runs=8)


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace"])
def test_one_run_with_many_canaries(adjacency: str) -> None:
    """At ε = 4 the fit is about 4; with a twentieth of the noise all 40 guesses are right."""
    sampling = "same-order" if adjacency != "add-remove" else "poisson"
    plan = hush.make_plan(
        "dp-sgd", examples=208, batch_size=208, steps=2, epsilon=4.0, sampling=sampling, adjacency=adjacency
    )
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    (found,) = hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=200, seed=3)
    assert (found.runs, found.canaries, found.verdict) == (1, 200, "consistent")
    assert found.claimed_epsilon == plan.guarantee().epsilon
    assert 1.5 < found.epsilon_estimate < 8  # 200 scores about ε = 4
    bare = dataclasses.replace(plan, noise=Scaled(plan.noise, 0.05))
    (seen,) = hush.audit_plan(bare, nn.Linear(3, 2), _losses, data, canaries=200, seed=3)
    assert seen.epsilon_lower == bound_epsilon_of(Guesses(200, 40, 40), plan.delta, 0.95)


def test_one_run_needs_room_for_its_canaries() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0)
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(hush.InvalidInputError, match="20"):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=20)
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=4, adversaries=[HiddenState()])
