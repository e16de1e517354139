"""The published methods by name: each a function from the public setting to a plan, with its paper's defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from hush import validate
from hush.errors import BadInput, nearest
from hush.imported import imported
from hush.methods import correlated, independent
from hush.methods.auto import Candidate, auto, choose, reason, recommend
from hush.methods.gradients import Gradients
from hush.methods.setting import SAMPLINGS, Setting
from hush.plan import Plan
from hush.privacy.accounting import Adjacency
from hush.rules.averaged import Averaged, parse_average

__all__ = [
    "SAMPLINGS",
    "Candidate",
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

Method = Callable[..., Plan]
MODULES = (independent, correlated)  # every public function in these is a method


def catalogue() -> dict[str, Method]:
    """Every method that comes with hush, by name."""
    return {method.__name__.replace("_", "-"): method for module in MODULES for method in _made_in(module)}


def _made_in(module: Any) -> list[Method]:
    functions = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    public = [f for f in functions if not f.__name__.startswith("_")]
    return sorted(public, key=lambda f: f.__code__.co_firstlineno)


def find(name: str) -> Method:
    """A method by its name, the best for the setting (``auto``), or somebody else's by ``package.module:factory``."""
    if name == "auto":
        return auto
    if ":" in name:
        found: Method = imported(name)
        return found
    known = catalogue()
    if name not in known:
        raise BadInput(f"unknown method '{name}': {nearest(name, known)}")
    return known[name]


def options(method: Method) -> dict[str, inspect.Parameter]:
    """What can be set on a method: its keyword arguments, and the fields of the option groups that it takes."""
    hints = get_type_hints(method)
    parameters = inspect.signature(method).parameters.values()
    own = [p.replace(annotation=hints.get(p.name, Any)) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    shared = [option for kind in _groups(method).values() for option in _fields(kind)]
    return {option.name: option for option in (*own, *shared)}


def _groups(method: Method) -> dict[str, type]:
    """The option groups that a method takes after the setting (such as Gradients), by parameter name."""
    hints = get_type_hints(method)
    names = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    return {name: hints[name] for name in names if is_dataclass(hints.get(name))}


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    place = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, place, default=f.default, annotation=hints[f.name]) for f in fields(kind)]


def _made(method: Method, setting: Setting, chosen: dict[str, Any]) -> Plan:
    """The method's plan, with its option groups filled from what was chosen."""
    groups: dict[str, Any] = {}
    for name, kind in _groups(method).items():
        theirs = {option.name for option in _fields(kind)} & set(chosen)
        groups[name] = kind(**{key: chosen[key] for key in theirs})
        chosen = {key: value for key, value in chosen.items() if key not in theirs}
    return method(setting, **groups, **chosen)


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
    assumptions: tuple[str, ...] = (),
    **chosen: Any,
) -> Plan:
    """A calibrated plan: give ``epsilon``, or the noise as ``noise_multiplier`` (σ of the event) or ``node_noise``.

    Method ``auto`` takes the best candidate at ``epsilon`` (see :func:`recommend` and :func:`choose`).
    ``average`` releases the average of the iterates: "ema:0.999", or "tail:0.25" for the last quarter of the steps.

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
    )
    plan = _made(factory, setting, chosen)
    if average is not None:
        plan = replace(plan, rule=Averaged(plan.rule, plan.steps, *parse_average(average)))
    if not plan.private:
        if epsilon is not None or noise_multiplier is not None or node_noise is not None:
            raise BadInput(f"method '{method}' adds no noise: it takes no ε and no noise multiplier")
        return plan
    given = [x for x in (epsilon, noise_multiplier, node_noise) if x is not None]
    if len(given) != 1:
        raise BadInput("give exactly one of epsilon, noise_multiplier and node_noise")
    if epsilon is not None:
        return plan.calibrated(epsilon)
    if noise_multiplier is not None:
        validate.positive(noise_multiplier=noise_multiplier)
        return replace(plan, sigma=float(noise_multiplier))
    assert node_noise is not None
    validate.positive(node_noise=node_noise)
    return replace(plan, sigma=float(node_noise) / plan.sensitivity)


def _check_options(name: str, method: Method, chosen: dict[str, Any]) -> None:
    known = options(method)
    for key in chosen:
        if key not in known:
            raise BadInput(f"method '{name}' has no option '{key}': {nearest(key, known)}")
