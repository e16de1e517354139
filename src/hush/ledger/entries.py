"""The content of a ledger's lines: spends and budgets, how they are parsed, and when two names mean one dataset."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dp_accounting import dp_event

from hush._internal.validate import choice, non_negative, positive, positive_int, probability
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, SMALLEST_DELTA
from hush.accounting.guarantee import STATUSES
from hush.errors import FormatError, InvalidInputError
from hush.ledger.total import ROW, WHOLE_ROW, Cost, Scope

BY_HAND = "by hand"
FIELDS = {
    *("line", "at", "kind", "dataset", "run", "method", "steps", "planned", "adjacency", "status", "delta", "event"),
    *("points", "part_of", "reason", "assumptions", "limit", "lost", "beside", "noise", "per_step", "unit", "protects"),
    *("previous", "hash"),
}  # of a spend's line; one with any other was written by another version, which may count it differently


@dataclass(frozen=True)
class Budget:
    """The largest (ε, δ) that may be spent on a dataset, in the total of one scope."""

    epsilon: float
    delta: float
    scope: Scope = WHOLE_ROW


@dataclass(frozen=True)
class Spend:
    """One run's entry: its charge, which is the cost of all its planned steps.

    A run may stop early, but the decision to stop may depend on what it had released. Then its number of steps depends
    on the data too, and only the cost of the plan is proven. If ``blindly``, the user declared that the decision did
    not depend on releases, and ``cost`` is that of the ``steps`` that were taken.
    """

    run: str
    dataset: str
    method: str
    steps: int
    planned: int
    cost: Cost
    at: str = ""
    part_of: str = ""  # the run some of whose steps this one takes again with fresh noise
    reason: str = ""
    blindly: bool = False
    noise: str = ""  # the name of the secret of its noise: a digest that reveals nothing about it
    per_step: bool = False  # whether the event is one step's event, repeated for every step, composed with others

    def closed(self, steps: int, event: Any) -> Spend:
        """This spend with the cost of ``steps`` of its steps, if the decision to stop is declared independent."""
        unseen = f"run '{self.run}' was stopped at step {steps} without looking at anything that was released"
        cost = replace(self.cost, event=event, assumptions=(*self.cost.assumptions, unseen))
        return replace(self, steps=steps, cost=cost, blindly=True)


def first_steps(spend: Spend, steps: int) -> Any:
    """The event of the first ``steps`` steps of a spend whose event is per step; other releases count in full.

    The spend's ``lost`` stays that of the whole plan, which is at least as large."""
    event = spend.cost.event
    training, *composed = event.events if isinstance(event, dp_event.ComposedDpEvent) else (event,)
    fewer = dp_event.SelfComposedDpEvent(training.event, steps)
    return dp_event.ComposedDpEvent([fewer, *composed]) if composed else fewer


def is_per_step(event: Any, steps: int) -> bool:
    """Whether the event is one event composed ``steps`` times, alone or as the first of several."""
    first = event.events[0] if isinstance(event, dp_event.ComposedDpEvent) and event.events else event
    return isinstance(first, dp_event.SelfComposedDpEvent) and first.count == steps


@lru_cache(maxsize=1024)
def fold_name(dataset: str) -> str:
    """The form in which names of datasets are compared: Unicode NFKC, without case and extra spaces."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", dataset).casefold())
    return " ".join(text.split())


def check_name(name: str, what: str = "a dataset") -> None:
    """Raise unless the name has 1 to 200 printable characters."""
    if not fold_name(name) or len(name) > 200 or not name.isprintable():
        raise InvalidInputError(f"{what} needs a name of at most 200 printable characters, got {name[:200]!r}")


def to_fields(spend: Spend) -> dict[str, Any]:
    """The fields of a spend's line."""
    shown = {"dataset": spend.dataset, "run": spend.run, "method": spend.method}
    counted = {"steps": spend.steps, "planned": spend.planned}
    cost = spend.cost
    priced = {"adjacency": cost.adjacency, "status": cost.status, "delta": cost.delta, "event": _event(cost)}
    points = [[d, e if math.isfinite(e) else None] for d, e in cost.points]
    more: dict[str, Any] = {"part_of": spend.part_of, "reason": spend.reason, "assumptions": list(cost.assumptions)}
    limit = 0 if spend.method == BY_HAND else spend.planned
    more |= {"limit": limit, "lost": cost.lost, "beside": cost.composed, "noise": spend.noise}
    more |= {"per_step": spend.per_step}
    more |= scope_fields(cost.scope)
    return {**shown, **counted, **priced, "points": points, **{name: given for name, given in more.items() if given}}


def scope_fields(scope: Scope) -> dict[str, str]:
    """The fields of a line that give its scope; none for whole rows."""
    return {} if scope == WHOLE_ROW else {"unit": scope.unit, "protects": scope.protects}


def kind_of(kind: str, scope: Scope) -> str:
    """The kind of a spend's or a budget's line. A scope other than whole rows has a separate kind, so that a reader
    without scopes refuses the line instead of taking its ε to be for whole rows."""
    return kind if scope == WHOLE_ROW else f"scoped {kind}"


def _scope_of(entry: dict[str, Any]) -> Scope:
    """The scope of a line, which has these fields if and only if its kind is scoped."""
    if not entry["kind"].startswith("scoped "):
        if "unit" in entry or "protects" in entry:
            raise ValueError("it names a unit, and its kind is for whole rows")
        return WHOLE_ROW
    found = Scope(entry["unit"], entry["protects"])
    if found == WHOLE_ROW:
        raise ValueError("it is for whole rows, and its kind is for another scope")
    return found


def check_halves(scope: Scope, adjacency: str, status: str) -> None:
    """Refuse a proven add-remove spend that protects only features or only labels: it takes the set of examples to be
    public, so a part can be replaced but not added or removed. A claimed spend may have been published like that."""
    if scope.protects != "example" and adjacency == "add-remove" and status == "proven":
        raise InvalidInputError(
            f"a spend that protects {scope.protects} only takes the set of examples to be public, so its adjacency "
            f"cannot be {adjacency}: give adjacency replace"
        )


@dataclass(frozen=True)
class Cap:
    """The largest number of rows of one unit: a public fact that the user declared."""

    unit: str
    rows: int

    def __post_init__(self) -> None:
        if Scope(self.unit).unit == ROW:
            raise InvalidInputError(
                f"one {ROW} is one row: name the unit whose rows have a bound, such as a column of ids"
            )
        positive_int(rows=self.rows)


def cap_of(entry: dict[str, Any]) -> Cap:
    """A cap from its line."""
    try:
        if not isinstance(entry["dataset"], str) or not isinstance(entry["rows"], int):
            raise TypeError(f"a text and a whole number were expected, got {entry['dataset']!r} and {entry['rows']!r}")
        return Cap(entry["unit"], entry["rows"])
    except (KeyError, TypeError, ValueError) as error:
        raise format_error(entry, "cap", error) from error


def _event(cost: Cost) -> dict[str, Any] | None:
    event = None if cost.event is None else events.to_json(cost.event)
    if event is None and not cost.points:
        raise InvalidInputError(f"the event {cost.event!r} cannot be written as JSON: give points (δ, ε)")
    return event


def spend_of(entry: dict[str, Any]) -> Spend:
    """A spend from its line; `FormatError` for a line that this version does not write."""
    try:
        if unknown := sorted(entry.keys() - FIELDS):
            raise ValueError(f"it has the field '{unknown[0]}', which this version does not write")
        cost = _cost(entry)
        texts = [entry[name] for name in ("run", "dataset", "method", "at")]
        part_of, reason, noise = (entry.get(name, "") for name in ("part_of", "reason", "noise"))
        for text in (*texts, part_of, reason, noise):
            if not isinstance(text, str):
                raise TypeError(f"a text was expected, got {text!r}")
        run, dataset, method, at = texts
        steps, planned = int(entry["steps"]), int(entry["planned"])
        positive_int(steps=steps, planned=planned)
        if steps != planned or entry.get("limit", 0) != (0 if method == BY_HAND else planned):
            raise ValueError(f"it does not charge all {planned} planned steps, as this version does")
        per_step = entry.get("per_step") is True and is_per_step(cost.event, steps)
        about = (run, dataset, method, steps, planned, cost, at, part_of, reason)
        return Spend(*about, noise=noise, per_step=per_step)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise format_error(entry, "spend", error) from error


def close_of(entry: dict[str, Any], spend: Spend) -> Spend:
    """A spend as the line of its closing counts it."""
    steps = entry["steps"]
    if not isinstance(steps, int) or not 0 < steps <= spend.steps or entry.get("blindly") is not True:
        raise ValueError(f"it does not name a number of steps from 1 to {spend.steps}")
    if "event" not in entry:
        raise ValueError("it does not name the event of the steps, as this version does")
    return spend.closed(steps, events.from_json(entry["event"]))


def format_error(entry: dict[str, Any], kind: str, error: Exception) -> FormatError:
    """The error for a line that this version does not write; it is refused rather than counted as too little."""
    why = f"the field {error} is missing" if isinstance(error, KeyError) else error
    return FormatError(
        f"line {entry.get('line')} of the ledger is not a {kind} that this version of hush writes ({why}): read it "
        "with the version that wrote it, or start another ledger and enter what was spent with `hush ledger add`"
    )


def _cost(entry: dict[str, Any]) -> Cost:
    choice(ADJACENCIES, adjacency=entry["adjacency"])
    choice(STATUSES, status=entry["status"])
    points = tuple((float(d), math.inf if e is None else float(e)) for d, e in entry["points"])
    for delta, epsilon in points:
        probability(delta=delta)
        non_negative(epsilon=min(epsilon, 1e308))
    built = None if entry["event"] is None else events.from_json(entry["event"])
    delta = float(entry["delta"])
    probability(delta=delta)
    if built is None and not points:
        raise ValueError("it has neither an event nor a point (δ, ε)")
    assumptions = tuple(str(text) for text in entry.get("assumptions", ()))
    lost, composed = float(entry.get("lost", 0.0)), float(entry.get("beside", 0.0))
    if not 0 <= lost < 1 or not 0 <= composed <= 1:
        raise ValueError(f"lost δ must be in [0, 1) and that of compositions in [0, 1], got {lost:g} and {composed:g}")
    scope = _scope_of(entry)
    check_halves(scope, entry["adjacency"], entry["status"])
    own = Cost(entry["adjacency"], entry["status"], delta, built, points, assumptions, lost, composed)
    return replace(own, unit=scope.unit, protects=scope.protects)


def budget_of(entry: dict[str, Any]) -> Budget:
    """A budget from its line."""
    try:
        found = Budget(float(entry["epsilon"]), float(entry["delta"]), _scope_of(entry))
        check_budget(found)
        if not isinstance(entry["dataset"], str):
            raise TypeError(f"a text was expected, got {entry['dataset']!r}")
        return found
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise format_error(entry, "budget", error) from error


def check_budget(budget: Budget) -> None:
    """Raise unless accountants can compute with the budget's ε and δ."""
    positive(epsilon=budget.epsilon)
    check_delta(budget.delta)


def check_delta(delta: float) -> None:
    """Raise for a δ below the smallest that the accountants support."""
    probability(delta=delta)
    if delta < SMALLEST_DELTA:
        raise InvalidInputError(f"delta must be at least {SMALLEST_DELTA:g}, got {delta:g}")


def check_spend(epsilon: float, delta: float, run: str, adjacency: str, status: str) -> None:
    """Check a spend that is entered by hand: numbers, a name, and a status that needs no audit by hush."""
    non_negative(epsilon=epsilon)
    probability(delta=delta)
    choice(("proven", "claimed"), status=status)
    choice(ADJACENCIES, adjacency=adjacency)
    check_name(run, "a spend")
