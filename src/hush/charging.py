"""A run's entries in a ledger: no step is taken that the ledger does not cover."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from dp_accounting import dp_event

from hush.attempts import Attempt, History
from hush.checkpoint import Checkpoints
from hush.claims import account_steps, claim_attempts
from hush.errors import Refused
from hush.ledger.account import Account, Ledger
from hush.ledger.entries import fold_name
from hush.ledger.total import Cost, Total
from hush.mechanism import Mechanism
from hush.privacy import event_json
from hush.privacy.accounting import epsilon
from hush.privacy.guarantee import Guarantee
from hush.run import Run

POINTS = 12


class Charges:
    """A run's entries in a ledger: one for each of its attempts, of which it has one unless sums have changed."""

    def __init__(self, run: Run, ledger: Ledger, dataset: str, name: str, *, new_dataset: bool = False) -> None:
        self.ledger, self._given = ledger, dataset
        self._run, self._name, self._new = run, name, new_dataset
        self._accounts: dict[int, Account] = {}
        self._new_run = run.history == History()
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
        if self._new_run and self._run.history != History():  # a seed that was used in the run's directory before
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
                cost=cost_of(run.plan.with_secret(run.secret).with_rounding(), start, run.coordinates),
                noise=noise,
                new_dataset=self._new,
            )
        return self._accounts[number]


def charge(
    run: Run, ledger: Ledger, dataset: str, checkpoints: Checkpoints | None = None, *, new_dataset: bool = False
) -> Charges:
    """Enter the run in a ledger: from now on no step is taken that the ledger does not cover.

    Call it before ``checkpoints.begin`` or after ``checkpoints.restore``, so that every checkpoint names the ledger. A
    resumed run goes on with its own entry; where its checkpoint and the ledger contradict each other, it is refused. So
    is a run whose secret another run has used: the same noise on other sums has no finite ε. In a ledger that has a
    budget, data that it does not know need ``new_dataset=True``. Of several processes, process 0 alone calls it.
    """
    if run.ranks.rank:
        raise Refused("process 0 enters a run in its ledger, and the others wait for it: call charge where rank is 0")
    name = secrets.token_hex(8) if checkpoints is None else checkpoints.name
    charges = Charges(run, ledger, dataset, name, new_dataset=new_dataset)
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


def _agree(run: Run, account: Charges, checkpoints: Checkpoints) -> None:
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
    if event_json.to_json(whole.event) is None:
        deltas = [whole.delta * 0.5**k for k in range(POINTS)]
        lost = whole.delta - plan.delta_left()  # of every δ the same
        points = tuple((d, epsilon(whole.event, d - lost, adjacency=whole.adjacency)) for d in deltas if d > 2 * lost)
        stated = Cost(whole.adjacency, whole.status, whole.delta, None, points, whole.assumptions, beside=beside)
        return lambda steps: stated

    def cost(steps: int) -> Cost:
        claim = claim_attempts(plan, [Attempt(start, start + steps)])[0]
        lost = whole.delta - plan.delta_left(steps)
        own = Cost(whole.adjacency, whole.status, whole.delta, claim.event, assumptions=whole.assumptions)
        return replace(own, lost=lost, beside=beside)

    return cost
