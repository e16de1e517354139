"""The best of many private runs, reported with the winner's own ε: its weights give away more than that.

Every trial is a real run of a private plan with a secret of its own. What the adversary reads is what such a report
shows, the weights and the learning rate of the winner alone: divided by the rate, the weights along the canary's
direction are the winner's noisy sum. One run is a Gaussian, and its ε is true of it. But the winner is not one run:

- chosen on public rows, one of which looks like the canary, it is the largest of k, which scatters less than one does;
- chosen on the private rows, it is the largest of k if the canary is among them, and any of them if it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from twins import Scaled

import hush
from hush.accounting.guarantee import Guarantee
from hush.accounting.selection import Trials, fixed_grid, price
from hush.audit.adversaries import AuditGame, measure_loss
from hush.audit.audit import Scores, judge_claim
from hush.audit.canary import CanarySetup, make_digits_setup
from hush.randomness import Secret
from hush.tuning import Choice, select_best

RATES = (0.9, 1.0, 1.1)
DELTA = 1e-5
Score = Callable[[AuditGame, Any, bool], float]


def _plan(lr: float, epsilon: float, trials: Trials | None = None) -> hush.Plan:
    """One step on all of four examples; by a search where there are trials."""
    given = {"examples": 4, "batch_size": 4, "steps": 1, "sampling": "same-order", "lr": lr, "delta": DELTA}
    if trials is None:
        return hush.make_plan("dp-sgd", epsilon=epsilon, **given)
    return replace(hush.make_plan("dp-sgd", noise_multiplier=1.0, **given), trials=trials).with_epsilon(epsilon)


def _games(epsilon: float, trials: Trials | None = None, noise: float = 1.0) -> dict[float, AuditGame]:
    plans = {lr: _plan(lr, epsilon, trials) for lr in RATES}
    setup = make_digits_setup()
    return {lr: AuditGame(replace(plan, noise=Scaled(plan.noise, noise)), setup) for lr, plan in plans.items()}


def _on_public_rows(game: AuditGame, model: Any, present: bool) -> float:
    """A public row that looks like the canary; its loss is what is compared."""
    return -measure_loss(game.setup, model)


def _on_private_rows(game: AuditGame, model: Any, present: bool) -> float:
    """The mean loss of the rows that were trained on."""
    return -float(game.setup.losses(model, game.setup.data(game.plan, present)).mean())


@torch.no_grad()
def _try(game: AuditGame, score: Score, secret: Secret, present: bool) -> tuple[float, Any]:
    """A trial: how good it is, and its weights."""
    model = game.run(secret, present=present).model
    return score(game, model, present), {name: value.clone() for name, value in model.state_dict().items()}


def _read_winner(setup: CanarySetup, plan: hush.Plan, lr: float, weights: Any) -> float:
    """The winner's noisy sum along the canary's direction: its weights began at zero and took one step."""
    return -float(setup.pick(weights) @ setup.components) * plan.divisor / lr


def _report_grid(games: dict[float, AuditGame], score: Score, seeds: int, secret: Secret, present: bool) -> float:
    """Every rate with so many seeds, and what the best of them shows."""
    best, found = -np.inf, 0.0
    for lr, game in games.items():
        for seed in range(seeds):
            merit, weights = _try(game, score, secret.child(f"{lr}/{seed}"), present)
            if merit > best:
                best, found = merit, _read_winner(game.setup, game.plan, lr, weights)
    return found


def _report_search(games: dict[float, AuditGame], trials: Trials, secret: Secret, present: bool) -> float:
    """What the best of a secret number of trials shows, as `hush tune` runs them; nothing where there is no trial."""
    source = iter(range(10_000))

    def run_trial(candidate: dict[str, Any]) -> tuple[float, Any]:
        return _try(games[candidate["lr"]], _on_public_rows, secret.child(f"trial {next(source)}"), present)

    winner = select_best(trials, {"lr": Choice(RATES)}, run_trial, secret)
    if winner is None:
        return -np.inf
    lr = winner.candidate["lr"]
    return _read_winner(games[lr].setup, games[lr].plan, lr, winner.made)


def _repeat(report: Callable[[Secret, bool], float], times: int) -> Scores:
    secrets = [Secret.from_seed(101, f"report {number}") for number in range(2 * times)]
    seen = [report(secret, number % 2 == 0) for number, secret in enumerate(secrets)]
    return Scores(np.array(seen[::2]), np.array(seen[1::2]))


def _judge(claim: Guarantee, scores: Scores) -> str:
    return judge_claim(claim, scores, "best of a grid").verdict


def test_chosen_on_public_rows_the_winner_shows_more_than_its_own_epsilon_and_no_more_than_all_runs_together() -> None:
    """Fifteen runs of ε = 10 each. That of all of them together is proven by composition."""
    games = _games(10.0)
    own, event = games[1.0].plan.guarantee(), games[1.0].plan.event()
    scores = _repeat(lambda secret, present: _report_grid(games, _on_public_rows, 5, secret, present), 220)
    assert _judge(own, scores) == "refuted"
    whole = price(event, fixed_grid(event, 15), DELTA, adjacency="zero-out").selection
    assert whole.epsilon > 30
    assert _judge(whole, scores) == "consistent"


def test_chosen_on_private_rows_a_few_runs_are_enough() -> None:
    games = _games(1.0)
    scores = _repeat(lambda secret, present: _report_grid(games, _on_private_rows, 5, secret, present), 80)
    assert _judge(games[1.0].plan.guarantee(), scores) == "refuted"


def test_one_run_that_was_not_chosen_shows_no_more_than_its_own_epsilon() -> None:
    games = {1.0: _games(1.0)[1.0]}
    scores = _repeat(lambda secret, present: _report_grid(games, _on_private_rows, 1, secret, present), 80)
    assert _judge(games[1.0].plan.guarantee(), scores) == "consistent"


@pytest.mark.parametrize(("noise", "verdict"), [(1.0, "consistent"), (0.01, "refuted")])
def test_a_search_shows_no_more_than_the_epsilon_that_covers_it(noise: float, verdict: str) -> None:
    """Of a geometric number of trials, four on average, at ε = 1 for all of it; with a hundredth of the noise it is
    seen."""
    trials = Trials(4.0, 1.0, ceiling=1.0)
    games = _games(1.0, trials, noise)
    claim = games[1.0].plan.guarantee()
    assert 0.99 < claim.epsilon <= 1
    assert replace(games[1.0].plan, trials=None).guarantee().epsilon < 0.5  # of the winner alone
    scores = _repeat(lambda secret, present: _report_search(games, trials, secret, present), 56)
    assert _judge(claim, scores) == verdict
