"""An optimizer and a schedule of torch's own in place of a method's SGD: the same release, another rule after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from hush.errors import BadInput, Refused
from hush.methods.groups import Descent
from hush.plan import Plan
from hush.rules import SGD, ClipUnits, TorchOptim

MakeOptimizer = Callable[[list[tuple[str, Tensor]]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]


def make_rule(
    optimizer: MakeOptimizer | None, scheduler: MakeScheduler | None, given: Iterable[str]
) -> TorchOptim | None:
    """The rule of these two, None where there is neither; refused beside options that the optimizer has itself.

    ``optimizer`` gets what ``model.named_parameters()`` would give, of the parameters that are trained."""
    if optimizer is None:
        if scheduler is not None:
            raise BadInput("a scheduler follows an optimizer: give optimizer=lambda params: … too")
        return None
    _check_function("optimizer", optimizer, "params: torch.optim.AdamW(params, lr=1e-3)")
    if scheduler is not None:
        _check_function("scheduler", scheduler, "optimizer: CosineAnnealingLR(optimizer, T_max=steps)")
    twice = [f.name for f in fields(Descent) if f.name in given]
    if twice:
        raise BadInput(f"the optimizer has its own {' and '.join(twice)}: give {_them(twice)} to the optimizer alone")
    return TorchOptim(lambda params: optimizer(list(params.items())), scheduler)


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _check_function(name: str, value: Any, example: str) -> None:
    if not callable(value):
        raise BadInput(
            f"{name} must be a function that makes one, for a plan is made before any model: {name}=lambda {example}, "
            f"got {type(value).__name__}"
        )


def put_in_place(plan: Plan, rule: TorchOptim) -> Plan:
    """The plan with another rule in the place of SGD; refused where the method is its rule."""
    if plan.releases_rows:
        return replace(plan, rule=rule)
    match plan.rule:
        case SGD():
            return replace(plan, rule=rule)
        case ClipUnits(rule=SGD()):
            return replace(plan, rule=replace(plan.rule, rule=rule))
    raise Refused(
        f"the rule is what makes method '{plan.method}', so no other optimizer can take its place: leave the optimizer "
        "out, or use dp-sgd, whose release is for any optimizer"
    )
