"""Verdicts: what it takes to be refuted."""

from __future__ import annotations

import json

import pytest

from hush.audit.bounds import Verdict, allow_for_repeats, decide
from hush.errors import InvalidInputError


@pytest.mark.parametrize(
    ("p_values", "comparisons", "expected"),
    [
        ([1e-4], 1, "refuted"),
        ([1.01e-4], 1, "consistent"),
        ([1e-4], 2, "consistent"),
        ([0.5, 4.9e-5], 2, "refuted"),
        ([1e-6], 100, "refuted"),
        ([1e-6], 101, "consistent"),
        ([], 3, "consistent"),
    ],
)
def test_a_verdict_is_corrected_for_every_comparison(p_values: list[float], comparisons: int, expected: str) -> None:
    assert decide(p_values, comparisons) == expected


def test_comparisons_cannot_be_left_out() -> None:
    with pytest.raises(InvalidInputError):
        decide([0.1, 0.2], 1)
    with pytest.raises(InvalidInputError, match="0.*1"):
        decide([-0.1], 1)


@pytest.mark.parametrize("announced", [1, 3, 20])
def test_audits_beyond_those_announced_share_what_one_more_family_would_have(announced: int) -> None:
    """The announced ones share the rate of false alarms, and all later ones a part of it, however many there are."""
    shares = [1 / allow_for_repeats(announced, number) for number in range(1, 5000)]
    assert sum(shares[:announced]) == pytest.approx(1.0)
    assert 0.99 / announced - 1 / 4999 < sum(shares[announced:]) < 1 / announced
    with pytest.raises(InvalidInputError):
        allow_for_repeats(0, 1)


def test_a_verdict_as_json() -> None:
    found = Verdict("m", "claimed", 1.0, 1e-5, 2.5, "refuted", "white-box", 1e-9, 2, 100, float("inf"), 3.0)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["epsilon_if_gaussian"] is None
    keys = ("method", "status", "claimed_epsilon", "delta", "epsilon_lower", "confidence", "verdict")
    assert [data[key] for key in keys] == ["m", "claimed", 1.0, 1e-5, 2.5, 0.95, "refuted"]
    assert found.refuted
