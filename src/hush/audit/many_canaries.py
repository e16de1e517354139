"""The audit of one run with many canaries, for a plan that is too long to be run hundreds of times.

Each of m canaries has a number of its own to be trained, which only its loss looks at, and takes part by its own fair
coin. The adversary scores every canary by the likelihood of the releases along its own number, and guesses the coins of
the fifth that it is surest of (`hush.audit.one_run`). One run shows less than many: all of 1 000 guesses being right
gives 5.78 at 95 %, and hardly a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush import validate
from hush.audit.adversaries import WhiteBox
from hush.audit.bounds import GaussianFit
from hush.audit.likelihood import Reading, log_ratio
from hush.audit.one_run import Guesses, bound_epsilon_if_gaussian, bound_epsilon_of, chance_under, guess_coins
from hush.audit.stage import ABSENT, LONG, Stage
from hush.audit.verdict import PRINTED, Verdict, decide
from hush.audit.watching import Game
from hush.errors import BadInput, Refused
from hush.named import Losses
from hush.plan import Plan
from hush.privacy.guarantee import Guarantee
from hush.privacy.tradeoff import curve_of_guarantee
from hush.randomness import Secret, generator

GUESSED = 5  # one in so many coins is guessed: fixed beforehand
NAME = "white-box, one run"


class Beside(nn.Module):
    """A model and, beside it, a number to be trained for each canary."""

    def __init__(self, inner: nn.Module, canaries: int) -> None:
        super().__init__()
        self.inner = inner
        self.beside = nn.Linear(canaries, 1, bias=False)
        nn.init.zeros_(self.beside.weight)

    def forward(self, inputs: Any) -> Any:
        """What the model itself says."""
        return self.inner(inputs)


@dataclass(frozen=True, eq=False)
class Crowd(Stage):
    """A stage with many canaries, of which those are in whose coin says so. An absent one adds nothing to any sum, or
    its opposite under `replace`: where presence is hidden (add-remove) that gives the releases of its absence."""

    coins: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def data(self, plan: Plan, present: bool) -> tuple[Tensor, ...]:
        """Ordinary rows, then the canaries: every row's canary (−1 for none) and amount come last."""
        others = plan.sampler.examples - len(self.coins)
        if not 0 <= others <= len(self.rows[0]):
            raise BadInput(
                f"the plan is for {plan.sampler.examples} rows, of which {len(self.coins)} are canaries, and there are "
                f"{len(self.rows[0])} others"
            )
        count, absent = len(self.coins), ABSENT.get(plan.neighbours, 0.0)
        amounts = torch.from_numpy(np.where(self.coins, 1.0, absent).astype(np.float32))
        rows = [torch.cat([column[:others], column[:1].expand(count, *column.shape[1:])]) for column in self.rows]
        places = torch.cat([torch.full((others,), -1), torch.arange(count)])
        return (*rows, places, torch.cat([torch.zeros(others), amounts]))


def gather_crowd(
    model: nn.Module, losses: Losses, data: Tensor | tuple[Tensor, ...], coins: NDArray[np.bool_]
) -> Crowd:
    """Somebody's own model, losses and rows, with a canary for each coin."""
    columns, count = data if isinstance(data, tuple) else (data,), len(coins)

    def watched(extended: nn.Module, content: Any) -> Tensor:
        if not isinstance(extended, Beside):
            raise BadInput("these losses belong to the model that the audit extended")
        *rows, places, amounts = content
        ordinary = losses(extended.inner, tuple(rows) if isinstance(data, tuple) else rows[0])
        own = nn.functional.one_hot(places.clamp(min=0), count).to(amounts.dtype)
        return torch.where(places >= 0, LONG * amounts * extended.beside(own).squeeze(1), ordinary)

    direction = {"beside.weight": torch.ones(1, count, dtype=torch.float64)}
    canary = tuple(column[:1] for column in columns)
    return Crowd(Beside(model, count), watched, columns, canary, direction, coins=coins)


def audit_once(
    plan: Plan,
    model: nn.Module,
    losses: Losses,
    data: Tensor | tuple[Tensor, ...],
    *,
    canaries: int,
    seed: int | None = None,
    comparisons: int = 1,
) -> tuple[Verdict, ...]:
    """Every finite claim of a plan, audited by one run with so many canaries among its examples."""
    validate.whole(canaries=canaries)
    if not WhiteBox().applies(plan):
        raise Refused(f"method '{plan.method}' does not release sums of gradients alone: audit it by many runs")
    secret = Secret.fresh() if seed is None else Secret.from_seed(seed, "audit/one run")
    coins = generator(secret.child("coins"), "canaries", 0).integers(0, 2, size=canaries).astype(bool)
    game = Game(plan, gather_crowd(model, losses, data, coins))
    seen = game.watch(secret, present=True)
    bound = plan.query.channels["gradient"].bound
    readings = [Reading(seen.released[:, i], seen.stds, bound) for i in range(canaries)]
    scores = np.array([log_ratio(plan, [reading]) for reading in readings])
    claims = [claim for claim in plan.claims() if claim.status != "none"]
    guesses = guess_coins(scores, coins, max(1, canaries // GUESSED))
    made = comparisons * len(claims)
    return tuple(_judge(claim, guesses, scores, coins, made) for claim in claims)


def _judge(
    claim: Guarantee, guesses: Guesses, scores: NDArray[np.float64], coins: NDArray[np.bool_], comparisons: int
) -> Verdict:
    p = chance_under(guesses, curve_of_guarantee(claim))
    fitted = min(int(coins.sum()), int((~coins).sum())) > 1
    return Verdict(
        method=claim.method,
        status=claim.status,
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        epsilon_lower=bound_epsilon_of(guesses, claim.delta, PRINTED),
        verdict=decide([p], comparisons),
        adversary=NAME,
        p_value=p,
        comparisons=comparisons,
        runs=1,
        epsilon_if_gaussian=bound_epsilon_if_gaussian(guesses, claim.delta, PRINTED),
        epsilon_estimate=GaussianFit.of(scores[coins], scores[~coins]).epsilon(claim.delta) if fitted else 0.0,
        canaries=guesses.canaries,
    )
