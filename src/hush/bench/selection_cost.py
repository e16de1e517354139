"""What choosing the best run of a grid costs: the winner's own ε, as papers print it, and that of the whole selection.

All runs of a grid look at the same data, so whoever picks one of them has seen them all: the selection is the
composition of every run of the group, winners and losers, finished, diverged or failed. Where one of them does not say
what it has spent (its process died, or an earlier try of it could not be gone on with) the price is not known; one that
was refused before it began is no run. A test or validation part that is private too is one more thing that was looked
at; the price here is that of training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event

from hush.accounting import events as event_json
from hush.accounting.accountant import default_accountant, epsilon
from hush.accounting.guarantee import rounded_up
from hush.accounting.selection import find_lost_delta, fixed_grid
from hush.errors import HushError

Record = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """The best run of a group, and both prices; None where a run's event is not known, or none is proven."""

    problem: str
    method: str
    target: float | None
    runs: int
    figure: str
    best: float
    winner_epsilon: float
    selection_epsilon: float | None
    delta: float

    def sentence(self) -> str:
        """One line for people."""
        known = self.selection_epsilon
        whole = "not known (what a run spent is not said, or not proven)" if known is None else f"{rounded_up(known)}"
        return (
            f"best of {self.runs} runs, {self.method} on {self.problem}: {self.figure.replace('_', ' ')} "
            f"{self.best:.4g}; the winner's own ε = {rounded_up(self.winner_epsilon)}, ε of the whole selection = "
            f"{whole} (δ = {self.delta:g})"
        )

    def to_json(self) -> Record:
        """Plain fields."""
        return dict(vars(self))


def price_choices(records: Iterable[Record]) -> list[Choice]:
    """The choice of every group of a problem, a method and a target ε that has more than one private run."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    silent: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        config, status = record["config"], record.get("status")
        names = config["problem"], config["method"], config.get("epsilon")
        if status == "none" or record.get("begun") is False:
            continue
        if record.get("epsilon") is None or record.get("tried_before"):
            silent[names] += 1
        if record.get("epsilon") is not None:
            groups.setdefault((*names, record["delta"]), []).append(record)
    counted = [(names, group, silent[names[:3]]) for names, group in groups.items()]
    found = [_choose(names, group, unknown) for names, group, unknown in counted if len(group) + unknown > 1]
    return [choice for choice in found if choice is not None]


def _choose(names: tuple[Any, ...], group: Sequence[Record], unknown: int) -> Choice | None:
    """The choice among a group and so many runs of which it is not known what they have spent."""
    problem, method, target, delta = names
    figure = next((name for name in FIGURES if any(_is_number(r.get(name)) for r in group)), None)
    scored = [r for r in group if figure is not None and r["outcome"] == "finished" and _is_number(r.get(figure))]
    if figure is None or not scored:
        return None
    sign = 1.0 if figure.endswith("accuracy") else -1.0
    best = max(scored, key=lambda record: sign * record[figure])
    spent, runs = None if unknown else price_runs(group, delta), len(group) + unknown
    return Choice(problem, method, target, runs, figure, best[figure], best["epsilon"], spent, delta)


FIGURES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss")


def price_runs(group: Sequence[Record], delta: float) -> float | None:
    """ε of all these runs together at δ, by composition; None where that is not known."""
    kinds = {record["adjacency"] for record in group}
    if len(kinds) != 1 or any(r["status"] != "proven" or not r.get("event") for r in group):
        return None
    alike: dict[str, list[Record]] = {}
    for record in group:
        alike.setdefault(str([record[name] for name in PRIVATE]), []).append(record)
    events = [event_json.from_json(same[0]["event"]) for same in alike.values()]
    parts = [fixed_grid(event, len(same)) for event, same in zip(events, alike.values(), strict=True)]
    whole = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
    adjacency = kinds.pop()
    try:
        kind = default_accountant(whole, adjacency)
        lost = math.fsum(_find_lost(event, same) for event, same in zip(events, alike.values(), strict=True))
        return epsilon(whole, delta - lost, adjacency=adjacency, accountant=kind) if lost < delta else None
    except HushError:
        return None


PRIVATE = ("event", "epsilon", "delta")  # what two runs share that are alike to an accountant


def _find_lost(event: Any, alike: Sequence[Record]) -> float:
    """What of δ the events of these runs do not know, as recorded; where it is not, as much as it can be."""
    told = [record["lost_delta"] for record in alike if _is_number(record.get("lost_delta"))]
    if len(told) == len(alike):
        return math.fsum(told)
    first = alike[0]
    how = {"adjacency": first["adjacency"], "accountant": first.get("accountant")}
    each = find_lost_delta(event, first["epsilon"], first["delta"], **how)
    return math.fsum(told) + (len(alike) - len(told)) * each


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
