"""`hush.audit_plan`: what somebody's own plan leaks, with their own model and losses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hush.audit.adversaries import Adversary, strongest
from hush.audit.auditing import RUNS, Progress, audit_stage
from hush.audit.many_canaries import audit_once
from hush.audit.stage import extend
from hush.audit.verdict import Verdict
from hush.errors import BadInput
from hush.named import Losses
from hush.plan import Plan


def audit_plan(
    plan: Plan,
    model: nn.Module,
    losses: Losses,
    data: Tensor | tuple[Tensor, ...],
    *,
    adversaries: Sequence[Adversary] = (),
    runs: int = RUNS,
    canaries: int | None = None,
    seed: int | None = None,
    comparisons: int = 1,
    progress: Progress | None = None,
) -> tuple[Verdict, ...]:
    """Measure what a plan of one's own leaks: a verdict for each of its claims and each adversary.

    The plan is run ``runs`` times with the model's initial weights on rows of ``data`` (a tensor or a tuple of them, at
    least as many as the plan is for), half of the time with a canary among them: take a plan of few steps on a few
    hundred rows that is otherwise the one to be audited. ``comparisons`` counts other audits that this one is part of.

    With ``canaries`` the plan is run once, with so many canaries in the place of as many of its examples, each by its
    own coin: for a plan that is too long to be run hundreds of times. That shows less.

    >>> verdicts = hush.audit_plan(plan, model, losses, (images, labels), runs=400)
    """
    if canaries is not None:
        if adversaries:
            raise BadInput("one run with many canaries has an adversary of its own: leave adversaries out")
        return audit_once(plan, model, losses, data, canaries=canaries, seed=seed, comparisons=comparisons)
    chosen = tuple(adversaries) or (strongest(plan),)
    stage = extend(model, losses, data)
    made = comparisons * len(chosen)
    audits = [
        audit_stage(plan, stage, adversary=a, runs=runs, seed=seed, comparisons=made, progress=progress) for a in chosen
    ]
    return tuple(verdict for audit in audits for verdict in audit.verdicts)
