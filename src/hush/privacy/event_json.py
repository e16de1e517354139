"""Privacy events as readable JSON and back, without eval or pickle: only the kinds listed here are ever built."""

from __future__ import annotations

import math
from typing import Any

from dp_accounting import dp_event

from hush.errors import BadInput

FIELDS: dict[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "RandomizedResponseDpEvent": ("noise_parameter", "num_buckets"),
    "ZCDpEvent": ("rho", "xi"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
}


def to_json(event: Any) -> dict[str, Any] | None:
    """The event as plain JSON types; None where it is of a kind that cannot be rebuilt from them."""
    name = type(event).__name__
    if type(event) is not getattr(dp_event, name, None) or name not in FIELDS:
        return None
    found: dict[str, Any] = {"kind": name.removesuffix("DpEvent")}
    for field in FIELDS[name]:
        value = _plain(getattr(event, field))
        if value is None:
            return None
        found[field] = value
    return found


def from_json(data: Any) -> Any:
    """The event that `to_json` wrote."""
    name = f"{data['kind']}DpEvent" if isinstance(data, dict) and "kind" in data else ""
    if name not in FIELDS or set(data) - {"kind"} != set(FIELDS[name]):
        raise BadInput(f"not a privacy event as hush writes it: {data!r}")
    return getattr(dp_event, name)(**{field: _value(data[field]) for field in FIELDS[name]})


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [to_json(part) for part in value]
        return None if any(part is None for part in parts) else parts
    if isinstance(value, dp_event.DpEvent):
        return to_json(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            number: Any = value
            value = number.item()  # a numpy number
        except AttributeError:
            return None
    return value if math.isfinite(value) else str(float(value))


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return [from_json(part) for part in data]
    if isinstance(data, dict):
        return from_json(data)
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return data
    if data in ("inf", "-inf"):
        return float(data)
    raise BadInput(f"a number was expected in a privacy event, got {data!r}")
