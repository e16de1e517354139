"""Privacy events for the tests of the ledger, and an account to enter them in."""

from __future__ import annotations

from pathlib import Path

from dp_accounting import dp_event

from hush.ledger.book import Ledger
from hush.ledger.run_account import Account
from hush.ledger.total import Cost

GAUSS = dp_event.GaussianDpEvent
POISSON = dp_event.PoissonSampledDpEvent(0.01, GAUSS(1.0))


def poisson(steps: int, status: str = "proven", adjacency: str = "add-remove", delta: float = 1e-5) -> Cost:
    return Cost(adjacency, status, delta, dp_event.SelfComposedDpEvent(POISSON, steps))  # type: ignore[arg-type]


def gaussian(sigma: float, adjacency: str = "add-remove") -> Cost:
    return Cost(adjacency, "proven", 1e-5, GAUSS(sigma))  # type: ignore[arg-type]


def account(
    path: Path, run: str = "a", *, planned: int = 1000, cost=poisson, dataset: str = "d", per_step: bool = True
):
    return Account(Ledger(path), dataset, run=run, method="dp-sgd", planned=planned, cost=cost, per_step=per_step)
