"""Faults that an audit must find, each planted in a real plan; and the same plan without the fault, which must hold.

The audit is the same for both: it is given a plan, and does not know which of them it is."""

from __future__ import annotations

import dataclasses

import pytest
from twins import (
    OneLayerUnclipped,
    RealLength,
    Reused,
    Scaled,
    add_float32_noise,
    halve_noise,
    make_crowded_stage,
)

import hush
from hush.audit.adversaries import Adversary, Difference, HiddenState, LowBits, WhiteBox
from hush.audit.auditing import audit_stage
from hush.audit.stage import Stage, make_digits_stage
from hush.audit.verdict import Verdict

SEPARATED = 80  # runs: 26 + 26 are needed at ε = 4 where nothing overlaps, and a quarter chooses the threshold


def _whole(steps: int = 1, **more: object) -> hush.Plan:
    """All examples in every step: one Gaussian at ε = 4."""
    given = {"examples": 32, "batch_size": 32, "steps": steps, "epsilon": 4.0, "sampling": "same-order"}
    return hush.make_plan("dp-sgd", **{**given, **more})


def _audit(plan: hush.Plan, adversary: Adversary, runs: int, stage: Stage | None = None, claim: int = -1) -> Verdict:
    return audit_stage(plan, stage or make_digits_stage(), adversary=adversary, runs=runs, seed=7)[claim]


def test_half_the_noise() -> None:
    plan = _whole()
    assert _audit(plan, WhiteBox(), 800).verdict == "consistent"
    found = _audit(halve_noise(plan), WhiteBox(), 800)
    assert found.verdict == "refuted"
    assert found.epsilon_estimate > 6


def test_clipping_left_out_for_one_layer() -> None:
    plan = _whole()
    assert _audit(plan, WhiteBox(), SEPARATED).verdict == "consistent"
    assert _audit(dataclasses.replace(plan, query=OneLayerUnclipped()), WhiteBox(), SEPARATED).verdict == "refuted"


def test_one_noise_for_two_runs() -> None:
    plan = _whole()
    assert _audit(plan, Difference(), SEPARATED).verdict == "consistent"
    assert (
        _audit(dataclasses.replace(plan, noise=Reused(plan.noise, 1.0)), Difference(), SEPARATED).verdict == "refuted"
    )


def test_division_by_the_real_length_of_a_batch() -> None:
    """One example more makes the mean of all others smaller too: it moves by two clips and not by one."""
    plan = hush.make_plan("dp-sgd", examples=32, batch_size=32, steps=1, epsilon=4.0)
    stage = make_crowded_stage()
    assert _audit(plan, WhiteBox(), 800, stage).verdict == "consistent"
    twin = dataclasses.replace(plan, query=RealLength(expected=32.0))
    assert _audit(twin, WhiteBox(), 800, stage).verdict == "refuted"


def test_float32_noise_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _whole(steps=4)
    assert _audit(plan, LowBits(), 200).verdict == "consistent"
    monkeypatch.setattr("hush.noising.add_noise", add_float32_noise)
    assert _audit(plan, LowBits(), 200).verdict == "refuted"


def test_error_feedback_as_published() -> None:
    """A huge gradient fills the memory of DiceSGD, and comes back in every later step: its claimed ε does not hold, and
    its proven one does."""
    given = {"examples": 64, "batch_size": 16, "steps": 24, "clip_feedback": 10.0, "accept_claimed": True}
    plan = hush.make_plan("dp-dice", noise_multiplier=7.5, **given)
    proven, claimed = audit_stage(plan, make_digits_stage(), adversary=HiddenState(), runs=120, seed=7)
    assert (proven.status, proven.verdict) == ("proven", "consistent")
    assert (claimed.status, claimed.verdict) == ("claimed", "refuted")
    assert claimed.claimed_epsilon < 5


def test_a_fault_is_not_seen_by_an_adversary_for_another() -> None:
    """A verdict rests on the adversary: half the noise is no matter of low bits."""
    assert (
        _audit(dataclasses.replace(_whole(), noise=Scaled(_whole().noise, 0.5)), LowBits(), 40).verdict == "consistent"
    )
