"""The ledger: what has been spent on a dataset by all runs together, written ahead of every release.

A run reserves its steps in blocks before it takes them, so after any crash the ledger covers at least what was
released. A resumed run has its name in the ledger and its secret in its checkpoint: the steps it repeats are the same
bits and cost nothing. A run that lost its secret is another run, and what the lost one had reserved stays spent.

The file itself is `hush.ledger.book`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hush.errors import Refused
from hush.ledger.book import DATASET, Ledger
from hush.ledger.entries import Budget, Spend, check_name
from hush.ledger.scope import WHOLE_ROW
from hush.ledger.total import Cost, Total
from hush.privacy.guarantee import rounded_up
from hush.validate import whole

__all__ = ["BLOCK", "DATASET", "Account", "Budget", "BudgetSpent", "Ledger", "Spend", "check_name", "largest"]

BLOCK = 100


class BudgetSpent(Refused):
    """One more step would bring the dataset over its budget."""


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
        new_dataset: bool = False,
        noise: str = "",
    ) -> None:
        whole(planned=planned, block=block)
        self.ledger, self.run = ledger, run
        self._method, self._planned, self._cost, self._noise = method, planned, cost, noise
        self._at_once = cost(planned).event is None  # known for the whole plan only: entered as a whole
        self._block = planned if self._at_once else block
        self._known: tuple[object, int] | None = None
        with ledger.turn():
            self.dataset = ledger.check_known(dataset, new=new_dataset)
            self.reserved = self._entered()

    def cover(self, steps: int) -> None:
        """See to it that the ledger covers the first ``steps`` steps; `BudgetSpent` where the budget has no room."""
        if steps <= self.reserved:
            return
        with self.ledger.turn():
            have = self._entered()
            self._check_open(have)
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

    def add(self, event: Any, reason: str, *, name: str | None = None, fact: bool = False) -> None:
        """Charge this run for more than its plan: ``event`` is composed with everything that was charged before.

        For releases that the plan does not know of. Steps t+1 … s that were released once and are taken again with a
        fresh secret: with independent noise the event of those s − t steps, with correlated noise or fixed batches the
        event of the first s steps (and the plan's own entry goes on to its T in either case). A second release that
        nobody can bound: ``dp_event.NonPrivateDpEvent()``. ``event`` may be a `Cost`, as `hush.charging.cost_of` makes
        it, else it has the plan's adjacency, status, assumptions and δ, and loses as much of it as the plan does.

        It is an entry of its own, named after the run, and no later entry replaces it: what was charged is never
        lowered. Call it before the release. `BudgetSpent` where the budget has no room, and then nothing is written;
        ``fact=True`` is for what has happened already, which is entered whatever the budget says. ``name`` tells one
        occasion from another (such as a digest of the fresh secret): the same name charges once, however often a
        killed run comes by; without it every call charges.
        """
        whole_plan = self._cost(self._planned)
        own = replace(whole_plan, points=(), event=event)
        cost = event if isinstance(event, Cost) else own
        with self.ledger.turn():
            entry = f"{self.run}+{name or len(self.additions()) + 1}"
            if entry in self.ledger.spends(self.dataset):
                return
            if not fact:
                self._check_addition(cost, reason)
            self.ledger.spend(Spend(entry, self.dataset, self._method, 1, 1, cost, part_of=self.run, reason=reason))

    def additions(self) -> list[Spend]:
        """What this run was charged in addition to its plan."""
        return [spend for spend in self.ledger.spends(self.dataset).values() if spend.part_of == self.run]

    def _check_addition(self, cost: Cost, reason: str) -> None:
        budget = self.ledger.budget(self.dataset)
        if budget is None:
            return
        after = self._total(budget, [*(s.cost for s in self.ledger.spends(self.dataset).values()), cost])
        if not after.epsilon <= budget.epsilon:
            raise BudgetSpent(self._over(reason, after, budget))

    def room(self) -> int:
        """How many of the run's steps fit into the budget next to what others have spent; all without a budget."""
        budget = self.ledger.budget(self.dataset)
        if budget is None:
            return self._planned
        others = self._others()
        caps = tuple(sorted(self.ledger.caps(self.dataset).items()))
        state = (budget, caps, tuple((s.run, s.steps) for s in others))
        if self._known is None or self._known[0] != state:
            self._known = (state, self._most(budget, [s.cost for s in others]))
        return self._known[1]

    def _most(self, budget: Budget, others: list[Cost]) -> int:
        def fits(steps: int) -> bool:
            return self._total(budget, [*others, self._cost(steps)]).epsilon <= budget.epsilon

        if fits(self._planned):
            return self._planned
        low = self._entered()
        return low if self._at_once else largest(fits, low, self._planned)

    def _total(self, budget: Budget, costs: list[Cost]) -> Total:
        """What these costs are together in the total that the budget is for."""
        return self.ledger.add_up(self.dataset, costs, budget.delta, budget.scope)

    def _others(self) -> list[Spend]:
        return [spend for run, spend in self.ledger.spends(self.dataset).items() if run != self.run]

    def _entered(self) -> int:
        found = self.ledger.spends(self.dataset).get(self.run)
        return 0 if found is None else found.steps

    def _check_open(self, have: int) -> None:
        found = self.ledger.spends(self.dataset).get(self.run)
        if found is not None and found.blindly:
            raise Refused(
                f"this run was closed in the ledger '{self.ledger.path}' as stopped at step {have}, and its guarantee "
                "counts on that: start another run"
            )

    def _enter(self, steps: int) -> None:
        cost = self._cost(self._planned if self._at_once else steps)
        limit = max(steps, min(self._planned, self.room()))
        could = self._cost(limit) if limit > steps else None
        counted = (steps, self._planned, cost)
        spend = Spend(self.run, self.dataset, self._method, *counted, limit=limit, whole=could, noise=self._noise)
        self.ledger.spend(spend)

    def _no_room(self, steps: int) -> str:
        budget = self.ledger.budget(self.dataset)
        assert budget is not None
        after = self._total(budget, [*(s.cost for s in self._others()), self._cost(steps)])
        return self._over(f"step {steps}", after, budget)

    def _over(self, what: str, after: Total, budget: Budget) -> str:
        about = "" if budget.scope == WHOLE_ROW else f" for {budget.scope.in_words()}"
        pair = f"ε = {rounded_up(budget.epsilon)} at δ = {rounded_up(budget.delta)}{about}"
        if after.reason:
            return (
                f"{what} would leave dataset '{self.dataset}' without any finite ε for {budget.scope.in_words()}, and "
                f"its budget is {pair}: one spend is {after.reason}; spend what is about that unit and all of it, or "
                f"set a budget for something else with `hush ledger budget {self.ledger.path} --unit … --protects …`"
            )
        return (
            f"{what} would bring dataset '{self.dataset}' to ε = {rounded_up(after.epsilon)} where its budget is "
            f"{pair}: raise it with `hush ledger budget {self.ledger.path}`, or leave it at that"
        )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest n in [low, high) that fits, where ``high`` does not and a prefix does; ``low`` at least."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
