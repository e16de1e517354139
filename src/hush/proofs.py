"""The one place where sampler and noise become a privacy event: the table of what is proven.

| participation                 | noise                        | event                                          |
|-------------------------------|------------------------------|------------------------------------------------|
| Poisson, rate q               | independent                  | T × PoissonSampled(q, Gaussian(σ))             |
| fixed size                    | independent                  | T × SampledWithoutReplacement(N, L, Gaussian)  |
| same order, separated, a pass | any C                        | Gaussian(σ), Z scaled by sens(C)               |
| reshuffled every epoch        | restarted within every epoch | epochs × Gaussian(σ)                           |
| cyclic Poisson, w groups      | at most w bands              | ⌈T/w⌉ × PoissonSampled(q, Gaussian(σ))         |

Poisson batches are analysed under add-remove, or under zero-out where the number of examples N is public, as it is
where q = L/N was computed from N counted in the data. Both are the same event: with q fixed, a step without the
example and a step in which its contribution is zero draw the others alike and release the same distribution, N(Σ, σ²)
against the mixture (1 − q)·N(Σ, σ²) + q·N(Σ + v, σ²), so the pair of distributions, and with it ε, is the same; what
differs is only what it is said to hide: under add-remove also that the example was there.

Where independent noise follows a public schedule σ_t, the compositions run over the steps' (epochs', visits') own σ_t.
Everything else is refused, and the refusal says what to use instead. Events are written for the sensitivity of their
own adjacency: under `replace` one example leaves and another comes, so that Gaussian(σ) becomes Gaussian(σ/2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dp_accounting import dp_event

from hush import sampling
from hush.errors import Refused
from hush.matrices import Structure
from hush.privacy.accounting import Adjacency
from hush.sampling import Participation


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
            | sampling.CyclicPoisson()
        ):
            return "zero-out"
    raise Refused(_unknown(participation))


def find_sensitivity(participation: Participation, structure: Structure) -> float:
    """The largest ‖C Δ‖ over what one example of unit norm can contribute in one unit of the event.

    The unit is the whole run where the event is one Gaussian, an epoch where it composes epochs, and one step (or
    one visit to a group) where it composes sampled steps.
    """
    match participation:
        case sampling.PoissonSampled() | sampling.WithoutReplacement():
            return 1.0
        case sampling.OnePass() | sampling.CyclicPoisson():
            return structure.single()
        case sampling.Reshuffled():
            return structure.single()  # restarted every epoch (or independent), so an epoch is one participation
        case sampling.SameOrder(per_epoch=per_epoch):
            return structure.same_order(per_epoch)
        case sampling.Separated(times=times, apart=apart):
            return structure.separated(times, apart)
    raise Refused(_unknown(participation))


def event_of(
    participation: Participation, structure: Structure, scale: float, adjacency: Adjacency, steps: int
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
        case sampling.CyclicPoisson(groups=w, rate=rate):
            return _composed(first, w, scale, lambda gaussian: dp_event.PoissonSampledDpEvent(rate, gaussian))
    return dp_event.GaussianDpEvent(scale / find_sensitivity(part, first))


def check_proof(participation: Participation, structure: Structure, adjacency: Adjacency) -> None:
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
        case sampling.CyclicPoisson(groups=w) if structure.bands is None or structure.bands > w:
            raise Refused(
                f"cyclic Poisson sampling with {w} groups is proven only for noise of at most {w} bands: "
                "use that many bands, or fixed batches in the same order"
            )
    if isinstance(participation, sampling.PoissonSampled) and adjacency == "zero-out":
        return
    if adjacency != own and not (adjacency == "replace" and not isinstance(participation, sampling.CyclicPoisson)):
        public = ", or 'zero-out' where the number of examples is public" if own == "add-remove" else ""
        raise Refused(
            f"{type(participation).__name__} batches are analysed under '{own}' adjacency; "
            f"'{adjacency}' has no proof here: use '{own}'{public}"
        )


def _composed(
    structure: Structure, length: int, scale: float, sampled: Callable[[dp_event.DpEvent], dp_event.DpEvent]
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
        "WithoutReplacement, OnePass, SameOrder, Separated, Reshuffled or CyclicPoisson"
    )
