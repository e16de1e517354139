"""Choose a method: the expected error of every candidate at the same (ε, δ), the smallest first.

The error is the root mean square, over steps, of the noise in a weight, in units of lr · clip / batch size:
σ · sens(C) · rmse(A C⁻¹), where A is the workload of the optimizer (prefix sums for SGD). Independent noise with
amplification by sampling is compared in the same way. The error does not depend on the learning rate or on the bias of
clipping; it ranks the noise alone. Every number is computed from a plan that could be run.

Prefix sums count old noise in full, but training forgets some of it, which helps independent noise more than noise that
is large at every step and cancels later. So another method replaces DP-SGD only if its error is smaller by `MARGIN`.
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
    """A method for a setting, its noise multiplier at (ε, δ), and the expected error in the model."""

    method: str
    sigma: float
    sensitivity: float
    rmse: float
    sampling: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """σ · sens · rmse: the noise in the weights, in units of the clip."""
        return self.sigma * self.sensitivity * self.rmse

    @property
    def name(self) -> str:
        """The method and its options."""
        return ", ".join([self.method, *(f"{key}={value}" for key, value in self.options.items())])


def auto(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions) -> Plan:
    """The method whose noise is expected to disturb the model least at the given ε; dp-sgd where that gains little.

    For a choice of the noise by its expected error.
    """
    best = choose_candidate(recommend(setting, descent, gradients))
    return _plan(setting, best.method, best.options, descent, gradients)


def recommend(
    setting: PlanConfig,
    descent: SGDOptions = SGDOptions(),
    gradients: ClippingOptions = ClippingOptions(),
    notify: Notify = lambda name: None,
) -> tuple[Candidate, ...]:
    """Every candidate at the setting's ε, the smallest expected error first; ``notify`` gets the name of each before
    it is computed."""
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
    """The setting without the fields that do not change the result, so that it is computed once."""
    return replace(setting, assumptions=(), average=None, noise_multiplier=None, node_noise=None)


def choose_candidate(candidates: tuple[Candidate, ...]) -> Candidate:
    """The candidate with the smallest error, or dp-sgd unless that error is smaller by `MARGIN`."""
    best, plain = candidates[0], _plain(candidates)
    return best if plain is None or plain.error > MARGIN * best.error else plain


def explain_choice(candidates: tuple[Candidate, ...]) -> str:
    """The choice and its reason, as one sentence."""
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
    """A callback that compares equal to every other, so that it is no part of a cache key."""

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
    """The method's plan; `InvalidInputError` if the method lacks an option of the descent that was given."""
    factory = catalogue()[method]
    for name, value in vars(descent).items():
        if name in options(factory):
            chosen = {**chosen, name: value}
        elif value != getattr(SGDOptions(), name):
            raise InvalidInputError(f"{method} has no {name.replace('_', ' ')}")
    return call_method(factory, setting, {**vars(gradients), **chosen})
