"""What is claimed about a mechanism: its privacy events, what steps taken again add to them, and every ε.

A query whose channels are plain sums is charged by the table of `hush.proofs`; any other makes its claims itself. After
s steps were taken, going on from step t with a fresh secret (`hush.attempts`) costs, in the steps up to T,

| the mechanism                                          | costs                 |
|--------------------------------------------------------|-----------------------|
| batches and noise drawn anew at every step             | E(1…s) ∘ E(t+1…T)     |
| correlated noise, fixed batches, or a hidden state     | E(1…s) ∘ E(1…T)       |

where E(1…T) bounds the second stretch because it is a run of its own in which nobody takes part before step t: its
coins and its noise are fresh, the noise starts anew, and the fixed batches or groups stay those of the first secret, so
that nobody takes part more often than planned. A hidden state (DiceSGD's error) carries the first data on; its proof
charges every step for whatever the state holds, so the steps add up. Releases beside training (`hush.beside`) are made
once, however often steps are taken: each claim is composed with them once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dp_accounting import dp_event

from hush import proofs
from hush.attempts import Attempt, History
from hush.beside import check_beside, compose_beside, name_all
from hush.errors import Refused
from hush.matrices import Structure, drop_first
from hush.mechanism import Mechanism
from hush.privacy import accounting, calibration, event_json
from hush.privacy.accounting import Accountant
from hush.privacy.assumptions import BLINDLY, FIXED, KEPT
from hush.privacy.guarantee import Guarantee
from hush.privacy.selection import INDEPENDENT, Trials
from hush.queries import ByTable, Claim, Query
from hush.sampling import PoissonSampled, WithoutReplacement


def check_claims(mechanism: Mechanism) -> None:
    """Refuse a mechanism about which nothing is proven, unless a claim was accepted instead."""
    query = mechanism.query
    if not isinstance(query, Query):
        raise Refused(
            f"{type(query).__name__} is no query: it needs every method of hush.queries.Query; `claims` of a plain sum "
            "returns BY_TABLE"
        )
    own = _own_claims(mechanism, mechanism.steps)
    if own is None:
        proofs.check_proof(mechanism.sampler.participation, mechanism.noise.structure, mechanism.neighbours)
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
    return tuple(_with_beside(mechanism, claim) for claim in _claim_training(mechanism, steps, sigma, start=start))


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
    event = proofs.event_of(participation, structure, scale, mechanism.neighbours, count - start)
    return (Claim(event, mechanism.neighbours, "proven", ""),)


def find_event(mechanism: Mechanism, steps: int | None = None, *, start: int = 0) -> Any:
    """The proven event of the first ``steps`` steps, or of those of them from ``start`` on, and of the releases beside
    them; refused where there is no proof."""
    return _find_proven(mechanism, claim_steps(mechanism, steps, start=start))


def _find_proven(mechanism: Mechanism, claims: Iterable[Claim]) -> Any:
    for claim in claims:
        if claim.status == "proven":
            return claim.event
    raise Refused(f"method '{mechanism.method}' has no proven privacy event")


def claim_attempts(mechanism: Mechanism, attempts: Iterable[Attempt]) -> tuple[Claim, ...]:
    """What these attempts cost together, with the releases beside them, by every claim that there is about the
    mechanism; the proven one first."""
    taken = [attempt for attempt in attempts if attempt.taken > attempt.start]
    reason = _say_again(taken)
    own = _own_claims(mechanism, sum(attempt.taken for attempt in taken))
    if own is not None:
        return tuple(_with_beside(mechanism, _give_reason(claim, reason)) for claim in own)
    anew = is_drawn_anew(mechanism)
    training = [_claim_training(mechanism, a.taken, start=a.start if anew else 0) for a in taken]
    parts = [_find_proven(mechanism, claims) for claims in training]
    event = parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)
    return (_with_beside(mechanism, Claim(event, mechanism.neighbours, "proven", reason)),)


def account_steps(mechanism: Mechanism, steps: int | None = None) -> tuple[Guarantee, ...]:
    """Every ε of the first ``steps`` steps, each with its status; the proven one first."""
    if not mechanism.private:
        return (_promise_nothing(mechanism),)
    said = mechanism.assuming(FIXED if steps is not None and steps < mechanism.steps else "")
    return tuple(_account(said, claim, mechanism.delta_left()) for claim in claim_steps(mechanism, steps))


def account_attempts(mechanism: Mechanism, history: History, coordinates: int = 1) -> tuple[Guarantee, ...]:
    """Every ε of the whole plan, where some steps were taken more than once with noise of their own, of so many
    coordinates."""
    if not mechanism.private or not history.again:
        return account_steps(mechanism)
    attempts = history.reached(mechanism.steps).attempts
    said, left = mechanism.assuming(BLINDLY), find_accounted_delta(mechanism, history, coordinates)
    return tuple(_account(said, claim, left) for claim in claim_attempts(mechanism, attempts))


def find_accounted_delta(mechanism: Mechanism, history: History, coordinates: int = 1) -> float:
    """δ at which `account_attempts` asks the accountant: what the tails and the places of a batch leave of it."""
    if not mechanism.private or not history.again:
        return mechanism.delta_left()
    attempts = history.reached(mechanism.steps).attempts
    lost = len(attempts) * mechanism.tails_beside(coordinates)
    return mechanism.delta_left(sum(attempt.taken for attempt in attempts), len(attempts)) - lost


def find_composed_delta(mechanism: Mechanism, history: History, coordinates: int = 1) -> float:
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
    sampled = isinstance(mechanism.sampler.participation, (PoissonSampled, WithoutReplacement))
    plain = all(channel.proof == "sum" for channel in mechanism.query.channels.values())
    return sampled and plain and mechanism.noise.structure.bands == 1


def _own_claims(mechanism: Mechanism, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | None:
    """What the query itself says about so many steps, the proven first; None where the table speaks for it, which it
    can for plain sums alone, however many steps were asked about."""
    found = _ask_query(mechanism, steps)
    if isinstance(found, ByTable):
        if any(channel.proof != "sum" for channel in mechanism.query.channels.values()):
            name = type(mechanism.query).__name__
            raise Refused(f"{name} is no plain sum and names no claims of its own: nothing is proven")
        return None
    if sigma is not None:
        found = _ask_query(mechanism, steps, sigma)
    if isinstance(found, ByTable) or not found:
        name = type(mechanism.query).__name__
        raise Refused(f"{name} claims nothing: return its claims, or BY_TABLE where every channel is a plain sum")
    return tuple(sorted((_restate(claim, mechanism) for claim in found), key=lambda claim: claim.status != "proven"))


def _ask_query(mechanism: Mechanism, steps: int, sigma: float | None = None) -> tuple[Claim, ...] | ByTable:
    """The query is told the noise in units of its exact bounds: what rounding adds to them is in the noise that is
    run."""
    stds = {name: std / (1.0 + mechanism.charge) for name, std in mechanism.channel_stds(sigma).items()}
    return mechanism.query.claims(mechanism.sampler.participation, stds, steps)


def _restate(claim: Claim, mechanism: Mechanism) -> Claim:
    """Add-remove claims hold under zero-out too: an example that adds zero to every sum may as well be absent."""
    if mechanism.adjacency == "zero-out" and claim.adjacency == "add-remove":
        return replace(claim, adjacency="zero-out")
    return claim


def _with_beside(mechanism: Mechanism, claim: Claim) -> Claim:
    """The claim about training and the releases beside it together."""
    if mechanism.beside:
        together = replace(claim, event=compose_beside(claim.event, mechanism.beside))
        claim = _give_reason(together, f"this covers the model and {name_all(mechanism.beside)} together")
    return claim if mechanism.trials is None else _with_choice(mechanism.trials, claim)


def _with_choice(trials: Trials, claim: Claim) -> Claim:
    """The claim about the best of a secret number of such runs; each of them costs what the claim says, at most."""
    if claim.status != "proven" or event_json.to_json(claim.event) is None:
        raise Refused(
            "the price of choosing among trials is known for a proven event that can be written down, such as dp-sgd's"
        )
    reason = f"this covers the choice of the best of a secret number of trials, {trials.mean:g} on average"
    return _give_reason(replace(claim, event=trials.event(claim.event)), reason)


def _give_reason(claim: Claim, reason: str) -> Claim:
    """The claim with one more reason, said first."""
    return replace(claim, reason="; ".join(filter(None, (reason, claim.reason))))


def _drop(start: int, participation: Any, structure: Structure) -> tuple[Any, Structure]:
    """Participation and noise of the steps from ``start`` on, where every step stands alone."""
    if start == 0:
        return participation, structure
    return replace(participation, steps=participation.steps - start), drop_first(structure, start)


def _say_again(taken: Sequence[Attempt]) -> str:
    if len(taken) < 2:
        return ""
    parts = " and ".join(f"{a.start + 1} to {a.taken}" for a in taken[1:])
    why = "as their sums had changed or could not be compared"
    return f"steps {parts} were taken again with fresh noise, {why}, and every taking is counted"


def _account(mechanism: Mechanism, claim: Claim, left: float) -> Guarantee:
    """The ε of a claim at what is ``left`` of δ."""
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
