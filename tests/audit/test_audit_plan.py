"""Somebody's own plan, model and losses, audited."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hush
from hush.audit.adversaries import HiddenState


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
    with pytest.raises(hush.Refused, match="does not apply"):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, adversaries=[HiddenState()], runs=8)
    with pytest.raises(hush.BadInput, match="rows beside the canary"):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, tuple(column[:4] for column in data), runs=8)
