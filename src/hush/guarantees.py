"""What is claimed about a mechanism: its privacy events, what steps taken again add to them, and every ε.

A query whose channels are plain sums is charged by the table of `hush.guarantees`; any other makes its claims itself.
After s steps were taken, going on from step t with a fresh secret (`hush.guarantees`) costs, in the steps up to T,

| the mechanism                                          | costs                 |
|--------------------------------------------------------|-----------------------|
| batches and noise drawn anew at every step             | E(1…s) ∘ E(t+1…T)     |
| correlated noise, fixed batches, or a hidden state     | E(1…s) ∘ E(1…T)       |

where E(1…T) bounds the second stretch because it is a run of its own in which nobody takes part before step t: its
coins and its noise are fresh, the noise starts anew, and the fixed batches or groups stay those of the first secret, so
that nobody takes part more often than planned. A hidden state (DiceSGD's error) carries the first data on; its proof
charges every step for whatever the state holds, so the steps add up. Releases beside training (`hush.data_release`)
are made once, however often steps are taken: each claim is composed with them once.
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
from hush.accounting.guarantee import BLINDLY, FAST, FIXED, KEPT, Guarantee
from hush.accounting.selection import INDEPENDENT, Trials
from hush.accounting.tradeoff import curve_of_guarantee, sample_points
from hush.clipping import Claim, PlainSumProof, Query
from hush.data_release import check_beside, compose_beside, join_names
from hush.errors import InvalidInputError, Refused
from hush.matrix_factorization import Strategy, drop_first
from hush.randomness import Secret
from hush.sampling import Participation

if TYPE_CHECKING:
    from hush.plan import Mechanism


# The one place where sampler and noise become a privacy event: the table of what is proven.
#
# | participation                 | noise                        | event                                          |
# |-------------------------------|------------------------------|------------------------------------------------|
# | Poisson, rate q               | independent                  | T × PoissonSampled(q, Gaussian(σ))             |
# | fixed size                    | independent                  | T × SampledWithoutReplacement(N, L, Gaussian)  |
# | same order, separated, a pass | any C                        | Gaussian(σ), Z scaled by sens(C)               |
# | reshuffled every epoch        | restarted within every epoch | epochs × Gaussian(σ)                           |
# | cyclic Poisson, w groups      | at most w bands              | ⌈T/w⌉ × PoissonSampled(q, Gaussian(σ))         |
#
# Poisson batches are analysed under add-remove, or under zero-out where the number of examples N is public, as it is
# where q = L/N was computed from N counted in the data. Both are the same event: with q fixed, a step without the
# example and a step in which its contribution is zero draw the others alike and release the same distribution, N(Σ, σ²)
# against the mixture (1 − q)·N(Σ, σ²) + q·N(Σ + v, σ²), so the pair of distributions, and with it ε, is the same; what
# differs is only what it is said to hide: under add-remove also that the example was there.
#
# Where independent noise follows a public schedule σ_t, the compositions run over the steps' (epochs', visits') own
# σ_t. Everything else is refused, and the refusal says what to use instead. Events are written for the sensitivity of
# their own adjacency: under `replace` one example leaves and another comes, so that Gaussian(σ) becomes Gaussian(σ/2).


def own_adjacency(participation: Participation) -> Adjacency:
    """The neighbouring relation under which a participation is analysed unless another is asked for."""
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
    raise Refused(_unknown(participation))


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
            return structure.single()  # restarted every epoch (or independent), so an epoch is one participation
        case sampling.SameOrder(per_epoch=per_epoch):
            return structure.same_order(per_epoch)
        case sampling.Separated(times=times, apart=apart):
            return structure.separated(times, apart)
    raise Refused(_unknown(participation))


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
    """Refuse what the table does not hold, with the reason and the remedy."""
    if structure.steps < participation.steps:
        raise Refused(f"the noise covers {structure.steps} steps and the sampler takes {participation.steps}")
    own = own_adjacency(participation)
    match participation:
        case sampling.PoissonSampled() | sampling.WithoutReplacement() if structure.bands != 1:
            raise Refused(
                "correlated noise has no proof on batches that are sampled anew at every step, because the same "
                "example can meet correlated steps at unknown distances: use fixed batches in the same order "
                "(sampling 'same-order'), or banded noise with cyclic Poisson sampling (method dp-bandmf)"
            )
        case sampling.Reshuffled(per_epoch=b) if structure.restarts is None or b % structure.restarts:
            raise Refused(
                "batches reshuffled every epoch are proven only with noise that is independent or restarted within "
                "every epoch: use sampling 'same-order', or restart the noise every epoch"
            )
        case sampling.CyclicPoissonSampled(groups=w) if structure.bands is None or structure.bands > w:
            raise Refused(
                f"cyclic Poisson sampling with {w} groups is proven only for noise of at most {w} bands: "
                "use that many bands, or fixed batches in the same order"
            )
    if participation.poisson_rate is not None and adjacency == "zero-out":
        return
    cyclic = isinstance(participation, sampling.CyclicPoissonSampled)
    if adjacency != own and (cyclic or adjacency != "replace"):
        public = ", or 'zero-out' where the number of examples is public" if own == "add-remove" else ""
        raise Refused(
            f"{type(participation).__name__} batches are analysed under '{own}' adjacency; "
            f"'{adjacency}' has no proof here: use '{own}'{public}"
        )


def _composed(
    structure: Strategy, length: int, scale: float, sampled: Callable[[dp_event.DpEvent], dp_event.DpEvent]
) -> dp_event.DpEvent:
    """One sampled Gaussian for each run of ``length`` steps; those that a noise schedule makes alike are counted."""
    parts = [
        dp_event.SelfComposedDpEvent(sampled(dp_event.GaussianDpEvent(scale / norm)), count)
        for norm, count in structure.block_norms(length).items()
    ]
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def _unknown(participation: object) -> str:
    return (
        f"{type(participation).__name__} is no participation with a proof: declare one of PoissonSampled, "
        "WithoutReplacement, OnePass, SameOrder, Separated, Reshuffled or CyclicPoissonSampled"
    )


# Steps that were taken again with fresh noise: which, and under which secret their batches are drawn.
#
# A step taken again with the same sums and the same secret is the same release and costs nothing. With other sums it
# takes a fresh secret, and both takings are charged (`hush.guarantees`). An attempt is a stretch of steps under one
# secret.


@dataclass(frozen=True)
class Replay:
    """The steps ``start`` … ``taken`` − 1 (from 0) under one secret."""

    start: int = 0
    taken: int = 0


@dataclass(frozen=True)
class ReplayHistory:
    """Every attempt of a run, and the one that it is on."""

    attempts: tuple[Replay, ...] = (Replay(),)
    current: int = 0

    @property
    def now(self) -> Replay:
        """The attempt that the run is on."""
        return self.attempts[self.current]

    @property
    def again(self) -> tuple[Replay, ...]:
        """All but the first."""
        return self.attempts[1:]

    def reached(self, steps: int) -> ReplayHistory:
        """The current attempt has taken all steps before this one."""
        if steps <= self.now.taken:
            return self
        moved = replace(self.now, taken=steps)
        return replace(self, attempts=(*self.attempts[: self.current], moved, *self.attempts[self.current + 1 :]))

    def renewed(self, step: int) -> ReplayHistory:
        """From this step on, another attempt."""
        return ReplayHistory((*self.attempts, Replay(step, step)), len(self.attempts))

    def joined(self, others: Sequence[Replay]) -> ReplayHistory:
        """With what another record knows of the same attempts: whatever was taken by either was taken."""
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
    """The secret that batches are drawn by: fixed batches by the first one for ever, coins by the present one. Groups
    that are fixed, with coins in them, take the stream `streams.ORDER`, which stays the first one's."""
    return secret.first if participation.fixed_batches else secret


def check_claims(mechanism: Mechanism) -> None:
    """Refuse a mechanism about which nothing is proven, unless a claim was accepted instead."""
    query = mechanism.query
    if not isinstance(query, Query):
        raise Refused(
            f"{type(query).__name__} is no query: it needs every method of hush.clipping.Query; `claims` of a plain "
            "sum returns BY_TABLE"
        )
    own = _own_claims(mechanism, mechanism.steps)
    if own is None:
        check_proof(mechanism.sampler.participation, mechanism.noise.structure, mechanism.neighbours)
        check_beside(mechanism.beside, None, mechanism.neighbours)
        return
    if not mechanism.noise.structure.alike:
        raise Refused(
            f"{type(query).__name__} has a proof of its own, which holds for noise that is independent and "
            "the same at every step: use Independent noise without a schedule"
        )
    if any(claim.adjacency != mechanism.neighbours for claim in own):
        raise Refused(
            f"method '{mechanism.method}' is analysed under '{own[0].adjacency}' adjacency; "
            f"'{mechanism.neighbours}' has no proof here: use '{own[0].adjacency}'"
        )
    if not any(claim.status == "proven" for claim in own) and not mechanism.accept_claimed:
        raise Refused(
            f"method '{mechanism.method}' has only a claimed ε, which this project could not prove: "
            "accept it with --accept-claimed (accept_claimed=True), or use a proven method such as dp-sgd"
        )
    for claim in own:
        check_beside(mechanism.beside, claim.event, claim.adjacency)


def claim_steps(
    mechanism: Mechanism, steps: int | None = None, sigma: float | None = None, *, start: int = 0
) -> tuple[Claim, ...]:
    """Every claim about the first ``steps`` steps (all by default) and the releases beside them, the proven one first;
    at another σ where one is given, and by the table for those from ``start`` on alone."""
    return tuple(_as_run(mechanism, claim) for claim in _claim_training(mechanism, steps, sigma, start=start))


def _claim_training(
    mechanism: Mechanism, steps: int | None = None, sigma: float | None = None, *, start: int = 0
) -> tuple[Claim, ...]:
    """The same of training alone."""
    count = mechanism.steps if steps is None else steps
    if not 1 <= count <= mechanism.steps:
        raise Refused(f"the plan has {mechanism.steps} steps, and the ε of its first {count} was asked for")
    own = _own_claims(mechanism, count, sigma)
    if own is not None:
        return own
    scale = (mechanism.sigma if sigma is None else sigma) * mechanism.sensitivity
    participation, structure = _drop(start, mechanism.sampler.participation, mechanism.noise.structure)
    event = event_of(participation, structure, scale, mechanism.neighbours, count - start)
    return (Claim(event, mechanism.neighbours, "proven", ""),)


def find_event(mechanism: Mechanism, steps: int | None = None, *, start: int = 0) -> Any:
    """The event of the first ``steps`` steps, or of those of them from ``start`` on, and of the releases beside them;
    refused where it has no proof. It is the same in fast arithmetic, where its ε is claimed."""
    claims = _claim_training(mechanism, steps, start=start)
    return _find_proven(mechanism, [_with_beside(mechanism, claim) for claim in claims])


def _find_proven(mechanism: Mechanism, claims: Iterable[Claim]) -> Any:
    for claim in claims:
        if claim.status == "proven":
            return claim.event
    raise Refused(f"method '{mechanism.method}' has no proven privacy event")


def has_proof(mechanism: Mechanism) -> bool:
    """Whether its event is proven, in whichever arithmetic it is computed."""
    return any(claim.status == "proven" for claim in _claim_training(mechanism))


def claim_attempts(mechanism: Mechanism, attempts: Iterable[Replay]) -> tuple[Claim, ...]:
    """What these attempts cost together, with the releases beside them, by every claim that there is about the
    mechanism; the proven one first."""
    taken = [attempt for attempt in attempts if attempt.taken > attempt.start]
    reason = _say_again(taken)
    own = _own_claims(mechanism, sum(attempt.taken for attempt in taken))
    if own is not None:
        return tuple(_as_run(mechanism, _give_reason(claim, reason)) for claim in own)
    anew = is_drawn_anew(mechanism)
    training = [_claim_training(mechanism, a.taken, start=a.start if anew else 0) for a in taken]
    parts = [_find_proven(mechanism, claims) for claims in training]
    event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
    return (_as_run(mechanism, Claim(event, mechanism.neighbours, "proven", reason)),)


def account_steps(mechanism: Mechanism, steps: int | None = None, coordinates: int = 1) -> tuple[Guarantee, ...]:
    """Every ε of the first ``steps`` steps, each with its status; the proven one first."""
    if not mechanism.private:
        return (_promise_nothing(mechanism),)
    said = mechanism.assuming(FIXED if steps is not None and steps < mechanism.steps else "")
    left, beside = mechanism.delta_left(), mechanism.tails_beside(coordinates)
    return tuple(_account(said, claim, left, beside) for claim in claim_steps(mechanism, steps))


def account_attempts(mechanism: Mechanism, history: ReplayHistory, coordinates: int = 1) -> tuple[Guarantee, ...]:
    """Every ε of the whole plan, where some steps were taken more than once with noise of their own, of so many
    coordinates."""
    if not mechanism.private or not history.again:
        return account_steps(mechanism, coordinates=coordinates)
    attempts = history.reached(mechanism.steps).attempts
    said, left = mechanism.assuming(BLINDLY), find_accounted_delta(mechanism, history, coordinates)
    return tuple(_account(said, claim, left) for claim in claim_attempts(mechanism, attempts))


def find_accounted_delta(mechanism: Mechanism, history: ReplayHistory, coordinates: int = 1) -> float:
    """δ at which `account_attempts` asks the accountant: what the tails and the places of a batch leave of it."""
    if not mechanism.private or not history.again:
        return mechanism.delta_left()
    attempts = history.reached(mechanism.steps).attempts
    lost = len(attempts) * mechanism.tails_beside(coordinates)
    return mechanism.delta_left(sum(attempt.taken for attempt in attempts), len(attempts)) - lost


def find_composed_delta(mechanism: Mechanism, history: ReplayHistory, coordinates: int = 1) -> float:
    """The same where the run is composed with others: what tails cost for one ε alone is of no use there."""
    left = find_accounted_delta(mechanism, history, coordinates)
    return left if history.again or not mechanism.private else left - mechanism.tails_beside(coordinates)


def find_sigma(mechanism: Mechanism, epsilon: float, which: int = 0) -> float:
    """The smallest σ at which the ε of a claim, the first of them by default, does not exceed this one."""

    def event(sigma: float) -> Any:
        return claim_steps(mechanism, None, sigma)[which].event

    accountant = _pick_accountant(mechanism, event(1.0))
    left, near = mechanism.delta_left(), mechanism.neighbours
    return calibration.smallest_sigma(event, epsilon, left, adjacency=near, accountant=accountant)


def _pick_accountant(mechanism: Mechanism, event: Any) -> Accountant:
    """The accountant that was asked for, or the tightest that can prove the event."""
    asked = mechanism.accountant
    return accounting.default_accountant(event, mechanism.neighbours) if asked == "auto" else asked


def is_drawn_anew(mechanism: Mechanism) -> bool:
    """Whether batches and noise of a step have nothing to do with those of any other."""
    sampled = mechanism.sampler.participation.resampled
    plain = all(channel.proof == "sum" for channel in mechanism.query.channels.values())
    return sampled and plain and mechanism.noise.structure.bands == 1


def _own_claims(mechanism: Mechanism, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | None:
    """What the query itself says about so many steps, the proven first; None where the table speaks for it, which it
    can for plain sums alone, however many steps were asked about."""
    found = _ask_query(mechanism, steps)
    if isinstance(found, PlainSumProof):
        if any(channel.proof != "sum" for channel in mechanism.query.channels.values()):
            name = type(mechanism.query).__name__
            raise Refused(f"{name} is no plain sum and names no claims of its own: nothing is proven")
        return None
    if sigma is not None:
        found = _ask_query(mechanism, steps, sigma)
    if isinstance(found, PlainSumProof) or not found:
        name = type(mechanism.query).__name__
        raise Refused(f"{name} claims nothing: return its claims, or PLAIN_SUM where every channel is a plain sum")
    return tuple(sorted((_restate(claim, mechanism) for claim in found), key=lambda claim: claim.status != "proven"))


def _ask_query(mechanism: Mechanism, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | PlainSumProof:
    """The query is told the noise in units of its exact bounds: what rounding adds to them is in the noise that is
    run."""
    stds = {name: std / (1.0 + mechanism.charge) for name, std in mechanism.channel_stds(sigma).items()}
    return mechanism.query.claims(mechanism.sampler.participation, stds, steps)


def _restate(claim: Claim, mechanism: Mechanism) -> Claim:
    """Add-remove claims hold under zero-out too: an example that adds zero to every sum may as well be absent."""
    if mechanism.adjacency == "zero-out" and claim.adjacency == "add-remove":
        return replace(claim, adjacency="zero-out")
    return claim


def _as_run(mechanism: Mechanism, claim: Claim) -> Claim:
    """The claim about training and the releases beside it, in the arithmetic that computes it: what would be proven is
    claimed where it is fast."""
    whole = _with_beside(mechanism, claim)
    if whole.status != "proven" or not mechanism.noisy or mechanism.arithmetic != "fast":
        return whole
    return _give_reason(replace(whole, status="claimed"), FAST)


def _with_beside(mechanism: Mechanism, claim: Claim) -> Claim:
    """The claim about training and the releases beside it together."""
    if mechanism.beside:
        together = replace(claim, event=compose_beside(claim.event, mechanism.beside))
        claim = _give_reason(together, f"this covers the model and {join_names(mechanism.beside)} together")
    return claim if mechanism.trials is None else _with_choice(mechanism.trials, claim)


def _with_choice(trials: Trials, claim: Claim) -> Claim:
    """The claim about the best of a secret number of such runs; each of them costs what the claim says, at most."""
    if claim.status != "proven" or events.to_json(claim.event) is None:
        raise Refused(
            "the price of choosing among trials is known for a proven event that can be written down, such as dp-sgd's"
        )
    reason = f"this covers the choice of the best of a secret number of trials, {trials.mean:g} on average"
    return _give_reason(replace(claim, event=trials.event(claim.event)), reason)


def _give_reason(claim: Claim, reason: str) -> Claim:
    """The claim with one more reason, said first."""
    return replace(claim, reason="; ".join(filter(None, (reason, claim.reason))))


def _drop(start: int, participation: Any, structure: Strategy) -> tuple[Any, Strategy]:
    """Participation and noise of the steps from ``start`` on, where every step stands alone."""
    if start == 0:
        return participation, structure
    return replace(participation, steps=participation.steps - start), drop_first(structure, start)


def _say_again(taken: Sequence[Replay]) -> str:
    if len(taken) < 2:
        return ""
    parts = " and ".join(f"{a.start + 1} to {a.taken}" for a in taken[1:])
    why = "as their sums had changed or could not be compared"
    return f"steps {parts} were taken again with fresh noise, {why}, and every taking is counted"


def _account(mechanism: Mechanism, claim: Claim, left: float, beside: float = 0.0) -> Guarantee:
    """The ε of a claim at what is ``left`` of δ, and at a larger ε without ``beside``, which it loses there too."""
    accountant, epsilon = _pick_accountant(mechanism, claim.event), math.inf
    if left > 0:
        epsilon = accounting.epsilon(claim.event, left, adjacency=claim.adjacency, accountant=accountant)
    if mechanism.trials is not None and epsilon > mechanism.trials.ceiling:
        epsilon = math.inf  # what the trials lose of δ is counted up to there
    return Guarantee(
        epsilon=epsilon,
        delta=mechanism.delta,
        adjacency=claim.adjacency,
        status=claim.status,
        event=claim.event,
        accountant=accountant,
        assumptions=_list_assumptions(mechanism),
        reason=claim.reason,
        method=mechanism.method,
        unit=mechanism.unit,
        protects=claim.protects,
        # what trials lose is counted up to one ε, so it is not known at other δ
        lost=None if mechanism.trials else (mechanism.delta - left, mechanism.delta - left + beside),
    )


def _list_assumptions(mechanism: Mechanism) -> tuple[str, ...]:
    """What the guarantee rests on, each once: the plan's own, those of the releases beside it, of a choice, and that
    parts that are not hush's keep their word."""
    theirs = [text for release in mechanism.beside for text in release.assumptions]
    parts = {"sampler": mechanism.sampler, "query": mechanism.query, "noise": mechanism.noise}
    theirs += [KEPT.format(kind, type(part).__qualname__) for kind, part in parts.items() if not _is_own(part)]
    theirs += [] if mechanism.trials is None else [INDEPENDENT]
    return tuple(dict.fromkeys((*mechanism.assumptions, *theirs))) if theirs else mechanism.assumptions


def _is_own(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "hush"


def _promise_nothing(mechanism: Mechanism) -> Guarantee:
    return Guarantee(
        epsilon=math.inf,
        delta=mechanism.delta,
        adjacency="add-remove",
        status="none",
        event=None,
        accountant="none",
        reason="ordinary training: no clipping and no noise",
        unit=mechanism.unit,
    )


# The privacy card: what is said publicly about a run.

NOTHING_AGAIN = ReplayHistory()
LATER = ("dataset", "date", "digests", "own_digest")  # entries that a card gets when it is released


def make_card(
    mechanism: Mechanism,
    *,
    steps_taken: int,
    history: ReplayHistory = NOTHING_AGAIN,
    coordinates: int = 1,
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The guarantee of a run, every claim, and the mechanism itself, as plain data.

    ``figures`` are entries about how good the model is that may be released: of public rows, or of counts with noise
    whose release is one of ``mechanism.beside``."""
    claims = [_write(guarantee) for guarantee in account_attempts(mechanism, history, coordinates)]
    accounted = {"event": claims[0]["event_json"], "delta": find_accounted_delta(mechanism, history, coordinates)}
    stated = {
        "format": "hush privacy card 1",
        "method": mechanism.method,
        "guarantee": claims[0],
        "claims": claims,
        "accounting": accounted,
        "noise_multiplier": mechanism.sigma,
        "sensitivity": mechanism.sensitivity,
        "noise_std": mechanism.noise_std,
        "arithmetic": _tell_arithmetic(mechanism),
        "divisor": mechanism.divisor,
        "steps": mechanism.steps,
        "steps_taken": steps_taken,
        "beside": [release.to_json() for release in mechanism.beside],
        "plan": describe(mechanism),
        "versions": read_versions("hush", "torch", "dp-accounting"),
    }
    if mechanism.rows_per_unit is not None:
        stated["rows_per_unit"] = mechanism.rows_per_unit
    return {**stated, **_check_figures(figures or {}, stated.keys())}


def _check_figures(figures: Mapping[str, Any], stated: Collection[str]) -> Mapping[str, Any]:
    """Refuse figures in the place of what the card states by itself."""
    taken = sorted(name for name in figures if name in stated or name in LATER)
    if taken:
        raise InvalidInputError(f"figures cannot have the name '{taken[0]}', which the privacy card has: give another")
    return figures


def _write(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as JSON; where its event cannot be rebuilt from that, with points (ε, δ) of its curve."""
    written = guarantee.to_json()
    if guarantee.private and written["event_json"] is None:
        written["points"] = sample_points(curve_of_guarantee(guarantee), guarantee.epsilon)
    return written


def _tell_arithmetic(mechanism: Mechanism) -> dict[str, Any]:
    """What floating point costs: the places of a step, and the share that rounding adds to the bound."""
    room = mechanism.room
    lost = {"overflow": room.overflow, "delta": mechanism.steps * room.overflow}
    return {"mode": mechanism.arithmetic, "places": room.places, "charge": mechanism.charge, **lost}
