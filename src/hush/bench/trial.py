"""One run of a benchmark as plain data: what is trained, how, and with which seeds.

Its key is a digest of the resolved configuration, hush's major version, the schema number and the versions of others'
packages, so that a store never holds the same run twice and never takes an old result for a new one.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hush.settings import PlanSettings, list_axes
from hush.version import read_own_version

MAJOR = read_own_version().split(".")[0]
SCHEMA = 2  # raise it when a run of the same configuration would give another result; 2: noise in float64
REVISED: dict[str, int] = {}  # the same for the runs of one method alone

AXES = list_axes(PlanSettings)
"""What can be varied with every method, and the types of its values; any other parameter is an option of the method."""


@dataclass(frozen=True)
class Trial:
    """A problem, a method, its settings and options, and seeds. ``seed`` fixes the initial weights, ``split_seed`` the
    validation part, which is the same for all trials of a spec so that they can be compared on it."""

    problem: str
    method: str
    settings: dict[str, Any]
    options: dict[str, Any]
    seed: int
    split_seed: int = 0
    validation: float = 0.1
    evaluate_every: float = 1.0
    secret_seed: int | None = field(default=None, repr=False)
    versions: dict[str, str] = field(default_factory=dict)  # of somebody else's code, where it says so

    def config(self) -> dict[str, Any]:
        """The configuration as plain data; the secret seed is not in it."""
        return {
            "problem": self.problem,
            "method": self.method,
            **self.settings,
            "options": self.options,
            "seed": self.seed,
            "split_seed": self.split_seed,
            "validation": self.validation,
            "evaluate_every": self.evaluate_every,
        }

    @cached_property
    def key(self) -> str:
        """Thirty-two hexadecimal digits."""
        told = {"schema": SCHEMA, "hush": MAJOR, "secret": self.secret_seed, "others": self.versions, **self.config()}
        told |= {"revised": REVISED[self.method]} if self.method in REVISED else {}
        text = json.dumps(canonical(told), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def canonical(value: Any) -> Any:
    """Equal configurations as equal data: 1.0 and 1 are the same number."""
    if isinstance(value, dict):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if math.isfinite(value) else str(value)
    return value
