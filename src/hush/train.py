"""The training loop, whole: draw a batch, take a step, keep what must not be lost, hand out a record."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from dp_accounting import dp_event

from hush.checkpoint import Checkpoints
from hush.errors import Refused
from hush.plan import Plan
from hush.privacy import event_json
from hush.privacy.accounting import epsilon
from hush.privacy.ledger import Account, Ledger
from hush.privacy.total import Cost
from hush.run import Record, Run

EVERY = 50
POINTS = 12


def train(run: Run, *, checkpoints: Checkpoints | None = None, every: int = EVERY) -> Iterator[Record]:
    """Take every step that remains, with a checkpoint every ``every`` steps and after the last; what is yielded is
    private."""
    run.model.train()
    for batch in run.batches():
        record = run.step(batch)
        if checkpoints is not None:
            checkpoints.log(record)
            if run.next % every == 0 or run.next == run.plan.steps:
                checkpoints.save(run)
        yield record
    run.model.eval()


def charge(
    run: Run, ledger: Ledger, dataset: str, checkpoints: Checkpoints | None = None, *, new_dataset: bool = False
) -> Account:
    """Enter the run in a ledger: from now on no step is taken that the ledger does not cover.

    Call it before ``checkpoints.begin`` or after ``checkpoints.restore``, so that every checkpoint names the ledger. A
    resumed run goes on with its own entry; where its checkpoint and the ledger contradict each other, it is refused. In
    a ledger that has a budget, data that it does not know need ``new_dataset=True``.
    """
    name = secrets.token_hex(8) if checkpoints is None else checkpoints.name
    plan = run.plan.with_secret(run.secret)
    account = Account(
        ledger,
        dataset,
        run=name,
        method=plan.method,
        planned=plan.steps,
        cost=cost_of(plan),
        new_dataset=new_dataset,
    )
    if checkpoints is not None:
        _agree(run, account, checkpoints)
    run.covered_by(account.cover)
    return account


def _agree(run: Run, account: Account, checkpoints: Checkpoints) -> None:
    """Every checkpoint names the ledger that covers it, and the ledger covers every checkpoint."""
    ledger, before = account.ledger, checkpoints.ledger
    checkpoints.ledger = {"name": ledger.name, "path": str(ledger.path.resolve()), "dataset": account.dataset}
    if before is None:
        if checkpoints.at is not None:  # begun without a ledger: what was taken is entered now
            account.enter(run.next)
            checkpoints.save(run)
    elif (before["name"], before["dataset"]) != (ledger.name, account.dataset):
        raise Refused(
            f"this run is entered for dataset '{before['dataset']}' in the ledger '{before['path']}', and not in "
            f"'{ledger.path}' for '{account.dataset}': give that ledger and dataset"
        )
    elif account.reserved < run.next:
        raise Refused(
            f"the checkpoint is at step {run.next} and the ledger '{ledger.path}' covers {account.reserved} steps of "
            "this run: it is not the ledger that the run wrote, or it lost entries"
        )


def cost_of(plan: Plan) -> Callable[[int], Cost]:
    """What the first n steps of a plan cost, as a ledger writes it down."""
    whole = plan.guarantee()
    if whole.status == "none":
        return lambda steps: Cost(whole.adjacency, "none", whole.delta, dp_event.NonPrivateDpEvent())
    if event_json.to_json(whole.event) is None:
        deltas = [whole.delta * 0.5**k for k in range(POINTS)]
        kept = plan.delta_left() / plan.delta
        points = tuple((d, epsilon(whole.event, d * kept, adjacency=whole.adjacency)) for d in deltas)
        stated = Cost(whole.adjacency, whole.status, whole.delta, None, points, whole.assumptions)
        return lambda steps: stated
    proven = whole.status == "proven"

    def cost(steps: int) -> Cost:
        event = plan.event(steps) if proven else plan.guarantee(steps).event
        lost = whole.delta - plan.delta_left(steps)
        return Cost(whole.adjacency, whole.status, whole.delta, event, assumptions=whole.assumptions, lost=lost)

    return cost
