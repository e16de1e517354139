"""The price of having chosen: the ε of all the runs among which the best was found, beside that of the best alone.

What was chosen from is a fixed grid, whose price is the composition of its runs (`hush.privacy.selection`). The event
of a run is that of its record, or of its privacy card. Where neither has one it is rebuilt from the record's numbers,
and believed only if its ε is the recorded one. A run whose event is not known is added by its (ε, δ), which
basic composition allows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import dp_event

from hush.errors import HushError
from hush.privacy import event_json
from hush.privacy.accounting import ADJACENCIES, Adjacency, default_accountant, epsilon
from hush.privacy.selection import find_lost_delta, fixed_grid
from hush.report.store_rows import CARD, Row, read_number

SAME = (0.999, 1.01)  # of a recorded ε, between which a rebuilt event's ε is the same
AFTERWARDS = ("lr", "momentum", "weight_decay")  # options of post-processing, which no event knows
NUMBERS = ("noise_multiplier", "steps", "steps_taken", "examples", "batch_size", "sample_rate", "delta", "epsilon")
Identity = tuple[Any, ...]


@dataclass(frozen=True)
class ChoicePrice:
    """(ε, δ) of every run that was looked at, and of how many; None where it is not known, and ``reason`` says why."""

    runs: int
    epsilon: float | None
    delta: float | None
    reason: str = ""


@dataclass
class Pricing:
    """Prices, each composition accounted once."""

    events: dict[Identity, Any] = field(default_factory=dict)
    lost: dict[Identity, float] = field(default_factory=dict)
    known: dict[Any, float] = field(default_factory=dict)

    def price(self, rows: Sequence[Row], status: str) -> ChoicePrice:
        """The price of having looked at all of these runs; they share a problem, and so their data. Those that were
        refused before they began have seen none."""
        rows = [row for row in rows if row.record.get("begun") is not False]
        if status == "none":
            return ChoicePrice(len(rows), None, None, "nothing here is private")
        if status != "proven":
            return ChoicePrice(len(rows), None, None, f"its ε is {status} and not proven, so there is none to add up")
        first = next((row for row in rows if row.outcome == "finished"), rows[0])
        adjacency, delta = str(first.record.get("adjacency", "add-remove")), first.number("delta")
        if delta is None or adjacency not in ADJACENCIES:
            return ChoicePrice(len(rows), None, None, "the records do not say what δ and which neighbours are meant")
        if (again := next((row for row in rows if row.record.get("tried_before")), None)) is not None:
            return ChoicePrice(len(rows), None, None, f"what an earlier try of run {again.key} has spent is not known")
        if any(row.record.get("adjacency", adjacency) != adjacency for row in rows):
            return ChoicePrice(len(rows), None, None, "the runs do not speak of the same neighbours")
        events: Counter[Identity] = Counter()
        more, lost = [0.0, 0.0], 0.0
        for row in rows:
            identity = self._identify(row, adjacency)
            if identity is not None:
                events[identity] += 1
                lost += self._find_lost(row, identity, adjacency)
                continue
            spent = row.number("epsilon"), row.number("delta")
            if spent[0] is None or spent[1] is None:
                return ChoicePrice(len(rows), None, None, f"what run {row.key} has spent is not in its record")
            more = [more[0] + spent[0], more[1] + spent[1]]
        total = self._compose(events, adjacency, delta - lost) if events else 0.0
        if total is None:
            return ChoicePrice(len(rows), None, None, "no accountant can add up these runs")
        return ChoicePrice(len(rows), total + more[0], (delta if events else 0.0) + more[1])

    def _identify(self, row: Row, adjacency: str) -> Identity | None:
        """What tells the event of this run from others; None where its event is not known."""
        options = {name: value for name, value in row.options.items() if name not in AFTERWARDS}
        told = json.dumps(options, sort_keys=True)
        known = json.dumps(row.record.get("event"), sort_keys=True)
        names = row.method, row.record.get("accountant"), adjacency, told, known
        identity = (*names, *(row.number(name) for name in NUMBERS))
        if identity not in self.events:
            self.events[identity] = _read_event(row) or _read_card(row) or _rebuild(row, adjacency)
        return identity if self.events[identity] is not None else None

    def _find_lost(self, row: Row, identity: Identity, adjacency: Any) -> float:
        """What of δ the event does not know, as recorded; where it is not, as much as it can be."""
        told, spent, delta = row.number("lost_delta"), row.number("epsilon"), row.number("delta")
        if told is not None:
            return max(0.0, told)
        if spent is None or delta is None:
            return delta or 0.0
        if identity not in self.lost:
            accountant, event = row.record.get("accountant"), self.events[identity]
            self.lost[identity] = find_lost_delta(event, spent, delta, adjacency=adjacency, accountant=accountant)
        return self.lost[identity]

    def _compose(self, counts: Counter[Identity], adjacency: str, delta: float) -> float | None:
        if delta <= 0:
            return None
        parts = [fixed_grid(self.events[identity], runs) for identity, runs in counts.items()]
        told = json.dumps([sorted(json.dumps(event_json.to_json(part)) for part in parts), adjacency, delta])
        if told not in self.known:
            event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
            self.known[told] = _account(event, delta, adjacency)
        found = self.known[told]
        return None if found == float("inf") else found


def _account(event: Any, delta: float, adjacency: Any) -> float:
    """ε by the tightest accountant; infinite where none is able."""
    named: Adjacency = adjacency
    try:
        return epsilon(event, delta, adjacency=named, accountant=default_accountant(event, named))
    except HushError:
        return float("inf")


def _read_event(row: Row) -> Any:
    """The event in the run's record; None where there is none that can be rebuilt."""
    try:
        return event_json.from_json(row.record["event"])
    except (ValueError, KeyError, TypeError, RecursionError, HushError):
        return None


def _read_card(row: Row) -> Any:
    """The event on the run's privacy card; None where there is none that can be rebuilt."""
    if row.folder is None:
        return None
    try:
        told = json.loads((row.folder / CARD).read_bytes())["accounting"]["event"]
        return event_json.from_json(told)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, HushError):
        return None


def _rebuild(row: Row, adjacency: str) -> Any:
    """Gaussian, or Gaussians on Poisson batches, where its ε is the recorded one."""
    sigma, spent, delta = row.number("noise_multiplier"), row.number("epsilon"), row.number("delta")
    if not sigma or sigma < 0 or not spent or delta is None or row.outcome != "finished":
        return None
    event = dp_event.GaussianDpEvent(sigma)
    if row.record.get("accountant") != "gdp":
        steps, rate = row.number("steps"), _find_rate(row)
        if not steps or rate is None or not 0 < rate < 1:
            return None
        event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, event), int(steps))
    found = _account(event, delta, adjacency)
    return event if SAME[0] <= found / spent <= SAME[1] else None


def _find_rate(row: Row) -> float | None:
    given = read_number(row.record.get("sample_rate"))
    if given is not None:
        return given
    batch, examples = row.number("batch_size"), row.number("examples")
    return batch / examples if batch and examples else None
