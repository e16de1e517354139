"""The privacy card: what is said publicly about a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hush.attempts import History
from hush.claims import account_attempts, find_accounted_delta
from hush.errors import BadInput
from hush.identity import describe
from hush.mechanism import Mechanism
from hush.privacy.guarantee import Guarantee
from hush.privacy.tradeoff import curve_of_guarantee, sample_points
from hush.version import read_versions

NOTHING_AGAIN = History()
LATER = ("dataset", "date", "digests", "own_digest")  # entries that a card gets when it is released


def make_card(
    mechanism: Mechanism,
    *,
    steps_taken: int,
    history: History = NOTHING_AGAIN,
    coordinates: int = 1,
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The guarantee of a run, every claim, and the mechanism itself, as plain data.

    ``figures`` are entries about how good the model is that may be released: of public rows, or of counts with noise
    whose release is one of ``mechanism.beside``."""
    claims = [_write(guarantee) for guarantee in account_attempts(mechanism, history, coordinates)]
    accounted = {"event": claims[0]["event_json"], "delta": find_accounted_delta(mechanism, history, coordinates)}
    stated = {
        "format": "hush privacy card 1",
        "method": mechanism.method,
        "guarantee": claims[0],
        "claims": claims,
        "accounting": accounted,
        "noise_multiplier": mechanism.sigma,
        "sensitivity": mechanism.sensitivity,
        "noise_std": mechanism.noise_std,
        "arithmetic": _tell_arithmetic(mechanism),
        "divisor": mechanism.divisor,
        "steps": mechanism.steps,
        "steps_taken": steps_taken,
        "beside": [release.to_json() for release in mechanism.beside],
        "plan": describe(mechanism),
        "versions": read_versions("hush", "torch", "dp-accounting"),
    }
    if mechanism.rows_per_unit is not None:
        stated["rows_per_unit"] = mechanism.rows_per_unit
    return {**stated, **_check_figures(figures or {}, stated.keys())}


def _check_figures(figures: Mapping[str, Any], stated: Collection[str]) -> Mapping[str, Any]:
    """Refuse figures in the place of what the card states by itself."""
    taken = sorted(name for name in figures if name in stated or name in LATER)
    if taken:
        raise BadInput(f"figures cannot have the name '{taken[0]}', which the privacy card has: give another")
    return figures


def _write(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as JSON; where its event cannot be rebuilt from that, with points (ε, δ) of its curve."""
    written = guarantee.to_json()
    if guarantee.private and written["event_json"] is None:
        written["points"] = sample_points(curve_of_guarantee(guarantee), guarantee.epsilon)
    return written


def _tell_arithmetic(mechanism: Mechanism) -> dict[str, Any]:
    """What floating point costs: the places of a step, and the share that rounding adds to the bound."""
    room = mechanism.room
    lost = {"overflow": room.overflow, "delta": mechanism.steps * room.overflow}
    return {"mode": mechanism.arithmetic, "places": room.places, "charge": mechanism.charge, **lost}
