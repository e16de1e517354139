"""The ledger: what has been spent on a dataset by all runs together, written ahead of every release.

A run reserves its steps in blocks before it takes them, so after any crash the ledger covers at least what was
released. A resumed run has its name in the ledger and its secret in its checkpoint: the steps it repeats are the same
bits and cost nothing. A run that lost its secret is another run, and what the lost one had reserved stays spent.

A dataset is what the user calls so, a name; nothing in the ledger is computed from data. Lines are readable JSON in a
hash chain (`hush.privacy.chain`), events are written so that they can be rebuilt (`hush.privacy.event_json`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hush.errors import BadInput, Refused
from hush.privacy import event_json
from hush.privacy.accounting import ADJACENCIES, Adjacency
from hush.privacy.chain import Chain, Entry
from hush.privacy.guarantee import STATUSES, Status, rounded_up
from hush.privacy.total import Cost, Total, total
from hush.validate import not_negative, one_of, positive, probability, whole

FORMAT = "hush ledger 1"
DATASET = "default"
BLOCK = 100
KINDS = ("ledger", "budget", "spend")


class BudgetSpent(Refused):
    """One more step would bring the dataset over its budget."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent on a dataset."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Spend:
    """One run's entry: how many of its planned steps are reserved, and what those cost."""

    run: str
    dataset: str
    method: str
    steps: int
    planned: int
    cost: Cost
    at: str = ""
    noise: str = ""  # the name of the secret behind its noise: a digest that says nothing about it


class Ledger:
    """The ledger in one file, for one or more datasets; several processes may use it at once."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self._chain = Chain(Path(path))
        self._spends: dict[tuple[str, str], Spend] = {}
        self._read = 0
        if not self.path.parent.is_dir():
            raise BadInput(f"the directory of the ledger '{path}' does not exist")
        with self._chain.locked(create=create) as chain:
            if not chain.entries and create:
                chain.append(at=_now(), kind="ledger", format=FORMAT, name=secrets.token_hex(8))
            if not chain.entries or chain.entries[0].get("format") != FORMAT:
                raise BadInput(f"'{path}' is no ledger of this version of hush")
            self._index()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._chain.path

    @property
    def name(self) -> str:
        """What tells this ledger from any other: a random name in its first line."""
        return str(self._chain.entries[0]["name"])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Read what other processes appended, and keep them waiting meanwhile."""
        with self._chain.locked(create=False):
            self._index()
            yield

    def datasets(self) -> list[str]:
        """Every dataset that has an entry."""
        return sorted({str(e["dataset"]) for e in self._chain.entries if "dataset" in e})

    def spends(self, dataset: str = DATASET) -> dict[str, Spend]:
        """By run: what it has reserved on this dataset."""
        return {run: spend for (name, run), spend in self._spends.items() if name == dataset}

    def budget(self, dataset: str = DATASET) -> Budget | None:
        """The budget that was set last."""
        for entry in reversed(self._chain.entries):
            if entry["kind"] == "budget" and entry["dataset"] == dataset:
                return Budget(float(entry["epsilon"]), float(entry["delta"]))
        return None

    def total(self, dataset: str = DATASET, delta: float | None = None) -> Total:
        """Everything spent on a dataset, at the given δ, else at the budget's, else at one that suits the spends."""
        budget = self.budget(dataset)
        if delta is None and budget is not None:
            delta = budget.delta
        return total([spend.cost for spend in self.spends(dataset).values()], delta)

    def set_budget(self, dataset: str, epsilon: float, delta: float) -> None:
        """From now on no run brings the dataset over (ε, δ)."""
        positive(epsilon=epsilon)
        probability(delta=delta)
        check_name(dataset)
        with self.turn():
            self._append(kind="budget", dataset=dataset, epsilon=float(epsilon), delta=float(delta))

    def add(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        *,
        run: str,
        adjacency: Adjacency = "add-remove",
        status: Status = "proven",
    ) -> None:
        """Enter a spend that hush did not make: an (ε, δ) from somewhere else. It is a fact, whatever the budget."""
        not_negative(epsilon=epsilon)
        probability(delta=delta)
        cost = Cost(adjacency, status, float(delta), points=((float(delta), float(epsilon)),))
        with self.turn():
            if (dataset, run) in self._spends:
                raise BadInput(f"the ledger already has a spend '{run}' on dataset '{dataset}': choose another name")
            self.spend(Spend(run, dataset, "by hand", 1, 1, cost))

    def spend(self, spend: Spend) -> None:
        """Write one spend down; only within `turn`."""
        check_name(spend.dataset)
        cost = spend.cost
        one_of(ADJACENCIES, adjacency=cost.adjacency)
        one_of(STATUSES, status=cost.status)
        event = None if cost.event is None else event_json.to_json(cost.event)
        if event is None and not cost.points:
            raise BadInput(f"this event cannot be written down: {cost.event!r}")
        shown = {"dataset": spend.dataset, "run": spend.run, "method": spend.method}
        shown |= {"noise": spend.noise} if spend.noise else {}
        counted = {"steps": spend.steps, "planned": spend.planned}
        priced = {"adjacency": cost.adjacency, "status": cost.status, "delta": cost.delta, "event": event}
        points = [[d, e if math.isfinite(e) else None] for d, e in cost.points]
        self._append(kind="spend", **shown, **counted, **priced, points=points)

    def _append(self, **fields: Any) -> None:
        self._chain.append(at=_now(), **fields)
        self._index()

    def _index(self) -> None:
        """Note the spends among entries that are new; of one run the entry with most steps counts."""
        for entry in self._chain.entries[self._read :]:
            if entry.get("kind") not in KINDS:
                raise BadInput(f"line {entry['line']} of '{self.path}' is of a kind that this version does not know")
            if entry["kind"] == "spend":
                spend = _spend(entry)
                key = (spend.dataset, spend.run)
                if key not in self._spends or self._spends[key].steps <= spend.steps:
                    self._spends[key] = spend
        self._read = len(self._chain.entries)


class Account:
    """One run's side of a ledger: `cover` is called before every step, and writes only once a block.

    ``cost(n)`` is what the first n steps of the run cost; it never falls in n.
    """

    def __init__(
        self,
        ledger: Ledger,
        dataset: str,
        *,
        run: str,
        method: str,
        planned: int,
        cost: Callable[[int], Cost],
        block: int = BLOCK,
        noise: str = "",
    ) -> None:
        whole(planned=planned, block=block)
        check_name(dataset)
        self.ledger, self.dataset, self.run = ledger, dataset, run
        self._method, self._planned, self._cost, self._noise = method, planned, cost, noise
        self._at_once = cost(planned).event is None  # known for the whole plan only: entered as a whole
        self._block = planned if self._at_once else block
        self._known: tuple[object, int] | None = None
        with ledger.turn():
            self.reserved = self._entered()

    def cover(self, steps: int) -> None:
        """See to it that the ledger covers the first ``steps`` steps; `BudgetSpent` where the budget has no room."""
        if steps <= self.reserved:
            return
        with self.ledger.turn():
            have = self._entered()
            wanted = min(self._planned, max(steps, have + self._block), max(have, self.room()))
            self.check(steps)
            if wanted > have:
                self._enter(wanted)
        self.reserved = max(wanted, have)

    def check(self, steps: int) -> None:
        """`BudgetSpent` where the budget has no room for the first ``steps`` steps; nothing is written."""
        if steps > max(self._entered(), self.room()):
            raise BudgetSpent(self._no_room(steps))

    def enter(self, steps: int) -> None:
        """Enter steps that were taken already: a fact, whatever the budget says."""
        with self.ledger.turn():
            if steps > self._entered():
                self._enter(steps)
            self.reserved = self._entered()

    def room(self) -> int:
        """How many of the run's steps fit into the budget next to what others have spent; all without a budget."""
        budget = self.ledger.budget(self.dataset)
        if budget is None:
            return self._planned
        others = self._others()
        state = (budget, tuple((s.run, s.steps) for s in others))
        if self._known is None or self._known[0] != state:
            self._known = (state, self._most(budget, [s.cost for s in others]))
        return self._known[1]

    def _most(self, budget: Budget, others: list[Cost]) -> int:
        def fits(steps: int) -> bool:
            return total([*others, self._cost(steps)], budget.delta).epsilon <= budget.epsilon

        if fits(self._planned):
            return self._planned
        low = self._entered()
        return low if self._at_once else largest(fits, low, self._planned)

    def _others(self) -> list[Spend]:
        return [spend for run, spend in self.ledger.spends(self.dataset).items() if run != self.run]

    def _entered(self) -> int:
        found = self.ledger.spends(self.dataset).get(self.run)
        return 0 if found is None else found.steps

    def _enter(self, steps: int) -> None:
        cost = self._cost(self._planned if self._at_once else steps)
        self.ledger.spend(Spend(self.run, self.dataset, self._method, steps, self._planned, cost, noise=self._noise))

    def _no_room(self, steps: int) -> str:
        budget = self.ledger.budget(self.dataset)
        assert budget is not None
        after = total([*(s.cost for s in self._others()), self._cost(steps)], budget.delta)
        return (
            f"step {steps} would bring dataset '{self.dataset}' to ε = {rounded_up(after.epsilon)} where its budget is "
            f"ε = {rounded_up(budget.epsilon)} at δ = {rounded_up(budget.delta)}: raise it with "
            f"`hush ledger budget {self.ledger.path}`, or leave it at that"
        )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest n in [low, high) that fits, where ``high`` does not and a prefix does; ``low`` at least."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_name(dataset: str) -> None:
    """A dataset's name is a short line that its owner chose."""
    if not dataset.strip() or len(dataset) > 200 or not dataset.isprintable():
        raise BadInput(f"a dataset needs a name of at most 200 printable characters, got {dataset!r}")


def _spend(entry: Entry) -> Spend:
    try:
        points = tuple((float(d), math.inf if e is None else float(e)) for d, e in entry["points"])
        event = None if entry["event"] is None else event_json.from_json(entry["event"])
        cost = Cost(entry["adjacency"], entry["status"], float(entry["delta"]), event, points)
        where = (entry["run"], entry["dataset"], entry["method"])
        return Spend(*where, int(entry["steps"]), int(entry["planned"]), cost, entry["at"], entry.get("noise", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"line {entry.get('line')} of the ledger is no spend as hush writes it: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
