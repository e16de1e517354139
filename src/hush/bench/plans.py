"""The plan of a run before its calibration, made as :func:`hush.methods.make_plan` makes it.

Some methods choose their shape by ε (the bands of dp-bandmf, everything in auto), so ε goes into the setting. The
calibration itself is left to the caller: a sweep keeps its result, and a check or a timing needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hush import validate
from hush.errors import BadInput
from hush.methods import Setting, find, make_plan
from hush.methods.groups import made
from hush.plan import Plan
from hush.rules.averaged import Averaged, parse_average

NOISE = ("epsilon", "noise_multiplier", "node_noise")


def sketch(
    method: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    examples: int,
    assumptions: tuple[str, ...] = (),
) -> Plan:
    """The plan of these settings and options; where they give ε it is not calibrated yet, and σ is 1."""
    if [name for name in NOISE if settings.get(name) is not None] != ["epsilon"]:
        return make_plan(method, examples=examples, assumptions=assumptions, **settings, **options)
    validate.positive(epsilon=settings["epsilon"])
    validate.probability(delta=settings.get("delta", 1e-5))
    validate.one_of(("auto", "pld", "rdp", "gdp"), accountant=settings.get("accountant", "auto"))
    public = {name: value for name, value in settings.items() if name not in ("average", *NOISE[1:])}
    plan = made(find(method), Setting(examples=examples, assumptions=assumptions, **public), dict(options))
    if not plan.private:
        raise BadInput(f"method '{method}' adds no noise: it takes no ε and no noise multiplier")
    average = settings.get("average")
    return plan if average is None else replace(plan, rule=Averaged(plan.rule, plan.steps, *parse_average(average)))
