"""Guarantee: the (ε, δ) of a release, its status, and the conditions under which it holds.

The status is the origin of an ε: ``proven`` (it follows from the accountant), ``claimed`` (a paper's formula that
could not be proven, or the accountant's for a run in fast arithmetic), ``refuted`` (an audit showed that it does not
hold), ``none`` (no privacy: ordinary training). Only a proven ε is printed as a guarantee. An infinite ε or
a δ of 1 proves nothing and has the status ``none``. Printed numbers are rounded up, never down. If a proof rests on
conditions that hush cannot check, ``proven`` is printed as "proven, on conditions" and all of them are listed, the most
important first.

`refuted.json` in this folder contains the findings of audits, as a list of objects:
``{"method": "dp-x", "status": "claimed", "claimed_epsilon": 1.0, "epsilon_lower": 4.2, "delta": 1e-5,
"confidence": 0.95, "source": "what was run"}``, where the confidence is that of ``epsilon_lower``. A guarantee for a
listed method, with the listed status, becomes refuted. ``status`` is the kind of ε that the audit refuted ("claimed" or
"proven").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, get_args

from hush._internal.validate import choice
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.accountant import epsilon as account_epsilon
from hush.accounting.events import name_event
from hush.errors import InvalidInputError, NotProvenError

Status = Literal["proven", "claimed", "refuted", "none"]
STATUSES: tuple[str, ...] = get_args(Status)
Protects = Literal["example", "features", "labels"]
PROTECTED: tuple[Protects, ...] = get_args(Protects)
MEANING = {
    "add-remove": "adding or removing one {unit}",
    "replace": "replacing one {unit} by another",
    "zero-out": "zeroing one {unit}'s contribution",
}
WHAT = {"example": "", "features": "the features of ", "labels": "the label of "}
ACCOUNTING = {"pld": "PLD accounting", "rdp": "RDP accounting", "gdp": "exact Gaussian accounting"}


@dataclass(frozen=True)
class AuditFinding:
    """One audit that measured more privacy loss than was stated."""

    method: str
    claimed_epsilon: float
    epsilon_lower: float
    delta: float
    confidence: float
    status: str = "claimed"
    source: str = ""

    def describe(self) -> str:
        """One sentence. Runs that refute a trade-off curve, at 99.99 % confidence, may be too few to bound the single ε
        above its stated value: the sentence then states both."""
        measured = (
            f"measured at least ε = {rounded_down(self.epsilon_lower)} at δ = {rounded_up(self.delta)} "
            f"({self.confidence:.0%} confidence) where ε = {rounded_up(self.claimed_epsilon)} was stated"
        )
        if self.epsilon_lower > self.claimed_epsilon:
            return f"an audit {measured}"
        return f"an audit refuted the trade-off curve that was stated (99.99% confidence), and {measured}"


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) for one unit under one adjacency, with its status and its conditions.

    ``protects`` is the part of a unit that is covered: all of it ("example"), or only its features or its labels; then
    the other part, and whether the unit is in the data, are public.

    ``assumptions`` are the conditions, the most important first; ``scope`` are notes on what ε does not cover, which
    are not conditions. ``lost`` is the part of δ that the event does not include: at this and every larger δ, and at
    every smaller one; None if it is unknown, and then there is no ε at another δ (:meth:`at`).

    >>> stated = Guarantee(1.0, 1e-5, assumptions=("the number of examples is public",))
    >>> print(stated)
    (ε = 1, δ = 1e-5)-differentially private per example (adding or removing one example), proven, on conditions:
      1. the number of examples is public
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "add-remove"
    unit: str = "example"
    status: Status = "proven"
    event: Any = None
    accountant: str = "pld"
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    method: str = ""
    protects: Protects = "example"
    scope: tuple[str, ...] = ()
    lost: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        noted = dict.fromkeys((*self.scope, *(text for text in self.assumptions if text in SCOPE_NOTES)))
        object.__setattr__(self, "scope", tuple(noted))
        object.__setattr__(self, "assumptions", order_conditions(self.assumptions))
        choice(STATUSES, status=self.status)
        choice(ADJACENCIES, adjacency=self.adjacency)
        choice(PROTECTED, protects=self.protects)
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise InvalidInputError(f"epsilon must be zero or above (or infinite), got {self.epsilon}")
        if not 0 <= self.delta <= 1:
            raise InvalidInputError(f"delta must lie between 0 and 1, got {self.delta}")
        if self.status == "proven" and self.delta == 0:
            raise InvalidInputError("a proven guarantee needs a delta above 0: give a small one")
        if self.status == "proven" and (math.isinf(self.epsilon) or self.delta == 1):
            object.__setattr__(self, "status", "none")
            nothing = f"no finite ε is proven at δ = {rounded_up(self.delta)}"
            object.__setattr__(self, "reason", "; ".join(part for part in (nothing, self.reason) if part))
        finding = None if FAST in self.reason else _finding(self.method, self.status)
        if finding is not None:
            object.__setattr__(self, "status", "refuted")
            object.__setattr__(self, "reason", "; ".join(part for part in (finding.describe(), self.reason) if part))

    @property
    def private(self) -> bool:
        """Whether the ε is finite and proven."""
        return self.status == "proven"

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of the guarantee that hush cannot check, the most important first."""
        return self.assumptions

    def describe_status(self) -> str:
        """The status as printed: "proven, on conditions" if it is proven and there are any."""
        return "proven, on conditions" if self.status == "proven" and self.assumptions else self.status

    def at(self, delta: float) -> Guarantee:
        """The guarantee of the same release at another δ, under the same conditions.

        ε is recomputed from the event. The part of δ that the event does not include (`lost`) is subtracted first; the
        tails of the noise take more of a smaller δ, because its ε is larger."""
        if not 0 < delta < 1:
            raise InvalidInputError(f"delta must lie between 0 and 1, got {delta}")
        if self.status == "none" or delta == self.delta:
            return replace(self, delta=delta)
        if self.lost is None or self.event is None or isinstance(self.event, str):
            raise NotProvenError(
                f"no ε is known for this release at δ = {rounded_up(delta)}, only at δ = {rounded_up(self.delta)}: ask "
                "the plan or the run that made it, with that δ"
            )
        left, found = delta - self.lost[delta < self.delta], math.inf
        if left > 0:
            accountant: Any = self.accountant
            found = account_epsilon(self.event, left, adjacency=self.adjacency, accountant=accountant)
        return replace(self, delta=delta, epsilon=found)

    def sentence(self) -> str:
        """The guarantee with all conditions in one line; only a proven, finite ε is stated as a guarantee."""
        return f"{self._state()}{list_in_line(self._conditions_stated())}.{self._notes(' ')}"

    def _conditions_stated(self) -> tuple[str, ...]:
        return self.assumptions if self.status in ("proven", "claimed") else ()

    def _state(self) -> str:
        """The pair, the unit, the adjacency and the status, without the conditions."""
        if self.status == "none":
            return f"No privacy: the result may reveal any {self.unit} it was trained on{_because(self.reason)}"
        pair = f"(ε = {rounded_up(self.epsilon)}, δ = {rounded_up(self.delta)})"
        scope = f"per {self.unit} ({self._neighbours()})"
        if self.status == "refuted":
            return f"Refuted: {pair}-differential privacy {scope} was claimed and does not hold{_because(self.reason)}"
        if self.status == "claimed":
            on = "; conditions" if self.assumptions else ""
            return (
                f"Not a guarantee: {pair}-differential privacy {scope} is claimed and not proven{_because(self.reason)}"
                f"{on}"
            )
        return f"{pair}-differentially private {scope}, {self.describe_status()}"

    def _notes(self, before: str) -> str:
        """The notes on a proven ε, each after ``before``."""
        reason = f"{self.reason[:1].upper()}{self.reason[1:]}".rstrip(".") if self.status == "proven" else ""
        notes = [text for text in (reason, *self.scope) if text]
        return "".join(f"{before}{text[:1].upper()}{text[1:]}." for text in notes) if self.status != "none" else ""

    def _neighbours(self) -> str:
        """The difference between neighbouring datasets."""
        if self.protects == "example":
            return MEANING[self.adjacency].format(unit=self.unit)
        return f"{WHAT[self.protects]}one {self.unit} changing; the rest of it is taken to be public"

    def __str__(self) -> str:
        """The pair, unit, adjacency and status in the first line; then one line per condition, and the notes."""
        conditions = self._conditions_stated()
        listed = "".join(f"\n  {number}. {text}" for number, text in enumerate(conditions, 1))
        return f"{self._state()}{':' if conditions else '.'}{listed}" + self._notes("\n  ")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; an infinite ε is null; the event is its readable line and, if it can be rebuilt, its plain
        data."""
        return {
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "protects": self.protects,
            "status": self.status,
            "event": None if self.event is None else name_event(self.event),
            "event_json": None if self.event is None else events.to_json(self.event),
            "accountant": self.accountant,
            "assumptions": list(self.assumptions),
            "scope": list(self.scope),
            "lost": None if self.lost is None else list(self.lost),
            "reason": self.reason,
            "method": self.method,
            "sentence": self.sentence(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Guarantee:
        """The inverse of `to_json`; an event that cannot be rebuilt becomes its readable line."""
        known = {name: data[name] for name in Guarantee.__dataclass_fields__ if name in data}
        try:
            known["epsilon"] = math.inf if known["epsilon"] is None else float(known["epsilon"])
            known |= {name: tuple(known.get(name, ())) for name in ("assumptions", "scope")}
            if known.get("lost") is not None:
                known["lost"] = (float(known["lost"][0]), float(known["lost"][1]))
            if data.get("event_json") is not None:
                known["event"] = events.from_json(data["event_json"])
            return Guarantee(**known)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidInputError(f"not a guarantee as hush writes it: {error}") from error


def list_in_line(conditions: Sequence[str]) -> str:
    """The conditions in one line, as they follow "on conditions"; several are numbered."""
    if len(conditions) < 2:
        return "".join(f": {text}" for text in conditions)
    return ": " + ", ".join(f"({number}) {text}" for number, text in enumerate(conditions, 1))


def order_conditions(texts: Iterable[str]) -> tuple[str, ...]:
    """Each condition once, the most important first (`CONDITIONS`), without notes on scope."""
    return tuple(sorted(dict.fromkeys(text for text in texts if text not in SCOPE_NOTES), key=_rank))


def _rank(text: str) -> int:
    return next((rank for start, rank in _RANKS if text.startswith(start)), _RANKS_OTHERS)


def rounded_up(value: float, digits: int = 3) -> str:
    """The number rounded up to a few significant digits (and at least two decimals from 10 on)."""
    if not math.isfinite(value):
        return "∞"
    return _plain(Decimal(repr(float(value))), ROUND_CEILING, digits)


def rounded_down(value: float, digits: int = 3) -> str:
    """The number rounded down to a few significant digits, for measurements of an audit."""
    return _plain(Decimal(repr(float(value))), ROUND_FLOOR, digits)


def _plain(value: Decimal, rounding: str, digits: int) -> str:
    short = Context(prec=max(digits, value.adjusted() + 3), rounding=rounding).plus(value)
    if short == 0:
        return "0"
    if Decimal("0.001") <= abs(short) < Decimal(1_000_000):
        return f"{short.normalize():f}"
    mantissa, exponent = f"{short.normalize():e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _because(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


@lru_cache(maxsize=1)
def findings() -> tuple[AuditFinding, ...]:
    """The shipped findings of audits."""
    text = resources.files("hush.accounting").joinpath("refuted.json").read_text(encoding="utf-8")
    return tuple(AuditFinding(**entry) for entry in json.loads(text))


def _finding(method: str, status: str) -> AuditFinding | None:
    if not method:
        return None
    return next((found for found in findings() if found.method == method and found.status == status), None)


FAST = (
    "fast arithmetic does not bound rounding that depends on the number of rows, so one more example can move every "
    "other example's gradient"
)
"""Why the ε of a run in fast arithmetic is claimed: an audit of a paper's formula does not apply to it."""

# The conditions of a guarantee, which hush can neither prove nor check, each in one line.

SECRET_SEED = "the seed of sampling and noise stays secret and is used for no other run"
SECRET_GIVEN = "the secret given for sampling and noise stays secret and is used for no other run"
TRAINED = "the run that trained this model before used other data"
HOOKED = "the model's hooks keep nothing of the data for training or a release"
UPDATED = "the optimizer and its schedule use nothing of the data but noisy gradients"
KEPT = "the custom {} ({}) keeps what it declares"
COLLATED = "the collate function builds each row from one example alone"
TAKEN = "take() of the data builds each row from one example alone"
DRAWN = "the dataset's random numbers are unpredictable and drawn for each example separately"
FIXED = "the number of steps was chosen without looking at released values"
BLINDLY = "interruptions and changes during training did not depend on released values"
SHAPE = "the shape of an example is public"
INDEPENDENT_ROWS = "an example's arithmetic does not depend on other rows"
PRECISE = "noise computed in double precision protects as exact noise does"
CHECKED = " (checked on {} inputs)"


def say_own_data(unit: str) -> str:
    """That an example holds one unit's data: a lag feature, say, would put the data of one unit into another's rows."""
    if unit == "example":
        return "no example holds data of another (no lag features)"
    return f"no row holds data of another {unit} (no lag features)"


# Notes on what ε covers: not conditions, as ε holds independently of them.

HELD = "held-out rows are not covered: figures measured on them are exact"
EXACT = "figures of held-out rows are covered where they have noise; those without noise stay private"
SCOPE_NOTES = (HELD, EXACT)

CONDITIONS: tuple[str | None, ...] = (
    # who knows the secret can remove the noise; then code that hush did not write; then choices made by people
    SECRET_SEED,
    SECRET_GIVEN,
    TRAINED,
    "the model and its loss treat every example separately",
    "the model and its loss use nothing of one example for another",
    HOOKED,
    UPDATED,
    KEPT,
    COLLATED,
    TAKEN,
    DRAWN,
    say_own_data("example"),
    say_own_data("{}"),
    BLINDLY,
    FIXED,
    None,  # all others, in the given order: mostly facts that are taken to be public
    SHAPE,
    INDEPENDENT_ROWS,
    PRECISE,
)
"""The order of conditions, the most important first. A text counts up to the first bracket in it."""
_RANKS = tuple(
    (text.partition("{")[0].partition(" (")[0], rank) for rank, text in enumerate(CONDITIONS) if text is not None
)
_RANKS_OTHERS = CONDITIONS.index(None)
