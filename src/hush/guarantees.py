"""The guarantee of a plan: its privacy events, the cost of repeated steps, and every ε.

A query whose channels are plain sums is accounted by the table below; any other query makes its own claims. A plan that
trains on released values (`hush.data_release`) has the claims of that release. If s steps
were taken and the run continues from step t with a fresh secret, then up to step T it costs

| the plan                                          | costs                 |
|--------------------------------------------------------|-----------------------|
| fresh batches and independent noise at every step      | E(1…s) ∘ E(t+1…T)     |
| correlated noise, fixed batches, or a hidden state     | E(1…s) ∘ E(1…T)       |

E(1…T) bounds the second attempt because that attempt is a run in which no example participates before step t: its
sampling and noise are fresh, the noise restarts, and fixed batches or groups stay those of the first secret, so no
example participates more often than planned. A hidden state (DiceSGD's error) carries information from the first
attempt; its proof charges every step for whatever the state holds, so the steps compose. Composed releases
(`hush.data_release`) are made once, however often steps are repeated: each claim is composed with them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dp_accounting import dp_event

from hush import sampling
from hush._internal.identity import describe
from hush._internal.imports import read_versions
from hush.accounting import accountant as accounting
from hush.accounting import calibration, events
from hush.accounting.accountant import Accountant, Adjacency
from hush.accounting.guarantee import BLINDLY, FAST, FIXED, KEPT, PRECISE, Guarantee
from hush.accounting.selection import INDEPENDENT, Trials
from hush.accounting.tradeoff import curve_of_guarantee, sample_points
from hush.clipping.base import Claim, PlainSumProof, Query
from hush.data_release import check_composed, compose_releases, join_names
from hush.errors import InvalidInputError, NotProvenError
from hush.matrix_factorization.identity import drop_first
from hush.matrix_factorization.strategy import Strategy
from hush.randomness import Secret
from hush.sampling import Participation

if TYPE_CHECKING:
    from hush.plan import Plan


# The table of proofs: the only place where sampler and noise become a privacy event.
#
# | participation                 | noise                        | event                                          |
# |-------------------------------|------------------------------|------------------------------------------------|
# | Poisson, rate q               | independent                  | T × PoissonSampled(q, Gaussian(σ))             |
# | fixed size                    | independent                  | T × SampledWithoutReplacement(N, L, Gaussian)  |
# | same order, separated, a pass | any C                        | Gaussian(σ), Z scaled by sens(C)               |
# | reshuffled every epoch        | restarted within every epoch | epochs × Gaussian(σ)                           |
# | cyclic Poisson, w groups      | at most w bands              | ⌈T/w⌉ × PoissonSampled(q, Gaussian(σ))         |
#
# A bound of one step holds for any parameters, so steps compose although each depends on what earlier ones released.
# With the rows of G the sums of all steps, Z independent normal numbers and M = C⁻¹, correlated noise releases
# G + σMZ = M(CG + σZ), which is computed from CG + σZ alone: one example moves CG by at most sens(C).
#
# Poisson batches are analysed under add-remove, or under zero-out if the number of examples N is public, as it is when
# q = L/N was computed from N counted in the data. Both have the same event: with q fixed, a step without the example
# and a step in which its contribution is zero sample the other examples in the same way and release the same
# distribution, N(Σ, σ²) against the mixture (1 − q)·N(Σ, σ²) + q·N(Σ + v, σ²). So the pair of distributions, and ε, is
# the same; the only difference is what is hidden: add-remove also hides that the example was present.
#
# If independent noise follows a public schedule σ_t, the composition uses the σ_t of each step (epoch, visit). Every
# other combination raises an error that says what to use instead. Events are written for the sensitivity of their own
# adjacency: under `replace` one example leaves and another joins, so Gaussian(σ) becomes Gaussian(σ/2).


def own_adjacency(participation: Participation) -> Adjacency:
    """The adjacency under which a participation is analysed by default."""
    match participation:
        case sampling.PoissonSampled():
            return "add-remove"
        case sampling.WithoutReplacement():
            return "replace"
        case (
            sampling.OnePass()
            | sampling.SameOrder()
            | sampling.Separated()
            | sampling.Reshuffled()
            | sampling.CyclicPoissonSampled()
        ):
            return "zero-out"
    raise NotProvenError(_unknown(participation))


def find_sensitivity(participation: Participation, structure: Strategy) -> float:
    """The largest ‖C Δ‖ over what one example of unit norm can contribute in one unit of the event.

    The unit is the whole run where the event is one Gaussian, an epoch where it composes epochs, and one step (or
    one visit to a group) where it composes sampled steps.
    """
    match participation:
        case sampling.PoissonSampled() | sampling.WithoutReplacement():
            return 1.0
        case sampling.OnePass() | sampling.CyclicPoissonSampled():
            return structure.single()
        case sampling.Reshuffled():
            return structure.single()  # restarted every epoch (or independent), so an example participates once
        case sampling.SameOrder(per_epoch=per_epoch):
            return structure.same_order(per_epoch)
        case sampling.Separated(times=times, apart=apart):
            return structure.separated(times, apart)
    raise NotProvenError(_unknown(participation))


def event_of(
    participation: Participation, structure: Strategy, scale: float, adjacency: Adjacency, steps: int
) -> dp_event.DpEvent:
    """The event of the first ``steps`` steps, where Z is injected with ``scale`` times the query's bound."""
    check_proof(participation, structure, adjacency)
    part: Any = replace(participation, steps=steps)
    first = structure.first(steps) if steps < structure.steps else structure
    scale = scale / 2.0 if adjacency == "replace" else scale
    match part:
        case sampling.PoissonSampled(rate=rate):
            return _composed(first, 1, scale, lambda gaussian: dp_event.PoissonSampledDpEvent(rate, gaussian))
        case sampling.WithoutReplacement(examples=n, size=size):
            return _composed(
                first, 1, scale, lambda gaussian: dp_event.SampledWithoutReplacementDpEvent(n, size, gaussian)
            )
        case sampling.Reshuffled(per_epoch=b):
            return _composed(first, b, scale, lambda gaussian: gaussian)
        case sampling.CyclicPoissonSampled(groups=w, rate=rate):
            return _composed(first, w, scale, lambda gaussian: dp_event.PoissonSampledDpEvent(rate, gaussian))
    return dp_event.GaussianDpEvent(scale / find_sensitivity(part, first))


def check_proof(participation: Participation, structure: Strategy, adjacency: Adjacency) -> None:
    """Raise for combinations that are not in the table, with the reason and the remedy."""
    if structure.steps < participation.steps:
        raise InvalidInputError(f"the noise covers {structure.steps} steps and the sampler takes {participation.steps}")
    own = own_adjacency(participation)
    match participation:
        case sampling.PoissonSampled() | sampling.WithoutReplacement() if structure.bands != 1:
            raise NotProvenError(
                "correlated noise has no proof on batches that are sampled independently at every step, because the "
                "same example can participate in correlated steps at unknown distances: use fixed batches in the same "
                "order (sampling 'same-order'), or banded noise with cyclic Poisson sampling (method dp-bandmf)"
            )
        case sampling.Reshuffled(per_epoch=b) if structure.restarts is None or b % structure.restarts:
            raise NotProvenError(
                "batches reshuffled every epoch are proven only with noise that is independent or restarted within "
                "every epoch: use sampling 'same-order', or restart the noise every epoch"
            )
        case sampling.CyclicPoissonSampled(groups=w) if structure.bands is None or structure.bands > w:
            raise NotProvenError(
                f"cyclic Poisson sampling with {w} groups is proven only for noise of at most {w} bands: "
                "use that many bands, or fixed batches in the same order"
            )
    if participation.poisson_rate is not None and adjacency == "zero-out":
        return
    cyclic = isinstance(participation, sampling.CyclicPoissonSampled)
    if adjacency != own and (cyclic or adjacency != "replace"):
        public = ", or 'zero-out' if the number of examples is public" if own == "add-remove" else ""
        raise NotProvenError(
            f"{type(participation).__name__} batches are analysed under '{own}' adjacency; "
            f"'{adjacency}' has no proof here: use '{own}'{public}"
        )


def _composed(
    structure: Strategy, length: int, scale: float, sampled: Callable[[dp_event.DpEvent], dp_event.DpEvent]
) -> dp_event.DpEvent:
    """One sampled Gaussian per ``length`` steps; those with equal σ are counted together."""
    parts = [
        dp_event.SelfComposedDpEvent(sampled(dp_event.GaussianDpEvent(scale / norm)), count)
        for norm, count in structure.block_norms(length).items()
    ]
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def _unknown(participation: object) -> str:
    return (
        f"{type(participation).__name__} is not a participation with a proof: declare one of PoissonSampled, "
        "WithoutReplacement, OnePass, SameOrder, Separated, Reshuffled or CyclicPoissonSampled"
    )


# Steps repeated with fresh noise: which steps, and under which secret their batches are drawn.
#
# A step repeated with the same sums and the same secret is the same release and costs nothing. If the sums changed it
# needs a fresh secret, and both are charged. An attempt is a range of steps under one secret.


@dataclass(frozen=True)
class Replay:
    """The steps ``start`` … ``taken`` − 1 (from 0) under one secret."""

    start: int = 0
    taken: int = 0


@dataclass(frozen=True)
class ReplayHistory:
    """Every attempt of a run, and the index of the current one."""

    attempts: tuple[Replay, ...] = (Replay(),)
    current: int = 0

    @property
    def now(self) -> Replay:
        """The current attempt."""
        return self.attempts[self.current]

    @property
    def again(self) -> tuple[Replay, ...]:
        """All attempts but the first."""
        return self.attempts[1:]

    def reached(self, steps: int) -> ReplayHistory:
        """The history after the current attempt has taken all steps before ``steps``."""
        if steps <= self.now.taken:
            return self
        moved = replace(self.now, taken=steps)
        return replace(self, attempts=(*self.attempts[: self.current], moved, *self.attempts[self.current + 1 :]))

    def renewed(self, step: int) -> ReplayHistory:
        """The history with a new attempt from this step on."""
        return ReplayHistory((*self.attempts, Replay(step, step)), len(self.attempts))

    def joined(self, others: Sequence[Replay]) -> ReplayHistory:
        """Merge another copy of the history: a step counts as taken if either copy says so."""
        pairs = zip(self.attempts, others, strict=False)
        both = [Replay(min(a.start, b.start), max(a.taken, b.taken)) for a, b in pairs]
        longer = max(self.attempts, others, key=len)
        return replace(self, attempts=(*both, *longer[len(both) :]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"attempts": [[a.start, a.taken] for a in self.attempts], "current": self.current}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ReplayHistory:
        """Back from `to_json`."""
        return ReplayHistory(tuple(Replay(int(a), int(b)) for a, b in data["attempts"]), int(data["current"]))


def pick_secret(secret: Secret, participation: Participation) -> Secret:
    """The secret for drawing batches: the first one for fixed batches, the current one for random batches.

    Fixed groups with sampling inside them use the stream `streams.ORDER`, which stays that of the first secret."""
    return secret.first if participation.fixed_batches else secret


def check_claims(plan: Plan) -> None:
    """Raise `NotProvenError` for a plan without a proof, unless the user accepted a claim instead."""
    query = plan.query
    if not isinstance(query, Query):
        raise InvalidInputError(
            f"{type(query).__name__} is not a query: implement every method of hush.clipping.Query; `claims` of a "
            "plain sum returns PLAIN_SUM"
        )
    own = _own_claims(plan, plan.steps)
    if own is None:
        check_proof(plan.sampler.participation, plan.noise.structure, plan.neighbours)
        check_composed(plan.composed, None, plan.neighbours)
        return
    if not plan.noise.structure.alike:
        raise NotProvenError(
            f"{type(plan.trains_on or query).__name__} has its own proof, which holds for independent noise that is "
            "the same at every step: use Independent noise without a schedule"
        )
    if any(claim.adjacency != plan.neighbours for claim in own):
        raise NotProvenError(
            f"method '{plan.method}' is analysed under '{own[0].adjacency}' adjacency; "
            f"'{plan.neighbours}' has no proof here: use '{own[0].adjacency}'"
        )
    if not any(claim.status == "proven" for claim in own) and not plan.accept_claimed:
        raise NotProvenError(
            f"method '{plan.method}' has only a claimed ε, which this project could not prove: "
            "accept it with --accept-claimed (accept_claimed=True), or use a proven method such as dp-sgd"
        )
    for claim in own:
        check_composed(plan.composed, claim.event, claim.adjacency)


def claim_steps(
    plan: Plan, steps: int | None = None, sigma: float | None = None, *, start: int = 0
) -> tuple[Claim, ...]:
    """Every claim about the first ``steps`` steps (by default all) with the composed releases, the proven one first.

    ``sigma`` overrides the plan's σ; ``start`` restricts claims of the table to the steps from there on."""
    return tuple(_as_run(plan, claim) for claim in _claim_training(plan, steps, sigma, start=start))


def _claim_training(
    plan: Plan, steps: int | None = None, sigma: float | None = None, *, start: int = 0
) -> tuple[Claim, ...]:
    """The same claims for training alone."""
    count = plan.steps if steps is None else steps
    if not 1 <= count <= plan.steps:
        raise InvalidInputError(f"steps must be between 1 and the plan's {plan.steps}, got {count}")
    own = _own_claims(plan, count, sigma)
    if own is not None:
        return own
    scale = (plan.sigma if sigma is None else sigma) * plan.sensitivity
    participation, structure = _drop(start, plan.sampler.participation, plan.noise.structure)
    event = event_of(participation, structure, scale, plan.neighbours, count - start)
    return (Claim(event, plan.neighbours, "proven", ""),)


def find_event(plan: Plan, steps: int | None = None, *, start: int = 0) -> Any:
    """The event of steps ``start`` to ``steps`` with the composed releases; raises without a proof.

    Fast arithmetic has the same event, but its ε is claimed."""
    claims = _claim_training(plan, steps, start=start)
    return _find_proven(plan, [_with_composed(plan, claim) for claim in claims])


def _find_proven(plan: Plan, claims: Iterable[Claim]) -> Any:
    for claim in claims:
        if claim.status == "proven":
            return claim.event
    raise NotProvenError(f"method '{plan.method}' has no proven privacy event")


def has_proof(plan: Plan) -> bool:
    """Whether the event is proven, in either arithmetic."""
    return any(claim.status == "proven" for claim in _claim_training(plan))


def claim_attempts(plan: Plan, attempts: Iterable[Replay]) -> tuple[Claim, ...]:
    """The cost of all attempts together with the composed releases, for every claim about the plan; the proven
    one first."""
    taken = [attempt for attempt in attempts if attempt.taken > attempt.start]
    reason = _say_again(taken)
    own = _own_claims(plan, sum(attempt.taken for attempt in taken))
    if own is not None:
        return tuple(_as_run(plan, _give_reason(claim, reason), len(taken)) for claim in own)
    independent = is_drawn_anew(plan)
    training = [_claim_training(plan, a.taken, start=a.start if independent else 0) for a in taken]
    parts = [_find_proven(plan, claims) for claims in training]
    event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
    return (_as_run(plan, Claim(event, plan.neighbours, "proven", reason), len(taken)),)


def account_steps(plan: Plan, steps: int | None = None, coordinates: int = 1) -> tuple[Guarantee, ...]:
    """Every ε of the first ``steps`` steps, each with its status; the proven one first."""
    if not plan.has_guarantee:
        return (_promise_nothing(plan),)
    said = plan.assuming(FIXED if steps is not None and steps < plan.steps else "")
    left, composed = plan.delta_left(), plan.composed_tail_delta(coordinates)
    return tuple(_account(said, claim, left, composed) for claim in claim_steps(plan, steps))


def account_attempts(plan: Plan, history: ReplayHistory, coordinates: int = 1) -> tuple[Guarantee, ...]:
    """Every ε of the whole plan, including steps that were repeated with fresh noise on ``coordinates`` values."""
    if not plan.has_guarantee or not history.again:
        return account_steps(plan, coordinates=coordinates)
    attempts = history.reached(plan.steps).attempts
    said, left = plan.assuming(BLINDLY), find_accounted_delta(plan, history, coordinates)
    return tuple(_account(said, claim, left) for claim in claim_attempts(plan, attempts))


def find_accounted_delta(plan: Plan, history: ReplayHistory, coordinates: int = 1) -> float:
    """δ that `account_attempts` passes to the accountant: what noise truncation leaves of it."""
    if not plan.has_guarantee or not history.again:
        return plan.delta_left()
    attempts = history.reached(plan.steps).attempts
    lost = len(attempts) * plan.composed_tail_delta(coordinates)
    return plan.delta_left(sum(attempt.taken for attempt in attempts), len(attempts)) - lost


def find_composed_delta(plan: Plan, history: ReplayHistory, coordinates: int = 1) -> float:
    """The same for a composition with other runs, where the truncation discount of a single ε does not apply."""
    left = find_accounted_delta(plan, history, coordinates)
    return left if history.again or not plan.has_guarantee else left - plan.composed_tail_delta(coordinates)


def find_sigma(plan: Plan, epsilon: float, which: int = 0) -> float:
    """The smallest σ at which the ε of a claim (by default the first) does not exceed ``epsilon``."""

    def event(sigma: float) -> Any:
        return claim_steps(plan, None, sigma)[which].event

    accountant = _pick_accountant(plan, event(1.0))
    left, near = plan.delta_left(), plan.neighbours
    return calibration.smallest_sigma(event, epsilon, left, adjacency=near, accountant=accountant)


def _pick_accountant(plan: Plan, event: Any) -> Accountant:
    """The requested accountant, or the tightest one that can account for the event."""
    asked = plan.accountant
    return accounting.default_accountant(event, plan.neighbours) if asked == "auto" else asked


def is_drawn_anew(plan: Plan) -> bool:
    """Whether batches and noise of a step are independent of those of every other step."""
    sampled = plan.sampler.participation.resampled
    plain = all(channel.proof == "sum" for channel in plan.query.channels.values())
    return sampled and plain and plan.noise.structure.bands == 1


def _own_claims(plan: Plan, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | None:
    """The claims of what is trained on, or the query's own, about ``steps`` steps, the proven one first; None if the
    table applies: to plain sums only."""
    if plan.trains_on is not None:
        return plan.trains_on.claims(plan.sigma if sigma is None else sigma, steps)
    found = _ask_query(plan, steps)
    if isinstance(found, PlainSumProof):
        if any(channel.proof != "sum" for channel in plan.query.channels.values()):
            name = type(plan.query).__name__
            raise NotProvenError(f"{name} is not a plain sum and names no claims of its own: nothing is proven")
        return None
    if sigma is not None:
        found = _ask_query(plan, steps, sigma)
    if isinstance(found, PlainSumProof) or not found:
        name = type(plan.query).__name__
        raise NotProvenError(f"{name} claims nothing: return its claims, or PLAIN_SUM if every channel is a plain sum")
    return tuple(sorted((_restate(claim, plan) for claim in found), key=lambda claim: claim.status != "proven"))


def _ask_query(plan: Plan, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | PlainSumProof:
    """Ask the query with the noise in units of its exact bounds; the noise that is added also covers rounding."""
    stds = {name: std / (1.0 + plan.charge) for name, std in plan.channel_stds(sigma).items()}
    return plan.query.claims(plan.sampler.participation, stds, steps)


def _restate(claim: Claim, plan: Plan) -> Claim:
    """Add-remove claims hold under zero-out too: adding zero to every sum is the same as being absent."""
    if plan.adjacency == "zero-out" and claim.adjacency == "add-remove":
        return replace(claim, adjacency="zero-out")
    return claim


def _as_run(plan: Plan, claim: Claim, attempts: int = 1) -> Claim:
    """The claim about training with the composed releases and with the finite precision of the noise of each attempt;
    with fast arithmetic, proven becomes claimed."""
    whole = _with_precision(plan, _with_composed(plan, claim), attempts)
    if whole.status != "proven" or not plan.adds_noise or plan.arithmetic != "fast":
        return whole
    return _give_reason(replace(whole, status="claimed"), FAST)


def _with_precision(plan: Plan, claim: Claim, attempts: int) -> Claim:
    """The claim about noise as it is drawn; of a choice among trials, about all of them."""
    if plan.precision is None:
        return claim
    precision = events.FinitePrecisionDpEvent(attempts * plan.precision.log_ratio, attempts * plan.precision.delta)
    if plan.trials is not None:
        precision = plan.trials.imprecise(precision)
    if isinstance(claim.event, events.Profile):
        return replace(claim, event=accounting.ImpreciseProfile(claim.event, precision))
    composed = plan.composed and plan.trials is None
    parts = claim.event.events if composed else [claim.event]
    return replace(claim, event=dp_event.ComposedDpEvent([*parts, precision]))


def _with_composed(plan: Plan, claim: Claim) -> Claim:
    """The claim about training composed with the other releases."""
    if plan.composed:
        together = replace(claim, event=compose_releases(claim.event, plan.composed))
        claim = _give_reason(together, f"this covers the model and {join_names(plan.composed)} together")
    return claim if plan.trials is None else _with_choice(plan.trials, claim)


def _with_choice(trials: Trials, claim: Claim) -> Claim:
    """The claim about the best of a random number of such runs, each of which costs at most the given claim."""
    if claim.status != "proven" or events.to_json(claim.event) is None:
        raise NotProvenError(
            "choosing among trials needs a proven event that can be serialized: use dp-sgd or another such method"
        )
    reason = f"this covers the choice of the best of a secret number of trials, {trials.mean:g} on average"
    return _give_reason(replace(claim, event=trials.event(claim.event)), reason)


def _give_reason(claim: Claim, reason: str) -> Claim:
    """The claim with one more reason, listed first."""
    return replace(claim, reason="; ".join(filter(None, (reason, claim.reason))))


def _drop(start: int, participation: Any, structure: Strategy) -> tuple[Any, Strategy]:
    """Participation and noise of the steps from ``start`` on, if steps are independent."""
    if start == 0:
        return participation, structure
    return replace(participation, steps=participation.steps - start), drop_first(structure, start)


def _say_again(taken: Sequence[Replay]) -> str:
    if len(taken) < 2:
        return ""
    parts = " and ".join(f"{a.start + 1} to {a.taken}" for a in taken[1:])
    why = "as their sums had changed or could not be compared"
    return f"steps {parts} were taken again with fresh noise, {why}, and every taking is counted"


def _account(plan: Plan, claim: Claim, left: float, composed: float = 0.0) -> Guarantee:
    """The ε of a claim at ``left``, the rest of δ; at a larger ε, ``composed`` is subtracted from δ as well."""
    accountant, epsilon = _pick_accountant(plan, claim.event), math.inf
    if left > 0:
        epsilon = accounting.epsilon(claim.event, left, adjacency=claim.adjacency, accountant=accountant)
    if plan.trials is not None and epsilon > plan.trials.ceiling:
        epsilon = math.inf  # the δ lost by trials is accounted up to this ε only
    return Guarantee(
        epsilon=epsilon,
        delta=plan.delta,
        adjacency=claim.adjacency,
        status=claim.status,
        event=claim.event,
        accountant=accountant,
        assumptions=_list_assumptions(plan),
        reason=claim.reason,
        method=plan.method,
        unit=plan.unit,
        protects=claim.protects,
        # the δ lost by trials is accounted for one ε only, so other δ are unknown
        lost=None if plan.trials else (plan.delta - left, plan.delta - left + composed),
    )


def _list_assumptions(plan: Plan) -> tuple[str, ...]:
    """The assumptions of the guarantee, each once: of the plan, of the composed releases, of a choice among trials,
    and that parts not written by hush satisfy their contracts."""
    theirs = [] if plan.trains_on is None else [*plan.trains_on.assumptions]
    theirs += [text for release in plan.composed for text in release.assumptions]
    parts: dict[str, Any] = {"sampler": plan.sampler, "query": plan.query, "noise": plan.noise}
    parts |= {} if plan.trains_on is None else {"data release": plan.trains_on}
    theirs += [KEPT.format(kind, type(part).__qualname__) for kind, part in parts.items() if not _is_own(part)]
    theirs += [] if plan.trials is None else [INDEPENDENT]
    theirs += [PRECISE] if plan.draws_otherwise else []
    return tuple(dict.fromkeys((*plan.assumptions, *theirs))) if theirs else plan.assumptions


def _is_own(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "hush"


def _promise_nothing(plan: Plan) -> Guarantee:
    return Guarantee(
        epsilon=math.inf,
        delta=plan.delta,
        adjacency="add-remove",
        status="none",
        event=None,
        accountant="none",
        reason="ordinary training: no clipping and no noise",
        unit=plan.unit,
    )


# The privacy card: what is published about a run.

NOTHING_AGAIN = ReplayHistory()
LATER = ("gradients", "dataset", "date", "digests", "own_digest")  # entries added to a card when it is released


def make_card(
    plan: Plan,
    *,
    steps_taken: int,
    history: ReplayHistory = NOTHING_AGAIN,
    coordinates: int = 1,
    metrics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The guarantee of a run, every claim, and the plan itself, as plain data.

    ``metrics`` are publishable entries about the model's quality: computed on public rows, or noisy counts whose
    release is in ``plan.composed``."""
    claims = [_write(guarantee) for guarantee in account_attempts(plan, history, coordinates)]
    accounted = {"event": claims[0]["event_json"], "delta": find_accounted_delta(plan, history, coordinates)}
    stated = {
        "format": "hush privacy card 1",
        "method": plan.method,
        "guarantee": claims[0],
        "claims": claims,
        "accounting": accounted,
        "noise_multiplier": plan.sigma,
        "sensitivity": plan.sensitivity,
        "noise_std": plan.noise_std,
        "arithmetic": _describe_arithmetic(plan),
        "divisor": plan.divisor,
        "steps": plan.steps,
        "steps_taken": steps_taken,
        "beside": [release.to_json() for release in plan.composed],
        "plan": describe(plan),
        "versions": read_versions("hush", "torch", "dp-accounting"),
    }
    if plan.rows_per_unit is not None:
        stated["rows_per_unit"] = plan.rows_per_unit
    return {**stated, **_check_metrics(metrics or {}, stated.keys())}


def _check_metrics(metrics: Mapping[str, Any], stated: Collection[str]) -> Mapping[str, Any]:
    """Raise if metrics would replace an entry of the card."""
    taken = sorted(name for name in metrics if name in stated or name in LATER)
    if taken:
        raise InvalidInputError(f"metrics cannot have the name '{taken[0]}', which the privacy card uses: rename it")
    return metrics


def _write(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as JSON; if its event cannot be rebuilt from JSON, points (ε, δ) of its curve are added."""
    written = guarantee.to_json()
    if guarantee.private and written["event_json"] is None:
        written["points"] = sample_points(curve_of_guarantee(guarantee), guarantee.epsilon)
    return written


def _describe_arithmetic(plan: Plan) -> dict[str, Any]:
    """The cost of floating point: the share that rounding adds to the bound."""
    return {"mode": plan.arithmetic, "charge": plan.charge}
