"""The published methods by name: each a function from the public setting to a plan, with its paper's defaults.

>>> from hush import methods
>>> plan = methods.make_plan("dp-adam", examples=60_000, batch_size=256, epochs=20, epsilon=3, lr=1e-3)
>>> plan.steps, round(plan.sigma, 2)
(4700, 0.76)
>>> "dp-bandmf" in methods.catalogue()
True

In scope: names, options and defaults, and the choice of the parts of a plan. The parts themselves are in
`hush.sampling`, `hush.clipping`, `hush.noise` and `hush.optimizers`; the proofs are in `hush.guarantees`.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from hush._internal import validate
from hush._internal.imports import explain_errors, import_object
from hush._internal.settings import list_settings, write_help
from hush.errors import InvalidInputError, nearest
from hush.methods.auto import Candidate, auto, choose_candidate, explain_choice, recommend
from hush.methods.catalogue import Method, call_method, catalogue, option_groups, options, purpose
from hush.methods.config import SAMPLINGS, PlanConfig
from hush.methods.options import (
    ClippingOptions,
    MakeOptimizer,
    MakeScheduler,
    SGDOptions,
    make_optimizer,
    replace_optimizer,
)
from hush.optimizers.wrappers import bind_steps, chain, parse_average
from hush.plan import Plan

__all__ = [
    "SAMPLINGS",
    "Candidate",
    "SGDOptions",
    "ClippingOptions",
    "Method",
    "PlanConfig",
    "call_method",
    "catalogue",
    "choose_candidate",
    "explain_choice",
    "find",
    "make_plan",
    "option_groups",
    "options",
    "purpose",
    "recommend",
]


LEAST, MOST = 1e-12, 1e12  # of an ε and of noise
NEEDED = ("examples", "batch_size")


def find(name: str) -> Method:
    """A method by its name, the best for the setting (``auto``), or a third-party one, ``package.module:factory``."""
    if name == "auto":
        return auto
    if ":" in name:
        return _of_others(name)
    known = catalogue()
    if name not in known:
        raise InvalidInputError(f"unknown method '{name}': {nearest(name, ('auto', *known))}")
    return known[name]


def _of_others(name: str) -> Method:
    """A third-party factory, which must be callable with a setting."""
    found: Method = import_object(name)
    try:
        options(found)
        if not inspect.signature(found).parameters:
            raise TypeError("no parameter for the setting")
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise InvalidInputError(
            f"'{name}' is not a method: give a function of a setting and of keyword options"
        ) from error
    return found


def make_plan(
    method: str,
    setting: PlanConfig | None = None,
    *,
    calibrate: bool = True,
    optimizer: MakeOptimizer | None = None,
    scheduler: MakeScheduler | None = None,
    **given: Any,
) -> Plan:
    """A calibrated plan: give ``epsilon``, or the noise as ``noise_multiplier`` (σ of the event) or ``node_noise``.

    >>> plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, epsilon=3.0, lr=0.5, clip=1.0)

    ``examples`` is a public constant: a number that you declare, and Poisson batches then hide whether an example is
    in the data (add-remove). If you counted the data to get it, set ``counted=True``: the number is then public, and
    the guarantee compares the data with the same data where one example contributes zero (zero-out), at the same ε.

    Method ``auto`` takes the best candidate at ``epsilon`` (see :func:`recommend` and :func:`choose_candidate`).
    ``calibrate=False`` leaves σ at 1 if ``epsilon`` is given, for a caller that calibrates itself or needs no noise.
    ``setting`` replaces the settings below; settings given in addition override it. Other arguments are options of the
    method (`hush methods` lists them).

    ``optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3)`` replaces the method's SGD, at the same ε: it gets
    the named parameters when a run starts, and only released gradients. ``scheduler=lambda optimizer: …`` is stepped
    once after every step of the plan (``plan.steps`` in all), not once per epoch.
    """
    factory = find(method)
    known, of_method = list_settings(PlanConfig), options(factory)
    for key in given:
        if key not in known and key not in of_method:
            raise InvalidInputError(f"method '{method}' has no option '{key}': {nearest(key, {*known, *of_method})}")
    chosen = {key: value for key, value in given.items() if key not in known}
    setting = _complete(setting, {key: value for key, value in given.items() if key in known})
    wrapped = make_optimizer(optimizer, scheduler, given)
    with explain_errors(method) if ":" in method else nullcontext():
        plan = call_method(factory, setting, chosen)
    if not isinstance(plan, Plan):
        raise InvalidInputError(f"'{method}' returned {type(plan).__name__} where a hush.Plan was expected")
    if setting.sanitize_scale == "per-number" and not hasattr(plan.trains_on, "width"):
        raise InvalidInputError(f"sanitize_scale belongs to method sanitize, not to '{method}': leave it out")
    if wrapped is not None:
        plan = replace_optimizer(plan, wrapped)
    if setting.average not in (None, "none"):
        plan = replace(plan, optimizer=bind_steps(chain(plan.optimizer, parse_average(setting.average)), plan.steps))
    if plan.has_guarantee:
        return _with_noise(plan, setting, calibrate)
    if setting.noise:
        raise InvalidInputError(f"method '{method}' adds no noise: leave ε and the noise multiplier out")
    return plan


make_plan.__doc__ = f"{inspect.getdoc(make_plan)}\n\nSettings:\n\n{write_help(PlanConfig)}\n"


def _complete(setting: PlanConfig | None, given: dict[str, Any]) -> PlanConfig:
    if setting is not None:
        return replace(setting, **given)
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise InvalidInputError(
            f"a plan needs {' and '.join(missing)}: give {' and '.join(f'{name}=…' for name in missing)}"
        )
    return PlanConfig(**given)


def _with_noise(plan: Plan, setting: PlanConfig, calibrate: bool) -> Plan:
    """The plan with the noise given by ε, a noise multiplier or the noise of a node."""
    _check_noise(setting.noise)
    if len(setting.noise) != 1:
        raise InvalidInputError(
            "give exactly one of --epsilon, --noise-multiplier and --node-noise (epsilon=…, noise_multiplier=… or "
            "node_noise=…)"
        )
    if setting.epsilon is not None:
        return plan.with_epsilon(setting.epsilon) if calibrate else plan
    if setting.noise_multiplier is not None:
        return replace(plan, sigma=float(setting.noise_multiplier))
    return replace(plan, sigma=float(setting.noise["node_noise"]) / plan.sensitivity)


def _check_noise(given: dict[str, float]) -> None:
    """Raise for numbers whose square, or its inverse, would overflow a float."""
    for name, value in given.items():
        validate.positive(**{name: value})
        if not LEAST <= value <= MOST:
            raise InvalidInputError(f"{name} must lie between {LEAST:g} and {MOST:g}, got {value:g}")
