"""The published methods by name: each a function from the public setting to a plan, with its paper's defaults."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from hush import validate
from hush.errors import BadInput, nearest
from hush.imports import import_object
from hush.methods.auto import Candidate, auto, choose, reason, recommend
from hush.methods.catalogue import catalogue
from hush.methods.descent import Descent
from hush.methods.gradients import Gradients
from hush.methods.groups import Method, made, options
from hush.methods.setting import SAMPLINGS, Setting
from hush.plan import Plan
from hush.privacy.accounting import Adjacency
from hush.rules.averaged import Averaged, parse_average

__all__ = [
    "SAMPLINGS",
    "Candidate",
    "Descent",
    "Gradients",
    "Method",
    "Setting",
    "catalogue",
    "choose",
    "find",
    "make_plan",
    "options",
    "reason",
    "recommend",
]


LEAST, MOST = 1e-12, 1e12  # of an ε and of noise


def find(name: str) -> Method:
    """A method by its name, the best for the setting (``auto``), or somebody else's by ``package.module:factory``."""
    if name == "auto":
        return auto
    if ":" in name:
        return _of_others(name)
    known = catalogue()
    if name not in known:
        raise BadInput(f"unknown method '{name}': {nearest(name, known)}")
    return known[name]


def _of_others(name: str) -> Method:
    """A factory of others, which must be callable with a setting."""
    found: Method = import_object(name)
    try:
        options(found)
        if not inspect.signature(found).parameters:
            raise TypeError("no parameter for the setting")
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise BadInput(f"'{name}' is no method: a function of a setting and of options by name was expected") from error
    return found


def make_plan(
    method: str,
    *,
    examples: int,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sample_rate: float | None = None,
    sampling: str | None = None,
    delta: float = 1e-5,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    node_noise: float | None = None,
    adjacency: Adjacency | None = None,
    accountant: str = "auto",
    accept_claimed: bool = False,
    average: str | None = None,
    arithmetic: str = "default",
    assumptions: tuple[str, ...] = (),
    counted: bool = False,
    calibrate: bool = True,
    **chosen: Any,
) -> Plan:
    """A calibrated plan: give ``epsilon``, or the noise as ``noise_multiplier`` (σ of the event) or ``node_noise``.

    ``examples`` is a public constant: a number that you declare, and Poisson batches then hide whether an example is
    there at all (add-remove). If you counted the data to get it, say ``counted=True``: the number is taken to be
    public, and the guarantee is that one example's contribution might as well be zero (zero-out), at the same ε.

    Method ``auto`` takes the best candidate at ``epsilon`` (see :func:`recommend` and :func:`choose`).
    ``average`` releases the average of the iterates: "ema:0.999", or "tail:0.25" for the last quarter of the steps.
    ``arithmetic="rigorous"`` gives every step a fixed number of rows, so that nothing is assumed about rounding inside
    the model; it costs the empty rows.
    ``calibrate=False`` leaves σ at 1 where ``epsilon`` is given, for a caller that calibrates itself or needs no noise.

    >>> plan = make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, epsilon=3.0, lr=0.5, clip=1.0)
    """
    validate.probability(delta=delta)
    validate.one_of(("auto", "pld", "rdp", "gdp"), accountant=accountant)
    factory = find(method)
    _check_options(method, factory, chosen)
    setting = Setting(
        examples,
        batch_size,
        epochs,
        steps,
        sample_rate,
        sampling,
        delta,
        adjacency,
        accountant,
        accept_claimed,
        assumptions,
        epsilon,
        arithmetic,
        counted,
    )
    plan = made(factory, setting, chosen)
    if not isinstance(plan, Plan):
        raise BadInput(f"'{method}' returned {type(plan).__name__} where a hush.Plan was expected")
    if average is not None:
        plan = replace(plan, rule=Averaged(plan.rule, plan.steps, *parse_average(average)))
    if not plan.private:
        if epsilon is not None or noise_multiplier is not None or node_noise is not None:
            raise BadInput(f"method '{method}' adds no noise: it takes no ε and no noise multiplier")
        return plan
    _check_noise(epsilon=epsilon, noise_multiplier=noise_multiplier, node_noise=node_noise)
    given = [x for x in (epsilon, noise_multiplier, node_noise) if x is not None]
    if len(given) != 1:
        raise BadInput("give exactly one of epsilon, noise_multiplier and node_noise")
    if epsilon is not None:
        return plan.calibrated(epsilon) if calibrate else plan
    if noise_multiplier is not None:
        return replace(plan, sigma=float(noise_multiplier))
    assert node_noise is not None
    return replace(plan, sigma=float(node_noise) / plan.sensitivity)


def _check_noise(**given: float | None) -> None:
    """Numbers whose squares, and the squares' inverses, floats can hold."""
    for name, value in given.items():
        if value is not None:
            validate.positive(**{name: value})
            if not LEAST <= value <= MOST:
                raise BadInput(f"{name} must lie between {LEAST:g} and {MOST:g}, got {value:g}")


def _check_options(name: str, method: Method, chosen: dict[str, Any]) -> None:
    known = options(method)
    for key in chosen:
        if key not in known:
            raise BadInput(f"method '{name}' has no option '{key}': {nearest(key, known)}")
