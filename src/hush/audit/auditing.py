"""The audit of a plan: its own runs with the canary and without it, scored, and compared with what it claims.

All runs are independent, each with a secret of its own. The first quarter of the scores chooses two thresholds, one for
the verdict and one for the printed bound; the rest are counted at them. One adversary and its threshold are one
comparison for each claim; whoever audits several times, or many methods, says so by ``comparisons``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hush import validate
from hush.audit.adversaries import Adversary, strongest
from hush.audit.bounds import (
    Errors,
    GaussianFit,
    Worth,
    bound_epsilon,
    bound_mu,
    choose_threshold,
    count_errors,
    refutation_p,
)
from hush.audit.stage import Stage
from hush.audit.verdict import PRINTED, Verdict, decide
from hush.audit.watching import Game
from hush.claims import claim_steps
from hush.errors import BadInput, Refused
from hush.plan import Plan
from hush.privacy.guarantee import Guarantee
from hush.privacy.profile import gaussian_epsilon
from hush.privacy.tradeoff import curve_of_guarantee
from hush.randomness import Secret

RUNS = 400  # half of them with the canary
CHOOSING = 4  # one in so many scores chooses the threshold
Progress = Callable[[int, int], None]  # runs done, runs in all


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of runs with the canary and without it, in the order in which they were made."""

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]

    def count(self, worth: Worth) -> Errors:
        """The errors of the later scores, at the threshold that is worth most by the first quarter."""
        first = [len(scores) // CHOOSING for scores in (self.inside, self.outside)]
        if min(first) < 1:
            raise BadInput(f"an audit needs at least {2 * CHOOSING} runs, to choose a threshold and to count at it")
        chosen = choose_threshold(self.inside[: first[0]], self.outside[: first[1]], worth)
        return count_errors(self.inside[first[0] :], self.outside[first[1] :], chosen)

    def count_for_verdict(self) -> Errors:
        """At the threshold with the fewest errors of both kinds together."""
        return self.count(lambda e: -(e.false_positives / e.outside + e.false_negatives / e.inside))

    def count_for_bound(self, delta: float) -> Errors:
        """At the threshold with the largest bound on ε, at the confidence that is printed."""
        return self.count(lambda errors: bound_epsilon(errors, delta, PRINTED))


def collect_scores(
    plan: Plan,
    stage: Stage,
    adversary: Adversary,
    *,
    runs: int = RUNS,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """The scores of so many runs, with and without the canary by turns; secrets are the system's unless seeded, and
    those of another method or adversary are others."""
    validate.whole(runs=runs)
    game, stream = Game(plan, stage), f"audit/{plan.method}/{adversary.name}"
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(runs):
        secret = Secret.fresh() if seed is None else Secret.from_seed(seed, f"{stream}/{number}")
        found[number % 2 == 0].append(adversary.score(game, secret, present=number % 2 == 0))
        if progress is not None:
            progress(number + 1, runs)
    return Scores(np.array(found[True]), np.array(found[False]))


def judge_claim(
    guarantee: Guarantee, scores: Scores, adversary: str, *, comparisons: int = 1, status: str = ""
) -> Verdict:
    """What the scores say about one claim, which is a trade-off curve and not only its (ε, δ). ``status`` is that which
    its method gives it, where an earlier finding has changed the guarantee's own."""
    errors, delta = scores.count_for_verdict(), guarantee.delta
    p = refutation_p(errors, curve_of_guarantee(guarantee))
    return Verdict(
        method=guarantee.method,
        status=status or guarantee.status,
        claimed_epsilon=guarantee.epsilon,
        delta=delta,
        epsilon_lower=float(bound_epsilon(scores.count_for_bound(delta), delta, PRINTED)),
        verdict=decide([p], comparisons),
        adversary=adversary,
        p_value=p,
        comparisons=comparisons,
        runs=len(scores.inside) + len(scores.outside),
        epsilon_if_gaussian=gaussian_epsilon(delta, float(bound_mu(errors, PRINTED))),
        epsilon_estimate=GaussianFit.of(scores.inside, scores.outside).epsilon(delta),
    )


@dataclass(frozen=True, eq=False)
class Audit:
    """One adversary's scores of one plan, and what they say about each of its claims."""

    claims: tuple[Guarantee, ...]
    verdicts: tuple[Verdict, ...]
    scores: Scores


def audit_stage(
    plan: Plan,
    stage: Stage,
    *,
    adversary: Adversary | None = None,
    runs: int = RUNS,
    seed: int | None = None,
    comparisons: int = 1,
    progress: Progress | None = None,
) -> Audit:
    """Every finite claim of a plan, audited on a stage by one adversary (the strongest that applies)."""
    if not plan.private:
        raise Refused(f"method '{plan.method}' claims nothing, so there is nothing to audit: audit a private one")
    chosen = adversary or strongest(plan)
    if not chosen.applies(plan):
        raise Refused(f"the adversary '{chosen.name}' does not apply to method '{plan.method}': use another")
    stated = [claim.status for claim in claim_steps(plan)]
    claims = [pair for pair in zip(plan.claims(), stated, strict=True) if pair[0].status != "none"]
    scores = collect_scores(plan, stage, chosen, runs=runs, seed=seed, progress=progress)
    made = comparisons * len(claims)
    verdicts = [judge_claim(claim, scores, chosen.name, comparisons=made, status=own) for claim, own in claims]
    return Audit(tuple(claim for claim, _ in claims), tuple(verdicts), scores)
