"""The method for those who do not want to choose: expected error of every candidate at the same (ε, δ), the best first.

The error is the root mean square, over steps, of the noise that a weight sees, in units of lr · clip / batch size:
σ · sens(C) · rmse(A C⁻¹), where A is what the rule makes of the noise (prefix sums for SGD). Independent noise with
amplification competes on the same terms. Error says nothing of the learning rate or of what clipping costs; it ranks
the noise alone. Every figure is that of a plan that could be run as it is.

Prefix sums count old noise in full, but training forgets some of it, which helps independent noise more than noise that
is large at every step and cancels later. So DP-SGD is left only for an error that is smaller by half (`MARGIN`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hush._internal import validate
from hush.errors import HushError, InvalidInputError, NotProvenError
from hush.methods import bandmf
from hush.methods.catalogue import call_method, catalogue, options
from hush.methods.config import PlanConfig
from hush.methods.options import ClippingOptions, SGDOptions
from hush.plan import Plan

DENSE = 600  # most steps for which the dense optimum over several epochs is worth its time in a recommendation
ONE_PASS = 1500  # the same for the optimum over one pass, which is found faster

MARGIN = 1.5  # by which another method must beat dp-sgd; at 1.08 times it lost 10 points on digits, at 5.3 it won 5
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """One method for a setting, its noise multiplier at (ε, δ), and the error that the model is expected to see."""

    method: str
    sigma: float
    sensitivity: float
    rmse: float
    sampling: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """σ · sens · rmse: noise in what the model sees, in units of the clip."""
        return self.sigma * self.sensitivity * self.rmse

    @property
    def name(self) -> str:
        """The method and what was chosen for it."""
        return ", ".join([self.method, *(f"{key}={value}" for key, value in self.options.items())])


def auto(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions) -> Plan:
    """The method whose noise is expected to disturb the model least at the given ε; dp-sgd where that gains little.

    For those who do not want to choose the noise.
    """
    best = choose_candidate(recommend(setting, descent, gradients))
    return _plan(setting, best.method, best.options, descent, gradients)


def recommend(
    setting: PlanConfig,
    descent: SGDOptions = SGDOptions(),
    gradients: ClippingOptions = ClippingOptions(),
    notify: Notify = lambda name: None,
) -> tuple[Candidate, ...]:
    """Every candidate at the setting's ε, the smallest expected error first; ``notify`` gets what is tried next."""
    if setting.epsilon is None:
        raise InvalidInputError("method 'auto' compares methods at the same ε: give epsilon, or name a method")
    validate.positive(epsilon=setting.epsilon)
    if setting.sampling is not None or setting.sample_rate is not None:
        raise InvalidInputError(
            "method 'auto' chooses the sampling with the method: leave sampling and sample rate out"
        )
    if gradients.noise_end != 1.0:
        raise InvalidInputError(
            "only dp-sgd's noise can follow a schedule, so there is nothing to compare: use method dp-sgd"
        )
    return _recommend(_same_question(setting), descent, gradients, _Quiet(notify))


def _same_question(setting: PlanConfig) -> PlanConfig:
    """The setting without what does not change the answer, so that it is worked out once."""
    return replace(setting, assumptions=(), average=None, noise_multiplier=None, node_noise=None)


def choose_candidate(candidates: tuple[Candidate, ...]) -> Candidate:
    """The candidate with the smallest error, or dp-sgd where that is not smaller by a clear margin."""
    best, plain = candidates[0], _plain(candidates)
    return best if plain is None or plain.error > MARGIN * best.error else plain


def explain_choice(candidates: tuple[Candidate, ...]) -> str:
    """In one sentence: what was chosen, and why."""
    best, plain, taken = candidates[0], _plain(candidates), choose_candidate(candidates)
    if len(candidates) == 1:
        return f"chose {best.name}: no other candidate fits this setting."
    if taken is not best:
        gain = f"{taken.error / best.error:.3g} times less noise in the weights"
        return f"chose {taken.name}: the best of {len(candidates)} candidates, {best.name}, leaves only {gain}."
    why = f"chose {best.name}: of {len(candidates)} candidates at the same ε it leaves the least noise in the weights"
    if plain is best:
        return f"{why}; sampling amplifies privacy by more here than correlated noise would gain."
    return f"{why}." if plain is None else f"{why}, {plain.error / best.error:.3g} times less than dp-sgd."


def _plain(candidates: tuple[Candidate, ...]) -> Candidate | None:
    return next((c for c in candidates if c.method == "dp-sgd"), None)


@dataclass(frozen=True)
class _Quiet:
    """A listener that does not count when questions are compared."""

    notify: Notify = field(compare=False)


@lru_cache(maxsize=32)
def _recommend(
    setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, quiet: _Quiet
) -> tuple[Candidate, ...]:
    found, refusal = [], None
    for method, chosen in _shapes(setting):
        quiet.notify(", ".join([method, *(f"{key}={value}" for key, value in chosen.items())]))
        try:
            found.append(_candidate(setting, method, chosen, descent, gradients))
        except HushError as error:
            refusal = error  # it does not fit this setting: another adjacency, say
    if not found:
        raise NotProvenError(f"no candidate fits this setting: {refusal}")
    return tuple(sorted(found, key=lambda candidate: candidate.error))


def _shapes(setting: PlanConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "dp-sgd", {}
    for bands in bandmf.possible_bands(setting)[1:]:
        yield "dp-bandmf", {"bands": bands}
    yield "dp-ftrl", {"honaker": True}
    yield "dp-bisr", {}
    yield "dp-blt", {}
    if bandmf.epochs(setting) == 1 and setting.total_steps <= ONE_PASS:
        yield "dp-matrix-se", {}
    elif setting.total_steps <= DENSE:
        yield "dp-matrix-me", {}


def _candidate(
    setting: PlanConfig, method: str, chosen: dict[str, Any], descent: SGDOptions, gradients: ClippingOptions
) -> Candidate:
    plan = _plan(setting, method, chosen, descent, gradients)
    assert setting.epsilon is not None
    sigma = plan.with_epsilon(setting.epsilon).sigma
    rmse = plan.noise.structure.rmse(descent.workload(plan.steps))
    sampling = {"dp-sgd": "poisson", "dp-bandmf": "cyclic"}.get(method, "same-order")
    return Candidate(method, sigma, plan.sensitivity, rmse, sampling, chosen)


def _plan(
    setting: PlanConfig, method: str, chosen: dict[str, Any], descent: SGDOptions, gradients: ClippingOptions
) -> Plan:
    """The method's plan; refused where it cannot do what was asked of the descent."""
    factory = catalogue()[method]
    for name, value in vars(descent).items():
        if name in options(factory):
            chosen = {**chosen, name: value}
        elif value != getattr(SGDOptions(), name):
            raise InvalidInputError(f"{method} has no {name.replace('_', ' ')}")
    return call_method(factory, setting, {**vars(gradients), **chosen})
