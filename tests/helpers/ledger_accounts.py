"""Privacy events for the tests of the ledger, and an account to enter them in."""

from __future__ import annotations

from pathlib import Path

from dp_accounting import dp_event

from hush.ledger.book import Ledger
from hush.ledger.run_account import Account
from hush.ledger.total import Cost

GAUSS = dp_event.GaussianDpEvent
POISSON = dp_event.PoissonSampledDpEvent(0.01, GAUSS(1.0))
SPEND_LINE = {
    "kind": "spend",
    "dataset": "d",
    "run": "a",
    "method": "m",
    "steps": 1,
    "planned": 1,
    "limit": 1,
    "at": "now",
    "adjacency": "add-remove",
    "status": "proven",
    "delta": 1e-5,
    "event": None,
    "points": [[1e-5, 1.0]],
}  # of a spend, as hush writes it


def poisson(steps: int, status: str = "proven", adjacency: str = "add-remove", delta: float = 1e-5) -> Cost:
    return Cost(adjacency, status, delta, dp_event.SelfComposedDpEvent(POISSON, steps))  # type: ignore[arg-type]


def gaussian(sigma: float, adjacency: str = "add-remove") -> Cost:
    return Cost(adjacency, "proven", 1e-5, GAUSS(sigma))  # type: ignore[arg-type]


def account(
    path: Path, run: str = "a", *, planned: int = 1000, cost=poisson, dataset: str = "d", per_step: bool = True
):
    return Account(Ledger(path), dataset, run=run, method="dp-sgd", planned=planned, cost=cost, per_step=per_step)
