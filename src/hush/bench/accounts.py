"""Calibrated noise and ε by step, computed once for all runs with the same privacy event.

In a sweep over learning rates and seeds the event does not change, and calibrating it takes longer than everything
else that the benchmark adds to a run. The rule is post-processing and takes no part. What is kept is σ and the ε of
some numbers of steps; the guarantee in a record is always computed anew from the plan that was run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hush.files import recall
from hush.identity import NoIdentity
from hush.plan import Plan
from hush.rules import SGD
from hush.version import read_versions

VERSIONS = tuple(read_versions("hush", "dp-accounting").values())
POINTS = 16  # numbers of steps whose ε is computed; an accountant takes up to a second for each


@dataclass(frozen=True)
class Accounts:
    """A directory of small JSON files, one a privacy event."""

    directory: Path | None

    def calibrated(self, plan: Plan, epsilon: float) -> Plan:
        """The plan with the smallest σ for ε, from the directory where it has been computed before."""
        sigma = self._recall(f"sigma for {epsilon!r}", plan, lambda: plan.calibrated(epsilon).sigma)
        return replace(plan, sigma=float(sigma))

    def epsilons(self, plan: Plan, steps: Sequence[int]) -> dict[int, float]:
        """ε after some of these numbers of steps, the last always among them; for at most ``POINTS`` of them."""
        if not plan.private:
            return {}
        some = pick_steps(steps)
        found = self._recall(f"epsilon after {some}", plan, lambda: [plan.guarantee(t).epsilon for t in some])
        return dict(zip(some, found, strict=True))

    def _recall(self, what: str, plan: Plan, compute: Any) -> Any:
        told = None if self.directory is None else _identity(plan)
        if self.directory is None or told is None:
            return compute()
        name = hashlib.blake2b(f"{what}\0{VERSIONS}\0{told!r}".encode(), digest_size=16).hexdigest()

        def pack(value: Any) -> bytes:
            return json.dumps({"what": what, "method": plan.method, "value": value}).encode()

        return recall(self.directory / f"{name}.json", lambda file: json.load(file)["value"], compute, pack)


def _identity(plan: Plan) -> str | None:
    """What tells the plan's event from others, whatever its rule; None where nothing does."""
    try:
        return replace(plan, rule=SGD()).fingerprint()
    except NoIdentity:
        return None


def pick_steps(steps: Sequence[int]) -> list[int]:
    """At most ``POINTS`` of the numbers, evenly spread, the first and the last among them."""
    if len(steps) <= POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (POINTS - 1))] for i in range(POINTS)]
