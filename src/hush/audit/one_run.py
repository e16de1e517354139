"""Lower bounds on ε from one run with many canaries, each included by an independent fair coin.

The adversary guesses r of the m coins and abstains from the others; r is fixed beforehand. T of the guesses are right.
Runs on disjoint canaries count as one, because each canary takes part in only one of them. Two bounds on the
probability of T ≥ v:

**At (ε, δ)** (Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"). With
X ~ Binomial(r, e^ε/(1 + e^ε)),

    P(T ≥ v) ≤ P(X ≥ v) + 2mδ · max_{1 ≤ i ≤ v} P(v − i ≤ X < v)/i.

**For a trade-off curve f** (after Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run").
Fix all coins but canary i's, and a number c. Let E_i be "the guess about i is right, and c − 1 of the others at least",
and W_i the same with a wrong guess. Where the guess is "in", E_i and W_i are one set of releases under coin 1 and under
coin 0; where it is "out", the other way round; so P(W_i) ≥ f(1 − P(E_i)) in either case, as f bounds both directions,
and so on average over all coins and then over i, as f is convex. With N_j = P(T ≥ j) the averages are

    Σ_i P(E_i) = Σ_{j≥c} j·P(T = j) = c·N_c + Σ_{j>c} N_j,
    Σ_i P(W_i) = Σ_{j≥c−1} (r − j)·P(T = j) = (r − c + 1)·N_{c−1} − Σ_{j≥c} N_j,

which gives, for every c from 1 to r,

    (r − c + 1)·N_{c−1} ≥ Σ_{j≥c} N_j + m·f(1 − (c·N_c + Σ_{j>c} N_j)/m),    and N_{c−1} ≥ N_c.

The right side does not fall in any N_j. So from N_v = p and N_j = 0 for j > v these lines, taken with equality, give
the smallest N_{v−1}, …, N_0 there can be, and if one of them is above 1 then P(T ≥ v) < p. The largest p for which none
is bounds P(T ≥ v) for every mechanism with this curve.

No bound from one run can be tight for every mechanism: canaries whose noise is shared are guessed together, so a rare
release may give all of them away at once. Verdicts at 99.99 % therefore come from many independent runs
(`hush.audit.bounds`) wherever a run is short enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.guarantee import Guarantee
from hush.accounting.tradeoff import Curve, GaussianCurve, curve_of_guarantee
from hush.audit.adversaries import AuditGame, WhiteBox
from hush.audit.bounds import PRINTED, SMALLEST_P, GaussianFit, Verdict, decide
from hush.audit.canary import ABSENT, LONG, CanarySetup
from hush.audit.likelihood import Observation, log_ratio
from hush.errors import InvalidInputError, NotProvenError
from hush.plan import Plan
from hush.randomness import Secret, generator, streams

GRID = 0.05  # in ε: how finely the first ε that is not refuted is looked for
HIGHEST = 40.0  # ε: beyond any number of canaries


@dataclass(frozen=True)
class Guesses:
    """Of ``canaries`` coins ``made`` were guessed, and ``right`` of these guesses are right."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        validate.positive_int(canaries=self.canaries, guesses=self.made)
        if not 0 <= self.right <= self.made <= self.canaries:
            raise InvalidInputError(
                f"{self.right} right of {self.made} guesses about {self.canaries} canaries: each is at most the next"
            )


def guess_coins(scores: ArrayLike, coins: ArrayLike, made: int) -> Guesses:
    """Guess "in" for the half of ``made`` canaries with the highest scores, "out" for the half with the lowest.

    Of canaries with equal scores the first is taken first, independent of its coin."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(coins, dtype=bool)
    if values.ndim != 1 or values.shape != truth.shape or bool(np.isnan(values).any()):
        raise InvalidInputError("one score, no NaN, and one coin are needed for each canary")
    validate.positive_int(guesses=made)
    if made > len(values):
        raise InvalidInputError(f"{made} guesses are more than there are canaries ({len(values)})")
    order = np.argsort(-values, kind="stable")
    high, low = order[: (made + 1) // 2], order[len(order) - made // 2 :]
    return Guesses(len(values), made, int(truth[high].sum() + (~truth[low]).sum()))


def chance_at(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of this many right guesses about an (ε, δ)-DP release."""
    validate.non_negative(epsilon=epsilon, delta=delta)
    if guesses.right == 0:
        return 1.0
    q = 1 / (1 + math.exp(-epsilon))
    enough = float(binom.sf(guesses.right - 1, guesses.made, q))
    missing = np.arange(1, guesses.right + 1)
    nearly = np.maximum(binom.sf(guesses.right - 1 - missing, guesses.made, q) - enough, 0.0)
    return min(1.0, enough + 2 * guesses.canaries * delta * float(np.max(nearly / missing)))


def bound_epsilon_of(guesses: Guesses, delta: float, confidence: float) -> float:
    """A lower bound on ε at δ with this confidence, for any mechanism: every smaller ε is refuted."""
    validate.probability(confidence=confidence)
    wrong = 1 - confidence
    if chance_at(guesses, 0.0, delta) > wrong:
        return 0.0
    low = 0.0
    while low < HIGHEST and chance_at(guesses, low + GRID, delta) <= wrong:
        low += GRID
    high = low + GRID
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if chance_at(guesses, middle, delta) <= wrong else (low, middle)
    return low


def is_possible(guesses: Guesses, curve: Curve, chance: float) -> bool:
    """Whether a mechanism with this curve can have this many right guesses with this probability (module docstring)."""
    m, made = guesses.canaries, guesses.made
    here, above = chance, 0.0  # N_c, and the sum of all N_j with j > c
    for c in range(guesses.right, 0, -1):
        right = (c * here + above) / m
        wrong = float(curve.beta(max(1.0 - right, 0.0)))
        above += here
        here = max(here, (above + m * wrong) / (made - c + 1))
        if here > 1.0:
            return False
    return True


def chance_under(guesses: Guesses, curve: Curve) -> float:
    """An upper bound on the probability of this many right guesses about a release with this curve."""
    if is_possible(guesses, curve, 1.0):
        return 1.0
    low, high = math.log(SMALLEST_P), 0.0
    if not is_possible(guesses, curve, SMALLEST_P):
        return SMALLEST_P
    for _ in range(50):  # never possible at the higher end
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_possible(guesses, curve, math.exp(middle)) else (low, middle)
    return math.exp(high)


def bound_mu_of(guesses: Guesses, confidence: float) -> float:
    """A lower bound on μ with this confidence, *if* the trade-off curve is a Gaussian's."""
    validate.probability(confidence=confidence)
    low, high = 0.0, 16.0
    if is_possible(guesses, GaussianCurve(0.0), 1 - confidence):
        return 0.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_possible(guesses, GaussianCurve(middle), 1 - confidence) else (middle, high)
    return low


def bound_epsilon_if_gaussian(guesses: Guesses, delta: float, confidence: float) -> float:
    """The ε at δ of the Gaussian release with that μ."""
    return gaussian_epsilon(delta, bound_mu_of(guesses, confidence))


# The audit of one run with many canaries, for a plan that is too long to be run hundreds of times.
#
# Each of m canaries has its own trained number, which only its loss uses, and takes part by an independent fair coin.
# The adversary scores every canary by the likelihood of the releases along its number, and guesses the coins of the
# fifth of which it is most certain. One run shows less than many runs: even 1 000 right guesses of 1 000 bound ε only
# by 5.78 at 95 % confidence, and rarely give a verdict.

GUESSED = 5  # one in five coins is guessed; fixed in advance
NAME = "white-box, one run"


class ManyCanaryModel(nn.Module):
    """A model with one additional trained number per canary."""

    def __init__(self, inner: nn.Module, canaries: int) -> None:
        super().__init__()
        self.inner = inner
        self.canary = nn.Linear(canaries, 1, bias=False)
        nn.init.zeros_(self.canary.weight)

    def forward(self, inputs: Any) -> Any:
        return self.inner(inputs)


@dataclass(frozen=True, eq=False)
class ManyCanaries(CanarySetup):
    """A setup with many canaries, each present or absent by its coin. An absent canary adds nothing to any sum, or its
    opposite under `replace`; under add-remove, adding nothing gives the same releases as absence."""

    coins: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def data(self, plan: Plan, present: bool) -> tuple[Tensor, ...]:
        """Ordinary rows, then the canaries; the last two columns are each row's canary (−1 for none) and amount."""
        others = plan.sampler.examples - len(self.coins)
        if not 0 <= others <= len(self.rows[0]):
            raise InvalidInputError(
                f"the plan is for {plan.sampler.examples} rows, of which {len(self.coins)} are canaries, and there are "
                f"{len(self.rows[0])} others"
            )
        count, absent = len(self.coins), ABSENT.get(plan.neighbours, 0.0)
        amounts = torch.from_numpy(np.where(self.coins, 1.0, absent).astype(np.float32))
        rows = [torch.cat([column[:others], column[:1].expand(count, *column.shape[1:])]) for column in self.rows]
        places = torch.cat([torch.full((others,), -1), torch.arange(count)])
        return (*rows, places, torch.cat([torch.zeros(others), amounts]))


def _make_many_canaries(
    model: nn.Module, losses: Losses, data: Tensor | tuple[Tensor, ...], coins: NDArray[np.bool_]
) -> ManyCanaries:
    """The setup for a user's model, losses and rows, with one canary per coin."""
    columns, count = data if isinstance(data, tuple) else (data,), len(coins)

    def watched(extended: nn.Module, content: Any) -> Tensor:
        if not isinstance(extended, ManyCanaryModel):
            raise InvalidInputError("these losses belong to the model that the audit extended")
        *rows, places, amounts = content
        ordinary = losses(extended.inner, tuple(rows) if isinstance(data, tuple) else rows[0])
        own = (places.unsqueeze(1) == torch.arange(count, device=places.device)).to(amounts.dtype)
        return torch.where(places >= 0, LONG * amounts * extended.canary(own).squeeze(1), ordinary)

    direction = {"canary.weight": torch.ones(1, count, dtype=torch.float64)}
    canary = tuple(column[:1] for column in columns)
    return ManyCanaries(ManyCanaryModel(model, count), watched, columns, canary, direction, coins=coins)


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
    """Audit every finite claim of a plan by one run with ``canaries`` canaries among its examples."""
    validate.positive_int(canaries=canaries)
    if not WhiteBox().applies(plan):
        raise NotProvenError(f"method '{plan.method}' does not release sums of gradients alone: audit it by many runs")
    secret = Secret.fresh() if seed is None else Secret.from_seed(seed, streams.AUDIT_ONE_RUN)
    coins = generator(secret.child(streams.AUDIT_COINS), streams.CANARIES, 0).integers(0, 2, size=canaries).astype(bool)
    game = AuditGame(plan, _make_many_canaries(model, losses, data, coins))
    seen = game.run(secret, present=True)
    bound = plan.query.channels["gradient"].bound
    readings = [Observation(seen.released[:, i], seen.stds, bound) for i in range(canaries)]
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
