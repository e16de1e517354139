"""The audit of a plan: runs with and without the canary are scored and compared with the plan's claims.

All runs are independent, each with its own secret. The first quarter of the scores chooses two thresholds, one for the
verdict and one for the printed bound; the other scores are counted at these thresholds. One adversary and its threshold
are one comparison per claim; ``comparisons`` counts several audits, or several methods.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.imports import read_own_version
from hush._internal.storage import write_atomic
from hush._internal.tensors import Losses
from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.guarantee import AuditFinding, Guarantee
from hush.accounting.tradeoff import curve_of_guarantee
from hush.audit.adversaries import Adversary, AuditGame, strongest
from hush.audit.bounds import (
    PRINTED,
    Errors,
    GaussianFit,
    Verdict,
    Worth,
    bound_epsilon,
    bound_mu,
    choose_threshold,
    count_errors,
    decide,
    refutation_p,
)
from hush.audit.canary import (
    CanarySetup,
    extend,
    make_digits_setup,
    make_features_setup,
    make_labels_setup,
    make_lonely_setup,
)
from hush.audit.one_run import audit_once
from hush.clipping.adaptive import CHANNEL
from hush.data_source import as_source
from hush.datasets import catalogue as problems
from hush.errors import FormatError, InvalidInputError, NotProvenError
from hush.guarantees import claim_steps, find_sigma
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.randomness import Secret, seeded, streams

RUNS = 400  # half of them with the canary
CHOOSING = 4  # one in four scores chooses the threshold
Progress = Callable[[int, int], None]  # runs done, runs in all


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of runs with the canary and without it, in the order in which they were made."""

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]

    def count(self, worth: Worth) -> Errors:
        """The errors of the later scores, at the threshold that maximises ``worth`` on the first quarter."""
        first = [len(scores) // CHOOSING for scores in (self.inside, self.outside)]
        if min(first) < 1:
            raise InvalidInputError(
                f"an audit needs at least {2 * CHOOSING} runs, to choose a threshold and to count at it"
            )
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
    setup: CanarySetup,
    adversary: Adversary,
    *,
    runs: int = RUNS,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """The scores of ``runs`` runs, alternately with and without the canary. Secrets come from the operating system, or
    from ``seed`` together with method and adversary."""
    validate.positive_int(runs=runs)
    game = AuditGame(plan, setup)
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(runs):
        secret = (
            Secret.fresh()
            if seed is None
            else Secret.from_seed(seed, streams.audit_run(plan.method, adversary.name, number))
        )
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


def audit_claims(
    plan: Plan,
    setup: CanarySetup,
    *,
    adversary: Adversary | None = None,
    runs: int = RUNS,
    seed: int | None = None,
    comparisons: int = 1,
    progress: Progress | None = None,
) -> Audit:
    """Every finite claim of a plan, audited on a setup by one adversary (the strongest that applies)."""
    if not plan.has_guarantee:
        raise NotProvenError(
            f"method '{plan.method}' claims nothing, so there is nothing to audit: audit a private one"
        )
    chosen = adversary or strongest(plan)
    if not chosen.applies(plan):
        raise NotProvenError(f"the adversary '{chosen.name}' does not apply to method '{plan.method}': use another")
    stated = [claim.status for claim in claim_steps(plan)]
    claims = [pair for pair in zip(plan.claims(), stated, strict=True) if pair[0].status != "none"]
    scores = collect_scores(plan, setup, chosen, runs=runs, seed=seed, progress=progress)
    made = comparisons * len(claims)
    verdicts = [judge_claim(claim, scores, chosen.name, comparisons=made, status=own) for claim, own in claims]
    return Audit(tuple(claim for claim, _ in claims), tuple(verdicts), scores)


# The plan by which a method is audited: a few steps on a few digits, so that it can be run hundreds of times.

WHOLE_ROW = "example"
SHORT: dict[str, Any] = {"examples": 64, "batch_size": 32, "steps": 4}
ONE_PASS: dict[str, Any] = {"examples": 64, "batch_size": 16, "steps": 4}
WHOLE: dict[str, Any] = {"examples": 64, "batch_size": 64, "steps": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "dp-dice": {"examples": 64, "batch_size": 16, "steps": 24, "clip_feedback": 10.0},
    "dp-bandmf": {"examples": 64, "batch_size": 16, "steps": 8, "bands": 2},
    "dp-matrix-se": ONE_PASS,
    "dp-matrix-se-lambda": ONE_PASS,
    "sanitize-once": WHOLE,
    "label-rr": WHOLE,
}


def list_audited() -> tuple[str, ...]:
    """Every method that comes with hush and claims something, in their order."""
    return tuple(name for name in catalogue() if name != "sgd")


def list_whole() -> tuple[str, ...]:
    """Those of them that protect whole rows, and can be audited on any problem."""
    return tuple(name for name in list_audited() if _name_protected(make_audit_plan(name, 4.0, 1e-5)) == WHOLE_ROW)


def make_audit_setup(plan: Plan, problem: str | None = None) -> CanarySetup:
    """The small real problem for a plan, by the half of a row that it protects; or the first rows and the model of a
    ``problem`` by name, for a plan that protects whole rows."""
    if problem is not None:
        return _extend_problem(plan, problem)
    match _name_protected(plan):
        case "features":
            return make_features_setup(plan)
        case "labels":
            return make_labels_setup()
    return make_lonely_setup() if CHANNEL in plan.query.channels else make_digits_setup()


def _extend_problem(plan: Plan, problem: str) -> CanarySetup:
    """The plan's number of rows, and the problem's model with a canary added."""
    if _name_protected(plan) != WHOLE_ROW:
        raise InvalidInputError(
            f"method '{plan.method}' protects only {_name_protected(plan)} and is audited on its own digits problem: "
            "leave --problem out"
        )
    found = problems.load(problem)
    if found.examples < plan.sampler.examples:
        raise InvalidInputError(f"'{problem}' has {found.examples} rows, and an audit needs {plan.sampler.examples}")
    with seeded(0):
        model = found.model()
    return extend(model, found.losses, as_source(found.train).take(torch.arange(plan.sampler.examples)))


def _name_protected(plan: Plan) -> str:
    return plan.claims()[-1].protects


def make_audit_plan(method: str, epsilon: float, delta: float) -> Plan:
    """The method's plan at this ε by the last of its claims, which is a claimed one if there is any.

    DiceSGD gets more steps, so that its memory has an effect, and a feedback of ten clips. Banded noise gets batches of
    half a group, so that amplification by its coins matters. Methods that release each row or label once need one
    step."""
    shape = SHAPES.get(method, SHORT)
    plan = make_plan(method, delta=delta, noise_multiplier=1.0, accept_claimed=True, **shape)
    return dataclasses.replace(plan, sigma=find_sigma(plan, epsilon, -1)) if plan.has_guarantee else plan


# `hush.audit_plan`: an audit of a user's plan with the user's model and losses.


def audit_plan(
    plan: Plan,
    model: nn.Module | None = None,
    losses: Losses | None = None,
    data: Tensor | tuple[Tensor, ...] | None = None,
    *,
    problem: str | None = None,
    adversaries: Sequence[Adversary] = (),
    runs: int = RUNS,
    canaries: int | None = None,
    seed: int | None = None,
    comparisons: int = 1,
    progress: Progress | None = None,
) -> tuple[Verdict, ...]:
    """Measure how much a plan leaks: a verdict for each of its claims and each adversary.

    The plan is run ``runs`` times with the model's initial weights on rows of ``data`` (a tensor or a tuple of tensors,
    with at least the plan's number of examples), half of the runs with a canary. Use a plan of few steps on a few
    hundred rows that otherwise equals the one to audit. ``comparisons`` is the number of audits this one is part of.
    Without a model, as in `hush audit`, on digits with a model made for audits, or on a ``problem`` by its name.

    With ``canaries`` the plan is run once and that many of its examples are replaced by canaries, each present by its
    own coin: for a plan that is too long for hundreds of runs. This shows less.

    >>> plan = hush.make_plan("dp-sgd", examples=64, batch_size=32, steps=4, epsilon=4)  # doctest: +SKIP
    >>> (verdict,) = hush.audit_plan(plan, runs=400)  # doctest: +SKIP
    >>> verdict.epsilon_lower < verdict.claimed_epsilon, verdict.verdict  # doctest: +SKIP
    (True, 'consistent')
    """
    if model is None or losses is None or data is None:
        if canaries is not None or not (model is None and losses is None and data is None):
            raise InvalidInputError("an audit of your own model, or with canaries, needs model, losses and data")
        setup = make_audit_setup(plan, problem)
    elif problem is not None:
        raise InvalidInputError(f"an audit is on problem '{problem}' or on your own data: leave one of them out")
    elif canaries is not None:
        if adversaries:
            raise InvalidInputError("an audit with canaries has its own adversary: leave adversaries out")
        return audit_once(plan, model, losses, data, canaries=canaries, seed=seed, comparisons=comparisons)
    else:
        setup = extend(model, losses, data)
    chosen = tuple(adversaries) or (strongest(plan),)
    made = comparisons * len(chosen)
    audits = [
        audit_claims(plan, setup, adversary=a, runs=runs, seed=seed, comparisons=made, progress=progress)
        for a in chosen
    ]
    return tuple(verdict for audit in audits for verdict in audit.verdicts)


# The file of refuted claims, which `hush.accounting.guarantee` reads.


def add_findings(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Write the refuted claims to the file, one per method and status. An earlier finding is kept unless this audit
    exceeds its claim by more."""
    known = {(found.method, found.status): found for found in read_findings(path)}
    for verdict in verdicts:
        if not verdict.refuted:
            continue
        new = _find(verdict)
        old = known.get((new.method, new.status))
        if old is None or _excess(new) > _excess(old):
            known[new.method, new.status] = new
    entries = [dataclasses.asdict(known[key]) for key in sorted(known)]
    write_atomic(path, (json.dumps(entries, indent=2) + "\n").encode())


def _excess(found: AuditFinding) -> float:
    return found.epsilon_lower - found.claimed_epsilon


def _find(verdict: Verdict) -> AuditFinding:
    return AuditFinding(
        method=verdict.method,
        claimed_epsilon=verdict.claimed_epsilon,
        epsilon_lower=verdict.epsilon_lower,
        delta=verdict.delta,
        confidence=verdict.confidence,
        status=verdict.status,
        source=f"hush audit, {verdict.runs} runs, adversary {verdict.adversary}, p = {verdict.p_value:.1g} against the "
        "claimed trade-off curve",
    )


def read_findings(path: Path) -> tuple[AuditFinding, ...]:
    """The findings of a file; empty if the file does not exist."""
    if not path.exists():
        return ()
    try:
        return tuple(AuditFinding(**entry) for entry in json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"'{path}' is not a file of findings: name another, or remove it") from error


# The file of finished audits: one JSON object per line, so that auditing many methods can be resumed.


@dataclass(frozen=True)
class AuditSettings:
    """The settings of an audit, without the method."""

    epsilon: float = 4.0
    delta: float = 1e-5
    runs: int = RUNS
    seed: int | None = None
    comparisons: int = 1
    problem: str | None = None  # by default the digits setup for audits

    def to_json(self) -> dict[str, Any]:
        """Plain data; without ``problem`` if none was named, as in older files."""
        return {name: value for name, value in asdict(self).items() if name != "problem" or value is not None}


def read_audits(path: Path) -> list[dict[str, Any]]:
    """The entries of the file; empty if it does not exist. An incomplete last line is ignored."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except UnicodeDecodeError as error:
        raise FormatError(f"'{path}' is not UTF-8, so not a file of audits: name another, or remove it") from error
    found = []
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            Verdict.from_json(entry)
            AuditSettings(**entry["settings"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if number == len(lines) - 1 and isinstance(error, json.JSONDecodeError):
                break
            raise InvalidInputError(
                f"line {number + 1} of '{path}' is not an audit: name another file, or remove it"
            ) from error
        found.append(entry)
    return found


def find_audits(path: Path, method: str, settings: AuditSettings) -> list[dict[str, Any]]:
    """The lines of one method with these settings, by this version of hush."""
    mine = {"settings": settings.to_json(), "version": read_own_version()}
    return [
        entry
        for entry in read_audits(path)
        if entry["method"] == method and all(entry.get(key) == value for key, value in mine.items())
    ]


def count_audits(path: Path, method: str) -> int:
    """The number of audits of the method in this file, with any settings."""
    mine = [entry for entry in read_audits(path) if entry["method"] == method]
    return len({json.dumps([entry["settings"], entry.get("version")], sort_keys=True) for entry in mine})


def find_announced(path: Path, method: str) -> int | None:
    """The smallest announced number of audits of the method in this file, or None."""
    mine = [entry for entry in read_audits(path) if entry["method"] == method]
    return min((int(entry.get("announced", entry["settings"]["comparisons"])) for entry in mine), default=None)


def keep_audits(
    path: Path, verdicts: Iterable[Verdict], settings: AuditSettings, *, announced: int, cpu_seconds: float
) -> list[dict[str, Any]]:
    """Append the verdicts on all claims of a method, with the announced number of audits and the time of this one, and
    return their entries."""
    common = {"settings": settings.to_json(), "version": read_own_version(), "announced": announced}
    common["cpu_seconds"] = round(cpu_seconds, 1)
    new = [{**verdict.to_json(), **common} for verdict in verdicts]
    lines = [json.dumps(entry, allow_nan=False) for entry in (*read_audits(path), *new)]
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return new
