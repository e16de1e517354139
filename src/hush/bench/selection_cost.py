"""The cost of choosing the best run of a grid: the winner's own ε, as papers print it, and that of all runs together.

The choice depends on all runs on the same data: its cost is the composition of every run, winners and losers,
finished, diverged or failed (`hush.accounting.selection.fixed_grid`). `hush bench` and
`hush report` state it for the runs of one problem, method and ε (`group_label`), and for the whole store.

The event of a run is that of its record. Where it has none it is rebuilt from the record's numbers, and believed only
if its ε is the recorded one. A run whose event is not known is added by its (ε, δ), which basic composition allows.
Where a run does not say what it has spent (its process died, or an earlier try of it could not be continued) the price
is not known; one that was refused before it began is no run. A test or validation part that is private too is one more
thing that was looked at; the price here is that of training.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_accounting import dp_event

from hush.accounting import events as event_json
from hush.accounting.accountant import ADJACENCIES, Adjacency, default_accountant, epsilon
from hush.accounting.guarantee import rounded_up
from hush.accounting.selection import find_lost_delta, fixed_grid
from hush.errors import HushError

Record = Mapping[str, Any]
Identity = tuple[Any, ...]
SAME = (0.999, 1.01)  # of a recorded ε, between which a rebuilt event's ε is the same
AFTERWARDS = ("lr", "momentum", "weight_decay")  # options of post-processing, which do not change an event
NUMBERS = ("noise_multiplier", "steps", "steps_taken", "examples", "batch_size", "sample_rate", "delta", "epsilon")
FIGURES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss")
WORST = ("refuted", "claimed", "none", "proven")  # the status of several runs is the first of these among them
MOST_EVENTS = 64  # different ones that are composed into one total; more are added up by groups


@dataclass(frozen=True)
class ChoicePrice:
    """The joint (ε, δ) of all runs that were compared, and their number; None if unknown, with the ``reason``."""

    runs: int
    epsilon: float | None
    delta: float | None
    reason: str = ""

    def describe(self) -> str:
        """ε and δ, rounded up, or why they are unknown."""
        if self.epsilon is None or self.delta is None:
            return f"not known ({self.reason})"
        return f"{rounded_up(self.epsilon)} at δ = {rounded_up(self.delta)}"


@dataclass(frozen=True)
class PricedChoice:
    """The best run of a group, and both prices; that of the selection is None if unknown."""

    problem: str
    method: str
    target: float | None
    runs: int
    figure: str
    best: float
    winner_epsilon: float
    selection_epsilon: float | None
    delta: float
    selection_delta: float | None
    reason: str

    def sentence(self) -> str:
        """One line for people."""
        price = ChoicePrice(self.runs, self.selection_epsilon, self.selection_delta, self.reason)
        return (
            f"best of {self.runs} runs, {self.method} on {self.problem}: {self.figure.replace('_', ' ')} "
            f"{self.best:.4g}; the winner's own ε = {rounded_up(self.winner_epsilon)} at δ = {rounded_up(self.delta)}, "
            f"ε of the selection among these runs = {price.describe()}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain fields."""
        return asdict(self)


def price_choices(records: Iterable[Record], pricing: Pricing | None = None) -> list[PricedChoice]:
    """The choice of every problem, method and ε that has more than one private run and one with a result."""
    pricing = pricing or Pricing()
    found = [_choose(group, pricing) for group in group_records(records) if find_status(group) != "none"]
    return [choice for choice in found if choice is not None and choice.runs > 1]


def price_store(records: Iterable[Record], pricing: Pricing | None = None) -> ChoicePrice:
    """The price of everything that was looked at: all private runs of a store, as if all were on the same data."""
    pricing = pricing or Pricing()
    groups = [group for group in group_records(records) if find_status(group) != "none"]
    runs = [record for group in groups for record in group]
    if pricing.count_events(runs) <= MOST_EVENTS:
        return pricing.price(runs)
    parts = [pricing.price(group) for group in groups]
    count = sum(part.runs for part in parts)
    for part in parts:
        if part.epsilon is None:
            return ChoicePrice(count, None, None, part.reason)
    if len({str(record.get("adjacency", "add-remove")) for record in runs}) > 1:
        return ChoicePrice(count, None, None, "the runs do not speak of the same neighbours")
    return ChoicePrice(count, math.fsum(p.epsilon or 0.0 for p in parts), math.fsum(p.delta or 0.0 for p in parts))


def group_records(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each problem, method and ε."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        config = _read_table(record, "config")
        place = str(config.get("problem", "unknown")), str(config.get("method", "unknown")), group_label(record)
        groups.setdefault(place, []).append(record)
    return list(groups.values())


def group_label(record: Record) -> str:
    """The ε that runs are compared at: as asked for, else as accounted, in three digits."""
    config = _read_table(record, "config")
    asked, found = read_number(config.get("epsilon")), find_number(record, "epsilon")
    if asked is not None:
        return f"{asked:g}"
    if found is not None:
        return rounded_up(found)
    return "none" if record.get("status") == "none" or config.get("method") == "sgd" else "unknown"


def find_status(records: Iterable[Record]) -> str:
    """The worst status of an ε among these runs; "unknown" if none has one."""
    stated = [record.get("status") for record in records]
    return next((kind for kind in WORST if kind in stated), "unknown")


def _choose(group: Sequence[Record], pricing: Pricing) -> PricedChoice | None:
    names = [name for name in FIGURES if any(read_number(record.get(name)) is not None for record in group)]
    done = [record for record in group if record.get("outcome") == "finished" and record.get("epsilon") is not None]
    scored = [record for record in done if names and read_number(record.get(names[0])) is not None]
    if not scored:
        return None
    sign = 1.0 if names[0].endswith("accuracy") else -1.0
    best = max(scored, key=lambda record: sign * record[names[0]])
    price, config = pricing.price(group), best["config"]
    return PricedChoice(
        config["problem"],
        config["method"],
        config.get("epsilon"),
        price.runs,
        names[0],
        best[names[0]],
        best["epsilon"],
        price.epsilon,
        best["delta"],
        price.delta,
        price.reason,
    )


@dataclass
class Pricing:
    """Prices, each composition accounted once."""

    events: dict[Identity, Any] = field(default_factory=dict)
    lost: dict[Identity, float] = field(default_factory=dict)
    known: dict[Any, float] = field(default_factory=dict)

    def price(self, records: Sequence[Record], status: str | None = None) -> ChoicePrice:
        """The price of having looked at all of these runs on the same data; ``status`` is what is known of their ε."""
        records = [record for record in records if record.get("begun") is not False]
        status = find_status(records) if status is None else status
        runs = len(records) + sum(bool(record.get("tried_before")) for record in records)
        if status == "none":
            return ChoicePrice(runs, None, None, "nothing here is private")
        if status != "proven":
            return ChoicePrice(runs, None, None, f"its ε is {status} and not proven, so there is none to add up")
        deltas = [delta for record in records if (delta := find_number(record, "delta")) is not None]
        kinds = {str(record["adjacency"]) for record in records if "adjacency" in record} or {"add-remove"}
        if not deltas or not kinds <= set(ADJACENCIES):
            return ChoicePrice(runs, None, None, "the records do not say what δ and which neighbours are meant")
        if (again := next((record for record in records if record.get("tried_before")), None)) is not None:
            return ChoicePrice(runs, None, None, f"what an earlier try of {_name(again)} has spent is not known")
        if len(kinds) > 1:
            return ChoicePrice(runs, None, None, "the runs do not speak of the same neighbours")
        return self._add_up(records, kinds.pop(), max(deltas))

    def count_events(self, records: Iterable[Record]) -> int:
        """How many different events these runs have."""
        return len({self._identify(record, str(record.get("adjacency", "add-remove"))) for record in records})

    def _add_up(self, records: Sequence[Record], adjacency: str, delta: float) -> ChoicePrice:
        counts: Counter[Identity] = Counter()
        more, lost = [0.0, 0.0], 0.0
        for record in records:
            spent = read_number(record.get("epsilon")), read_number(record.get("delta"))
            if spent[0] is None or spent[1] is None:  # an infinite ε is null
                return ChoicePrice(len(records), None, None, f"what {_name(record)} has spent is not in its record")
            identity = self._identify(record, adjacency)
            if identity is not None:
                counts[identity] += 1
                lost += self._find_lost(record, identity, adjacency)
            else:
                more = [more[0] + spent[0], more[1] + spent[1]]
        total = self._compose(counts, adjacency, delta - lost) if counts else 0.0
        if total is None:
            return ChoicePrice(len(records), None, None, "no accountant can add up these runs")
        return ChoicePrice(len(records), total + more[0], (delta if counts else 0.0) + more[1])

    def _identify(self, record: Record, adjacency: str) -> Identity | None:
        """The identity of the event of this run; None if its event is not known."""
        config = _read_table(record, "config")
        options = {name: value for name, value in _read_table(config, "options").items() if name not in AFTERWARDS}
        described = json.dumps(options, sort_keys=True)
        known = json.dumps(record.get("event"), sort_keys=True)
        names = str(config.get("method", "unknown")), record.get("accountant"), adjacency, described, known
        identity = (*names, *(find_number(record, name) for name in NUMBERS))
        if identity not in self.events:
            self.events[identity] = read_event(record.get("event")) or _rebuild(record, adjacency)
        return identity if self.events[identity] is not None else None

    def _find_lost(self, record: Record, identity: Identity, adjacency: Any) -> float:
        """The part of δ that the event does not include, as recorded; otherwise the largest that it can be."""
        described, spent = read_number(record.get("lost_delta")), find_number(record, "epsilon")
        delta = find_number(record, "delta")
        if described is not None:
            return max(0.0, described)
        if spent is None or delta is None:
            return delta or 0.0
        if identity not in self.lost:
            accountant, event = record.get("accountant"), self.events[identity]
            self.lost[identity] = find_lost_delta(event, spent, delta, adjacency=adjacency, accountant=accountant)
        return self.lost[identity]

    def _compose(self, counts: Counter[Identity], adjacency: str, delta: float) -> float | None:
        if delta <= 0:
            return None
        parts = [fixed_grid(self.events[identity], runs) for identity, runs in counts.items()]
        described = json.dumps([sorted(json.dumps(event_json.to_json(part)) for part in parts), adjacency, delta])
        if described not in self.known:
            event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
            self.known[described] = _account(event, delta, adjacency)
        found = self.known[described]
        return None if found == float("inf") else found


def read_event(described: Any) -> Any:
    """The event in a record or a privacy card; None if there is none that can be rebuilt."""
    try:
        return event_json.from_json(described)
    except (ValueError, KeyError, TypeError, RecursionError, HushError):
        return None


def read_number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def find_number(record: Record, name: str) -> float | None:
    """A number of the record, of its settings, or of the method's options; None if there is none."""
    config = _read_table(record, "config")
    for place in (record, config, _read_table(config, "options")):
        if (found := read_number(place.get(name))) is not None:
            return found
    return None


def _read_table(record: Record, name: str) -> Record:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _name(record: Record) -> str:
    return f"run {record['key']}" if "key" in record else "a run"


def _account(event: Any, delta: float, adjacency: Any) -> float:
    """ε by the tightest accountant; infinite if none supports the event."""
    named: Adjacency = adjacency
    try:
        return epsilon(event, delta, adjacency=named, accountant=default_accountant(event, named))
    except HushError:
        return float("inf")


def _rebuild(record: Record, adjacency: str) -> Any:
    """Gaussian, or Gaussians on Poisson batches, where its ε is the recorded one."""
    sigma, spent, delta = (find_number(record, name) for name in ("noise_multiplier", "epsilon", "delta"))
    if not sigma or sigma < 0 or not spent or delta is None or record.get("outcome") != "finished":
        return None
    event = dp_event.GaussianDpEvent(sigma)
    if record.get("accountant") != "gdp":
        steps, rate = find_number(record, "steps"), _find_rate(record)
        if not steps or rate is None or not 0 < rate < 1:
            return None
        event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, event), int(steps))
    found = _account(event, delta, adjacency)
    return event if SAME[0] <= found / spent <= SAME[1] else None


def _find_rate(record: Record) -> float | None:
    given = read_number(record.get("sample_rate"))
    if given is not None:
        return given
    batch, examples = find_number(record, "batch_size"), find_number(record, "examples")
    return batch / examples if batch and examples else None
