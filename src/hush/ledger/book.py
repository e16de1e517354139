"""The book of a ledger: every spend and budget of one or more datasets, in one file.

>>> import tempfile, hush
>>> ledger = hush.Ledger(f"{tempfile.mkdtemp()}/spend.jsonl")
>>> ledger.budget("patients", epsilon=8, delta=1e-5).epsilon  # no run may bring the total above this
8.0
>>> ledger.add("patients", 1.0, 1e-6, run="a survey")
>>> round(ledger.total("patients").epsilon, 3)
1.0

A run is entered once, with all its planned steps (see `hush.ledger.entries.Spend`). It counts with fewer steps only if
the user declares that the decision to stop it did not depend on its releases (`Ledger.close`).

A dataset is a name that the user chooses; nothing in the ledger is computed from data. Names are compared without case
and outer spaces. In a ledger with a budget, a name that is not in it yet must be declared to be new: otherwise a
mistyped name would spend outside the budget. Lines are readable JSON in a hash chain (`hush.ledger.chain`); events are
written so that they can be rebuilt (`hush.accounting.events`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hush._internal.validate import choice
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.events import to_json
from hush.accounting.guarantee import STATUSES, Status
from hush.errors import BudgetExceededError, FormatError, InvalidInputError
from hush.ledger.chain import Chain, Entry, Slots
from hush.ledger.entries import (
    BY_HAND,
    Budget,
    Cap,
    Spend,
    budget_of,
    cap_of,
    check_budget,
    check_delta,
    check_halves,
    check_name,
    check_spend,
    close_of,
    first_steps,
    fold_name,
    format_error,
    kind_of,
    scope_fields,
    spend_of,
    to_fields,
)
from hush.ledger.total import WHOLE_ROW, Caps, Cost, Filtered, Scope, Total, add_up, list_scopes, use_filter

FORMAT = "hush ledger 1"
DATASET = "default"
SPENDS, BUDGETS = ("spend", "scoped spend"), ("budget", "scoped budget")
KINDS = ("ledger", *BUDGETS, *SPENDS, "close", "cap")


class Ledger:
    """The ledger in one file, for one or more datasets; several processes may use it at once.

    >>> ledger = hush.Ledger("spend.jsonl")  # doctest: +SKIP
    >>> ledger.budget("patients", epsilon=8, delta=1e-5)  # doctest: +SKIP
    >>> ledger.total("patients", unit="example").epsilon  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, *, create: bool = True, write: bool = True) -> None:
        """Open the ledger, or create it; with ``write=False`` it is only read and needs no permission to write."""
        self._chain = Chain(Path(path))
        self._writes, self._is_current = write, False
        self._spends: dict[tuple[str, str], Spend] = {}
        self._budgets: dict[str, list[tuple[int, Budget]]] = {}
        self._caps: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._first: dict[str, tuple[int, Cost]] = {}  # by dataset: its first spend, and in which line it is
        self._shared: dict[int, Spend] = {}  # the spends of templates
        if not self.path.parent.is_dir():
            raise InvalidInputError(f"the directory of the ledger '{path}' does not exist")
        with self._chain.locked(create=create, write=write) as chain:
            if chain.first is None and create and write:
                chain.append(at=_now(), kind="ledger", format=FORMAT, name=secrets.token_hex(8))
            first = chain.first or {}
            if first.get("format") != FORMAT or not isinstance(first.get("name"), str):
                raise FormatError(
                    f"'{path}' has the format {first.get('format')!r} where '{FORMAT}' was expected: read it with the "
                    "version of hush that wrote it"
                )
            self._index()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._chain.path

    @property
    def name(self) -> str:
        """The identity of this ledger: a random name in its first line."""
        assert self._chain.first is not None
        return str(self._chain.first["name"])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Read what other processes appended, and hold the lock so that they wait."""
        if not self._writes:
            raise InvalidInputError(f"the ledger '{self.path}' was opened for reading: open it without write=False")
        with self._chain.locked(create=False), self.as_read():
            self._index()
            yield

    @contextmanager
    def as_read(self) -> Iterator[None]:
        """Within it, methods do not read the file again for lines that other processes append."""
        before, self._is_current = self._is_current, True
        try:
            yield
        finally:
            self._is_current = before

    def _read_new(self) -> None:
        """Read what another process, or another `Ledger` of the same file, appended."""
        if not self._is_current:
            with self._chain.locked(create=False, write=False):
                self._index()

    def datasets(self) -> list[str]:
        """Every dataset that has an entry, as it was first written."""
        self._read_new()
        return sorted(self._names.values())

    def known_as(self, dataset: str) -> str:
        """The name of a dataset as this ledger writes it; a name that is not in it is returned unchanged."""
        self._read_new()
        return self._names.get(fold_name(dataset), dataset)

    def check_known(self, dataset: str, *, new: bool = False) -> str:
        """The dataset's name as this ledger writes it; `BudgetExceededError` if the ledger has a budget and the name is
        neither known nor ``new``."""
        check_name(dataset)
        if self._budgets and fold_name(dataset) not in self._names and not new:
            raise BudgetExceededError(
                f"the ledger '{self.path}' has a budget and no dataset '{dataset}' (it has "
                f"{', '.join(repr(name) for name in self.datasets())}): name the data with --dataset, or declare that "
                "they are other data with --new-dataset (new_dataset=True)"
            )
        return self.known_as(dataset)

    def spends(self, dataset: str = DATASET) -> dict[str, Spend]:
        """The charge of every run on this dataset, by the run's name."""
        self._read_new()
        folded = fold_name(dataset)
        return {run: spend for (name, run), spend in self._spends.items() if name == folded}

    def budget(
        self, dataset: str = DATASET, epsilon: float | None = None, delta: float = 1e-5, *, unit: str | None = None
    ) -> Budget | None:
        """The budget that was set last; if ``epsilon`` is given, it is set to (ε, δ) first (`set_budget`)."""
        if epsilon is not None:
            self.set_budget(dataset, epsilon, delta, scope=None if unit is None else Scope(unit))
        self._read_new()
        found = self._budgets.get(fold_name(dataset))
        return found[-1][1] if found else None

    def caps(self, dataset: str = DATASET) -> Caps:
        """The largest number of rows of one unit, by unit, as declared last."""
        self._read_new()
        return self._caps.get(fold_name(dataset), {})

    def scope(self, dataset: str = DATASET) -> Scope:
        """The scope of the dataset's first total: that of its budget; without a budget, whole examples of the unit that
        all spends have in common, or whole rows if they have several units."""
        budget, units = self.budget(dataset), {spend.cost.unit for spend in self.spends(dataset).values()}
        common = Scope(units.pop()) if len(units) == 1 else WHOLE_ROW
        return common if budget is None else budget.scope

    def scopes(self, dataset: str = DATASET) -> list[Scope]:
        """Every scope that has a total of its own, the dataset's `scope` first."""
        found = [spend.cost.scope for spend in self.spends(dataset).values()]
        return list(dict.fromkeys([self.scope(dataset), *list_scopes(found, self.caps(dataset))]))

    def total(
        self,
        dataset: str = DATASET,
        delta: float | None = None,
        *,
        unit: str | None = None,
        scope: Scope | None = None,
    ) -> Total:
        """The proven total of everything spent on a dataset, independent of how its runs stopped.

        It is at ``delta``, else at the budget's δ, else at one that fits the spends; for whole examples of ``unit``,
        for ``scope``, else for the dataset's `scope`. If nothing is proven its ε is ∞. `InvalidInputError` for an
        unknown dataset, unless the ledger is empty.
        """
        scope = Scope(unit) if unit is not None and scope is None else scope
        known = self.datasets()
        with self.as_read():
            if known and self.known_as(dataset) not in known:
                there = ", ".join(map(repr, known))
                raise InvalidInputError(f"the ledger '{self.path}' has no dataset '{dataset}': it has {there}")
            spent = [spend.cost for spend in self.spends(dataset).values()]
            return self.add_up(dataset, spent, self._delta(dataset, delta), scope)

    def add_up(self, dataset: str, costs: list[Cost], delta: float | None, scope: Scope | None = None) -> Total:
        """The total of these costs, in the given scope or the dataset's, with the caps that were declared."""
        return add_up(costs, delta, scope=scope or self.scope(dataset), caps=self.caps(dataset))

    def filtered(self, dataset: str = DATASET) -> Filtered | None:
        """How much of a Rényi filter of the budget is used; None without a budget that was set before the first spend
        and never changed.

        While it holds, the total stays within the budget even if runs are chosen or stopped after looking at releases.
        """
        budgets, spends = self._budgets.get(fold_name(dataset), []), self.spends(dataset).values()
        first = self._first.get(fold_name(dataset))
        if len(budgets) != 1 or first is None or first[0] < budgets[0][0]:
            return None
        budget = budgets[0][1]
        return use_filter(first[1], [s.cost for s in spends], budget.epsilon, budget.delta, scope=budget.scope)

    def _delta(self, dataset: str, delta: float | None) -> float | None:
        budget = self.budget(dataset)
        if delta is not None:
            check_delta(delta)
        return budget.delta if delta is None and budget is not None else delta

    def close(self, dataset: str, run: str, steps: int) -> None:
        """Declare that a run stopped permanently after ``steps`` steps, and that the decision did not depend on
        anything it released: from then on these steps count instead of its plan's, and it can take no more.

        ``steps`` is the number in its sum log, which `hush.ledger.run_account.close_run` reads.
        """
        with self.turn():
            spend = self.spends(dataset).get(run)
            if spend is None:
                raise InvalidInputError(f"the ledger '{self.path}' has no run '{run}' on dataset '{dataset}'")
            if spend.blindly or steps >= spend.steps:
                raise InvalidInputError(
                    f"run '{run}' is counted with {spend.steps} steps, so it cannot be closed at {steps}: give fewer "
                    "steps"
                )
            if not spend.per_step:
                raise InvalidInputError(
                    f"the privacy event of run '{run}' ({spend.method}) is not a repetition of one step, so the run "
                    f"stays counted with its {spend.planned} planned steps: leave it open"
                )
            event = to_json(first_steps(spend, steps))
            self._append(kind="close", dataset=spend.dataset, run=run, steps=steps, blindly=True, event=event)

    def set_budget(self, dataset: str, epsilon: float, delta: float, *, scope: Scope | None = None) -> None:
        """From now on refuse runs that would bring the dataset's total above (ε, δ) in this scope: by default the scope
        of its budget, else whole rows."""
        check_budget(Budget(epsilon, delta))
        check_name(dataset)
        with self.turn():
            before = self.budget(dataset)
            scope = scope or (before.scope if before else WHOLE_ROW)
            about = {"dataset": self.known_as(dataset), **scope_fields(scope)}
            self._append(kind=kind_of("budget", scope), epsilon=float(epsilon), delta=float(delta), **about)

    def cap(self, dataset: str, unit: str, rows: int, *, new_dataset: bool = False) -> None:
        """Declare as a public fact that no unit has more than ``rows`` rows: then a spend per row counts ``rows`` times
        in the unit's total (`hush.ledger.total`), which names the declaration. The last declaration counts."""
        declared = Cap(unit, rows)
        with self.turn():
            dataset = self.check_known(dataset, new=new_dataset)
            self._append(kind="cap", dataset=dataset, unit=declared.unit, rows=declared.rows)

    def add(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        *,
        run: str,
        adjacency: Adjacency = "add-remove",
        status: Status = "proven",
        new_dataset: bool = False,
        scope: Scope = WHOLE_ROW,
    ) -> None:
        """Enter a spend that hush did not make, by its (ε, δ); it is entered even if it exceeds the budget."""
        check_spend(epsilon, delta, run, adjacency, status)
        points = ((float(delta), float(epsilon)),)
        cost = Cost(adjacency, status, float(delta), points=points, unit=scope.unit, protects=scope.protects)
        with self.turn():
            dataset = self.check_known(dataset, new=new_dataset)
            if (fold_name(dataset), run) in self._spends:
                raise InvalidInputError(
                    f"the ledger already has a spend '{run}' on dataset '{dataset}': choose another name"
                )
            self.spend(Spend(run, dataset, BY_HAND, 1, 1, cost))

    def spend(self, spend: Spend) -> None:
        """Write one spend; only within `turn`."""
        check_name(spend.dataset)
        choice(ADJACENCIES, adjacency=spend.cost.adjacency)
        choice(STATUSES, status=spend.cost.status)
        check_halves(spend.cost.scope, spend.cost.adjacency, spend.cost.status)
        self._check_same(spend)
        self._append(kind=kind_of("spend", spend.cost.scope), **to_fields(spend))

    def _check_same(self, spend: Spend) -> None:
        """Refuse a later line of a run with another scope: it would replace the earlier one."""
        before = self._spends.get((fold_name(spend.dataset), spend.run))
        if before is not None and before.cost.scope != spend.cost.scope:
            raise InvalidInputError(
                f"run '{spend.run}' is in the ledger '{self.path}' for {before.cost.scope.describe()}, and not for "
                f"{spend.cost.scope.describe()}: start another run"
            )

    def _append(self, **fields: Any) -> None:
        self._chain.append(at=_now(), **fields)
        self._index()

    def _index(self) -> None:
        """Index the new lines; of several entries of a run, the one with most steps counts."""
        while self._chain.new:
            self._note_line(*self._chain.new[0])
            self._chain.new.popleft()

    def _note_line(self, entry: Entry, own: Slots | None) -> None:
        if entry.get("kind") not in KINDS:
            raise FormatError(
                f"line {entry['line']} of '{self.path}' is of the unknown kind {entry.get('kind')!r}: read it with the "
                "version of hush that wrote it"
            )
        if entry["kind"] in SPENDS:
            self._note(entry, own)
        elif entry["kind"] in BUDGETS:
            self._budgets.setdefault(self._called(entry), []).append((entry["line"], budget_of(entry)))
        elif entry["kind"] == "cap":
            self._note_cap(cap_of(entry), entry["dataset"])
        elif entry["kind"] == "close":
            self._note_close(entry)

    def _called(self, entry: Entry) -> str:
        budget_of(entry)
        self._names.setdefault(fold_name(entry["dataset"]), entry["dataset"])
        return fold_name(entry["dataset"])

    def _note_cap(self, cap: Cap, dataset: str) -> None:
        self._names.setdefault(fold_name(dataset), dataset)
        self._caps.setdefault(fold_name(dataset), {})[cap.unit] = cap.rows

    def _note(self, entry: Entry, own: Slots | None) -> None:
        if own is None:
            spend = self._shared[id(entry)] = spend_of(entry)
        else:  # a line like that of ``entry``, which is kept by its template
            like = self._shared[id(entry)]
            named = {"run": own.run.decode(), "at": own.at.decode(), "noise": own.noise.decode()}
            spend = Spend(**{**vars(like), **named})  # replace() takes twice as long
        self._check_same(spend)
        key = (fold_name(spend.dataset), spend.run)
        self._names.setdefault(key[0], spend.dataset)
        line = entry["line"] if own is None else int(own.line)
        self._first.setdefault(key[0], (line, spend.cost))
        before = self._spends.get(key)
        if before is None or before.steps <= spend.steps:
            self._spends[key] = spend

    def _note_close(self, entry: Entry) -> None:
        key = (fold_name(str(entry.get("dataset"))), str(entry.get("run")))
        try:
            if key not in self._spends:
                raise ValueError(f"there is no run '{key[1]}' before it")
            self._spends[key] = close_of(entry, self._spends[key])
        except (KeyError, TypeError, ValueError) as error:
            raise format_error(entry, "closing of a run", error) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
