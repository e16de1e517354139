"""A run's entries in a ledger: what has been spent on a dataset by all runs together, written ahead of every release.

A run is charged once, for its whole plan, before its first noisy value: that is what is proven about it however it
stops. So after any crash the ledger covers at least what was released. A resumed run has its name in the ledger and its
secret in its checkpoint: the steps it repeats are the same bits and cost nothing. A run that lost its secret is another
run, and what the lost one was charged stays spent. Steps that are taken again with fresh noise (`ReplayHistory`) are an
entry of their own, written before that noise is drawn.

The file itself is `hush.ledger.book`.
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
    """One entry of a ledger: `charge` writes it once, and `check` says beforehand whether the budget has room for it.

    ``cost(n)`` is what the first n of the ``planned`` steps cost; it never falls in n.
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
        """The entry as it is in the ledger, if it is."""
        return self.ledger.spends(self.dataset).get(self.run)

    @property
    def charged(self) -> bool:
        """Whether the ledger has all planned steps."""
        found = self.entered
        return found is not None and found.steps >= self._planned

    def charge(self, *, fact: bool = False) -> None:
        """Enter all planned steps, once; `BudgetExceededError` where the budget has no room for them, and then nothing
        is written. ``fact`` is for steps that were taken already: they are entered whatever the budget says."""
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
        """`BudgetExceededError` where the budget has no room for all planned steps; nothing is written."""
        with self.ledger.turn():
            self._check_open()
            if not self.charged:
                self._check_room()

    def fits(self) -> bool:
        """Whether the budget has room for all planned steps."""
        budget = self.ledger.budget(self.dataset)
        return budget is None or self._fits(budget, self._planned)

    def room(self) -> int:
        """How many of the planned steps fit into the budget next to what others have spent; all without a budget."""
        budget = self.ledger.budget(self.dataset)
        if budget is None or self._fits(budget, self._planned):
            return self._planned
        if self._cost(self._planned).event is None:  # known for the whole plan only
            return 0
        return largest(lambda steps: self._fits(budget, steps), 0, self._planned)

    def _fits(self, budget: Budget, steps: int) -> bool:
        return self._total(budget, steps).epsilon <= budget.epsilon

    def _total(self, budget: Budget, steps: int) -> Total:
        """What the first steps and all other spends are together in the total that the budget is for."""
        others = [spend.cost for run, spend in self.ledger.spends(self.dataset).items() if run != self.run]
        return self.ledger.add_up(self.dataset, [*others, self._cost(steps)], budget.delta, budget.scope)

    def _check_room(self) -> None:
        budget = self.ledger.budget(self.dataset)
        if budget is not None and not self._fits(budget, self._planned):
            raise BudgetExceededError(self._over(budget))

    def _check_open(self) -> None:
        """A run that was declared permanently stopped takes no step, not with fresh noise either."""
        own = self.run.partition("+")[0]
        for name, spend in self.ledger.spends(self.dataset).items():
            if spend.blindly and name.partition("+")[0] == own:
                raise ResumeError(
                    f"run '{own}' was closed in the ledger '{self.ledger.path}' as permanently stopped at step "
                    f"{spend.steps}, and its guarantee counts on that: start another run"
                )

    def _over(self, budget: Budget) -> str:
        about = "" if budget.scope == WHOLE_ROW else f" for {budget.scope.in_words()}"
        pair = f"ε = {rounded_up(budget.epsilon)} at δ = {rounded_up(budget.delta)}{about}"
        after = self._total(budget, self._planned)
        if after.reason:
            return (
                f"this run would leave dataset '{self.dataset}' without a finite ε for {budget.scope.in_words()}, and "
                f"its budget is {pair}: one spend is {after.reason}; spend what is about that unit and all of it, or "
                f"set a budget for something else with `hush ledger budget {self.ledger.path} --unit … --protects …`"
            )
        return (
            f"{self._planned} steps would bring dataset '{self.dataset}' to ε = {rounded_up(after.epsilon)} where its "
            f"budget is {pair}, and {self.room()} of them fit: train fewer steps, with --fit-budget (more noise), or "
            f"raise the budget with `hush ledger budget {self.ledger.path}`"
        )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest n in [low, high) that fits, where ``high`` does not and a prefix does; ``low`` at least."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


POINTS = 12


class RunAccount:
    """A run's entries in a ledger: one for each of its attempts, of which it has one unless sums have changed."""

    def __init__(self, run: Run, ledger: Ledger, dataset: str, name: str, *, new_dataset: bool = False) -> None:
        self.ledger, self._given = ledger, dataset
        self._run, self._name, self._new = run, name, new_dataset
        self._accounts: dict[int, Account] = {}
        self._of(run.history.current)  # which refuses a secret that was used before

    @property
    def dataset(self) -> str:
        """The data's name as the ledger knows it."""
        return self._account.dataset

    @property
    def charged(self) -> bool:
        """Whether the ledger has all steps of the run's current attempt."""
        return self._account.charged

    @property
    def covers(self) -> bool:
        """Whether the ledger has an entry for the run's current attempt, also one that was closed."""
        return self._account.entered is not None

    def charge(self) -> None:
        """Enter the run's current attempt, before its first noisy value; `BudgetExceededError` where there is no room.

        Where the ledger does not know the run yet (it came later, or a seed was used in the run's directory before),
        whatever was taken already is entered first, the run's own name last: a fact, whatever the budget says."""
        history = self._run.history
        if self._name not in self.ledger.spends(self.dataset):
            for number in (*range(1, len(history.attempts)), 0):
                if number != history.current and _was_begun(history.attempts[number]):
                    self._of(number).charge(fact=True)
        self._account.charge(fact=_was_begun(history.now))

    def check(self) -> None:
        """`BudgetExceededError` where the budget has no room for what `charge` would enter; nothing is written."""
        if not _was_begun(self._run.history.now):
            self._account.check()

    def room(self) -> int:
        """How many steps of the current attempt fit into the budget, next to what others have spent."""
        return self._account.room()

    def total(self) -> Total:
        """What is proven about everything spent on the data, for what this run's own entry is about.

        A ledger that cannot be read any more does not stop a release: then it is the total that was read last."""
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
        """The account of one attempt: under the run's name, and for a later one that of its secret."""
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
    """Have the run charged to a ledger: once, for its whole plan, before its first noisy value.

    `BudgetExceededError` at once where the budget has no room for it. Call it before ``checkpoints.begin`` or after
    ``checkpoints.restore``, so that every checkpoint names the ledger. A resumed run has its entry already; where its
    checkpoint and the ledger contradict each other, it is refused. So is a run whose secret another run has used: the
    same noise on other sums has no finite ε. In a ledger that has a budget, data that it does not know need
    ``new_dataset=True``. Of several processes, process 0 alone calls it.
    """
    if run.ranks.rank:
        raise RunStateError(
            "process 0 enters a run in its ledger, and the others wait for it: call charge where rank is 0"
        )
    name = secrets.token_hex(8) if checkpoints is None else checkpoints.name
    account = RunAccount(run, ledger, dataset, name, new_dataset=new_dataset)
    later = checkpoints is not None and _agree(run, account, checkpoints)
    if run.next < run.plan.steps:
        account.check()
    run.charged_by(account.charge)
    if not account.charged and any(map(_was_begun, run.history.attempts)):  # taken without a ledger: entered now
        run.charge()
    if checkpoints is not None and later:
        checkpoints.save(run)  # after the charge, as a checkpoint that names a ledger is one that it covers
    return account


def _was_begun(attempt: Replay) -> bool:
    return attempt.taken > attempt.start


def _not_used_before(ledger: Ledger, noise: str, name: str) -> None:
    """Every secret is one run's: the ledger knows them by their names."""
    with ledger.turn():
        spends = [spend for dataset in ledger.datasets() for spend in ledger.spends(dataset).values()]
    for spend in spends:
        if noise and spend.noise == noise and spend.run != name:
            raise RunStateError(
                f"the secret behind this run's noise was used before, by run '{spend.run}' on dataset "
                f"'{spend.dataset}' in the ledger '{ledger.path}': on other sums the difference of the two would be "
                "free of noise; give another secret seed or none, or resume that run"
            )


def _agree(run: Run, account: RunAccount, checkpoints: Checkpoints) -> bool:
    """Every checkpoint names the ledger that covers it, and the ledger covers every checkpoint. Whether there is a
    checkpoint that names none yet."""
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
            f"the checkpoint is at step {run.next} and the ledger '{ledger.path}' has no charge for this run: it is "
            "not the ledger that the run wrote, or it lost entries"
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

    The plan at that ε has more noise and the same steps. ``coordinates`` are the numbers that get noise at a time, as a
    run counts them (`hush.run.count_coordinates`). `BudgetExceededError` where no ε fits."""

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
        except HushError:  # less ε than some part of the plan needs
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
        raise InvalidInputError(f"run '{name}' is closed already, at step {spend.steps}: nothing to close")
    if not directory.is_dir():
        raise InvalidInputError(f"'{directory}' is not there, so nothing shows how many steps run '{name}' has taken")
    kept = Checkpoints(directory)  # which refuses a directory in which a run is training
    try:
        steps = _count_steps(kept, ledger, name)
        ledger.close(dataset, name, steps)
    finally:
        kept.close()
    return steps


def _count_steps(kept: Checkpoints, ledger: Ledger, name: str) -> int:
    """Steps of which the log of sums or a checkpoint shows that they were taken, in a run of one attempt."""
    saved = kept.newest().saved
    if saved is None or saved.facts["run"] != name or (saved.facts["ledger"] or {}).get("name") != ledger.name:
        raise InvalidInputError(f"'{kept.directory}' does not hold a checkpoint of run '{name}': give the run's folder")
    secret = find_secret(kept.directory, saved.facts["secret"])
    if any(line["noise"] == secret.first.name for line in read_releases(kept.directory / RELEASES)):
        raise InvalidInputError(f"run '{name}' has released its model, so it stays counted with its plan")
    try:
        log = SumLog.read(find_tags(kept.directory, secret), saved.step)
    except SumLogMissing as lost:  # also of a run that trains on released values, whose steps cost nothing
        raise InvalidInputError(f"the sum log of run '{name}' {lost}, so it stays counted with its plan") from lost
    history = ReplayHistory.from_json(saved.state["history"]).joined(log.attempts)
    if history.again:
        raise InvalidInputError(
            f"steps of run '{name}' were taken again with fresh noise, so it stays counted with its plan"
        )
    steps = max(history.now.taken, saved.step)
    if not steps:
        raise InvalidInputError(f"run '{name}' has taken no step: resume it, or leave it as it is")
    return steps


def cost_of(plan: Plan, start: int = 0, coordinates: int = 1) -> Callable[[int], Cost]:
    """What the first n steps from ``start`` on cost under a secret of their own, as a ledger writes it down.

    The releases composed with training are in the cost from the first step; where steps were taken again, in the entry
    of each attempt, which is more than they cost. It is about the plan's unit and its protected part."""
    whole = account_steps(plan)[0]
    priced = _price(plan, whole, start, coordinates)
    return lambda steps: replace(priced(steps), unit=whole.unit, protects=whole.protects)


def _price(plan: Plan, whole: Guarantee, start: int, coordinates: int) -> Callable[[int], Cost]:
    composed = plan.composed_tail_delta(coordinates)
    if whole.status == "none":
        return lambda steps: Cost(whole.adjacency, "none", whole.delta, dp_event.NonPrivateDpEvent())
    if events.to_json(whole.event) is None:
        deltas = [whole.delta * 0.5**k for k in range(POINTS)]
        lost = plan.delta_lost()  # of every δ the same
        points = tuple((d, epsilon(whole.event, d - lost, adjacency=whole.adjacency)) for d in deltas if d > 2 * lost)
        stated = Cost(whole.adjacency, whole.status, whole.delta, None, points, whole.assumptions, composed=composed)
        return lambda steps: stated

    def cost(steps: int) -> Cost:
        claim = claim_attempts(plan, [Replay(start, start + steps)])[0]
        lost = plan.delta_lost(steps)
        own = Cost(whole.adjacency, whole.status, whole.delta, claim.event, assumptions=whole.assumptions)
        return replace(own, lost=lost, composed=composed)

    return cost
