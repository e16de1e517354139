"""What an audit says: a bound on ε at 95 %, printed; and a verdict, which needs 99.99 % after every correction.

A curve is refuted where p · comparisons ≤ 1e-4, with p the smallest of the comparisons made and their number counted
over adversaries, bounds, thresholds and repetitions (Bonferroni). So of 10 000 audits of curves that hold, at most one
cries wolf on average, however many adversaries each of them tried. Whoever goes on auditing beyond the c times that
were announced is allowed less each time, 1e-4/(k(k − 1)) at the k-th, which is 1e-4/c over all k > c together; a later
c that is larger counts for nothing, as it was announced by somebody who has seen a verdict.
Everything else is "consistent", which is no proof of anything: a better adversary may find more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hush import validate
from hush.errors import BadInput

Outcome = Literal["consistent", "refuted"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
PRINTED = 0.95  # confidence of the bound that is printed
WOLF = 1e-4  # how often a verdict may refute a claim that holds, after every correction


def decide(p_values: Sequence[float], comparisons: int) -> Outcome:
    """ "refuted" where one of the p-values is small enough for so many comparisons (at least as many as there are)."""
    validate.whole(comparisons=comparisons)
    if len(p_values) > comparisons:
        raise BadInput(f"{len(p_values)} p-values come from {comparisons} comparisons: count every one that was made")
    if any(not 0 <= p <= 1 for p in p_values):
        raise BadInput("a p-value lies between 0 and 1")
    smallest = min(p_values, default=1.0)
    return "refuted" if smallest <= WOLF / comparisons else "consistent"


def allow_for_repeats(announced: int, number: int) -> int:
    """As how many comparisons the audit of this number (from 1 on) counts, where so many audits were announced."""
    validate.whole(comparisons=announced, number=number)
    return announced if number <= announced else number * (number - 1)


@dataclass(frozen=True)
class Verdict:
    """What was claimed about a method, what was measured, and what follows.

    ``epsilon_lower`` holds whatever the mechanism is, ``epsilon_if_gaussian`` is a bound as well *if* what leaks has a
    Gaussian's trade-off curve, ``epsilon_estimate`` is a fit and no bound. All are at ``delta``."""

    method: str
    status: str
    claimed_epsilon: float
    delta: float
    epsilon_lower: float
    verdict: Outcome
    adversary: str
    p_value: float
    comparisons: int
    runs: int
    epsilon_if_gaussian: float = 0.0
    epsilon_estimate: float = 0.0
    confidence: float = PRINTED
    canaries: int = 1

    def __post_init__(self) -> None:
        validate.one_of(OUTCOMES, verdict=self.verdict)

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.verdict == "refuted"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; what is infinite is null."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in found.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """Back from `to_json`; other keys are left out."""
        known = {name: data[name] for name in Verdict.__dataclass_fields__ if name in data}
        for name in ("claimed_epsilon", "epsilon_lower", "epsilon_if_gaussian", "epsilon_estimate"):
            known[name] = math.inf if known[name] is None else float(known[name])
        return Verdict(**known)
