"""Rows in groups (problem × method × ε): the best run, mean and spread over seeds, status, and what was found.

The best setting is the one whose mean over seeds is best on the validation part, as in `hush.bench.dataframes`; where
there
is no validation part the test part decides, and the report says that this flatters. A run that did not finish counts as
worst.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import dp_event

from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, Adjacency, default_accountant, epsilon
from hush.accounting.guarantee import findings, rounded_up
from hush.accounting.selection import find_lost_delta, fixed_grid
from hush.errors import HushError
from hush.report.rows import CARD, Audited, Reading, Row, read_number

# The price of having chosen: the ε of all the runs among which the best was found, beside that of the best alone.
#
# What was chosen from is a fixed grid, whose price is the composition of its runs (`hush.accounting.selection`). The
# event of a run is that of its record, or of its privacy card. Where neither has one it is rebuilt from the record's
# numbers, and believed only if its ε is the recorded one. A run whose event is not known is added by its (ε, δ), which
# basic composition allows.

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
        told = json.dumps([sorted(json.dumps(events.to_json(part)) for part in parts), adjacency, delta])
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
        return events.from_json(row.record["event"])
    except (ValueError, KeyError, TypeError, RecursionError, HushError):
        return None


def _read_card(row: Row) -> Any:
    """The event on the run's privacy card; None where there is none that can be rebuilt."""
    if row.folder is None:
        return None
    try:
        told = json.loads((row.folder / CARD).read_bytes())["accounting"]["event"]
        return events.from_json(told)
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


WORST = ("refuted", "claimed", "none", "proven")  # what a group is called, of the kinds of ε in it


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seeds alone."""

    rows: tuple[Row, ...]

    @property
    def values(self) -> list[float]:
        """The test figures of the finished ones."""
        return [value for row in self.rows if (value := row.figure("test")) is not None]

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def score(self, part: str, sign: float) -> float:
        """Mean over seeds, the larger the better; a run without a figure counts as worst."""
        found = [row.figure(part) for row in self.rows]
        return statistics.fmean(-math.inf if value is None else sign * value for value in found)


@dataclass(frozen=True)
class Group:
    """All runs of one problem, method and ε."""

    problem: str
    method: str
    epsilon: str
    status: str
    metric: str
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    chosen: Setting | None  # the best setting; None where nothing finished
    best: Row | None  # the best run, by the same part
    chosen_by: str  # "validation" or "test"
    price: ChoicePrice
    audited: Audited | None  # by an audit that refuted what was stated, or by that which measured most

    def count(self, outcome: str) -> int:
        """How many of its runs have ended so."""
        return sum(row.outcome == outcome for row in self.rows)

    @property
    def place(self) -> tuple[str, str, str]:
        """What it is a group of."""
        return self.problem, self.method, self.epsilon


def make_groups(reading: Reading) -> list[Group]:
    """The groups, by problem, then ε, then method."""
    by_place: dict[tuple[str, str, str], list[Row]] = {}
    for row in reading.ended:
        by_place.setdefault((row.problem, row.method, row.epsilon_label), []).append(row)
    pricing, audits = Pricing(), (*reading.audits, *_list_shipped())
    made = [_make_group(place, rows, pricing, audits) for place, rows in by_place.items()]
    return sorted(made, key=lambda group: (group.problem, order_epsilon(group.epsilon), group.method))


def order_epsilon(label: str) -> tuple[float, str]:
    """Numbers by size, then no ε at all, then an unknown one."""
    try:
        return float(label), ""
    except ValueError:
        return math.inf, label


def group_settings(rows: Iterable[Row]) -> tuple[Setting, ...]:
    """Runs with one configuration, whatever their seeds, together."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        told = {name: value for name, value in row.config.items() if name != "seed"}
        found.setdefault(json.dumps(told, sort_keys=True), []).append(row)
    return tuple(Setting(tuple(some)) for some in found.values())


def _list_shipped() -> tuple[Audited, ...]:
    """The findings that come with hush."""
    return tuple(
        Audited(found.method, found.status, "refuted", found.epsilon_lower, found.claimed_epsilon, "as hush ships it")
        for found in findings()
    )


def _find_audit(audits: Sequence[Audited], method: str, stated: Sequence[str]) -> Audited | None:
    """One that refuted such an ε where there is one, and of several that which measured most. Runs made after that
    state a refuted ε, where they would have stated a claimed one."""
    kinds = {*stated, "claimed"} if "refuted" in stated else set(stated)
    mine = [audit for audit in audits if audit.method == method and audit.status in kinds]
    return max(mine, key=lambda audit: (audit.verdict == "refuted", audit.epsilon_lower), default=None)


def _make_group(place: tuple[str, str, str], rows: Sequence[Row], pricing: Pricing, audits: Sequence[Audited]) -> Group:
    problem, method, epsilon = place
    metric = next((row.metric for row in rows if row.outcome == "finished"), rows[0].metric)
    sign = 1.0 if metric == "accuracy" else -1.0
    part = "validation" if any(row.figure("validation") is not None for row in rows) else "test"
    settings = group_settings(rows)
    alive = [setting for setting in settings if setting.score(part, sign) > -math.inf]
    done = [row for row in rows if row.figure(part) is not None and row.figure("test") is not None]
    stated = [row.status for row in rows if row.status in WORST]
    audited = _find_audit(audits, method, [row.accounted for row in rows])
    refuted = audited is not None and audited.verdict == "refuted"
    status = "refuted" if refuted else next((kind for kind in WORST if kind in stated), "unknown")
    return Group(
        problem,
        method,
        epsilon,
        status,
        metric,
        tuple(rows),
        settings,
        max(alive, key=lambda setting: setting.score(part, sign)) if alive else None,
        max(done, key=lambda row: sign * (row.figure(part) or 0.0)) if done else None,
        part,
        pricing.price(rows, status),
        audited,
    )


def tell_figure(value: float | None, metric: str) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4g}"


def tell_mean(group: Group) -> str:
    """Mean ± spread of the best setting, and over how many seeds."""
    if group.chosen is None or group.chosen.mean is None:
        return "–"
    seeds = len(group.chosen.values)
    after = f"({seeds} seed{'s' * (seeds != 1)})"
    if group.chosen.spread is None:
        return f"{tell_figure(group.chosen.mean, group.metric)} {after}"
    return f"{tell_figure(group.chosen.mean, group.metric)} ± {tell_figure(group.chosen.spread, group.metric)} {after}"


def tell_epsilon(group: Group) -> str:
    """The ε of the best run alone, never rounded down."""
    row = group.best or group.rows[0]
    found = row.number("epsilon")
    return rounded_up(found) if found is not None else "∞" if group.status == "none" else "–"


def tell_price(group: Group) -> str:
    """What choosing has cost."""
    price = group.price
    if group.best is None:
        return "no run has finished"
    if price.epsilon is None or price.delta is None:
        return f"chosen from {price.runs} runs: {price.reason}" if price.runs > 1 else ""
    if price.runs == 1:
        return "the only run: nothing was chosen"
    return (
        f"chosen from {price.runs} runs, which together cost ε = {rounded_up(price.epsilon)} at δ = "
        f"{rounded_up(price.delta)}"
    )


def tell_findings(reading: Reading, groups: Sequence[Group]) -> list[str]:
    """Two sentences made from the data: which method is best, and how the runs have ended and what choosing cost."""
    return [_tell_best(groups), _tell_outcomes(reading, groups)]


def _tell_best(groups: Sequence[Group]) -> str:
    proven = [group for group in groups if group.status == "proven" and group.chosen is not None]
    places = sorted({(g.problem, g.epsilon) for g in proven}, key=lambda p: (p[0], order_epsilon(p[1])))
    contests = [[g for g in proven if (g.problem, g.epsilon) == place] for place in places]
    contests = [_rank(some) for some in contests if len(some) > 1]
    if not contests:
        return _tell_alone(proven or [group for group in groups if group.chosen is not None])
    if len(contests) == 1:
        first, second, *_ = contests[0]
        where = f"On {first.problem} at ε = {first.epsilon}"
        return f"{where}, {first.method} is best of {len(contests[0])} methods: {_tell_lead(first, second)}."
    wins: dict[str, int] = {}
    for first, *_ in contests:
        wins[first.method] = wins.get(first.method, 0) + 1
    method, won = max(wins.items(), key=lambda item: (item[1], item[0]))
    first, second, *_ = max((some for some in contests if some[0].method == method), key=lambda some: _lead(*some[:2]))
    return (
        f"At the same problem and proven ε, {method} is best in {won} of {len(contests)} comparisons; by most on "
        f"{first.problem} at ε = {first.epsilon}, with {_tell_lead(first, second)}."
    )


def _rank(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: -_value(g))


def _value(group: Group) -> float:
    mean = group.chosen.mean if group.chosen is not None else None
    sign = 1.0 if group.metric == "accuracy" else -1.0
    return -math.inf if mean is None else sign * mean


def _lead(first: Group, second: Group) -> float:
    return _value(first) - _value(second)


def _tell_lead(first: Group, second: Group) -> str:
    lead = _lead(first, second)
    spreads = [g.chosen.spread for g in (first, second) if g.chosen is not None and g.chosen.spread is not None]
    if len(spreads) < 2:
        sure = " (with so few seeds it may be chance)"
    else:
        sure = ", within the spread over seeds" if lead <= math.hypot(*spreads) else ""
    by = f"{100 * lead:.2f} points" if first.metric == "accuracy" else f"{lead:.3g} less loss"
    told = f"test {first.metric} {tell_mean(first)}"
    if second.metric != first.metric or not math.isfinite(lead):
        return told
    return f"{told}, {by} {'above' if first.metric == 'accuracy' else 'than'} {second.method}{sure}"


def _tell_alone(groups: Sequence[Group]) -> str:
    if not groups:
        return "No run has finished, so nothing can be compared."
    best = max(groups, key=lambda g: (g.metric == "accuracy", _value(g)))
    at = f"ε = {best.epsilon} ({best.status})" if best.status != "none" else "no privacy"
    return (
        f"No two methods were run at the same problem and proven ε; the best figure is that of {best.method} on "
        f"{best.problem} with {at}: test {best.metric} {tell_mean(best)}."
    )


def _tell_outcomes(reading: Reading, groups: Sequence[Group]) -> str:
    names = ("finished", "diverged", "failed", "unfinished", "unreadable", "unknown version")
    counts = [f"{reading.count(name)} {name}" for name in names if reading.count(name)]
    told = f"Of {len(reading.rows)} runs: {', '.join(counts) or 'none'}"
    priced = [g for g in groups if g.price.epsilon is not None and g.price.runs > 1 and g.best is not None]
    dearest = max(priced, key=lambda g: g.price.runs, default=None)
    if dearest is None or dearest.price.epsilon is None:
        return f"{told}."
    return (
        f"{told}; the ε of a best run is that of the run alone, and having chosen it costs more (of "
        f"{dearest.method} on {dearest.problem}: ε = {rounded_up(dearest.price.epsilon)} for all "
        f"{dearest.price.runs} runs in place of {tell_epsilon(dearest)})."
    )
