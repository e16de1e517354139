"""Guarantee: what is known about the privacy of a release, printed as one sentence.

A status says where an ε comes from: ``proven`` (it follows from the accountant), ``claimed`` (a paper's formula that
could not be proven), ``refuted`` (an audit showed that it does not hold), ``none`` (no privacy: ordinary training).
Only a proven ε reads as a guarantee. An infinite ε or a δ of 1 proves nothing and has the status ``none``. Printed
numbers are rounded up, never down.

`refuted.json` in this folder contains the findings of audits, as a list of objects:
``{"method": "dp-x", "status": "claimed", "claimed_epsilon": 1.0, "epsilon_lower": 4.2, "delta": 1e-5,
"confidence": 0.95, "source": "what was run"}``, where the confidence is that of ``epsilon_lower``. A guarantee made for
a listed method, with the listed status, becomes refuted. ``status`` says which kind of ε the audit broke ("claimed" or
"proven").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, get_args

from hush._internal.validate import choice
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.events import name_event
from hush.errors import InvalidInputError

Status = Literal["proven", "claimed", "refuted", "none"]
STATUSES: tuple[str, ...] = get_args(Status)
Protects = Literal["example", "features", "labels"]
PROTECTED: tuple[Protects, ...] = get_args(Protects)
MEANING = {
    "add-remove": "adding or removing one {unit}",
    "replace": "replacing one {unit} by another",
    "zero-out": "one {unit}'s contribution becoming zero",
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
    """(ε, δ) for one unit under one adjacency, with its status, and what it rests on.

    ``protects`` says which part of a unit is covered: all of it ("example"), or only its features or its labels, where
    the other half, and whether the unit is there at all, is taken to be public."""

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

    def __post_init__(self) -> None:
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
        finding = _finding(self.method, self.status)
        if finding is not None:
            object.__setattr__(self, "status", "refuted")
            object.__setattr__(self, "reason", "; ".join(part for part in (finding.describe(), self.reason) if part))

    @property
    def private(self) -> bool:
        """Whether this is a finite ε that may be relied on."""
        return self.status == "proven"

    def sentence(self) -> str:
        """One honest sentence: only a proven, finite ε reads as a guarantee."""
        if self.status == "none":
            return f"No privacy: the result may reveal any {self.unit} it was trained on{_because(self.reason)}."
        pair = f"(ε = {rounded_up(self.epsilon)}, δ = {rounded_up(self.delta)})"
        scope = f"per {self.unit} ({self._neighbours()})"
        if self.status == "refuted":
            return f"Refuted: {pair}-differential privacy {scope} was claimed and does not hold{_because(self.reason)}."
        if self.status == "claimed":
            return (
                f"Not a guarantee: a published formula claims {pair}-differential privacy {scope}, and no proof of it "
                f"is known here{_because(self.reason)}{assuming(self.assumptions)}."
            )
        proof = f"proven by {ACCOUNTING.get(self.accountant, self.accountant)}"
        return f"{pair}-differentially private {scope}, {proof}{_because(self.reason)}{assuming(self.assumptions)}."

    def _neighbours(self) -> str:
        """How the two indistinguishable datasets differ."""
        if self.protects == "example":
            return MEANING[self.adjacency].format(unit=self.unit)
        return f"{WHAT[self.protects]}one {self.unit} changing; the rest of it is taken to be public"

    def __str__(self) -> str:
        return self.sentence()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; an infinite ε is null, the event is its readable line and, where it can be rebuilt from
        plain data, those."""
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
            "reason": self.reason,
            "method": self.method,
            "sentence": self.sentence(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Guarantee:
        """Back from `to_json`; an event of a kind that cannot be rebuilt comes back as its readable line."""
        known = {name: data[name] for name in Guarantee.__dataclass_fields__ if name in data}
        try:
            known["epsilon"] = math.inf if known["epsilon"] is None else float(known["epsilon"])
            known["assumptions"] = tuple(known.get("assumptions", ()))
            if data.get("event_json") is not None:
                known["event"] = events.from_json(data["event_json"])
            return Guarantee(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"not a guarantee as hush writes it: {error}") from error

    def to_markdown(self) -> str:
        """The guarantee as a section of a privacy card."""
        rows = {
            "status": self.status,
            "ε": rounded_up(self.epsilon),
            "δ": rounded_up(self.delta),
            "unit": f"one {self.unit}",
            "protects": f"{WHAT[self.protects]}one {self.unit}",
            "neighbours": self._neighbours(),
            "mechanism": "not stated" if self.event is None else name_event(self.event),
            "accountant": ACCOUNTING.get(self.accountant, self.accountant),
        }
        if self.status == "none":
            rows = {"status": "none"}
        if self.status in ("claimed", "refuted"):
            rows["ε"] += " (not a guarantee)"
        lines = [
            self.sentence(),
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {_cell(text)} |" for name, text in rows.items()),
        ]
        if self.reason:
            lines += ["", f"Reason: {self.reason}"]
        if self.assumptions:
            numbered = (f"{number}. {text}" for number, text in enumerate(self.assumptions, 1))
            lines += ["", "It assumes that:", "", *numbered]
        return "\n".join(lines) + "\n"


def assuming(texts: Sequence[str]) -> str:
    """The end of a sentence that rests on these assumptions: all of them, numbered where there are several."""
    if len(texts) < 2:
        return "".join(f"; assumes that {text}" for text in texts)
    numbered = [f"({number}) {text}" for number, text in enumerate(texts, 1)]
    last = " and " if len(texts) == 2 else ", and "
    return f"; assumes that {', '.join(numbered[:-1])}{last}{numbered[-1]}"


def rounded_up(value: float, digits: int = 3) -> str:
    """The number in a few significant digits (and at least two decimals from 10 on), never smaller than it is."""
    if not math.isfinite(value):
        return "∞"
    return _plain(Decimal(repr(float(value))), ROUND_CEILING, digits)


def rounded_down(value: float, digits: int = 3) -> str:
    """The number in a few significant digits, never larger than it is: for what an audit measured."""
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


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


@lru_cache(maxsize=1)
def findings() -> tuple[AuditFinding, ...]:
    """The shipped findings of audits."""
    text = resources.files("hush.accounting").joinpath("refuted.json").read_text(encoding="utf-8")
    return tuple(AuditFinding(**entry) for entry in json.loads(text))


def _finding(method: str, status: str) -> AuditFinding | None:
    if not method:
        return None
    return next((found for found in findings() if found.method == method and found.status == status), None)


# Texts of assumptions that no proof can show. They are part of plans, and so of fingerprints: do not edit them.

SECRET_SEED = "the secret seed that was chosen for sampling and noise stays secret and is used for no other run"
SECRET_GIVEN = "the secret that was handed in for sampling and noise stays secret and is used for no other run"
ROUNDING = "rounding that varies with the size of a batch gives nothing away"
FIXED = "the number of steps was decided without looking at what had been released"
BLINDLY = "nobody decided where to break off and what to change by looking at what had been released"
HOOKED = "the hooks on the model keep nothing of what they see that training or a release would use"
KEPT = "a {} of one's own ({}) keeps what it declares"
TRAINED = "the run that trained this model before did not use these data"
