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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.accounting.guarantee import findings, rounded_up
from hush.bench.selection_cost import ChoicePrice, Pricing, find_status, price_store, read_event
from hush.report.rows import CARD, Audited, Reading, Row


def _with_event(row: Row) -> Mapping[str, Any]:
    """The record of a run, with the event of its privacy card if it has no event."""
    if row.folder is None or read_event(row.record.get("event")) is not None:
        return row.record
    try:
        return {**row.record, "event": json.loads((row.folder / CARD).read_bytes())["accounting"]["event"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return row.record


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seeds alone."""

    rows: tuple[Row, ...]

    @property
    def values(self) -> list[float]:
        """The test figures of the finished ones."""
        return [value for row in self.rows if (value := row.score("test")) is not None]

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
        found = [row.score(part) for row in self.rows]
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
    chosen: Setting | None  # the best setting; None if no run finished
    best: Row | None  # the best run, by the same part
    chosen_by: str  # "validation" or "test"
    price: ChoicePrice
    audited: Audited | None  # the audit that refuted the stated ε, or the one that measured the largest

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
    """Group runs with one configuration and any seeds."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        text = {name: value for name, value in row.config.items() if name != "seed"}
        found.setdefault(json.dumps(text, sort_keys=True), []).append(row)
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
    part = "validation" if any(row.score("validation") is not None for row in rows) else "test"
    settings = group_settings(rows)
    alive = [setting for setting in settings if setting.score(part, sign) > -math.inf]
    done = [row for row in rows if row.score(part) is not None and row.score("test") is not None]
    audited = _find_audit(audits, method, [row.accounted for row in rows])
    refuted = audited is not None and audited.verdict == "refuted"
    status = "refuted" if refuted else find_status(row.record for row in rows)
    return Group(
        problem,
        method,
        epsilon,
        status,
        metric,
        tuple(rows),
        settings,
        max(alive, key=lambda setting: setting.score(part, sign)) if alive else None,
        max(done, key=lambda row: sign * (row.score(part) or 0.0)) if done else None,
        part,
        pricing.price([_with_event(row) for row in rows], status),
        audited,
    )


def format_metric(value: float | None, metric: str) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4g}"


def format_mean(group: Group) -> str:
    """Mean ± spread of the best setting, and over how many seeds."""
    if group.chosen is None or group.chosen.mean is None:
        return "–"
    seeds = len(group.chosen.values)
    after = f"({seeds} seed{'s' * (seeds != 1)})"
    if group.chosen.spread is None:
        return f"{format_metric(group.chosen.mean, group.metric)} {after}"
    return (
        f"{format_metric(group.chosen.mean, group.metric)} ± {format_metric(group.chosen.spread, group.metric)} {after}"
    )


def format_epsilon(group: Group) -> str:
    """The ε of the best run alone, never rounded down."""
    row = group.best or group.rows[0]
    found = row.number("epsilon")
    return rounded_up(found) if found is not None else "∞" if group.status == "none" else "–"


def describe_cost(group: Group) -> str:
    """What choosing has cost."""
    price = group.price
    if group.best is None:
        return "no run has finished"
    if price.epsilon is None or price.delta is None:
        return f"chosen from {price.runs} runs: {price.reason}" if price.runs > 1 else ""
    if price.runs == 1:
        return "the only run: nothing was chosen"
    return (
        f"chosen from {price.runs} runs; the ε of the selection among these runs is {rounded_up(price.epsilon)} at "
        f"δ = {rounded_up(price.delta)}"
    )


def describe_findings(reading: Reading, groups: Sequence[Group]) -> list[str]:
    """Two sentences made from the data: which method is best, and how the runs have ended and what choosing cost."""
    return [_describe_best(groups), _describe_outcomes(reading, groups)]


def _describe_best(groups: Sequence[Group]) -> str:
    proven = [group for group in groups if group.status == "proven" and group.chosen is not None]
    places = sorted({(g.problem, g.epsilon) for g in proven}, key=lambda p: (p[0], order_epsilon(p[1])))
    contests = [[g for g in proven if (g.problem, g.epsilon) == place] for place in places]
    contests = [_rank(some) for some in contests if len(some) > 1]
    if not contests:
        return _describe_alone(proven or [group for group in groups if group.chosen is not None])
    if len(contests) == 1:
        first, second, *_ = contests[0]
        where = f"On {first.problem} at ε = {first.epsilon}"
        return f"{where}, {first.method} is best of {len(contests[0])} methods: {_describe_lead(first, second)}."
    wins: dict[str, int] = {}
    for first, *_ in contests:
        wins[first.method] = wins.get(first.method, 0) + 1
    ranked = sorted(wins.items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{method} in {won}" for method, won in ranked)
    first, second, *_ = max(contests, key=lambda some: (some[0].metric == "accuracy", _lead(*some[:2])))
    verb = "is" if len(wins) == 1 else "are"
    return (
        f"At the same problem and proven ε, of {len(contests)} comparisons {counts} {verb} best; the largest lead is"
        f" that of {first.method} on {first.problem} at ε = {first.epsilon}, with "
        f"{_describe_lead(first, second)}."
    )


def _rank(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: -_value(g))


def _value(group: Group) -> float:
    mean = group.chosen.mean if group.chosen is not None else None
    sign = 1.0 if group.metric == "accuracy" else -1.0
    return -math.inf if mean is None else sign * mean


def _lead(first: Group, second: Group) -> float:
    return _value(first) - _value(second)


def _describe_lead(first: Group, second: Group) -> str:
    lead = _lead(first, second)
    spreads = [g.chosen.spread for g in (first, second) if g.chosen is not None and g.chosen.spread is not None]
    if len(spreads) < 2:
        sure = " (with so few seeds it may be chance)"
    else:
        sure = ", within the spread over seeds" if lead <= math.hypot(*spreads) else ""
    by = f"{100 * lead:.2f} points" if first.metric == "accuracy" else f"{lead:.3g} less loss"
    text = f"test {first.metric} {format_mean(first)}"
    if second.metric != first.metric or not math.isfinite(lead):
        return text
    return f"{text}, {by} {'above' if first.metric == 'accuracy' else 'than'} {second.method}{sure}"


def _describe_alone(groups: Sequence[Group]) -> str:
    if not groups:
        return "No run has finished, so nothing can be compared."
    best = max(groups, key=lambda g: (g.metric == "accuracy", _value(g)))
    at = f"ε = {best.epsilon} ({best.status})" if best.status != "none" else "no privacy"
    return (
        f"No two methods were run at the same problem and proven ε; the best figure is that of {best.method} on "
        f"{best.problem} with {at}: test {best.metric} {format_mean(best)}."
    )


def _describe_outcomes(reading: Reading, groups: Sequence[Group]) -> str:
    names = ("finished", "diverged", "failed", "unfinished", "unreadable", "unknown version")
    counts = [f"{reading.count(name)} {name}" for name in names if reading.count(name)]
    text = f"Of {len(reading.rows)} runs: {', '.join(counts) or 'none'}"
    priced = [g for g in groups if g.price.epsilon is not None and g.price.runs > 1 and g.best is not None]
    dearest = max(priced, key=lambda g: g.price.runs, default=None)
    if dearest is not None and dearest.price.epsilon is not None:
        text += (
            f"; the ε of a best run is that of the run alone, and having chosen it costs more (of {dearest.method} on "
            f"{dearest.problem}: ε = {rounded_up(dearest.price.epsilon)} among these {dearest.price.runs} runs in "
            f"place of {format_epsilon(dearest)})"
        )
    total = price_store(_with_event(row) for row in reading.ended)
    return (
        f"{text}; all {total.runs} private runs together cost ε = {total.describe()}." if total.runs > 1 else f"{text}."
    )
