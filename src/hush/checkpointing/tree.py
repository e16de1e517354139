"""A nested state as tensors and JSON, and back: no pickle, so reading a file never runs code.

Tensors go into a flat table; everything else becomes JSON in which a tensor is named by its key. Kinds that JSON lacks
are objects with the key ``$``. An object with ``state_dict`` (a torch optimizer, a scheduler) is stored as that dict
and loaded into the object of the resumed run. Anything else raises an error that names its path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush._internal.tensors import Named
from hush.errors import InvalidInputError, ResumeError


@dataclass(frozen=True)
class ObjectState:
    """The ``state_dict`` of an object that must exist before it can be loaded."""

    state: Any


def flatten(value: Any, tensors: Named, path: str = "state", *, scratch: bool = True) -> Any:
    """``value`` as JSON, with its tensors put into ``tensors``; keys that start with ``_`` are scratch and left out."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if isinstance(value, Tensor):
        return {"$": "tensor", "name": _put(tensors, path, value.detach())}
    if isinstance(value, (np.ndarray, np.generic)):
        name = _put(tensors, path, torch.from_numpy(np.array(value)))
        return {"$": "array", "name": name, "scalar": isinstance(value, np.generic)}
    if isinstance(value, Mapping):
        kept = [(key, item) for key, item in value.items() if not (scratch and str(key).startswith("_"))]
        return _flatten_mapping(value, kept, tensors, path, scratch)
    if isinstance(value, (list, tuple)):
        items = [flatten(item, tensors, f"{path}.{place}", scratch=scratch) for place, item in enumerate(value)]
        return items if isinstance(value, list) else {"$": "tuple", "items": items}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"$": "object", "state": flatten(value.state_dict(), tensors, path, scratch=False)}
    raise ResumeError(
        f"'{path}' holds a {type(value).__name__}, which a checkpoint cannot keep without running code on load"
    )


def _put(tensors: Named, path: str, value: Tensor) -> str:
    while path in tensors:  # {"a.b": x, "a": {"b": y}}
        path += "'"
    tensors[path] = value
    return path


def _flatten_mapping(value: Any, kept: list[Any], tensors: Named, path: str, scratch: bool) -> Any:
    items = {key: flatten(item, tensors, f"{path}.{key}", scratch=scratch) for key, item in kept}
    if all(isinstance(key, str) and key != "$" for key in items) and not isinstance(value, Counter):
        return items
    for key in items:
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise ResumeError(f"'{path}' has the key {key!r}, which a checkpoint cannot keep: use strings or integers")
    kind = "counter" if isinstance(value, Counter) else "dict"
    return {"$": kind, "items": [[key, item] for key, item in items.items()]}


def unflatten(data: Any, tensors: Named) -> Any:
    """The inverse of `flatten`; objects with a state come back as `ObjectState`."""
    if isinstance(data, list):
        return [unflatten(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    match data.get("$"):
        case None:
            return {key: unflatten(item, tensors) for key, item in data.items()}
        case "float":
            return float(data["value"])
        case "tensor":
            return tensors[data["name"]]
        case "array":
            array = tensors[data["name"]].numpy()
            return array[()] if data["scalar"] else array
        case "tuple":
            return tuple(unflatten(item, tensors) for item in data["items"])
        case "dict":
            return {key: unflatten(item, tensors) for key, item in data["items"]}
        case "counter":
            return Counter({key: unflatten(item, tensors) for key, item in data["items"]})
        case "object":
            return ObjectState(unflatten(data["state"], tensors))
    raise InvalidInputError(f"a checkpoint holds a kind that this version of hush does not know: {data['$']!r}")


def revive(saved: Any, living: Any, device: torch.device) -> Any:
    """The saved state on the run's device, with its objects loaded and the scratch of the current state."""
    if isinstance(saved, ObjectState):
        if not hasattr(living, "load_state_dict"):
            raise InvalidInputError(
                "the checkpoint holds an optimizer or scheduler that this plan's rule does not have"
            )
        living.load_state_dict(saved.state)
        return living
    if isinstance(saved, Tensor):
        return saved.to(living.device if isinstance(living, Tensor) else device)
    if isinstance(saved, dict):
        before = living if isinstance(living, Mapping) else {}
        scratch = {key: value for key, value in before.items() if str(key).startswith("_")}
        return scratch | {key: revive(value, before.get(key), device) for key, value in saved.items()}
    if isinstance(saved, (list, tuple)):
        before_items = (
            living if isinstance(living, (list, tuple)) and len(living) == len(saved) else [None] * len(saved)
        )
        return type(saved)(revive(item, old, device) for item, old in zip(saved, before_items, strict=True))
    return saved
