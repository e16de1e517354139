"""The privacy card: what is said publicly about a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from hush.attempts import History
from hush.claims import account_attempts, find_accounted_delta
from hush.identity import describe
from hush.mechanism import Mechanism
from hush.privacy.event_json import to_json

NOTHING_AGAIN = History()


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
    guarantees = account_attempts(mechanism, history, coordinates)
    claims = [guarantee.to_json() for guarantee in guarantees]
    event = None if guarantees[0].event is None else to_json(guarantees[0].event)
    return {
        "format": "hush privacy card 1",
        "method": mechanism.method,
        "guarantee": claims[0],
        "claims": claims,
        "accounting": {"event": event, "delta": find_accounted_delta(mechanism, history, coordinates)},
        "noise_multiplier": mechanism.sigma,
        "sensitivity": mechanism.sensitivity,
        "noise_std": mechanism.noise_std,
        "arithmetic": _tell_arithmetic(mechanism),
        "divisor": mechanism.divisor,
        "steps": mechanism.steps,
        "steps_taken": steps_taken,
        "beside": [release.to_json() for release in mechanism.beside],
        **(figures or {}),
        "plan": describe(mechanism),
        "versions": {name: version(name) for name in ("hush", "torch", "dp-accounting")},
    }


def _tell_arithmetic(mechanism: Mechanism) -> dict[str, Any]:
    """What floating point costs: the places of a step, and the share that rounding adds to the bound."""
    room = mechanism.room
    lost = {"overflow": room.overflow, "delta": mechanism.steps * room.overflow}
    return {"mode": mechanism.arithmetic, "places": room.places, "charge": mechanism.charge, **lost}
