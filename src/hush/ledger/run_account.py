"""The ledger: what has been spent on a dataset by all runs together, written ahead of every release.

A run reserves its steps in blocks before it takes them, so after any crash the ledger covers at least what was
released. A resumed run has its name in the ledger and its secret in its checkpoint: the steps it repeats are the same
bits and cost nothing. A run that lost its secret is another run, and what the lost one had reserved stays spent.

The file itself is `hush.ledger.book`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dp_accounting import dp_event

from hush._internal.validate import positive_int
from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import Guarantee, rounded_up
from hush.checkpointing import Checkpoints
from hush.errors import Refused
from hush.guarantees import Replay, ReplayHistory, account_steps, claim_attempts
from hush.ledger.book import Ledger
from hush.ledger.entries import Budget, Spend, fold_name
from hush.ledger.total import WHOLE_ROW, Cost, Total
from hush.plan import Mechanism
from hush.run import Run

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
        positive_int(planned=planned, block=block)
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
        nobody can bound: ``dp_event.NonPrivateDpEvent()``. ``event`` may be a `Cost`, as
        `hush.ledger.run_account.cost_of` makes
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


# A run's entries in a ledger: no step is taken that the ledger does not cover.

POINTS = 12


class RunAccount:
    """A run's entries in a ledger: one for each of its attempts, of which it has one unless sums have changed."""

    def __init__(self, run: Run, ledger: Ledger, dataset: str, name: str, *, new_dataset: bool = False) -> None:
        self.ledger, self._given = ledger, dataset
        self._run, self._name, self._new = run, name, new_dataset
        self._accounts: dict[int, Account] = {}
        self._new_run = run.history == ReplayHistory()
        self._of(run.history.current)  # which refuses a secret that was used before

    @property
    def dataset(self) -> str:
        """The data's name as the ledger knows it."""
        return self._account.dataset

    @property
    def reserved(self) -> int:
        """Up to which step the ledger covers the run's current attempt."""
        return self._start + self._account.reserved

    def cover(self, steps: int) -> None:
        """See to it that the ledger covers the first ``steps`` steps; `BudgetSpent` where the budget has no room."""
        if self._new_run and self._run.history != ReplayHistory():  # a seed that was used in the run's directory before
            self.enter(self._run.next)
        self._new_run = False
        if steps - self._start > self._account.reserved:
            self._check_open()
        self._account.cover(steps - self._start)

    def check(self, steps: int) -> None:
        """`BudgetSpent` where the budget has no room for the first ``steps`` steps; nothing is written."""
        self._account.check(steps - self._start)

    def enter(self, steps: int) -> None:
        """Enter steps that were taken already, with all that was taken before them: a fact, whatever the budget."""
        for number, attempt in enumerate(self._run.history.reached(steps).attempts):
            if attempt.taken > attempt.start:
                self._of(number).enter(attempt.taken - attempt.start)

    def room(self) -> int:
        """Up to which step the budget has room, next to what others have spent."""
        return self._start + self._account.room()

    def total(self) -> Total:
        """What is proven about everything spent on the data, for what this run's own entry is about."""
        with self.ledger.turn():
            own = self.ledger.spends(self.dataset).get(self._name)
        return self.ledger.total(self.dataset, scope=None if own is None else own.cost.scope)

    def _check_open(self) -> None:
        """A run that was declared to be stopped for good takes no step, not with fresh noise either."""
        with self.ledger.turn():
            spends = self.ledger.spends(self.dataset)
        if any(spend.blindly and run.partition("+")[0] == self._name for run, spend in spends.items()):
            raise Refused(
                f"this run was closed in the ledger '{self.ledger.path}' as stopped for good, and its guarantee counts "
                "on that: start another run"
            )

    @property
    def _start(self) -> int:
        return self._run.history.now.start

    @property
    def _account(self) -> Account:
        return self._of(self._run.history.current)

    def _of(self, number: int) -> Account:
        """The account of one attempt: under the run's name, and for a later one that of its secret."""
        if number not in self._accounts:
            run = self._run
            start, current = run.history.attempts[number].start, number == run.history.current
            noise = run.secret.name if current else "" if number else run.secret.first.name
            name = f"{self._name}+{noise[:8] or number}" if number else self._name
            _not_used_before(self.ledger, noise, name)
            self._accounts[number] = Account(
                self.ledger,
                self._given,
                run=name,
                method=run.plan.method,
                planned=run.plan.steps - start,
                cost=cost_of(run.stated(), start, run.coordinates),
                noise=noise,
                new_dataset=self._new,
            )
        return self._accounts[number]


def charge(
    run: Run, ledger: Ledger, dataset: str, checkpoints: Checkpoints | None = None, *, new_dataset: bool = False
) -> RunAccount:
    """Enter the run in a ledger: from now on no step is taken that the ledger does not cover.

    Call it before ``checkpoints.begin`` or after ``checkpoints.restore``, so that every checkpoint names the ledger. A
    resumed run goes on with its own entry; where its checkpoint and the ledger contradict each other, it is refused. So
    is a run whose secret another run has used: the same noise on other sums has no finite ε. In a ledger that has a
    budget, data that it does not know need ``new_dataset=True``. Of several processes, process 0 alone calls it.
    """
    if run.ranks.rank:
        raise Refused("process 0 enters a run in its ledger, and the others wait for it: call charge where rank is 0")
    name = secrets.token_hex(8) if checkpoints is None else checkpoints.name
    charges = RunAccount(run, ledger, dataset, name, new_dataset=new_dataset)
    if checkpoints is not None:
        _agree(run, charges, checkpoints)
    elif run.next:  # steps that were taken without a ledger are entered now
        charges.enter(run.next)
    run.covered_by(charges.cover)
    return charges


def _not_used_before(ledger: Ledger, noise: str, name: str) -> None:
    """Every secret is one run's: the ledger knows them by their names."""
    with ledger.turn():
        spends = [spend for dataset in ledger.datasets() for spend in ledger.spends(dataset).values()]
    for spend in spends:
        if noise and spend.noise == noise and spend.run != name:
            raise Refused(
                f"the secret behind this run's noise was used before, by run '{spend.run}' on dataset "
                f"'{spend.dataset}' in the ledger '{ledger.path}': on other sums the difference of the two would be "
                "free of noise; give another secret seed or none, or resume that run"
            )


def _agree(run: Run, account: RunAccount, checkpoints: Checkpoints) -> None:
    """Every checkpoint names the ledger that covers it, and the ledger covers every checkpoint."""
    ledger, before = account.ledger, checkpoints.ledger
    checkpoints.ledger = {"name": ledger.name, "path": str(ledger.path.resolve()), "dataset": account.dataset}
    if before is None:
        if run.next or checkpoints.at is not None:  # begun without a ledger: what was taken is entered now
            account.enter(run.next)
        if checkpoints.at is not None:
            checkpoints.save(run)
    elif (before["name"], fold_name(before["dataset"])) != (ledger.name, fold_name(account.dataset)):
        raise Refused(
            f"this run is entered for dataset '{before['dataset']}' in the ledger '{before['path']}', and not in "
            f"'{ledger.path}' for '{account.dataset}': give that ledger and dataset"
        )
    elif account.reserved < run.next:
        raise Refused(
            f"the checkpoint is at step {run.next} and the ledger '{ledger.path}' covers {account.reserved} steps of "
            "this run: it is not the ledger that the run wrote, or it lost entries"
        )


def cost_of(plan: Mechanism, start: int = 0, coordinates: int = 1) -> Callable[[int], Cost]:
    """What the first n steps from ``start`` on cost under a secret of their own, as a ledger writes it down.

    The releases beside training are in the cost from the first step on; where steps were taken again, in the entry of
    each attempt, which is more than they cost. It is about the plan's unit, and what its guarantee protects of it."""
    whole = account_steps(plan)[0]
    priced = _price(plan, whole, start, coordinates)
    return lambda steps: replace(priced(steps), unit=whole.unit, protects=whole.protects)


def _price(plan: Mechanism, whole: Guarantee, start: int, coordinates: int) -> Callable[[int], Cost]:
    beside = plan.tails_beside(coordinates)
    if whole.status == "none":
        return lambda steps: Cost(whole.adjacency, "none", whole.delta, dp_event.NonPrivateDpEvent())
    if events.to_json(whole.event) is None:
        deltas = [whole.delta * 0.5**k for k in range(POINTS)]
        lost = whole.delta - plan.delta_left()  # of every δ the same
        points = tuple((d, epsilon(whole.event, d - lost, adjacency=whole.adjacency)) for d in deltas if d > 2 * lost)
        stated = Cost(whole.adjacency, whole.status, whole.delta, None, points, whole.assumptions, beside=beside)
        return lambda steps: stated

    def cost(steps: int) -> Cost:
        claim = claim_attempts(plan, [Replay(start, start + steps)])[0]
        lost = whole.delta - plan.delta_left(steps)
        own = Cost(whole.adjacency, whole.status, whole.delta, claim.event, assumptions=whole.assumptions)
        return replace(own, lost=lost, beside=beside)

    return cost
