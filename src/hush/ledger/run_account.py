"""A run's entries in a ledger, written before the run releases anything.

A run is charged once, for its whole plan, before its first noisy value: that cost is proven for any stopping step. So
after any crash the ledger covers at least what was released. A resumed run has its name in the ledger and its secret in
its checkpoint: the steps it repeats have the same bits and cost nothing. A run that lost its secret must start again as
another run, and the charge of the lost one stays spent. Steps that are taken again with fresh noise (`ReplayHistory`)
have a separate entry, which is written before that noise is drawn.

The ledger itself is `hush.ledger.book`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from hush._internal.validate import positive_int
from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import Guarantee, rounded_up
from hush.checkpointing.checkpoint import Checkpoints, find_secret
from hush.checkpointing.noise_reuse_guard import RELEASES, read_releases
from hush.checkpointing.sum_log import SumLog, SumLogMissing, find_tags
from hush.errors import BudgetExceededError, HushError, InvalidInputError, ResumeError, RunStateError
from hush.guarantees import Replay, ReplayHistory, account_steps, claim_attempts, is_drawn_anew
from hush.ledger.book import Ledger
from hush.ledger.entries import Budget, Spend, fold_name, is_per_step
from hush.ledger.total import WHOLE_ROW, Cost, Total
from hush.plan import Plan
from hush.run import Run


class Account:
    """One entry of a ledger: `charge` writes it once; `check` raises if the budget has no room for it.

    ``cost(n)`` is the cost of the first n of the ``planned`` steps; it never decreases with n.
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
        new_dataset: bool = False,
        noise: str = "",
        part_of: str = "",
        reason: str = "",
        per_step: bool = False,
    ) -> None:
        positive_int(planned=planned)
        self.ledger, self.run = ledger, run
        self._planned, self._cost, self._method = planned, cost, method
        self._more: dict[str, Any] = {"noise": noise, "part_of": part_of, "reason": reason}
        self._per_step = per_step
        with ledger.turn():
            self.dataset = ledger.check_known(dataset, new=new_dataset)

    @property
    def entered(self) -> Spend | None:
        """The entry in the ledger; None if it is not there."""
        return self.ledger.spends(self.dataset).get(self.run)

    @property
    def charged(self) -> bool:
        """Whether the ledger's entry covers all planned steps."""
        found = self.entered
        return found is not None and found.steps >= self._planned

    def charge(self, *, fact: bool = False) -> None:
        """Enter all planned steps, once; if the budget has no room for them, raise `BudgetExceededError` and write
        nothing. ``fact`` is for steps that were taken already: they are entered even if they exceed the budget."""
        with self.ledger.turn():
            self._check_open()
            if self.charged:
                return
            if not fact:
                self._check_room()
            cost = self._cost(self._planned)
            per_step = self._per_step and is_per_step(cost.event, self._planned)
            counted = (self._planned, self._planned, cost)
            self.ledger.spend(Spend(self.run, self.dataset, self._method, *counted, per_step=per_step, **self._more))

    def check(self) -> None:
        """Raise `BudgetExceededError` if the budget has no room for all planned steps; nothing is written."""
        with self.ledger.turn():
            self._check_open()
            if not self.charged:
                self._check_room()

    def fits(self) -> bool:
        """Whether the budget has room for all planned steps."""
        budget = self.ledger.budget(self.dataset)
        return budget is None or self._fits(budget, self._planned)

    def room(self) -> int:
        """The number of planned steps that fit into the budget in addition to all other spends; all without a
        budget."""
        budget = self.ledger.budget(self.dataset)
        if budget is None or self._fits(budget, self._planned):
            return self._planned
        if self._cost(self._planned).event is None:  # the cost is known for the whole plan only
            return 0
        return largest(lambda steps: self._fits(budget, steps), 0, self._planned)

    def _fits(self, budget: Budget, steps: int) -> bool:
        return self._total(budget, steps).epsilon <= budget.epsilon

    def _total(self, budget: Budget, steps: int) -> Total:
        """The budget's total with the first ``steps`` steps and all other spends."""
        others = [spend.cost for run, spend in self.ledger.spends(self.dataset).items() if run != self.run]
        return self.ledger.add_up(self.dataset, [*others, self._cost(steps)], budget.delta, budget.scope)

    def _check_room(self) -> None:
        budget = self.ledger.budget(self.dataset)
        if budget is not None and not self._fits(budget, self._planned):
            raise BudgetExceededError(self._over(budget))

    def _check_open(self) -> None:
        """Raise for a run that was declared permanently stopped: it takes no more steps, even with fresh noise."""
        own = self.run.partition("+")[0]
        for name, spend in self.ledger.spends(self.dataset).items():
            if spend.blindly and name.partition("+")[0] == own:
                raise ResumeError(
                    f"run '{own}' was closed in the ledger '{self.ledger.path}' as permanently stopped at step "
                    f"{spend.steps}, and its guarantee counts on that: start another run"
                )

    def _over(self, budget: Budget) -> str:
        about = "" if budget.scope == WHOLE_ROW else f" for {budget.scope.describe()}"
        pair = f"ε = {rounded_up(budget.epsilon)} at δ = {rounded_up(budget.delta)}{about}"
        after = self._total(budget, self._planned)
        if after.reason:
            return (
                f"this run would leave dataset '{self.dataset}' without a finite ε for {budget.scope.describe()}, and "
                f"its budget is {pair}: one spend is {after.reason}; train with that unit and protect whole examples, "
                f"or set another budget with `hush ledger budget {self.ledger.path} --unit … --protects …`"
            )
        return (
            f"{self._planned} steps would bring dataset '{self.dataset}' to ε = {rounded_up(after.epsilon)} where its "
            f"budget is {pair}, and {self.room()} of them fit: train fewer steps, with --fit-budget (more noise), or "
            f"raise the budget with `hush ledger budget {self.ledger.path}`"
        )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest n in [low, high) that fits, at least ``low``; ``high`` must not fit, and if n fits all smaller do."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


POINTS = 12


class RunAccount:
    """A run's entries in a ledger, one for each attempt; there is one attempt unless sums have changed."""

    def __init__(self, run: Run, ledger: Ledger, dataset: str, name: str, *, new_dataset: bool = False) -> None:
        self.ledger, self._given = ledger, dataset
        self._run, self._name, self._new = run, name, new_dataset
        self._accounts: dict[int, Account] = {}
        self._of(run.history.current)  # raises for a secret that was used before

    @property
    def dataset(self) -> str:
        """The dataset's name in the ledger."""
        return self._account.dataset

    @property
    def charged(self) -> bool:
        """Whether the ledger's entry covers all steps of the run's current attempt."""
        return self._account.charged

    @property
    def covers(self) -> bool:
        """Whether the ledger has an entry for the run's current attempt, also one that was closed."""
        return self._account.entered is not None

    def charge(self) -> None:
        """Enter the run's current attempt, before its first noisy value; `BudgetExceededError` if there is no room.

        If the ledger does not have the run yet (it was added later, or a seed was used in the run's directory before),
        all steps that were taken already are entered first, the entry under the run's own name last, even if they
        exceed the budget."""
        history = self._run.history
        if self._name not in self.ledger.spends(self.dataset):
            for number in (*range(1, len(history.attempts)), 0):
                if number != history.current and _was_begun(history.attempts[number]):
                    self._of(number).charge(fact=True)
        self._account.charge(fact=_was_begun(history.now))

    def check(self) -> None:
        """Raise `BudgetExceededError` if the budget has no room for what `charge` would enter; nothing is written."""
        if not _was_begun(self._run.history.now):
            self._account.check()

    def room(self) -> int:
        """The number of steps of the current attempt that fit into the budget in addition to all other spends."""
        return self._account.room()

    def total(self) -> Total:
        """The proven total of everything spent on the data, in the scope of this run's entry.

        If the ledger cannot be read any more, it is the total that was read last: a release is still possible."""
        with suppress(HushError, OSError), self.ledger.turn():
            pass
        with self.ledger.as_read():
            spent = self.ledger.spends(self.dataset)
            if not spent and not self.ledger.budget(self.dataset):
                return self.ledger.add_up(self.dataset, [], None)
            own = spent.get(self._name)
            return self.ledger.total(self.dataset, scope=None if own is None else own.cost.scope)

    @property
    def _account(self) -> Account:
        return self._of(self._run.history.current)

    def _of(self, number: int) -> Account:
        """The account of one attempt, entered under the run's name; for a later attempt, with its secret's name."""
        if number not in self._accounts:
            run = self._run
            start, current = run.history.attempts[number].start, number == run.history.current
            noise = run.secret.name if current else "" if number else run.secret.first.name
            name = f"{self._name}+{noise[:8] or number}" if number else self._name
            _not_used_before(self.ledger, noise, name)
            again = f"steps {start + 1} to {run.plan.steps}, taken again with fresh noise" if number else ""
            self._accounts[number] = Account(
                self.ledger,
                self._given,
                run=name,
                method=run.plan.method,
                planned=run.plan.steps - start,
                cost=cost_of(run.stated(), start, run.coordinates),
                noise=noise,
                new_dataset=self._new,
                part_of=self._name if number else "",
                reason=again,
                per_step=is_drawn_anew(run.plan),
            )
        return self._accounts[number]


def charge(
    run: Run, ledger: Ledger, dataset: str, checkpoints: Checkpoints | None = None, *, new_dataset: bool = False
) -> RunAccount:
    """Charge the run to a ledger: once, for its whole plan, before its first noisy value.

    Raises `BudgetExceededError` immediately if the budget has no room for it. Call it before ``checkpoints.begin`` or
    after ``checkpoints.restore``, so that every checkpoint names the ledger. A resumed run has its entry already;
    `ResumeError` if its checkpoint and the ledger contradict each other. `RunStateError` if another run has used the
    same secret: the same noise on other sums has no finite ε. In a ledger with a budget, a new dataset needs
    ``new_dataset=True``. Of several processes, only process 0 calls it.
    """
    if run.ranks.rank:
        raise RunStateError(
            f"charge was called in process {run.ranks.rank}, and only process 0 enters a run in its ledger: call it "
            "where rank is 0"
        )
    name = secrets.token_hex(8) if checkpoints is None else checkpoints.name
    account = RunAccount(run, ledger, dataset, name, new_dataset=new_dataset)
    later = checkpoints is not None and _agree(run, account, checkpoints)
    if run.next < run.plan.steps:
        account.check()
    run.charged_by(account.charge)
    if not account.charged and any(map(_was_begun, run.history.attempts)):  # steps were taken without a ledger
        run.charge()
    if checkpoints is not None and later:
        checkpoints.save(run)  # after the charge: a checkpoint that names a ledger must be covered by it
    return account


def _was_begun(attempt: Replay) -> bool:
    return attempt.taken > attempt.start


def _not_used_before(ledger: Ledger, noise: str, name: str) -> None:
    """Raise if the ledger has another run with the secret of this name."""
    with ledger.turn():
        spends = [spend for dataset in ledger.datasets() for spend in ledger.spends(dataset).values()]
    for spend in spends:
        if noise and spend.noise == noise and spend.run != name:
            raise RunStateError(
                f"the secret behind this run's noise was used before, by run '{spend.run}' on dataset "
                f"'{spend.dataset}' in the ledger '{ledger.path}', and the difference of two sums with the same noise "
                "has no noise: give another secret seed or none, or resume that run"
            )


def _agree(run: Run, account: RunAccount, checkpoints: Checkpoints) -> bool:
    """Check that the checkpoint names this ledger and that the ledger covers the checkpoint. Returns whether there is a
    checkpoint that does not name a ledger yet."""
    ledger, before = account.ledger, checkpoints.ledger
    checkpoints.ledger = {"name": ledger.name, "path": str(ledger.path.resolve()), "dataset": account.dataset}
    if before is None:
        return checkpoints.at is not None
    if (before["name"], fold_name(before["dataset"])) != (ledger.name, fold_name(account.dataset)):
        raise ResumeError(
            f"this run is entered for dataset '{before['dataset']}' in the ledger '{before['path']}', and not in "
            f"'{ledger.path}' for '{account.dataset}': give that ledger and dataset"
        )
    if _was_begun(run.history.now) and not account.covers:
        raise ResumeError(
            f"the checkpoint is at step {run.next} and the ledger '{ledger.path}' has no charge for this run, so it is "
            "another ledger or lost entries: give the run's ledger"
        )
    return False


def fit_budget(
    make: Callable[[float], Plan],
    epsilon: float,
    ledger: Ledger,
    dataset: str,
    *,
    coordinates: int = 1,
    new_dataset: bool = False,
) -> float:
    """The largest ε of at most ``epsilon`` whose plan, by ``make(ε)``, fits into the dataset's budget, to a thousandth.

    The plan at that ε has more noise and the same steps. ``coordinates`` is the number of coordinates that get noise
    per step (`hush.run.count_coordinates`). `BudgetExceededError` if no ε fits."""

    def fits(plan: Plan) -> bool:
        plan = plan.with_tails(coordinates).with_arithmetic()
        account = Account(
            ledger,
            dataset,
            run=secrets.token_hex(8),
            method=plan.method,
            planned=plan.steps,
            cost=cost_of(plan, 0, coordinates),
            new_dataset=new_dataset,
        )
        return account.fits()

    def tries(value: float) -> bool:
        try:
            return fits(make(value))
        except HushError:  # ε is too small for some part of the plan
            return False

    if fits(make(epsilon)):
        return epsilon
    low, high = 0.0, epsilon
    budget = ledger.budget(dataset)
    if budget is not None and budget.epsilon < high and tries(budget.epsilon):
        return budget.epsilon
    for _ in range(24):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tries(middle) else (low, middle)
        if low > 0.999 * high:
            break
    if low == 0:
        raise BudgetExceededError(
            f"the budget of dataset '{dataset}' in the ledger '{ledger.path}' has no room for any ε: raise it with "
            f"`hush ledger budget {ledger.path}`"
        )
    return low


def close_run(ledger: Ledger, dataset: str, name: str, directory: Path) -> int:
    """Declare that a run is permanently stopped, independently of its releases (`Ledger.close`), after the steps that
    the sum log in its private ``directory`` shows; returns their number."""
    spend = ledger.spends(dataset).get(name)
    if spend is None:
        raise InvalidInputError(f"the ledger '{ledger.path}' has no run '{name}' on dataset '{dataset}'")
    if spend.blindly:
        raise InvalidInputError(f"run '{name}' was already closed at step {spend.steps}: nothing to do")
    if not directory.is_dir():
        raise InvalidInputError(
            f"'{directory}' does not exist, so the number of steps of run '{name}' is unknown: give the run's folder"
        )
    kept = Checkpoints(directory)  # raises if a run is training in the directory
    try:
        steps = _count_steps(kept, ledger, name)
        ledger.close(dataset, name, steps)
    finally:
        kept.close()
    return steps


def _count_steps(kept: Checkpoints, ledger: Ledger, name: str) -> int:
    """The number of steps taken, by the sum log or a checkpoint, in a run of one attempt."""
    saved = kept.newest().saved
    if saved is None or saved.facts["run"] != name or (saved.facts["ledger"] or {}).get("name") != ledger.name:
        raise InvalidInputError(f"'{kept.directory}' does not hold a checkpoint of run '{name}': give the run's folder")
    secret = find_secret(kept.directory, saved.facts["secret"])
    if any(line["noise"] == secret.first.name for line in read_releases(kept.directory / RELEASES)):
        raise InvalidInputError(f"run '{name}' has released its model, so it stays counted with its plan")
    try:
        log = SumLog.read(find_tags(kept.directory, secret), saved.step)
    except SumLogMissing as lost:  # also for a run that trains on released values, whose steps cost nothing
        raise InvalidInputError(f"the sum log of run '{name}' {lost}, so it stays counted with its plan") from lost
    history = ReplayHistory.from_json(saved.state["history"]).joined(log.attempts)
    if history.again:
        raise InvalidInputError(
            f"steps of run '{name}' were taken again with fresh noise, so it stays counted with its plan"
        )
    steps = max(history.now.taken, saved.step)
    if not steps:
        raise InvalidInputError(f"run '{name}' has taken no step, so it cannot be closed: resume it, or leave it open")
    return steps


def cost_of(plan: Plan, start: int = 0, coordinates: int = 1) -> Callable[[int], Cost]:
    """The cost of the first n steps from ``start`` on under a separate secret, as a ledger writes it.

    The releases composed with training are in the cost from the first step; if steps were taken again, they are in the
    entry of each attempt, which overestimates their cost. The cost is about the plan's unit and protected part."""
    whole = account_steps(plan)[0]
    priced = _price(plan, whole, start, coordinates)
    return lambda steps: replace(priced(steps), unit=whole.unit, protects=whole.protects)


def _price(plan: Plan, whole: Guarantee, start: int, coordinates: int) -> Callable[[int], Cost]:
    composed = plan.composed_tail_delta(coordinates)
    if whole.status == "none":
        return lambda steps: Cost(whole.adjacency, "none", whole.delta, dp_event.NonPrivateDpEvent())
    if events.to_json(whole.event) is None:
        deltas = [whole.delta * 0.5**k for k in range(POINTS)]
        lost = plan.delta_lost()  # the same at every δ
        points = tuple((d, epsilon(whole.event, d - lost, adjacency=whole.adjacency)) for d in deltas if d > 2 * lost)
        stated = Cost(whole.adjacency, whole.status, whole.delta, None, points, whole.assumptions, composed=composed)
        return lambda steps: stated

    def cost(steps: int) -> Cost:
        claim = claim_attempts(plan, [Replay(start, start + steps)])[0]
        lost = plan.delta_lost(steps)
        own = Cost(whole.adjacency, whole.status, whole.delta, claim.event, assumptions=whole.assumptions)
        return replace(own, lost=lost, composed=composed)

    return cost
